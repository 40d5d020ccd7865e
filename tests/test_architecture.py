"""The rooms of the house: who may import whom, and what nobody may do."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import akegnn

SOURCE = Path(akegnn.__file__).parent
# From the ground up: a room imports only rooms that stand before it (and modules of its own).
ROOMS = [
    *("errors", "settings", "presets", "forward", "views", "channels", "strategies", "functional", "exchange", "data"),
    *("propagate", "backbones", "tasks", "models", "training", "population", "phases", "methods", "stats"),
    *("evidence", "fit", "runs", "store", "experiments", "report", "trackers", "progress", "cli"),
]
# (module, imported room): imports inside a function that look up the stairs, each with its reason.
ALLOWED = {
    ("fit", "runs"): "result.save(): the folder is written by a room that reads results",
    ("fit", "report"): "result._repr_html_(): a notebook shows what the page shows",
    ("runs", ""): "the version, which stands in the package itself",
    ("cli", ""): "the version, which stands in the package itself",
}
FREE = ("__init__", "__main__")  # the front doors
MODULES = sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Rooms that a module imports (``""`` for the package itself), and whether that happens inside a function."""
    package = ["akegnn", *path.relative_to(SOURCE).parts[:-1]]

    def targets(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{start}.{a.name}" for a in node.names)

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            for target in targets(child):
                parts = target.split(".")
                if parts[0] == "akegnn":
                    yield parts[1] if len(parts) > 1 and parts[1] in known() else "", inside
            yield from walk(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    yield from walk(ast.parse(path.read_text()), False)


def known() -> set[str]:
    return {room_of(p) for p in MODULES} - set(FREE)


def test_every_module_has_its_room():
    assert known() <= set(ROOMS), "a new room needs its place in the order, here and in ARCHITECTURE.md"
    assert known() >= {"errors", "views", "channels", "exchange", "fit", "runs", "cli"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_room_imports_only_rooms_before_it(path):
    room = room_of(path)
    if room in FREE:
        return
    before = set(ROOMS[: ROOMS.index(room) + 1])
    for target, inside in imports(path):
        if target not in before:
            assert (room, target) in ALLOWED, f"{room} imports {target or 'the package itself'}"
            assert inside or (room, target) == ("cli", ""), f"{room} may import {target} only inside a function"


def test_no_exception_outlives_its_use():
    used = {(room_of(p), target) for p in MODULES if room_of(p) not in FREE for target, _ in imports(p)}
    assert set(ALLOWED) <= used


def test_the_rule_is_able_to_fail(tmp_path, monkeypatch):
    """A module that breaks it, in every way of writing an import."""
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "MODULES", [tmp_path / "cli.py", tmp_path / "fit.py"])
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "new.py").write_text(
        "import akegnn.cli\nfrom akegnn import fit\nfrom .. import cli\nfrom ..fit import plan\n"
        "def f():\n    from ..cli import main\n"
        "if TYPE_CHECKING:\n    from ..runs import Run\n"
    )
    found = list(imports(tmp_path / "tasks" / "new.py"))
    assert found == [("cli", False), ("fit", False), ("cli", False), ("fit", False), ("cli", True)]


# ---- what nobody may do ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_is_unpickled(path):
    """``torch.load`` only with ``weights_only=True``, and no other way to run what a file contains."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name == "torch.load":
                settings = {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert settings.get("weights_only") == "True", f"line {node.lineno}"
            assert name not in ("pickle.load", "pickle.loads", "pickle.Unpickler", "eval", "exec"), (
                f"line {node.lineno}"
            )
            assert not name.startswith(("dill.", "joblib.", "cloudpickle.", "marshal.", "shelve.")), (
                f"line {node.lineno}"
            )
        if isinstance(node, ast.ImportFrom):
            assert node.module not in ("dill", "joblib", "cloudpickle", "marshal", "shelve"), f"line {node.lineno}"
            taken = {a.name for a in node.names}
            assert node.module != "pickle" or taken <= {"UnpicklingError"}, f"line {node.lineno}"
            assert node.module != "torch" or "load" not in taken, f"line {node.lineno}"
        if isinstance(node, ast.Attribute) and node.attr == "allow_pickle":
            raise AssertionError(f"line {node.lineno}")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert ast.unparse(node.value) == "False"


HEAVY = ("torch_sparse", "torch_scatter", "dgl", "ogb", "pandas", "matplotlib", "tensorboard", "mlflow", "wandb")
HEAVY += ("vl_convert",)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_module_needs_what_is_not_installed_with_it(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
        # Extras, imported where they are used.
        extras = {"experiments": {"matplotlib"}, "trackers": {"mlflow", "wandb"}, "report": {"vl_convert"}}
        optional = extras.get(room_of(path), set())
        assert not {n.split(".")[0] for n in names} & (set(HEAVY) - optional), f"line {node.lineno}"


def test_importing_the_package_imports_nothing_heavy():
    """Beyond what PyG brings along itself: it takes pandas where that is installed."""
    code = (
        "import sys, torch_geometric.nn, torch_geometric.transforms, safetensors.torch, rich.progress, typer\n"
        "before = set(sys.modules)\n"
        "import akegnn, akegnn.cli\n"
        f"heavy = {{*{HEAVY}, 'sklearn', 'scipy'}}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"
