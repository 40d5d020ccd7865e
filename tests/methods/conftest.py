"""Settings of the tests of methods."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def _little_to_collect():
    """A full garbage collection looks at every object of torch for a fifth of a second, but not at frozen ones."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
