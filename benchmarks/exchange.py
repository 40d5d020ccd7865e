"""How long the exchange takes: the paper's algorithm as it is written, and ours, on networks shaped like GCNII.

    python benchmarks/exchange.py                      # hidden sizes 64, 128 and 256, well under two minutes

The literal algorithm (``tests/literal.py``: a loop over pairs of channels, one numpy histogram per candidate) is timed
on a random sample of its (layer, step, swap) choices, and the mean is multiplied by their full number. Ours makes the
whole exchange, best of five. The sample also has to choose the very swaps that ours made; if one differs, the script
says so and exits with 1.
"""

from __future__ import annotations

import argparse
import gc
import random
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import literal  # noqa: E402
from akegnn.channels import Layer, Slot  # noqa: E402
from akegnn.exchange import Swap, ring, ring_steps  # noqa: E402
from akegnn.strategies import STRATEGIES  # noqa: E402

PAPER = {64: 228, 128: 575, 256: 1524}  # seconds, its table on time; the machine and the number of layers are not told
REPEATS = 5


def build(hidden: int, options: argparse.Namespace) -> tuple[dict[str, Tensor], list[Layer]]:
    """Weights like those of GCNII's layers: ``hidden x hidden``, uniform within Glorot's bound, output on axis 1."""
    g = torch.Generator().manual_seed(options.seed)
    bound = (6 / (hidden + hidden)) ** 0.5
    stacks, layers = {}, []
    for k in range(options.layers):
        name = f"convs.{k}.weight1"
        stacks[name] = (2 * torch.rand(options.networks, 1, hidden, hidden, generator=g) - 1) * bound
        layers.append(Layer(name, hidden, (Slot(name, 1, hidden),), (Slot(name, 0, hidden),)))
    return stacks, layers


def ours(stacks: dict[str, Tensor], layers: list[Layer], options: argparse.Namespace) -> list[Swap]:
    steps = list(ring_steps(options.networks, options.iterations))
    return ring(
        stacks, layers, STRATEGIES["adaptive"], steps=steps, channels=options.channels, bins=options.bins, record=True
    )


def time_ours(
    stacks: dict[str, Tensor], layers: list[Layer], options: argparse.Namespace
) -> tuple[float, list[Swap], dict[str, Tensor]]:
    """Seconds of the best run, the swaps it made, and the weights after it."""
    best = float("inf")
    for k in range(1 + REPEATS):
        after = {name: t.clone() for name, t in stacks.items()}
        start = time.perf_counter()
        swaps = ours(after, layers, options)
        if k > 0:  # the first is the warm-up
            best = min(best, time.perf_counter() - start)
    return best, swaps, after


def time_literal(
    stacks: dict[str, Tensor], swaps: list[Swap], after: dict[str, Tensor], options: argparse.Namespace
) -> tuple[float, float]:
    """Seconds of one literal choice, and of its search for the redundant pair; means over the sample.

    Walks along the swaps that ours made, on copies, and asks the literal algorithm at the sampled positions.
    """
    sample = set(random.Random(options.seed).sample(range(len(swaps)), min(options.literal_steps, len(swaps))))
    # In float64 from the start, so that the literal algorithm does not spend its time on conversions.
    now = {name: t[:, 0].mT.double().numpy().copy() for name, t in stacks.items()}
    choosing = pairing = 0.0
    for k, s in enumerate(swaps):
        target, source = now[s.layer][s.target], now[s.layer][s.source]
        if k in sample:
            start = time.perf_counter()
            (r, i), _, _ = literal.choose(target, source, options.bins)
            choosing += time.perf_counter() - start
            if (r, i) != (s.target_channel, s.source_channel):
                sys.exit(
                    f"DIFFERENT: {s.layer}, step {s.step}, swap {k}: the literal algorithm takes (r, i) = {(r, i)}, "
                    f"ours took {(s.target_channel, s.source_channel)}"
                )
            start = time.perf_counter()
            literal.most_correlated_pair(target)
            pairing += time.perf_counter() - start
        leaving, joining = target[s.target_channel].copy(), source[s.source_channel].copy()
        target[s.target_channel], source[s.source_channel] = joining, leaving
    for name, t in after.items():
        if (t[:, 0].mT.double().numpy() != now[name]).any():
            sys.exit(f"DIFFERENT: {name}: the weights are not those that the recorded swaps lead to")
    return choosing / len(sample), pairing / len(sample)


