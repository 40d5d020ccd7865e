"""The site: `make docs` builds it into build/docs, without a network and without warnings.

A page may contain ``<!-- fill: NAME -->``. When the page is read, that line is replaced by what a function in
:data:`FILLS` makes of the package's registries, of ``presets/`` and of ``results/``, so nothing generated is kept in a
file where it could grow old. A picture ``NAME-light.svg`` is shown in the light theme, ``NAME-dark.svg`` in the dark.
"""

from __future__ import annotations

import csv
import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import typer.main
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

import akegnn
from akegnn import cli, presets, stats
from akegnn.backbones import BACKBONES
from akegnn.data import DATASETS
from akegnn.experiments import EXPERIMENTS
from akegnn.fit import RECIPES, plan
from akegnn.methods import METHODS
from akegnn.settings import Training, to_toml
from akegnn.strategies import STRATEGIES
from akegnn.views import VIEWS

PM = "\u00a0±\u00a0"  # not broken over lines
RESULTS = Path(__file__).resolve().parents[1] / "results"

project = "akegnn"
author = "the authors of akegnn"
release = version = akegnn.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["pictures"]

html_theme = "furo"
html_title = f"akegnn {release}"
html_copy_source = False
html_show_sphinx = html_show_copyright = False
smartquotes = False  # settings are shown as they are written
html_static_path = ["static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"  # the browser draws formulas itself: the usual renderer loads a script from elsewhere
highlight_language = "none"  # of blocks that name none
pygments_style, pygments_dark_style = "friendly", "github-dark"

nb_render_markdown_format = "myst"  # tables in outputs
nb_execution_mode = "off"  # notebooks are committed as they ran, and the tests run them again
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 100


# ---- what pages are filled with --------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(c).replace("|", "\\|") for c in line) + " |" for line in lines)


def first_sentence(thing: object) -> str:
    """Of its docstring, in Markdown."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`"))
    return re.split(r"(?<=[a-z\])`])\. ", text)[0].rstrip(".")


def code(names: Iterable[object]) -> str:
    """Names as code."""
    return ", ".join(f"`{n}`" for n in names)


def number(value: float | None, deviation: float | None = None) -> str:
    """A score and its deviation, in per cent."""
    if value is None:
        return ""
    return f"{value:g}" + (f"{PM}{deviation:g}" if deviation is not None else "")


def fill_presets() -> str:
    """A section for each dataset, a line for each backbone on it."""
    ours = _base_scores()
    parts = []
    every = list(presets.every())
    for data in dict.fromkeys(p.data for p in every):
        rows, notes = [], []
        for p in (p for p in every if p.data == data):
            name = p.model + (" (link)" if p.task == "link" else "")
            default = dataclasses.asdict(Training())
            training = {k: v for k, v in dataclasses.asdict(p.training).items() if v != default[k]}
            scores = [number(s.score, s.deviation) if s and s.comparable else "" for s in (p.published, p.paper)]
            size = f"{p.splits}\u00a0x\u00a0{p.seeds}" if p.splits > 1 else str(p.seeds)
            rows.append([f"`{name}`", _given(p.model_args), _given(training), size, *scores, ours.get(p.name, "")])
            kept = [f"settings from {p.settings_from}"]
            kept += [f"features: {p.features}"] * (p.features != "given")
            kept += [f"edges: {p.edges}"] * (p.edges != "given")
            kept += [f"published: {p.published.source}"] if p.published else []
            kept += [note for note in (p.note, p.published.note if p.published else "") if note]
            notes.append(f"- `{name}`: " + "; ".join(k.rstrip(".") for k in kept) + ".")
        head = ("backbone", "model", "training", "runs", "published", "AKE-GNN paper", "ours")
        protocol = next((p.protocol for p in every if p.data == data and p.protocol), "")
        parts += [f"## {data}", _sentence(DATASETS[data].about), f"Protocol: {protocol}.", table(head, rows)]
        parts += ["<details><summary>Sources and notes</summary>", "\n".join(notes), "</details>"]
    return "\n\n".join(parts)


def _given(settings: dict[str, Any]) -> str:
    return "<br>".join(f"{k}\u00a0=\u00a0{json.dumps(v)}" for k, v in settings.items())


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _base_scores() -> dict[str, str]:
    """Test scores of base networks by preset: the mean of the splits' means, and the deviation over all runs."""
    cells: dict[str, dict[tuple[int, int], float]] = {}
    for row in _rows(RESULTS / "backbones.csv"):
        name = f"{row['dataset']}/{row['backbone']}" + ("-link" if row["task"] == "link" else "")
        cells.setdefault(name, {})[int(row["split"]), int(row["seed"])] = 100 * float(row["test"])
    means = {name: stats.summarise(scores) for name, scores in cells.items()}
    return {name: f"{m.mean:.2f}{PM}{m.deviation:.2f} ({m.n})" for name, m in means.items()}


def fill_results() -> str:
    """Every table that `akegnn reproduce` left in results/, with its picture."""
    parts = []
    for name in (n for n in EXPERIMENTS if (RESULTS / f"{n}.md").is_file()):
        parts.append((RESULTS / f"{name}.md").read_text(encoding="utf-8").replace(" ± ", PM))
        if (RESULTS / f"{name}.csv").is_file():
            files = [f"{{download}}`results/{name}.{end} <../results/{name}.{end}>`" for end in ("csv", "rows.csv")]
            parts.append(f"All digits: {files[0]}; every split and seed: {files[1]}.")
        if (RESULTS / f"{name}.svg").is_file():
            parts.append(f"![Picture of {name}](../results/{name}.svg)")
    return "\n\n".join(parts)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def fill_datasets() -> str:
    """The datasets by name."""
    head = ("name", "tasks", "graphs", "nodes", "edges", "features", "classes", "train/validation/test", "what it is")
    rows = []
    for name, d in DATASETS.items():
        size = [f"{v:,}" if isinstance(v, int) else v for v in dataclasses.astuple(d.size)]
        rows.append([f"`{name}`", ", ".join(d.tasks), *size, d.about])
    return table(head, rows)


def fill_backbones() -> str:
    """The networks by name."""
    rows = []
    for name, kind in BACKBONES.items():
        origin, tasks = first_sentence(inspect.getmodule(kind)), getattr(kind, "tasks", ("node", "link"))
        rows.append([f"`{name}`", origin, first_sentence(kind), ", ".join(tasks)])
    return table(("name", "network", "as it is here", "tasks"), rows)


def fill_views() -> str:
    """The views by name."""
    rows = [[f"`{n}`", f"`{v.__name__}`", first_sentence(v).split(", see")[0]] for n, v in VIEWS.items()]
    return table(("name", "class", "what it does"), rows)


def fill_strategies() -> str:
    """The strategies by name."""
    return table(("name", "what is exchanged"), [[f"`{n}`", s.about] for n, s in STRATEGIES.items()])


def fill_methods() -> str:
    """The methods by name."""
    return table(("name", "lines that it gives"), [[f"`{n}`", first_sentence(m)] for n, m in METHODS.items()])


def fill_experiments() -> str:
    """The paper's tables and figures."""
    rows = []
    for name, e in EXPERIMENTS.items():
        jobs = e.jobs()
        rows.append([f"`{name}`", e.about, len(jobs), sum(j.splits * j.seeds for j in jobs)])
    return table(("name", "what it is", "jobs", "cells"), rows)


def fill_recipes() -> str:
    """What each recipe settles."""
    parts = []
    for name in RECIPES:
        settings = plan("digits", recipe=name).settings
        lines = to_toml(settings).splitlines()
        views = next(line for line in lines if line.startswith("views"))
        rest = "\n".join(lines[lines.index("[exchange]") :])
        views = views.replace("[{", "[\n  {").replace("}, {", "},\n  {").replace("}]", "},\n]")
        parts.append(f"### {name}\n\n```toml\nrecipe = {json.dumps(name)}\n{views}\n\n{rest}\n```")
    return "\n\n".join(parts)


def fill_commands() -> str:
    """Every command with its arguments and options."""
    parts = []

    def tell(command: Any, words: str) -> None:
        for name, child in getattr(command, "commands", {}).items():
            tell(child, f"{words} {name}")
        if getattr(command, "commands", None):
            return
        text = inspect.cleandoc(command.help or "").partition("Examples:")
        parts.extend([f"## {words}", text[0].strip()])
        if text[2]:
            examples = [line.strip() for line in text[2].splitlines() if line.strip()]
            parts.append("```text\n" + "\n".join(examples) + "\n```")
        rows = []
        for p in command.params:
            if p.name == "help":
                continue
            names = f"`{p.name.upper()}`" if p.param_type_name == "argument" else code([*p.opts, *p.secondary_opts])
            shown = getattr(p, "show_default", True)
            default = shown if isinstance(shown, str) else "" if shown is False or callable(p.default) else p.default
            default = (
                "" if default is None or default is False or default == () else "yes" if default is True else default
            )
            rows.append([names, p.help or "", f"`{default}`" if default != "" else ""])
        parts.append(table(("", "what it says", "default"), rows))

    tell(typer.main.get_command(cli.app), "akegnn")
    return "\n\n".join(parts)


FILLS: dict[str, Callable[[], str]] = {
    name.removeprefix("fill_"): thing for name, thing in list(globals().items()) if name.startswith("fill_")
}
MARK = re.compile(r"^<!-- fill: (\w+) -->$", re.MULTILINE)


def fill(app: Sphinx, docname: str, content: list[str]) -> None:
    """Replace the marks of a page."""
    content[0] = MARK.sub(lambda found: FILLS[found[1]](), content[0])


def outdated(app: Sphinx, env: Any, *_: object) -> list[str]:
    """Pages with marks are made anew in every build."""
    paths = {name: Path(env.doc2path(name)) for name in env.found_docs}
    return [name for name, path in paths.items() if path.suffix == ".md" and MARK.search(path.read_text())]


# ---- the API reference -----------------------------------------------------------------------------------------------


def describe_fields(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """A dataclass's fields are described by the comments beside them."""
    if what != "class" or not dataclasses.is_dataclass(thing):
        return
    comments = dict(re.findall(r"^    (\w+): [^#\n]+  # (.+)$", inspect.getsource(thing), flags=re.MULTILINE))
    own = vars(thing).get("__annotations__", {})
    told = [f"    {field} ({kind}): {comments.get(field, '').rstrip('.')}" for field, kind in own.items()]
    if told:
        lines += ["", "Attributes:", *told, ""]


def draw_formula(self: Any, node: nodes.Element) -> None:
    """A formula as MathML."""
    self.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Connect all of it."""
    app.add_html_math_renderer("mathml", (draw_formula, None), (draw_formula, None))
    app.connect("source-read", fill)
    app.connect("env-get-outdated", outdated)
    app.connect("autodoc-process-docstring", describe_fields, priority=400)  # before napoleon reads it
