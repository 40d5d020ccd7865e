"""Draw the pictures of the site, each once for the light and once for the dark theme: `python docs/pictures/draw.py`.

`phases` is a diagram. `choice` is the exchange that tests/test_hand_example.py works out by hand. `layer` is a layer of
two GCNs trained on the embedded graph, before and after one exchange. Every number in them comes from the package.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import torch
from matplotlib import pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import akegnn
from akegnn.backbones import GCN
from akegnn.exchange import correlation, entropy

HERE = Path(__file__).parent
INK = {"light": "#1f2328", "dark": "#d8dee4"}
PAPER = {"light": "#f3f5f7", "dark": "#22272e"}
COLOURS = ("#3b7dd8", "#d9822b", "#2f9e6f", "#b0539f")  # the networks; readable on either ground
BINS = 3


def phases(theme: str) -> Any:
    """From one graph to one network."""
    plot, axes = plt.subplots(figsize=(9.2, 3.5))
    axes.set(xlim=(0, 9.2), ylim=(0, 3.5))
    axes.axis("off")
    ink = INK[theme]
    height, rows = 0.5, [2.55, 1.85, 1.15, 0.45]

    def box(x: float, y: float, width: float, text: str, edge: str, weight: float = 1.2) -> None:
        shape = "round,pad=0,rounding_size=0.08"
        patch = FancyBboxPatch((x, y - height / 2), width, height, shape, fc=PAPER[theme], ec=edge, lw=weight)
        axes.add_patch(patch)
        axes.text(x + width / 2, y, text, ha="center", va="center", fontsize=8.5, color=ink)

    def arrow(a: tuple[float, float], b: tuple[float, float], colour: str, bend: float = 0.0) -> None:
        style = {"arrowstyle": "-|>", "mutation_scale": 9, "lw": 1.2, "color": colour, "shrinkA": 1, "shrinkB": 1}
        axes.add_patch(FancyArrowPatch(a, b, connectionstyle=f"arc3,rad={bend}", **style))

    middle = sum(rows) / 4
    box(0.05, middle, 0.95, "graph", ink)
    names = ("mask features", "corrupt features", "drop edges", "subgraph")
    for k, (y, name, colour) in enumerate(zip(rows, names, COLOURS, strict=True), 1):
        arrow((1.0, middle), (1.45, y), ink)
        box(1.45, y, 1.4, name, colour)
        arrow((2.85, y), (3.25, y), ink)
        box(3.25, y, 1.05, f"network {k}", colour)
        arrow((4.3, y), (4.75, y), ink)
        box(4.75, y, 1.05, f"network {k}", colour, 1.8)
        arrow((5.8, y), (6.5, y), ink)
        box(6.5, y, 1.05, f"network {k}", colour)
    for k, (above, below) in enumerate(pairwise(rows)):
        arrow((5.28, above - height / 2), (5.28, below + height / 2), COLOURS[k])
    arrow((5.8, rows[3] + 0.12), (5.8, rows[0] - 0.12), COLOURS[3], bend=0.32)
    arrow((7.55, rows[0]), (8.0, rows[0]), COLOURS[0])
    box(8.0, rows[0], 1.1, "ships", COLOURS[0], 1.8)
    heads = ((2.15, "a view each"), (3.78, "1 individual\nlearning"), (5.28, "2 exchange,\nround the ring"))
    for x, text in (*heads, (7.03, "3 re-training"), (8.55, "one network")):
        axes.text(x, 3.18, text, ha="center", va="center", fontsize=8.5, color=ink, fontweight="bold")
    return plot


def choice(theme: str) -> Any:
    """One choice: the most correlated pair of A, and the entropy with each candidate of B in either's place."""
    a = torch.tensor([[1.0, 2, 3], [1, 5, 3], [3, 2, 1]])
    b = torch.tensor([[9.0, 1, 1], [2, 4, 1], [2, 2, 2]])
    plot, (left, middle, right) = plt.subplots(
        1, 3, figsize=(9.2, 2.9), width_ratios=(1.15, 1, 1.9), layout="constrained"
    )
    left.axis("off")
    left.set(xlim=(-0.2, 7.4), ylim=(-0.7, 3.6))
    for x, name, matrix, colour in ((0.6, "A", a, COLOURS[0]), (4.5, "B", b, COLOURS[1])):
        left.text(x + 1, 3.25, f"network {name}", ha="center", color=INK[theme], fontweight="bold")
        for r, row in enumerate(matrix.tolist()):
            left.text(x - 0.75, 2.4 - r, f"{name.lower()}{r}", ha="center", va="center", color=colour)
            for c, value in enumerate(row):
                cell = plt.Rectangle((x + c - 0.45, 1.95 - r), 0.9, 0.9, fc=PAPER[theme], ec=colour, lw=1)
                left.add_patch(cell)
                left.text(x + c, 2.4 - r, f"{value:g}", ha="center", va="center", color=INK[theme])
    left.text(3.5, -0.5, "a row is a channel", ha="center", color=INK[theme], fontsize=8)
    _heat(middle, correlation(a), [f"a{k}" for k in range(3)], numbers=True)
    middle.add_patch(plt.Rectangle((0.5, -0.5), 1, 1, fill=False, ec="black", lw=2.2))
    middle.set_title("correlation in A:\na0 and a1 are the pair", fontsize=9)
    names, values = [], []
    for r in (0, 1):
        for i in range(3):
            changed = a.clone()
            changed[r] = b[i]
            names.append(f"b{i} for a{r}")
            values.append(float(entropy(changed, BINS)))
    best = values.index(max(values))
    colours = [COLOURS[2] if k == best else "#8b949e" for k in range(6)]
    bars = right.barh(names, values, color=colours)
    right.bar_label(bars, [f"{v:.4f}" for v in values], padding=3, color=INK[theme], fontsize=8)
    right.axvline(float(entropy(a, BINS)), color=INK[theme], lw=1, ls=":")
    right.invert_yaxis()
    right.set_xlim(0, 1.35)
    right.set_title("entropy of A's layer with each candidate\n(dotted: as it was)", fontsize=9)
    return plot


