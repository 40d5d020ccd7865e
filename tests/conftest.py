"""Settings that hold for every test."""

import os

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
