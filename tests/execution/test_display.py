"""What a person sees while trials run: a screen on a terminal, lines in a file."""

import io
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from harness import config
from harness.execution.display import Display
from harness.execution.pace import Pace, Running
from harness.execution.screen import NARROWEST, Screen
from harness.execution.text import BestScores
from harness.spec import Experiment, Failure, Progress, Trial
from tests.factories import a_result, a_trial

PROGRESS = Progress(
    stage="train", epoch=2, epochs=4, step=5, steps=10, loss=0.25, images_per_second=120, seconds_left=61
)
CLUSTERING = Progress("cluster", 3, 10, 12, 300, float("nan"), 0.0, 0.0)
LONG = "my_own_losses.AVeryThoroughlyNamedContrastiveLoss"


def a_display(screen: io.StringIO, *, terminal: bool = False, log: Path | None = None, seeds: int = 1) -> Display:
    display = Display(Console(file=screen, force_terminal=terminal, width=200, height=30))
    losses = (config.loss("triplet"),)
    display.begin(Experiment(config.dataset("emoji"), config.protocol("quick"), losses, seeds=seeds), log)
    return display


def shown(*, terminal: bool, log: Path | None = None) -> str:
    """The screen after a trial's progress, its end, and another trial's failure."""
    screen = io.StringIO()
    display = a_display(screen, terminal=terminal, log=log)
    with display:
        display.expect(2)
        display.show(a_trial(fold="val0"), PROGRESS)
        display.show(a_trial(fold="val0"), replace(PROGRESS, step=10))
        refresh(display)
        display.show(a_trial(fold="val0"), a_result(a_trial(fold="val0")))
        display.show(a_trial(), Failure(a_trial(), "RuntimeError: x", ""))
        refresh(display)
    return screen.getvalue()


def refresh(display: Display) -> None:
    if display.live is not None:
        display.live.refresh()


def test_a_file_gets_a_line_per_event_with_the_time_of_day() -> None:
    first, second = a_trial(fold="val0").name, a_trial().name
    lines = shown(terminal=False).splitlines()
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d .+", line) for line in lines)
    assert [line[9:] for line in lines] == [
        f"{first}  begins",
        f"{first}  epoch 2/4  loss 0.250  120 images/s  0:01:01 left",
        f"[1/2] {first}  R@1 50.0  NMI 70.0  2 s",
        f"[2/2] {second}  failed: RuntimeError: x",
    ]


def test_a_trial_whose_process_died_does_not_run_until_it_begins_again() -> None:
    screen, trial = io.StringIO(), a_trial()
    with a_display(screen) as display:
        display.expect(1)
        display.show(trial, PROGRESS)
        display.lose(trial)
        assert not display.screen.running
        display.show(trial, PROGRESS)
    lines = [line[9:] for line in screen.getvalue().splitlines()]
    assert lines == [f"{trial.name}  {what}" for what in ("begins", "waits to start again", "begins")]


def test_a_line_of_a_file_is_whole_however_long_it_is() -> None:
    screen = io.StringIO()
    Display(Console(file=screen, width=80)).line("words " * 40)
    assert screen.getvalue()[9:] == "words " * 40 + "\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_log_has_the_same_lines_whatever_the_screen_is(terminal: bool, tmp_path: Path) -> None:
    shown(terminal=terminal, log=tmp_path / "logs" / "a.log")
    lines = (tmp_path / "logs" / "a.log").read_text().splitlines()
    assert [line[20:] for line in lines] == [line[9:] for line in shown(terminal=False).splitlines()]


def test_preparing_images_is_told_by_tenths_and_when_it_has_ended() -> None:
    screen = io.StringIO()
    with a_display(screen).preparing() as show:
        for done in range(0, 1001, 10):
            show(Progress("images", 1, 1, done, 1000, float("nan"), 50.0, 9.0))
    lines = [line[9:] for line in screen.getvalue().splitlines()]
    assert lines[0] == "preparing images 100/1000  50 images/s  0:00:09 left"
    assert len(lines) == 10
    assert lines[-1].startswith("1000 images prepared in ")


def test_clustering_is_a_phase_that_a_file_is_told_of_once() -> None:
    screen = io.StringIO()
    with a_display(screen) as display:
        for step in (12, 13):
            display.show(a_trial(), replace(CLUSTERING, step=step))
        display.show(a_trial(), replace(PROGRESS, stage="evaluate"))
        display.show(a_trial(), CLUSTERING)
    assert screen.getvalue().count("clustering for NMI  start 3/10  step 12/300") == 1


def test_a_loss_of_0_is_said_once_when_an_epoch_of_it_ends() -> None:
    screen = io.StringIO()
    idle, trial = replace(PROGRESS, loss=0.0), a_trial()
    with a_display(screen) as display:
        display.show(trial, idle)
        assert "nothing" not in screen.getvalue()  # the epoch goes on
        for epoch in (2, 3):
            display.show(trial, replace(idle, epoch=epoch, step=10))
    assert screen.getvalue().count("nothing is learned") == 1
    assert f"{trial.name}  loss of 0 in every step in epoch 2: nothing is learned" in screen.getvalue()


