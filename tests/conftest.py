"""Settings that hold for every test."""

import os
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

# Small tensors: a second thread only waits for the first, and two test processes share two cores.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run, and no time limit on a single one: a busy machine must not fail a test.
settings.register_profile("akegnn", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("akegnn")


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.manual_seed(0)


@pytest.fixture
def drawn_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """What networks draw with ``torch.rand`` is the same each time, so that networks can be compared number by number.

    Views have a generator of their own and draw as ever.
    """
    rand = torch.rand

    def again(*size: Any, generator: torch.Generator | None = None, **given: Any) -> torch.Tensor:
        if generator is not None:
            return rand(*size, generator=generator, **given)
        shape = size[0] if not isinstance(size[0], int) else size
        return torch.from_numpy(np.random.default_rng(11).random(tuple(shape), dtype=np.float32))

    monkeypatch.setattr(torch, "rand", again)
