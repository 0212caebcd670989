"""How much disk a run needs at least, so that a full disk is noticed before training."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from harness.backbones import network
from harness.execution.account import Account
from harness.files import PROBE
from harness.spec import Trial, trial_of
from harness.training.setup import network_and_loss

RESULT_BYTES = 6_000  # a stored result, roughly
QUERY_BYTES = 16  # the values of a query on test classes, at most
# The network in a checkpoint: weights, Adam's two moments, the weights of the best epoch. The next checkpoint is
# written beside it.
COPIES = 4 * 2


@dataclass(frozen=True)
class Room:
    """Bytes in --results and in --storage."""

    results: int = PROBE
    storage: int = PROBE


def needed(account: Account) -> Room:
    """The results and embeddings of a run, and the checkpoints of one trial at a time. Weights that are kept are not
    counted: they are smaller than the checkpoints that are gone by then."""
    trials = [*account.pending(account.known), *account.unnamed()]
    trained = [trial for trial in trials if not trial.is_baseline]
    methods = {loss.name: loss.sources for loss in account.experiment.losses if loss.head_dim}
    shapes = {shape_of(trial, methods): trial for trial in trained}
    networks = {shape: network_of(trial, methods.get(trial.loss)) for shape, trial in shapes.items()}
    embeddings = sum(
        4 * networks[shape_of(trial, methods)].dim * account.experiment.dataset.test_images
        for trial in trained
        if trial.on_test
    )
    checkpoints = max((4 * COPIES * parameters(one) for one in networks.values()), default=0)
    work = [*account.pending(account.work), *account.unnamed_work()]
    queries = account.experiment.dataset.test_images * sum(trial_of(one).on_test for one in work)
    return Room(PROBE + RESULT_BYTES * len(work) + QUERY_BYTES * queries, PROBE + embeddings + checkpoints)


def shape_of(trial: Trial, methods: Mapping[str, Mapping[str, str]]) -> tuple:
    """What the size of a network depends on. `methods`: the losses that build a head of their own."""
    return (trial.backbone, trial.dim, trial.crop, (trial.loss, repr(trial.knobs)) if trial.loss in methods else None)


def network_of(trial: Trial, method: Mapping[str, str] | None = None) -> network.Network:
    """The network without memory for its weights: only its shapes are of interest. `method`: the sources of a loss that
    builds a head of its own."""
    with torch.device("meta"):
        if method is None:
            return network.create(trial, pretrained=False)
        return network_and_loss(trial, method, pretrained=False)[0]


def parameters(model: network.Network) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