def test_a_terminal_has_a_row_per_trial_and_a_line_that_sums_up() -> None:
    text = shown(terminal=True)
    assert "epoch 2/4" in text
    assert "loss 0.250" in text
    assert "emoji · quick · val0 · seed 0" in text
    assert "0 of 2 done, 1 running, 1 waiting" in text
    assert "2 of 2 done, 0 running, 0 waiting" in text
    assert "best validation R@1: triplet 50.0" in text
    assert f"[1/2] triplet    {a_trial(fold='val0').id[:8]}  val0  R@1 50.0  NMI 70.0  2 s" in text


def test_the_total_stays_where_final_runs_turn_out_to_be_stored() -> None:
    screen = io.StringIO()
    with a_display(screen) as display:
        display.expect(4)
        display.show(a_trial(), a_result())
        display.expect(1)  # two of the other three are stored
        display.show(a_trial(seed=1), a_result(a_trial(seed=1)))
    assert re.findall(r"\[\d/\d\]|need not run", screen.getvalue()) == ["[1/4]", "need not run", "[4/4]"]


# --- the screen ---


def drawn(screen: Screen, width: int, height: int = 24) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, force_terminal=True, color_system="standard")
    console.print(screen.render(width, height))
    return [Text.from_ansi(line).plain.rstrip() for line in file.getvalue().splitlines()]


def a_screen(*trials: Trial, event: Progress = PROGRESS) -> Screen:
    screen = Screen("emoji · quick", total=40, done=3)
    screen.running = {trial.id: Running(trial, event) for trial in trials}
    screen.best = BestScores("R@1", 1)
    screen.best.scores = {"triplet": 0.5}
    return screen


def trials(number: int) -> Iterator[Trial]:
    for index in range(number):
        loss = ("normalized_softmax", "triplet")[index % 2]
        yield a_trial(loss=loss, fold="val0", lr=0.001 * (index + 1))


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("number", [2, 20])
@pytest.mark.parametrize("event", [PROGRESS, CLUSTERING])
def test_rows_fit_the_terminal_with_bars_whole_names_and_ids(width: int, number: int, event: Progress) -> None:
    running = list(trials(number))
    lines = drawn(a_screen(*running, event=event), width)
    rows = lines[3:]
    assert len(lines) <= 24
    assert len(rows) == number
    for trial, row in zip(running, rows, strict=True):
        assert len(row) <= width
        assert "…" not in row
        assert row.split()[:2] == [trial.loss, trial.id[:6]]
        assert row.count("━") + row.count("╸") + row.count("╺") >= NARROWEST
        assert ("loss 0.250" in row) == (event is PROGRESS)


def test_an_id_goes_before_a_name_is_cut_and_a_bar_stays() -> None:
    (row,) = drawn(a_screen(a_trial(loss=LONG)), 80)[3:]
    assert row.startswith(LONG)
    assert a_trial(loss=LONG).id[:6] not in row
    assert row.count("━") >= NARROWEST - 1
    (row,) = drawn(a_screen(a_trial(loss=LONG)), 50)[3:]
    assert "…" in row


def test_what_is_the_same_for_all_rows_stands_once_at_the_top() -> None:
    title, *_, first, second = drawn(a_screen(a_trial(fold="val0"), a_trial(fold="val1")), 80)
    assert title == "emoji · quick · seed 0"
    assert (first.split()[2], second.split()[2]) == ("val0", "val1")
    title, *_, first, _ = drawn(a_screen(a_trial(seed=1), a_trial(seed=2)), 80)
    assert title == "emoji · quick · test"
    assert "seed 1" in first


def test_a_screen_without_a_title_begins_with_the_facts() -> None:
    """`harness eval` measures runs of any dataset."""
    assert Screen().headline([Running(a_trial(), PROGRESS)]) == "test · seed 0"


def test_more_trials_than_lines_are_counted() -> None:
    lines = drawn(a_screen(*trials(30)), 80, height=24)
    assert len(lines) <= 24
    assert lines[-1] == f"and {30 - (len(lines) - 4)} more"


def test_the_best_of_many_losses_is_wrapped_not_cut() -> None:
    screen = a_screen(a_trial())
    assert screen.best is not None
    screen.best.scores = {f"loss_number_{number}": 0.5 for number in range(12)}
    text = " ".join(drawn(screen, 80))
    assert all(f"loss_number_{number} 50.0" in text for number in range(12))


# --- the time that is left ---


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_is_computed_anew_at_every_redraw(clock: list[float]) -> None:
    screen = a_screen(*trials(2))  # 61 s are left of each, and nobody has ended: 35 more take 61 s each, two at a time
    screen.pace.began(2)
    assert "about 0:18:48 left" in drawn(screen, 80)[1]
    clock[0] += 10
    assert "about 0:18:38 left" in drawn(screen, 80)[1]
    assert all("0:00:51 left" in row for row in drawn(screen, 80)[3:])


def test_trials_that_ended_tell_how_long_the_others_take(clock: list[float]) -> None:
    pace = Pace()
    baseline, first = Running(a_trial(loss="none"), PROGRESS), Running(a_trial(), PROGRESS)
    clock[0] += 5
    pace.ended(baseline)
    assert pace.left([], waiting=2) == 0  # it is not known
    clock[0] += 95
    pace.ended(first)
    assert pace.left([], waiting=2) == 200
    running = Running(a_trial(), replace(PROGRESS, seconds_left=0.0))
    clock[0] += 40
    assert pace.left([running], waiting=0) == 60
