"""What a person sees while trials run: bars on a terminal, lines in a file."""

import io
from dataclasses import replace

from rich.console import Console

from harness import config
from harness.execution.display import Display
from harness.spec import Failure, Progress
from tests.factories import a_result, a_trial

PROGRESS = Progress(
    stage="train", epoch=2, epochs=4, step=5, steps=10, loss=0.25, images_per_second=120, seconds_left=61
)


def shown(*, terminal: bool) -> str:
    """The screen after a trial's progress, its end, and another trial's failure."""
    screen = io.StringIO()
    display = Display(Console(file=screen, force_terminal=terminal, width=200), config.protocol("quick"))
    with display:
        display.expect(2)
        display.show(a_trial(fold="val0"), PROGRESS)
        display.show(a_trial(fold="val0"), replace(PROGRESS, step=10))
        display.live.refresh()
        display.show(a_trial(fold="val0"), a_result(a_trial(fold="val0")))
        display.show(a_trial(), Failure(a_trial(), "RuntimeError: x", ""))
        display.live.refresh()
    return screen.getvalue()


def test_a_file_gets_a_line_per_epoch_and_per_trial() -> None:
    first, second = a_trial(fold="val0").name, a_trial().name
    assert shown(terminal=False).splitlines() == [
        f"{first}  epoch 2/4  loss 0.250  120 images/s  0:01:01 left",
        f"[1/2] {first}  R@1 50.0  NMI 70.0  2 s",
        f"[2/2] {second}  failed: RuntimeError: x",
    ]


def test_a_loss_of_0_is_said_once_when_an_epoch_of_it_ends() -> None:
    screen = io.StringIO()
    idle, trial = replace(PROGRESS, loss=0.0), a_trial()
    with Display(Console(file=screen, width=200), config.protocol("quick")) as display:
        display.show(trial, idle)
        assert "nothing" not in screen.getvalue()  # the epoch goes on
        for epoch in (2, 3):
            display.show(trial, replace(idle, epoch=epoch, step=10))
    assert screen.getvalue().count("nothing is learned") == 1
    assert f"{trial.name}  loss of 0 in every step in epoch 2: nothing is learned" in screen.getvalue()


def test_a_terminal_has_a_bar_per_trial_and_one_that_sums_up() -> None:
    text = shown(terminal=True)
    assert "epoch 2/4  loss 0.250" in text
    assert "0 done, 1 running, 1 waiting" in text
    assert "2 done, 0 running, 0 waiting" in text
    assert "best validation R@1: triplet 50.0" in text
