"""AKE-GNN itself: exchange round the ring, then training again."""

from __future__ import annotations

from collections.abc import Iterator

from ..phases import Bench, Line, Made, Networks, total


def ake(bench: Bench) -> Iterator[Line]:
    """Right after the exchange, and after training again: the first network, which ships, and all others."""
    yield from make(bench, [n.copy() for n in bench.individual]).lines


def make(bench: Bench, networks: list[Networks]) -> Made:
    """Exchange among the networks, in place, and train them again."""
    swaps = bench.swap(networks)
    exchanged = networks[0].copy().population.state if not bench.exchange.width else None
    found = [bench.line("after exchange", bench.predict(networks[0]), total(networks))]
    bench.again(networks, "re-training")
    return Made([*found, *lines(bench, networks, "AKE")], networks, swaps, exchanged=exchanged)


def lines(bench: Bench, networks: list[Networks], name: str) -> Iterator[Line]:
    """The first network of a ring under the method's name, the others by number."""
    cost = total(networks)
    for k, network in enumerate(networks, 1):
        yield bench.line(name if k == 1 else f"{name} network {k}", bench.predict(network), cost)
