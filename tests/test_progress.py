"""What people see while a run goes on: on a terminal, in a plain log, and how much time is left."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

import akegnn
from akegnn import progress
from akegnn.progress import Display, Forecast
from akegnn.training import Epoch
from small import fit, graph, graphs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Stands still until it is put forward."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def epochs(network: str, count: int = 3, phase: str = "individual", **given: int) -> list[Epoch]:
    made = [Epoch(phase, network, k, count, 1.0, 0.5, 0.5, **given) for k in range(1, count + 1)]
    return [*made[:-1], replace(made[-1], stopped=made[-1].together)]


@pytest.fixture
def log(monkeypatch):
    text = io.StringIO()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=text))  # pytest has a hand on the real one
    return text


@pytest.fixture
def terminal(monkeypatch):
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=text))
    return text


def picture(display: Display, width: int = 100) -> list[str]:
    """What a terminal of this width would show now."""
    text = io.StringIO()
    display.console = Console(file=text, width=width)
    display.console.print(display._picture())
    return [line.rstrip() for line in text.getvalue().splitlines()]


# ---- a plain log -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quiet", [False, True])
def test_plain_lines_however_long_the_name_is(log, quiet):
    with Display(2, quiet) as display:
        for epoch in epochs("1: " + "a view with a long name " * 8) + epochs("[bold]"):
            display(epoch)
    lines = log.getvalue().splitlines()
    assert len(lines) == (0 if quiet else 2)
    if not quiet:
        assert lines[0].startswith("[1/2] individual, 1: a view")
        assert lines[1].startswith("[2/2] individual, [bold]: 3 epochs, best validation 50.00")
    assert "\x1b" not in log.getvalue()


def test_a_warning_is_heard_by_those_who_want_no_progress(log):
    with Display(1, quiet=True) as display:
        display.say("progress")
        display.warn("a warning")
    assert log.getvalue() == "a warning\n"


def test_a_failed_run_does_not_count_its_last_network_as_finished(log):
    def fails() -> None:
        with Display(2) as display:
            for epoch in epochs("base") + epochs("1: mask")[:1]:
                display(epoch)
            raise akegnn.RunFailed("individual, network 1: mask, epoch 2: the loss is nan")

    with pytest.raises(akegnn.RunFailed):
        fails()
    assert log.getvalue().count("\n") == 1


def test_a_long_training_is_not_silent(log):
    """A line a minute: phase, network, epoch, best validation, replicas done, time left."""
    clock = Clock()
    with Display(2, clock=clock) as display:
        for epoch in epochs("base", 20, replicas=10, first=4, together=3):
            clock.now += 25
            display(epoch)
    lines = log.getvalue().splitlines()
    assert len(lines) == 20 // 3 + 1
    # 3 of 20 epochs of 3 of 10 replicas, 4 before: a share of 0.445 after 75 s, 0.015 of it in each 25 s.
    assert lines[0] == (
        "individual, base: epoch 3/20, best validation 50.00 (mean), 4/10 replicas done, 75.0 s, about 32:05 left"
    )


def test_replicas_that_finish_in_groups_are_one_network(log):
    """The best validation score is the mean over all of them, not that of the last; a group that failed has none."""
    groups = [(0, 6, 0.5), (6, 3, 0.8), (9, 1, float("nan"))]
    with Display(1) as display:
        for first, together, best in groups:
            for epoch in epochs("base", replicas=10, first=first, together=together):
                display(replace(epoch, best=best))
    assert log.getvalue().startswith("[1/1] individual, base: 3 epochs, best validation 60.00 (mean), 10 replicas, ")
    assert log.getvalue().count("\n") == 1


def test_a_network_without_any_score(log):
    with Display(1) as display:
        display(replace(epochs("base")[0], best=float("nan")))
    assert "1 epochs, no validation score, " in log.getvalue()


# ---- a terminal ------------------------------------------------------------------------------------------------------


def test_a_terminal_sees_it_live(terminal):
    with Display(1) as display:
        for epoch in epochs("base"):
            display(epoch)
    assert "\x1b[" in terminal.getvalue()
    assert "[1/1] individual, base: 3 epochs" in terminal.getvalue()


def test_quiet_on_a_terminal(terminal):
    with Display(1, quiet=True) as display:
        for epoch in epochs("base"):
            display(epoch)
    assert terminal.getvalue() == ""


def test_what_a_terminal_shows(log):
    clock = Clock()
    display = Display(4, clock=clock)
    assert picture(display)[0].startswith("network 1/4 ")
    assert picture(display)[0].endswith(" -:-- left")
    for epoch in epochs("[1: mask]", 10, replicas=8, together=4)[:5]:
        clock.now += 8
        display(epoch)
    one, run = picture(display)
    assert one.startswith("individual, [1: mask] ")
    assert one.endswith(" epoch 5/10 best validation 50.00 (mean)")
    assert run.startswith("network 1/4 ")
    # 8 s an epoch: 5 epochs and then 10 for the other four replicas, and three networks of 40 + 120 s.
    assert run.endswith(" 10:00 left 0/8 replicas done")
    clock.now += 5
    assert " 9:55 left " in picture(display)[1], "it counts down between two words"


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_two_lines_on_any_terminal(log, width):
    display = Display(9)
    for epoch in epochs("1: " + "a view with a long name " * 8, 2000, replicas=100):
        display(epoch)
    lines = picture(display, width)
    assert len(lines) == 2
    assert all(len(line) <= width for line in lines)
    if width >= 60:
        assert "2000/2000" in lines[0]
        assert "50.00" in lines[0]
        assert "1/100 replicas" in lines[1]
        assert " left " in lines[1]


# ---- time left -------------------------------------------------------------------------------------------------------


def forecast(trainings: int, *finished: tuple[float, float]) -> Forecast:
    """After trainings of so many seconds that went through such shares of their epochs; it is 0 o'clock."""
    made = Forecast(trainings, -sum(seconds for seconds, _ in finished))
    now = made.began
    for seconds, share in finished:
        now += seconds
        made.hear(share, now)
        made.close(now)
    return made


