"""Benchmark datasets by name: found on disk or fetched, verified, read once, and kept as a copy in the cache."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from os.path import isfile  # False, too, where one may not look
from pathlib import Path

from torch_geometric.data import Data

from ..errors import AkeError
from . import cache, formats, own

VERSION = 1  # of the copies in the cache
FOLD_PLACES = ("tu/splits_gnn_comparison", "splits_gnn_comparison", "data_splits")
note = logging.getLogger(__name__).warning


@dataclass(frozen=True)
class Found:
    """The files of a dataset on this machine, by their names in :data:`cache.FILES`."""

    path: Path  # the folder, or the archive
    files: dict[str, Path]
    folds: dict[str, Path] = field(default_factory=dict)

    def every(self) -> dict[str, Path]:
        return {**self.files, **self.folds}


@dataclass(frozen=True)
class Source:
    """Where the files of a dataset lie and how they become graphs."""

    name: str
    # Folders below a root, each with the files it must hold. A file's first folder is its name in the checksums.
    places: tuple[tuple[str, tuple[str, ...]], ...]
    read: formats.Reader
    inside: str  # where the reader wants them, below its own root
    fetch: Callable[[Path], None] | None = None
    folds: dict[str, str] = field(default_factory=dict)  # attribute of a graph -> file below FOLD_PLACES
    pickled: bool = False  # opening the files can run code: only those whose hash is recorded are opened
    shared: tuple[str, ...] = ()  # places that may hold another dataset of the same file names: its edges tell
    hint: str = ""  # said when the files are missing or hold something else

    def load(self, root: str | Path | None = None) -> Data | list[Data]:
        """The graphs, from the finished copy if there is one of these very files."""
        found = self.find(root)
        union = cache.unpack(self._union(found) if found else self._fetched(root))
        if "nodes" not in union:
            return union
        for missing in (f for f in self.folds if f not in union):
            note("%s: without `%s`, %s was not found", self.name, missing, self.folds[missing])
        return formats.graphs_of(union, tuple(self.folds))

    def find(self, root: str | Path | None = None) -> Found | None:
        """The first place that holds all the files."""
        for top in cache.roots(root):
            for place, names in self.places:
                files = {self.key(n): top / place / n for n in names}
                if all(isfile(p) for p in files.values()) and self._ours(place, files):
                    path = top / place / names[0] if len(names) == 1 else top / place
                    return Found(path, files, self._find_folds(root))
        return None

    def key(self, name: str) -> str:
        return next(f"{place}/{name}" for place, names in self.places if name in names)

    def _ours(self, place: str, files: dict[str, Path]) -> bool:
        if place not in self.shared:
            return True
        telling = self.key("out1_graph_edges.txt")
        return cache.digest(files[telling]) == cache.FILES.get(telling)

    def _find_folds(self, root: str | Path | None) -> dict[str, Path]:
        found = {}
        for name in self.folds.values():
            for path in (top / place / name for top in cache.roots(root) for place in FOLD_PLACES):
                if isfile(path):
                    found[f"{FOLD_PLACES[0]}/{name}"] = path
                    break
        return found

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _union(self, found: Found) -> Data:
        hashes = {key: cache.digest(file) for key, file in found.every().items()}
        text = "\n".join([str(VERSION), self.name, *(f"{k} {h}" for k, h in sorted(hashes.items()))])
        path = cache.folder() / "processed" / f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.pt"
        kept = self._kept(path)
        if kept is None:
            kept = self._build(found)
            cache.keep(Data.from_dict({**kept.to_dict(), "content": cache.content(kept)}), path)
        return kept

    def _kept(self, path: Path) -> Data | None:
        """The finished copy, unless it is not there or not what it should be."""
        try:
            saved = own.read_saved(path)
            if not isinstance(saved, Data):
                return None
            values = saved.to_dict()
            noted = values.pop("content")
            kept = Data.from_dict(values)
            return kept if cache.content(kept) == noted and not self._differing(kept) else None
        except (AkeError, AttributeError, KeyError, TypeError, ValueError, RuntimeError):
            return None

    def _build(self, found: Found) -> Data:
        """Copy, verify the copy, read it: what is verified is what is read, and the files stay as they are."""
        with cache.workshop() as work:
            other = []
            for key, path in found.files.items():
                copy = work / self.inside / key.removeprefix(self._place_of(key) + "/")
                copy.parent.mkdir(parents=True, exist_ok=True)
                try:
                    shutil.copyfile(path, copy)
                except OSError as e:
                    raise AkeError(f"{path}: cannot be copied to {work} ({e.strerror})") from None
                if cache.digest(copy) != cache.FILES.get(key):
                    if self.pickled:
                        raise AkeError(
                            f"{path}: not the file of {self.name} (its SHA-256 differs), so it is not opened"
                        )
                    other.append(path)
            try:
                union = self.read(work)
            except AkeError as e:
                raise AkeError(f"{found.path}: {e}") from None
            except Exception as e:
                which = ", ".join(map(str, other)) or str(found.path)
                raise AkeError(f"{which}: cannot be read as {self.name} ({type(e).__name__})") from None
        for name, file in self.folds.items():
            if (key := f"{FOLD_PLACES[0]}/{file}") in found.folds:
                union[name] = formats.read_folds(found.folds[key], len(union.y))
        union = cache.pack(union)
        if differing := self._differing(union):
            raise AkeError(self._not_it(found, union, differing))
        return union

    def _place_of(self, key: str) -> str:
        return next(place for place, names in self.places if any(f"{place}/{n}" == key for n in names))

    def _differing(self, union: Data) -> list[str]:
        recorded, has = cache.CONTENT.get(self.name, {}), cache.content(union)
        missing = [k for k in recorded if k not in has and k not in self.folds]
        return missing + [k for k, h in has.items() if recorded.get(k, h) != h]

    def _not_it(self, found: Found, union: Data, differing: list[str]) -> str:
        has = cache.content(union)
        twin = next((n for n, c in cache.CONTENT.items() if c == has), None)
        what = f"its content is that of {twin!r}" if twin else f"its {', '.join(differing)} differ from those recorded"
        wrong = [str(p) for k, p in found.every().items() if cache.digest(p) != cache.FILES.get(k)]
        return f"{self.name}: {', '.join(wrong) or found.path}: {what}" + (f"; {self.hint}" if self.hint else "")

    # ---- fetching ----------------------------------------------------------------------------------------------------

    def _fetched(self, root: str | Path | None) -> Data:
        """Fetch into a folder of our own; only what turns out to be the dataset goes into the cache."""
        if self.fetch is None:
            raise AkeError(self.missing(root))
        if os.environ.get("AKEGNN_OFFLINE", "") not in ("", "0"):
            raise AkeError(self.missing(root, "AKEGNN_OFFLINE is set"))
        with cache.workshop() as work:
            try:
                self.fetch(work)
            except Exception as e:
                raise AkeError(self.missing(root, f"a download failed ({_brief(e)})")) from None
            place, names = self.places[0]
            files = {self.key(n): work / self.inside / n for n in names}
            if lost := [n for n, p in zip(names, files.values(), strict=True) if not isfile(p)]:
                raise AkeError(self.missing(root, f"a download lacked {', '.join(lost)}"))
            found = Found(work / self.inside, files, self._find_folds(root))
            try:
                union = self._build(found)
            except AkeError as e:
                told = str(e).replace(f"{work / self.inside}{os.sep}", "downloaded ")
                raise AkeError(told) from None
            for name, path in zip(names, files.values(), strict=True):
                cache.install(path, cache.folder() / place / name)
        return union

    def missing(self, root: str | Path | None = None, why: str = "") -> str:
        """One line: which files are wanted, and where they may be put."""
        tops = cache.roots(root)
        part = [
            f"{top / place} lacks {', '.join(n for n in names if not isfile(top / place / n))}"
            for top in tops
            for place, names in self.places
            if any(isfile(top / place / n) for n in names) and place not in self.shared
        ]
        kinds: dict[tuple[str, ...], list[str]] = {}
        for place, names in self.places:
            kinds.setdefault(names, []).append(place or ".")
        wanted = ", or ".join(f"{', '.join(names)} in {' or '.join(places)}" for names, places in kinds.items())
        looked = ", ".join(f"{top} ({what})" for top, what in tops.items())
        said = [f"{self.name}: not found; wanted {wanted}, below one of {looked}", *part, why, self.hint]
        return "; ".join(s for s in said if s)

    # ---- verifying ---------------------------------------------------------------------------------------------------

    def verify(self, root: str | Path | None = None) -> list[tuple[str, str]]:
        """Every file, and the content: ``ok``, ``differs``, ``missing``, ``not recorded``, or ``other`` for one whose
        bytes may differ. Empty where no file is found; nothing is fetched."""
        found = self.find(root)
        if found is None:
            return self._verify_some(root)
        rows = [(str(p), _verify_file(k, p)) for k, p in found.every().items()]
        rows += [(n, "missing") for n in self.folds.values() if f"{FOLD_PLACES[0]}/{n}" not in found.folds]
        try:
            self._union(found)
        except AkeError:
            return [*rows, ("content", "differs")]
        return [*rows, ("content", "ok" if self.name in cache.CONTENT else "not recorded")]

    def _verify_some(self, root: str | Path | None) -> list[tuple[str, str]]:
        """Of the first place that holds a part of the files."""
        for top in cache.roots(root):
            for place, names in self.places:
                paths = {self.key(n): top / place / n for n in names}
                if place not in self.shared and any(isfile(p) for p in paths.values()):
                    return [(str(p), _verify_file(k, p)) for k, p in paths.items()]
        return []


def _verify_file(key: str, path: Path) -> str:
    if not isfile(path):
        return "missing"
    if key not in cache.FILES:
        return "not recorded"
    return "ok" if cache.digest(path) == cache.FILES[key] else "other" if key in cache.REMADE else "differs"


def _brief(e: Exception) -> str:
    return " ".join(f"{type(e).__name__}: {e}".split())[:120]


# ---- the families ----------------------------------------------------------------------------------------------------


def planetoid(name: str, title: str) -> Source:
    """Cora, CiteSeer, PubMed with the public split."""
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    files = tuple(f"ind.{name}.{part}" for part in parts)
    return Source(
        name,
        ((f"planetoid/{title}/raw", files), (f"{title}/raw", files)),
        formats.pyg("Planetoid", name=title),
        f"{title}/raw",
        formats.pyg_download("Planetoid", name=title),
        pickled=True,
    )


def _geom_gcn(stem: str) -> tuple[str, ...]:
    splits = (f"{stem}_split_0.6_0.2_{k}.npz" for k in range(10))
    return ("out1_graph_edges.txt", "out1_node_feature_label.txt", *splits)


def wikipedia(name: str) -> Source:
    """Chameleon and Squirrel as Geom-GCN prepared them."""
    how = {"name": name, "geom_gcn_preprocess": True}
    inside, files = f"{name}/geom_gcn/raw", _geom_gcn(name)
    return Source(
        name,
        ((f"wikipedia/{inside}", files), (inside, files)),
        formats.pyg("WikipediaNetwork", **how),
        inside,
        formats.pyg_download("WikipediaNetwork", **how),
    )


def actor(name: str) -> Source:
    """Actor, also called Film."""
    files = _geom_gcn("film")
    places = tuple((place, files) for place in ("actor/raw", "Actor/raw", "raw"))
    return Source(name, places, formats.pyg("Actor"), "raw", formats.pyg_download("Actor"))


def webkb(name: str, title: str, places: tuple[str, ...] = (), shared: tuple[str, ...] = (), hint: str = "") -> Source:
    """Cornell, Texas, Wisconsin."""
    files = _geom_gcn(title)
    usual = places or (f"webkb/{title}/raw", f"{title}/raw")
    return Source(
        name,
        tuple((place, files) for place in usual + shared),
        formats.pyg("WebKB", name=title),
        f"{title}/raw",
        formats.pyg_download("WebKB", name=title),
        shared=shared,
        hint=hint,
    )


def tu(name: str, title: str, **folds: str) -> Source:
    """A TUDataset, archive or text files, with the folds of gnn-comparison."""
    archive, texts = (f"{title}.zip",), formats.tu_files(title)
    return Source(
        name,
        (
            *((place, archive) for place in ("tu", "")),
            *((place, texts) for place in (f"tu/{title}/raw", f"{title}/raw", f"tu/{title}", title)),
        ),
        formats.tu(title),
        f"{title}/raw",
        formats.pyg_download("TUDataset", name=title),
        folds={attribute: f"{file}_splits.json" for attribute, file in folds.items()},
    )


def arxiv(name: str, read: formats.Reader, features: tuple[str, ...], hint: str) -> Source:
    """ogbn-arxiv, as OGB unpacks it."""
    raw = (*(f"raw/{n}.csv.gz" for n in ("edge", "node-label", "node_year")), *features)
    files = (*raw, *(f"split/time/{n}.csv.gz" for n in ("train", "valid", "test")))
    return Source(name, (("ogbn_arxiv", files),), read, "", hint=hint)
