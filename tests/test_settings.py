"""Settings: what is written to TOML comes back, and what a person mistypes there is named."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from akegnn.settings import Exchange, Settings, Training, derive, from_toml, to_toml
from akegnn.views import VIEWS
from small import refusal

numbers = st.integers(-(2**63), 2**63 - 1)
positive = st.integers(1, 10**9)
floats = st.floats(allow_nan=False, allow_infinity=False)
plain = st.booleans() | numbers | floats | st.text(max_size=8)
arguments = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
trainings = st.builds(
    Training,
    epochs=positive,
    lr=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    weight_decay=st.floats(min_value=0, allow_infinity=False),
    weight_decays=st.dictionaries(st.text(max_size=6), st.floats(min_value=0, allow_infinity=False), max_size=3),
    patience=st.none() | positive,
    select=st.sampled_from(["score", "loss"]),
    stop=st.sampled_from(["best", "either"]),
    precision=st.sampled_from(["float32", "tf32", "bf16"]),
    batch_size=positive,
    optimizer=st.text(),
    scheduler=st.text(),
    metric=st.text(),
)
exchanges = st.builds(
    Exchange,
    strategy=st.text(),
    channels=positive,
    bins=st.integers(2, 100),
    iterations=positive,
    layers=st.sampled_from(["all", "hidden"]),
)
everything = st.builds(
    Settings,
    data=st.text(),
    task=st.text(),
    features=st.text(),
    edges=st.text(),
    split=numbers,
    splits=st.lists(numbers, max_size=4),
    masks=st.text(),
    labels_per_class=st.none() | positive,
    model=st.text(),
    model_args=st.dictionaries(st.text(max_size=6), arguments, max_size=3),
    preset=st.text(),
    recipe=st.text(),
    views=st.lists(st.sampled_from([kind().spec() for kind in VIEWS.values()]), max_size=4),
    seed=numbers,
    seeds=st.lists(numbers, max_size=4),
    device=st.text(),
    baseline=st.booleans(),
    train=st.text(),
    splits_drawn=st.text(),
    training=trainings,
    exchange=exchanges,
)


def there_and_back(settings: Settings) -> Settings:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_bytes(to_toml(settings).encode())
        return from_toml(path)


@given(everything)
@example(Settings())
@example(Settings(data='C:\\new\\"graph"\n\t[a]=\r\u2028\x85', model="a'''\"\"\"b"))
@example(Settings(data="\x7f"))  # TOML wants it escaped, JSON does not
@example(Settings(data="\x00\x1f\x80\ufeff\U0001f600"))
@example(Settings(model_args={"a b": 1, "": 2, "ü": 3, "a.b": {"c-d": [1, {"e": []}]}, "\x7f": 4}))
@example(Settings(training=Training(lr=1e-300, weight_decay=5e-324, patience=3)))
def test_what_is_written_comes_back(settings):
    assert there_and_back(settings) == settings


def test_weight_decays_keep_their_order():
    """The first pattern that fits counts, so the order is part of what they say."""
    decays = {"convs.*": 0.01, "*": 0.0, "a b": 1, "convs.0.*": 2.5}
    back = there_and_back(Settings(training=Training(weight_decays=decays))).training.weight_decays
    assert list(back.items()) == list(decays.items())


@pytest.mark.parametrize("arguments", [{"act": None}, {"act": None, "sizes": [1, None, 2]}])
def test_a_model_built_with_none_is_built_with_none_again(arguments):
    """PyG's models take None where it is not the default (``act=None``), and TOML has no word for it."""
    assert there_and_back(Settings(model_args=arguments)).model_args == arguments


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1.0, 1e22, -0.0])
def test_numbers_keep_their_kind(value):
    back = there_and_back(Settings(model_args={"value": value})).model_args["value"]
    assert (type(back), math.copysign(1, back), back) == (float, math.copysign(1, value), value)


def test_tuples_come_back_as_lists():
    assert there_and_back(Settings(model_args={"hops": (0, 1, 2)})).model_args == {"hops": [0, 1, 2]}


@pytest.mark.parametrize(
    "settings",
    [
        Settings(training=Training(lr=np.float64(0.1), epochs=np.int64(3))),  # one of np.logspace(...)
        Settings(seed=np.int64(3), model_args={"dropout": np.float32(0.5), "layers": np.int32(2)}),
    ],
)
def test_numbers_of_numpy_are_numbers(settings):
    back = there_and_back(settings)
    assert back == settings
    assert type(back.training.lr) is float


