"""Learning rates, weight decay and schedules of a stage."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.spec import Trial
from harness.training import optimizers, setup
from tests.training.trials import set_up, trial


def rates(one: Trial) -> list[float]:
    bench, loss = set_up(one)
    return [group["lr"] for group in optimizers.parameter_groups(bench, setup.main_stage(bench, loss))]


def test_head_and_loss_have_their_own_learning_rates(small: Path) -> None:
    one = trial("proxy_nca", {"lr_factor": 10.0}, lr=1e-3, head_lr_factor=2.0)
    assert rates(one) == pytest.approx([1e-3, 2e-3, 2e-2])
    assert rates(trial("triplet", lr=1e-3)) == pytest.approx([1e-3, 1e-3])
    assert rates(trial("triplet", lr=1e-3, dim=None)) == pytest.approx([1e-3])


def test_a_loss_may_keep_weight_decay_off_what_it_owns(small: Path) -> None:
    """The margin loss's beta is a distance: decayed, it would sink where there is nothing to learn."""
    for name, decays in (("margin", False), ("proxy_nca", True)):
        bench, loss = set_up(trial(name, weight_decay=0.5))
        *network, owned = optimizers.parameter_groups(bench, setup.main_stage(bench, loss))
        assert all(group["weight_decay"] == 0.5 for group in network)
        assert owned["weight_decay"] == (0.5 if decays else 0.0)


def schedule(one: Trial) -> list[float]:
    """The trunk's learning rate at each step of each epoch."""
    bench, loss = set_up(one)
    stage = setup.main_stage(bench, loss)
    optimizer = torch.optim.Adam(optimizers.parameter_groups(bench, stage))
    scheduler = optimizers.make_scheduler(optimizer, stage)
    seen = []
    for _ in range(stage.epochs * len(stage.batches)):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_drops_multiply_the_rate_by_a_tenth_after_those_epochs(small: Path) -> None:
    seen = schedule(trial(schedule="drops", drops=(1, 3), epochs=4, lr=1e-2))
    steps = len(seen) // 4
    assert seen[0] == seen[steps - 1] == pytest.approx(1e-2)
    assert seen[steps] == seen[3 * steps - 1] == pytest.approx(1e-3)
    assert seen[3 * steps] == seen[-1] == pytest.approx(1e-4)


def test_one_cycle_rises_to_the_rate_and_falls_to_nothing(small: Path) -> None:
    seen = schedule(trial(schedule="one-cycle", epochs=5, lr=1e-2))
    assert max(seen) == pytest.approx(1e-2, rel=0.02)
    assert seen[0] < 1e-3
    assert seen[-1] < 1e-4
    peak = seen.index(max(seen))
    assert seen[:peak] == sorted(seen[:peak])
    assert seen[peak:] == sorted(seen[peak:], reverse=True)


def test_reloads_set_the_rate_to_a_tenth_once(small: Path) -> None:
    seen = schedule(trial(schedule="reloads", checkpoint="best-test", drops=(1, 3), epochs=4, lr=1e-2))
    steps = len(seen) // 4
    assert seen[steps - 1] == pytest.approx(1e-2)
    assert seen[steps] == seen[3 * steps] == seen[-1] == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("name", "kind", "has"),
    [
        ("adam", torch.optim.Adam, {"eps": 1e-8}),
        ("radam", torch.optim.RAdam, {"decoupled_weight_decay": True}),
        ("rmsprop", torch.optim.RMSprop, {"momentum": 0.9}),
    ],
)
def test_the_optimizer_is_the_trials(small: Path, name: str, kind: type, has: dict[str, Any]) -> None:
    bench, loss = set_up(trial(optimizer=name, weight_decay=0.5))
    made = optimizers.make_optimizer(bench, setup.main_stage(bench, loss))
    assert type(made) is kind
    assert all(group["weight_decay"] == 0.5 and has.items() <= group.items() for group in made.param_groups)