def test_nothing_is_known_at_first():
    assert forecast(9).left(5.0) is None


def test_the_first_training_is_taken_for_all():
    made = forecast(5)
    made.hear(0.5, 10.0)
    assert made.left(10.0) == pytest.approx(10 + 4 * 20)
    assert made.left(13.0) == pytest.approx(10 + 4 * 20 - 3)
    assert made.left(1e6) == 0


def test_getting_ready_is_no_measure_of_an_epoch():
    made = forecast(1)
    made.hear(0.1, 30.0)  # 29 s of which went by before the first epoch
    made.hear(0.2, 31.0)
    assert made.left(31.0) == pytest.approx(8.0)


def test_trainings_that_stop_early_shorten_those_to_come():
    made = forecast(4, (10, 0.5), (20, 0.3))
    assert made.left(0.0) == pytest.approx(2 * 15)
    made.hear(0.1, 4.0)
    made.hear(0.2, 8.0)  # 4 s for each tenth, and the others ended at 0.4
    assert made.left(8.0) == pytest.approx(8 + 15)
    made.hear(0.6, 24.0)  # it has outlasted them
    assert made.left(24.0) == pytest.approx(8 + 15)


def test_a_run_with_more_trainings_than_were_told_of(log):
    with Display(1) as display:
        for epoch in epochs("base") + epochs("1: mask"):
            display(epoch)
    assert log.getvalue().splitlines()[1].startswith("[2/2] ")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(None, "-:--"), (0, "0:00"), (0.2, "0:01"), (61, "1:01"), (3725, "1:02:05")]
)
def test_times(seconds, shown):
    assert progress._time(seconds) == shown


# ---- whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"seeds": 3}, {"seeds": 2, "splits": 2, "masks": "random"}])
def test_every_training_is_announced_and_the_last_word_is_that_all_are_done(log, given):
    display = Display(5)
    with display:
        fit(graph(), baseline=True, on_epoch=display, **given)
    assert display.done == display.total == 5
    assert log.getvalue().count("\n") == 5


def test_splits_one_after_another(log):
    seen: list[Epoch] = []
    fit(graphs(), "gin", seeds=2, splits=2, masks="random", on_epoch=seen.append)
    assert [(e.network, e.done, e.replicas) for e in seen][:4] == [
        *(("1: mask", done, 4) for done in (2, 4)),
        *(("2: original", done, 4) for done in (2, 4)),
    ]