def memory(field: str) -> int:
    """A field of this process' status, in bytes: ``VmRSS`` is the memory it holds, ``VmHWM`` the most it has held."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def measure_peak(hidden: int, options: argparse.Namespace) -> None:
    """Print how many bytes one exchange adds, at its peak, to a process that already holds the weights."""
    small = argparse.Namespace(**{**vars(options), "layers": 2})
    ours(*build(8, small), small)  # load what the libraries load at their first use
    stacks, layers = build(hidden, options)
    gc.collect()
    held = memory("VmRSS")
    # Start the high-water mark anew. Where that is not allowed, it still holds the peak of the start of the process:
    # the number can then only be too high.
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as e:
        print(f"high-water mark not reset ({e}); peaks may be too high", file=sys.stderr)
    ours(stacks, layers, options)
    print(memory("VmHWM") - held)


def peak_of(hidden: int, options: argparse.Namespace) -> int | None:
    """Peak working memory in bytes, measured in a process of its own; None where ``/proc`` cannot tell."""
    command = [sys.executable, __file__, "--peak", str(hidden), "--seed", str(options.seed)]
    for name in ("layers", "networks", "iterations", "channels", "bins", "threads"):
        command += [f"--{name}", str(getattr(options, name))]
    if not Path("/proc/self/status").exists():
        return None
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return int(child.stdout)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 128, 256], help="hidden sizes")
    parser.add_argument("--layers", type=int, default=16, help="layers of hidden x hidden weights (L)")
    parser.add_argument("--networks", type=int, default=4, help="networks in the ring (V)")
    parser.add_argument("--iterations", type=int, default=3, help="times round the ring; N = V x iterations steps")
    parser.add_argument("--channels", type=int, default=5, help="swaps per layer and step (M)")
    parser.add_argument("--bins", type=int, default=10, help="bins of the histogram (B)")
    parser.add_argument("--literal-steps", type=int, default=8, help="literal choices to time, for each hidden size")
    # One by default: the literal algorithm uses one, and on a busy machine two threads that wait for each other at
    # every small operation can take twenty times as long as one.
    parser.add_argument("--threads", type=int, default=1, help="CPU threads for ours (default: 1, as the literal one)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)  # what the child process is called with
    options = parser.parse_args()
    if (
        min(options.literal_steps, options.layers, options.iterations, options.channels, options.bins, options.threads)
        < 1
    ):
        parser.error("counts must be at least 1")
    if options.networks < 2 or min(options.hidden) < 2:
        parser.error("an exchange needs two networks and two channels")
    return options


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    if options.peak is not None:
        measure_peak(options.peak, options)
        return
    steps = options.networks * options.iterations
    print(
        f"{options.layers} layers, {options.networks} networks, {steps} steps, {options.channels} swaps per layer and "
        f"step, {options.bins} bins; torch {torch.__version__} on {torch.get_num_threads()} CPU thread(s)"
    )
    columns = (
        "hidden",
        "literal s",
        "pairs s",
        "histograms s",
        "ours s",
        "ratio",
        "ratio hist.",
        "layers MB",
        "peak MB",
    )
    columns = (*columns, "peak/layers", "paper s")
    print("  ".join(c.rjust(max(8, len(c))) for c in columns))
    for hidden in options.hidden:
        stacks, layers = build(hidden, options)
        fast, swaps, after = time_ours(stacks, layers, options)
        choice, pair = time_literal(stacks, swaps, after, options)
        size = sum(t.numel() * t.element_size() for t in stacks.values())
        peak = peak_of(hidden, options)
        slow, histograms = choice * len(swaps), (choice - pair) * len(swaps)
        cells = (
            str(hidden),
            f"{slow:.1f}",
            f"{pair * len(swaps):.1f}",
            f"{histograms:.1f}",
            f"{fast:.3f}",
            f"{slow / fast:.0f}x",
            f"{histograms / fast:.0f}x",
            f"{size / 1e6:.1f}",
            "-" if peak is None else f"{peak / 1e6:.1f}",
            "-" if peak is None else f"{peak / size:.1f}x",
            str(PAPER.get(hidden, "-")),
        )
        print("  ".join(x.rjust(max(8, len(c))) for x, c in zip(cells, columns, strict=True)), flush=True)
    print(
        f"""
literal s     tests/literal.py, extrapolated: the mean time of {options.literal_steps} choices, drawn among the
              {steps} steps x {options.channels} swaps x {options.layers} layers, times their full number
pairs s       of it, the search for the redundant pair (a loop over pairs of channels)
histograms s  of it, one numpy histogram per candidate: what would be left if the search for the pair cost nothing
ours s        the whole exchange with its record, measured: best of {REPEATS} after a warm-up
ratio         literal / ours; ratio hist.: histograms alone / ours
layers MB     the weights of all networks; peak MB: what one exchange adds to them at most, by the high-water mark of
              resident memory (VmHWM) in a process of its own that already holds the weights
paper s       "adaptive exchange" in the paper's table on time (GCNII on OGBn-Arxiv, its own machine)

All sampled literal choices are the swaps that ours made, and the recorded swaps lead to the same weights."""
    )


if __name__ == "__main__":
    main()
