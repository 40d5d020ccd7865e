"""Every example of the README, of the site and of the notebooks is run, and the site is built.

What stands in a comment right before a fenced block says how it is run:

    <!-- slow -->              only with the slow tests
    <!-- needs: data -->       only where AKEGNN_DATA has the benchmark files
    <!-- file: NAME -->        not run: it is the content of a file that later blocks use
    <!-- prints -->            not run: it is what the block before it prints, letter for letter
    <!-- run by: PATH -->      not run here: that test does

A page's blocks run in order, in one folder; its Python in one session, its commands by the installed ``akegnn``.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.main

import akegnn
from akegnn import cli
from akegnn.store import Store

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
BLOCK = re.compile(r"((?:^<!-- [^\n]+ -->\n)*)^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEXT = ("", "text", "toml")  # nothing to run


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    code: str
    marks: frozenset[str]

    def named(self, mark: str) -> str | None:
        return next((m.partition(": ")[2] for m in self.marks if m.startswith(f"{mark}: ")), None)

    @property
    def runs(self) -> bool:
        return self.language in ("python", "sh") and self.named("file") is None and self.named("run by") is None

    @property
    def conditions(self) -> frozenset[str]:
        return self.marks & {"slow", "needs: data"}


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        marks = frozenset(re.findall(r"<!-- (.+?) -->", match[1]))
        line = text.count("\n", 0, match.start(2)) + 1
        found.append(Block(page.relative_to(ROOT).as_posix(), line, match[2], match[3], marks))
    return found


def commands(block: Block) -> list[list[str]]:
    lines = block.code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def cases() -> list[object]:
    """A page as it is, and once more for each kind of block that is not run always, with others of its language."""
    found = []
    for page in PAGES:
        kinds = {b.conditions for b in blocks(page) if b.runs}
        for kind in sorted(kinds, key=sorted):
            needed = [
                pytest.mark.skipif(not os.environ.get("AKEGNN_DATA"), reason="needs the benchmark files (AKEGNN_DATA)")
            ]
            marks = [*(needed if "needs: data" in kind else []), *([pytest.mark.slow] if "slow" in kind else [])]
            name = " ".join([page.relative_to(ROOT).as_posix(), *sorted(kind)])
            found.append(pytest.param(page, kind, marks=marks, id=name))
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What the README takes for granted: a graph, a model and a store of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "160")
    data = akegnn.load_data("digits")
    (tmp_path / "my_graph").mkdir()
    nodes = [f"n{k},{int(data.y[k])},{data.x[k, 10]:.4f},{data.x[k, 11]:.4f}" for k in range(300)]
    edges = [f"n{a},n{b}" for a, b in data.edge_index.t().tolist() if a < b < 300]
    (tmp_path / "my_graph" / "nodes.csv").write_text("\n".join(["id,label,u,v", *nodes]))
    (tmp_path / "my_graph" / "edges.csv").write_text("\n".join(["source,target", *edges]))
    (tmp_path / "my_models.py").write_text(
        "import torch_geometric.nn as gnn\n"
        "class Net(gnn.GCN):\n"
        "    def __init__(self, in_channels, out_channels, hidden):\n"
        "        super().__init__(in_channels, hidden, 2, out_channels)\n"
    )
    with Store(tmp_path / "elsewhere.sqlite"):
        pass
    yield tmp_path
    sys.modules.pop("my_models", None)


@pytest.mark.parametrize(("page", "kind"), cases())
def test_every_example_of_a_page_runs(page, kind, folder, restored):
    session: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    languages = {b.language for b in blocks(page) if b.runs and b.conditions == kind}
    for block in blocks(page):
        if (name := block.named("file")) is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code)
        elif "prints" in block.marks and not kind:
            assert printed.splitlines() == block.code.splitlines(), f"{block.page}, line {block.line}"
        elif block.runs and block.conditions <= kind and block.language in languages:
            printed = run(block, session)


def run(block: Block, session: dict[str, object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if block.language == "python":
            # Blank lines before it: a traceback then shows the line of the page.
            exec(compile("\n" * block.line + block.code, block.page, "exec"), session)
        else:
            for words in commands(block):
                run_command(words)
    return out.getvalue()


def run_command(words: list[str]) -> None:
    """Of ours, what the installed script does, without starting Python and importing torch each time."""
    if words[0] != "akegnn":
        subprocess.run(words, check=True)
        return
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="akegnn")
    main = script.load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code in (None, 0), f"{shlex.join(words)} ended with {ended.value.code}"


@pytest.fixture
def restored():
    """Examples may add to registries; nobody after them should know."""
    from akegnn.channels import RULES
    from akegnn.methods import METHODS
    from akegnn.strategies import STRATEGIES
    from akegnn.views import VIEWS

    registries = (METHODS, RULES, STRATEGIES, VIEWS)
    before = [dict(r) for r in registries]
    yield
    for registry, old in zip(registries, before, strict=True):
        registry.clear()
        registry.update(old)


# ---- nothing is passed over ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_block_is_of_a_kind_that_is_known(page):
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"^```[^`\n]*$", text, flags=re.MULTILINE)) == 2 * len(blocks_and_directives(text))
    for block in blocks(page):
        where = f"{block.page}, line {block.line}"
        assert block.language in (*TEXT, "python", "sh"), where
        for mark in block.marks:
            known = mark in ("slow", "needs: data", "prints") or mark.startswith(("file: ", "run by: ", "fill: "))
            assert known or block.language == "", f"{where}: {mark}"
        if (test := block.named("run by")) is not None:
            assert (ROOT / test).is_file(), where


def blocks_and_directives(text: str) -> list[str]:
    return re.findall(r"^```[^`\n]*\n(?:.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "words",
    [words for page in PAGES for b in blocks(page) if b.language == "sh" for words in commands(b)],
    ids=shlex.join,
)
def test_every_command_is_understood(words):
    """Also those of blocks that are not run now: their options exist."""
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert words[1] in targets
        return
    if words[0] != "akegnn":
        assert words[0] in ("head",)
        return
    command, words = typer.main.get_command(cli.app), words[1:]
    while (children := getattr(command, "commands", None)) is not None:
        command, words = children[words[0]], words[1:]
    command.make_context(command.name, list(words))


def test_blocks_are_found_at_all():
    found = [b for page in PAGES for b in blocks(page) if b.runs]
    assert len(found) > 40
    assert {b.language for b in found} == {"python", "sh"}
    readme = [b for b in found if b.page == "README.md"]
    assert any("akegnn.exchange(target, source" in b.code for b in readme)
    assert any("akegnn reproduce" in b.code for b in readme)


# ---- the notebooks ---------------------------------------------------------------------------------------------------


LONG = ("researcher",)  # half a minute


@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=[pytest.mark.slow] * (p.stem in LONG), id=p.stem) for p in NOTEBOOKS]
)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # whatever a person has set up there
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_committed_as_it_ran(path):
    nbformat = pytest.importorskip("nbformat")
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    outputs = [o for c in cells for o in c.outputs]
    assert any(o.output_type in ("execute_result", "display_data", "stream") for o in outputs)
    assert not [o for o in outputs if o.output_type == "error"]
    told = "".join(str(o) for o in outputs)
    assert not re.search(r"/(home|tmp|root|usr|Users)/", told)
    assert path.stat().st_size < 300_000


def test_there_is_a_notebook_for_each_kind_of_user():
    assert [p.stem for p in NOTEBOOKS] == ["builder", "practitioner", "researcher"]


# ---- the site --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("sphinx", reason="the site is built by sphinx: pip install akegnn[docs]")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", folder / "trees", ROOT / "docs"]
    built = subprocess.run([*command, folder / "html"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder / "html"


def test_make_docs_builds_the_same():
    recipe = (ROOT / "Makefile").read_text().split("\ndocs:")[1].split("\n\n")[0]
    assert "sphinx -W --keep-going" in recipe
    assert "docs build/docs" in recipe


def test_the_site_has_every_page(site):
    for page in (*PAGES[1:], *NOTEBOOKS):
        name = page.relative_to(ROOT / "docs") if page.suffix == ".md" else page.relative_to(ROOT)
        assert (site / name.with_suffix(".html")).is_file()


def test_the_site_is_filled_from_the_data(site):
    presets = (site / "presets.html").read_text()
    assert all(f'id="{p.parent.name}"' in presets for p in (ROOT / "src/akegnn/presets").glob("*/gcn.toml"))
    assert "81.84" in (site / "tables.html").read_text()
    names = (site / "names.html").read_text()
    assert all(name in names for name in ("random-partner-random", "cornell-2021", "greedy-soup", "few-shot"))
    assert "labels-per-class" in (site / "commands.html").read_text()
    assert not [p for p in site.rglob("*.html") if "fill: " in p.read_text()]
    api = (site / "api.html").read_text()
    assert all(f'id="akegnn.{name}"' in api for name in akegnn.__all__ if name not in ("views", "trackers", *ELSEWHERE))
    assert "forward passes that a prediction costs" in api  # the comment beside a field


# Documented in the module they are in.
ELSEWHERE = ("ChannelMap", "Explanation", "Layer", "Slot", "channel_map", "explain")


def test_the_site_loads_nothing_from_elsewhere(site):
    """No script, style, font or picture: it opens from a disk without a network."""
    loaded = re.compile(
        r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+href="(?:https?:)?//|@import|url\(["\']?http'
    )
    for page in [*site.rglob("*.html"), *site.rglob("*.css")]:
        assert not loaded.search(page.read_text()), page.name


def test_links_to_pages_and_headings_arrive(site):
    pages = {p: p.read_text() for p in site.rglob("*.html")}
    places = {p: set(re.findall(r'\bid="([^"]+)"', text)) for p, text in pages.items()}
    for page, text in pages.items():
        for link in set(re.findall(r'href="([^":]+)"', text)):
            file, _, place = re.sub(r"\?v=\w+", "", link).partition("#")
            target = (page.parent / file).resolve() if file else page
            assert target.exists(), f"{page.name}: {link}"
            assert not place or target not in places or place in places[target], f"{page.name}: {link}"
