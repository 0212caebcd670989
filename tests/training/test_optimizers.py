"""Learning rates, weight decay and schedules of a stage."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.backbones.network import Network
from harness.spec import SETTINGS, Trial
from harness.training.optimizers import make_optimizer, make_scheduler, parameter_groups
from harness.training.setup import Stage, main_stage
from tests.training.trials import set_up, trial


def learning_rates(trial: Trial) -> list[float]:
    model, stage = model_and_stage(trial)
    return [group["lr"] for group in parameter_groups(model, stage)]


def model_and_stage(trial: Trial) -> tuple[Network, Stage]:
    setup, loss = set_up(trial)
    return setup.model, main_stage(setup, loss)


def test_head_and_loss_have_their_own_learning_rates(small: Path) -> None:
    own_rates = trial("proxy_nca", {"lr_factor": 10.0}, lr=1e-3, head_lr_factor=2.0)
    assert learning_rates(own_rates) == pytest.approx([1e-3, 2e-3, 2e-2])
    assert learning_rates(trial("triplet", lr=1e-3)) == pytest.approx([1e-3, 1e-3])
    assert learning_rates(trial("triplet", lr=1e-3, dim=None)) == pytest.approx([1e-3])


def test_a_loss_may_exempt_its_parameters_from_weight_decay(small: Path) -> None:
    """The margin loss's beta is a distance: decayed, it would sink where there is nothing to learn."""
    for name, decays in (("margin", False), ("proxy_nca", True)):
        *network, owned = parameter_groups(*model_and_stage(trial(name, weight_decay=0.5)))
        assert all(group["weight_decay"] == 0.5 for group in network)
        assert owned["weight_decay"] == (0.5 if decays else 0.0)


def schedule(trial: Trial) -> list[float]:
    """The trunk's learning rate at each step of each epoch."""
    model, stage = model_and_stage(trial)
    optimizer = torch.optim.Adam(parameter_groups(model, stage))
    scheduler = make_scheduler(optimizer, stage)
    rates = []
    for _ in range(stage.epochs * len(stage.batches)):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_drops_multiply_the_rate_by_a_tenth_after_those_epochs(small: Path) -> None:
    rates = schedule(trial(schedule="drops", drops=(1, 3), epochs=4, lr=1e-2))
    steps = len(rates) // 4
    assert rates[0] == rates[steps - 1] == pytest.approx(1e-2)
    assert rates[steps] == rates[3 * steps - 1] == pytest.approx(1e-3)
    assert rates[3 * steps] == rates[-1] == pytest.approx(1e-4)


def test_one_cycle_rises_to_the_rate_and_falls_to_nothing(small: Path) -> None:
    rates = schedule(trial(schedule="one-cycle", epochs=5, lr=1e-2))
    assert max(rates) == pytest.approx(1e-2, rel=0.02)
    assert rates[0] < 1e-3
    assert rates[-1] < 1e-4
    peak = rates.index(max(rates))
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_one_cycle_also_moves_the_momentum_as_the_settings_say(small: Path) -> None:
    model, stage = model_and_stage(trial(schedule="one-cycle", epochs=5))
    optimizer = torch.optim.Adam(parameter_groups(model, stage))
    scheduler = make_scheduler(optimizer, stage)
    beta1 = []
    for _ in range(stage.epochs * len(stage.batches)):
        beta1.append(optimizer.param_groups[0]["betas"][0])
        optimizer.step()
        scheduler.step()
    assert (beta1[0], min(beta1), beta1[-1]) == pytest.approx((0.95, 0.85, 0.95), abs=0.01)
    assert "moves momentum (Adam's beta1) from 0.95 to 0.85 and back" in SETTINGS["schedule"].meaning


def test_reloads_set_the_rate_to_a_tenth_once(small: Path) -> None:
    rates = schedule(trial(schedule="reloads", checkpoint="best-test", drops=(1, 3), epochs=4, lr=1e-2))
    steps = len(rates) // 4
    assert rates[steps - 1] == pytest.approx(1e-2)
    assert rates[steps] == rates[3 * steps] == rates[-1] == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("name", "kind", "has"),
    [
        ("adam", torch.optim.Adam, {"eps": 1e-8}),
        ("radam", torch.optim.RAdam, {"decoupled_weight_decay": True}),
        ("rmsprop", torch.optim.RMSprop, {"momentum": 0.9}),
    ],
)
def test_the_optimizer_is_the_trials(small: Path, name: str, kind: type, has: dict[str, Any]) -> None:
    optimizer = make_optimizer(*model_and_stage(trial(optimizer=name, weight_decay=0.5)))
    assert type(optimizer) is kind
    assert all(group["weight_decay"] == 0.5 and has.items() <= group.items() for group in optimizer.param_groups)


def test_adam_on_a_cpu_is_adam(small: Path) -> None:
    """The fused kernel against the textbook's update (Kingma & Ba, Algorithm 1), on a network whose weights lie
    channels-last, with weight decay and a rate for each group."""
    model, stage = model_and_stage(trial("normalized_softmax", lr=1e-2, weight_decay=0.1, head_lr_factor=3.0))
    optimizer = make_optimizer(model, stage)
    assert optimizer.defaults["fused"]
    groups = [(parameter, group["lr"]) for group in optimizer.param_groups for parameter in group["params"]]
    expected = [parameter.detach().clone() for parameter, _ in groups]
    moments = [(torch.zeros_like(value), torch.zeros_like(value)) for value in expected]
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 4):
        for index, (parameter, rate) in enumerate(groups):
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = torch.empty_like(parameter).copy_(gradient)
            gradient = gradient + 0.1 * expected[index]
            first, second = moments[index]
            first.mul_(0.9).add_(0.1 * gradient)
            second.mul_(0.999).add_(0.001 * gradient**2)
            update = first / (1 - 0.9**step) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
            expected[index] = expected[index] - rate * update
        optimizer.step()
    for (parameter, _), value in zip(groups, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), value, rtol=1e-4, atol=1e-5)