def layer(theme: str) -> Any:
    """The first layer of a trained GCN before and after it took five channels of another."""
    data = akegnn.load_data("digits")
    task = akegnn.make_task(data)
    trainer = akegnn.Trainer(task, akegnn.Training(epochs=100))
    networks = []
    for name, view in (("1", akegnn.views.MaskFeatures(0.3)), ("2", akegnn.views.DropEdges(0.3))):
        population = akegnn.Population(lambda: GCN(32, 10), [0], name)
        population.train(trainer, [akegnn.Replica(0, name, view)], "individual")
        networks.append(population.module(0))
    target, source = networks
    before = target.convs[0].lin.weight.detach().clone()
    swaps = akegnn.exchange(target, source, channels=5, layers="hidden")
    after = target.convs[0].lin.weight.detach()
    plot, axes = plt.subplots(1, 3, figsize=(9.2, 3.1), width_ratios=(1, 1, 1.25), layout="constrained")
    shown = None
    for ax, matrix, title in ((axes[0], before, "before"), (axes[1], after, "after five swaps")):
        shown = _heat(ax, correlation(matrix), [str(k) for k in range(16)])
        ax.set_title(f"correlation of channels, {title}", fontsize=9)
    for s in swaps:
        k = s.target_channel or 0
        axes[1].add_patch(plt.Rectangle((-0.5, k - 0.5), 16, 1, fill=False, ec="black", lw=1))
    bar = plot.colorbar(shown, ax=axes[:2], shrink=0.8)
    bar.outline.set_visible(False)
    steps = [swaps[0].entropy_before, *(s.entropy_after for s in swaps)]
    axes[2].plot(range(6), steps, marker="o", color=COLOURS[2])
    axes[2].set(xlabel="swaps made", xticks=range(6))
    axes[2].set_title("entropy of the layer's weights", fontsize=9)
    return plot


def _heat(axes: Any, matrix: torch.Tensor, names: list[str], numbers: bool = False) -> Any:
    shown = axes.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1)
    ticks = range(0, len(names), max(1, len(names) // 4))
    for set_ticks in (axes.set_xticks, axes.set_yticks):
        set_ticks(ticks, [names[k] for k in ticks])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    if numbers:
        for r, row in enumerate(matrix.tolist()):
            for c, value in enumerate(row):
                colour = "white" if abs(value) > 0.7 else "#1f2328"
                axes.text(c, r, f"{value:.1f}", ha="center", va="center", color=colour, fontsize=9)
    return shown


def main() -> None:
    """Draw all of them."""
    for theme, ink in INK.items():
        colours = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), ink)
        look = {"savefig.transparent": True, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
        for draw in (phases, choice, layer):
            with plt.rc_context({**colours, **look, "svg.hashsalt": draw.__name__, "font.family": "DejaVu Sans"}):
                plot = draw(theme)
                plot.savefig(HERE / f"{draw.__name__}-{theme}.svg", metadata={"Date": None}, bbox_inches="tight")
                plt.close(plot)


if __name__ == "__main__":
    main()
