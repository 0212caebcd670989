"""The optimizer of a stage, and its learning-rate schedule."""

from typing import Any

import torch

from harness.backbones.network import Network
from harness.training.setup import Stage


def make_optimizer(model: Network, stage: Stage) -> torch.optim.Optimizer:
    groups = parameter_groups(model, stage)
    match stage.optimizer:
        case "radam":
            return torch.optim.RAdam(groups, eps=stage.eps, decoupled_weight_decay=True)
        case "rmsprop":
            return torch.optim.RMSprop(groups, eps=stage.eps, momentum=0.9)
        case _:
            # on a CPU one pass over the memory instead of ten; torch has it for neither of the others
            on_cpu = all(parameter.device.type == "cpu" for group in groups for parameter in group["params"])
            return torch.optim.Adam(groups, eps=stage.eps, fused=on_cpu or None)


def parameter_groups(model: Network, stage: Stage) -> list[dict[str, Any]]:
    """The model's groups, and the loss's parameters at the embedding layer's rate times the loss's own factor. A loss
    may exempt its parameters from weight decay."""
    network = model.parameter_groups(stage.lr, stage.head_lr, trunk=not stage.frozen)
    groups = [{**group, "weight_decay": stage.weight_decay} for group in network]
    loss, owned = stage.loss, list(stage.loss.parameters())
    if owned:
        decay = stage.weight_decay if loss.decay else 0.0
        groups.append({"params": owned, "lr": stage.head_lr * loss.lr_factor, "weight_decay": decay})
    return groups


def make_scheduler(optimizer: torch.optim.Optimizer, stage: Stage) -> torch.optim.lr_scheduler.LRScheduler:
    """The schedule, to be stepped once per batch."""
    steps = len(stage.batches)
    if stage.schedule == "one-cycle":
        peaks = [group["lr"] for group in optimizer.param_groups]
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, peaks, total_steps=max(1, stage.steps))
    milestones = [epoch * steps for epoch in stage.drops]
    if stage.schedule == "reloads":  # every drop sets the rate to a tenth of the first rate, not of the last one
        milestones = milestones[:1]
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
