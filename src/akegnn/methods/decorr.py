"""DeCorr (Jin et al., https://arxiv.org/abs/2206.07743): a loss that keeps the hidden features of nodes uncorrelated.

The second loss of the paper, on mutual information, is of every fifth hidden layer; networks of up to five layers have
none, deeper ones are trained without it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from ..errors import AkeError, RunFailed
from ..forward import arguments
from ..phases import Bench, Line, total
from ..views import Original

ALPHAS = (1.0, 0.1, 0.01)  # the authors take 1 and 0.1 for networks of 15 and 30 layers; shallow ones want less


class Decorrelated(nn.Module):
    """Mixed into a network's class: its loss, and that of its hidden layers' correlations."""

    alpha: float = 1.0
    hidden: tuple[str, ...] = ()

    def training_loss(self, batch: Data, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """The task's loss on the output, and ``alpha`` times the correlation loss of every hidden layer."""
        outputs: list[Tensor] = []
        modules = dict(self.named_modules())
        handles = [modules[n].register_forward_hook(lambda m, i, out: outputs.append(out)) for n in self.hidden]
        try:
            positional, named = arguments(self, batch)
            total = loss(self(*positional, **named))
        finally:
            for handle in handles:
                handle.remove()
        return total + self.alpha * sum(correlation_loss(x) for x in outputs)


def correlation_loss(x: Tensor) -> Tensor:
    """How far the covariance of the columns, on a sample of rows, is from a multiple of the identity."""
    rows = torch.randint(x.shape[0], (int(x.shape[0] ** 0.5),), device=x.device)
    x = x.index_select(0, rows)
    x = x - x.mean(0)
    covariance = x.t() @ x
    size = covariance.shape[0]
    whole = covariance / covariance.norm().clamp_min(torch.finfo(x.dtype).tiny)
    return (whole - torch.eye(size, dtype=x.dtype, device=x.device) / size**0.5).norm()


def decorrelated(model: nn.Module, hidden: tuple[str, ...], alpha: float) -> nn.Module:
    """The same network with the other loss; its tensors keep their names."""
    kind = type(model)
    if hasattr(kind, "training_loss"):
        raise AkeError(f"method 'decorr': {kind.__name__} has a loss of its own")
    model.__class__ = _kind(kind, hidden, alpha)
    return model


def _kind(kind: type[nn.Module], hidden: tuple[str, ...], alpha: float) -> type[nn.Module]:
    fields: dict[str, Any] = {"alpha": alpha, "hidden": hidden}
    return type(f"Decorrelated{kind.__name__}", (Decorrelated, kind), fields)


def decorr(bench: Bench) -> Iterator[Line]:
    """One network on the original graph with the other loss, from the base's weights, for as long as both phases.

    Of several weights of that loss the one with the best validation score, seed by seed; that all of them were trained
    is what it costs.
    """
    hidden = tuple(layer.name for layer in bench.map.layers if not layer.output)
    build = bench.factory
    assert build is not None
    tried, lost = [], []
    for alpha in ALPHAS:

        def factory(alpha: float = alpha) -> nn.Module:
            return decorrelated(build(), hidden, alpha)

        own = bench.with_trainer(bench.longer(2), factory)
        network = own.new(bench.names[0])
        try:
            own.train(network, Original(), "individual", "decorr")
        except RunFailed as e:
            own.failed = dict.fromkeys(range(len(bench.cells)), str(e))
        tried.append(network)
        lost.append(own.failed)
    none = set(lost[0]).intersection(*lost)  # a cell where one weight failed has the others still
    if len(none) == len(bench.cells):
        raise RunFailed(lost[0][0])
    for cell in none:
        bench.failed.setdefault(cell, lost[0][cell])
    yield bench.line("DeCorr", bench.best(tried, lost), total(tried))
