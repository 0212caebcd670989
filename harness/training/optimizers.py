"""The optimizer of a stage, its parameter groups and its schedule."""

import torch

from harness.backbones import network
from harness.training.setup import Bench, Stage


def make_optimizer(bench: Bench, stage: Stage) -> torch.optim.Optimizer:
    groups = parameter_groups(bench, stage)
    match bench.trial.optimizer:
        case "radam":
            return torch.optim.RAdam(groups, eps=stage.eps, decoupled_weight_decay=True)
        case "rmsprop":
            return torch.optim.RMSprop(groups, eps=stage.eps, momentum=0.9)
        case _:
            return torch.optim.Adam(groups, eps=stage.eps)


def parameter_groups(bench: Bench, stage: Stage) -> list[dict]:
    """The trunk at lr, the embedding layer at lr x head_lr_factor, what the loss owns at that x its own factor."""
    head_lr = stage.lr * bench.trial.head_lr_factor
    model, loss = bench.model, stage.loss
    head = list(model.head.parameters()) if isinstance(model, network.Embedder) else []
    trunk = list(model.trunk.parameters()) if isinstance(model, network.Embedder) else []
    decay = stage.weight_decay
    groups = [
        (trunk, stage.lr, decay),
        (head, head_lr, decay),
        (list(loss.parameters()), head_lr * loss.lr_factor, decay if loss.decay else 0.0),
    ]
    return [{"params": params, "lr": lr, "weight_decay": decay} for params, lr, decay in groups if params]


def make_scheduler(optimizer: torch.optim.Optimizer, stage: Stage) -> torch.optim.lr_scheduler.LRScheduler:
    """Stepped once a batch."""
    steps = len(stage.batches)
    if stage.schedule == "one-cycle":
        peaks = [group["lr"] for group in optimizer.param_groups]
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, peaks, total_steps=max(1, stage.epochs * steps))
    milestones = [epoch * steps for epoch in stage.drops]
    if stage.schedule == "reloads":  # at every drop the rate is set to a tenth of the first one, not of the last
        milestones = milestones[:1]
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
