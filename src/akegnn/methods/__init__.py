"""Methods by name, all compared from the same initial weights, splits and views.

A method is a function of a :class:`~akegnn.phases.Bench` that yields lines of scores. To add one, write it in a file of
its own and give it an entry in :data:`METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..phases import Bench, Line
from .ake import ake
from .averaging import averaging
from .decorr import decorr
from .ensembles import ensemble, ensemble_further
from .further import further_training
from .single import single
from .soups import greedy_soup, uniform_soup
from .strong import functional, strong
from .weighting import adaptive_weighting, adaptive_weighting_every_epoch

Method = Callable[[Bench], Iterator[Line]]

METHODS: dict[str, Method] = {
    "single": single,
    "ft": further_training,
    "ensemble": ensemble,
    "ensemble-ft": ensemble_further,
    "ake": ake,
    "adaptive-weighting": adaptive_weighting,
    "adaptive-weighting-every-epoch": adaptive_weighting_every_epoch,
    "decorr": decorr,
    "uniform-soup": uniform_soup,
    "greedy-soup": greedy_soup,
    "averaging": averaging,
    "functional": functional,
    "strong": strong,
}

__all__ = ["METHODS", "Method"]