@pytest.mark.parametrize("value", [nn.ELU(), nn.ELU])
def test_what_toml_cannot_hold_still_gives_a_file_that_can_be_read(value):
    """A model built with an activation as an object: its other settings must not be lost."""
    back = there_and_back(Settings(model_args={"act": value}, seed=7))
    assert back.seed == 7
    assert isinstance(back.model_args["act"], str)


def test_a_part_left_out_has_its_default(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('model = "gin"\n[training]\nlr = 1\n')
    assert from_toml(path) == Settings(model="gin", training=Training(lr=1))
    path.write_text("")
    assert from_toml(path) == Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sede = 1", "sede: unknown; expected one of data, task"),
        ("[training]\nepoch = 1", "training.epoch: unknown; expected one of epochs, lr"),
        ("[exchange]\nM = 1", "exchange.M: unknown"),
        ('seed = "1"', "seed: must be int, got '1'"),
        ("seed = true", "seed: must be int, got True"),
        ("seed = 1.0", "seed: must be int, got 1.0"),
        ("baseline = 1", "baseline: must be bool, got 1"),
        ("data = 3", "data: must be str, got 3"),
        ("model_args = []", "model_args: must be dict, got []"),
        ('views = "mask"', "views: must be list, got 'mask'"),
        ('views = ["mask"]', "views"),
        ("training = 3", "training"),
        ("exchange = []", "exchange"),
        ("[training]\nlr = true", "training.lr: must be int or float, got True"),
        ("[training]\npatience = 1.5", "training.patience: must be int, got 1.5"),
        ("[training]\nepochs = 0", "epochs: must be at least 1, got 0"),
        ("[training]\nlr = 0.0", "lr: must be positive, got 0.0"),
        ("[training]\nlr = nan", "lr: must be positive, got nan"),
        ("[training]\nweight_decay = -1", "weight_decay: a weight decay must be a number and not negative, got -1"),
        ("[training]\nweight_decays = 0.1", "training.weight_decays: must be dict, got 0.1"),
        ('[training]\nweight_decays = { "convs.*" = -1 }', "convs.*: a weight decay must be a number and not negative"),
        ('[training]\nweight_decays = { a = "b" }', "a: a weight decay must be a number and not negative, got 'b'"),
        ('[training]\nselect = "luck"', "select: 'luck' is not one of score, loss"),
        ('[training]\nstop = "never"', "stop: 'never' is not one of best, either"),
        ("[training]\nscheduler = 3", "training.scheduler: must be str, got 3"),
        ("splits = 3", "splits: must be list, got 3"),
        ("labels_per_class = 2.5", "labels_per_class: must be int, got 2.5"),
        ("masks = true", "masks: must be str, got True"),
        ("[training]\npatience = 0", "patience: must be at least 1, got 0"),
        ("[exchange]\nbins = 0", "bins: must be at least 1, got 0"),
        ("[exchange]\nbins = 1", "bins: must be at least 2, got 1: in one bin every layer has the same entropy"),
        ('[exchange]\nlayers = "some"', "layers: 'some' is not one of all, hidden"),
        ("seed = ", "not valid TOML"),
        ("\x00", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, message):
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert refusal(lambda: from_toml(path)).startswith(f"{path}: {message}")


def test_a_file_that_cannot_be_read(tmp_path):
    assert (
        refusal(lambda: from_toml(tmp_path / "no.toml"))
        == f"{tmp_path}/no.toml: cannot be read (No such file or directory)"
    )
    assert "cannot be read" in refusal(lambda: from_toml(tmp_path))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "not valid TOML" in refusal(lambda: from_toml(tmp_path / "binary"))


# ---- derived seeds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, np.int64(0)], ids=["int", "numpy"])
def test_derived_seeds_are_the_same_on_every_machine(seed):
    assert derive(seed, "view", 2) == 1440682482744667326


@given(
    st.integers(0, 50), st.integers(0, 50), st.sampled_from(["view", "weights"]), st.sampled_from(["view", "weights"])
)
def test_every_purpose_has_a_seed_of_its_own(a, b, p, q):
    assert (derive(a, p) == derive(b, q)) == ((a, p) == (b, q))
    assert 0 <= derive(a, p) < 2**62, "torch and numpy take it"


def test_settings_are_not_changed_by_mistake():
    with pytest.raises(AttributeError):
        Settings().seed = 1  # type: ignore[misc]
    assert replace(Settings(), seed=1).seed == 1
