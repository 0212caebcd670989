"""Classification before the loss: trained once per network, data and seed, then shared by every loss."""

import hashlib
import json
import time
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import replace

import safetensors.torch
import torch
from filelock import Timeout
from safetensors import SafetensorError
from torch import Tensor, nn

import losses
from harness.backbones.network import Embedder, MethodEmbedder
from harness.data.sampler import Shuffled
from harness.spec import Progress, Trial
from harness.storage import DamagedError, Storage
from harness.training.checkpoint import Checkpoint, Seconds
from harness.training.loop import fit
from harness.training.setup import Stage, TrialSetup, seed
from losses.base import Loss

# Fields of a trial on which pre-training does not depend, so that trials that differ in them share it. A field that is
# not listed counts: forgetting one here costs time, never a wrong result.
NOT_OF_PRETRAINING = frozenset(
    {
        "protocol",
        "loss",
        "loss_version",
        "knobs",
        "augment",
        "crop_scale",
        "classes_per_batch",
        "samples_per_class",
        "epochs",
        "lr",
        "weight_decay",
        "schedule",
        "drops",
        "checkpoint",
        "warmup_epochs",
        "stop_after",
    }
)


def pretraining_key(trial: Trial, *, own_head: bool = False) -> str:
    """A hash of all that pre-training depends on. It only names a file that is made again where it is missing. A method
    that builds its own head shares what losses without an embedding layer have."""
    trial = replace(trial, dim=None) if own_head else trial
    values = {name: value for name, value in trial.to_json().items() if name not in NOT_OF_PRETRAINING}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def pretrain(
    setup: TrialSetup, loss: Loss, storage: Storage, resumed: Checkpoint
) -> Generator[Progress, None, Seconds]:
    """Set network and classifier to their pre-trained weights, trained here unless they are stored. Returns the seconds
    of all that was done so far, waiting apart from training.

    The classifier's weights are handed on to a loss that has a classifier of the same shape. Where a method builds its
    own head, the trunk alone is pre-trained.
    """
    key = pretraining_key(setup.trial, own_head=isinstance(setup.model, MethodEmbedder))
    setup = with_usual_head(setup)
    name, owner = f"pretrained/{key}.safetensors", f"pre-training {key}"
    begun = time.perf_counter()
    with (yield from entered(storage, name)):
        resumed = resumed.after(wait=time.perf_counter() - begun)
        seconds = resumed.seconds
        try:
            state = stored(storage, name, owner, setup)
        except DamagedError as damage:
            yield Progress.idle("pretrain", note=storage.set_aside(damage))
            state = None
        if state is None:
            state, seconds = yield from train_classifier(setup, storage, resumed)
            storage.write_sealed(name, owner, safetensors.torch.save(state))
    setup.model.load_state_dict(under("model.", state))
    own = loss.state_dict()
    classifier = {
        key: value
        for key, value in under("loss.", state).items()
        if key.startswith("classifier.") and key in own and own[key].shape == value.shape
    }
    loss.load_state_dict({**own, **classifier})
    return seconds


def with_usual_head(setup: TrialSetup) -> TrialSetup:
    """The same trunk without the head that a method has built."""
    if not isinstance(setup.model, MethodEmbedder):
        return setup
    plain = Embedder(setup.model.trunk, setup.model.width, replace(setup.trial, dim=None))
    return replace(setup, model=plain.to(setup.device))


def entered(storage: Storage, name: str) -> Generator[Progress, None, ExitStack]:
    """The lock of a shared file, held. Reports while another trial holds it."""
    held = ExitStack()
    while True:
        try:
            held.enter_context(storage.lock(name, timeout=1))
        except Timeout:
            yield Progress.idle("pretrain")
        else:
            return held


def stored(storage: Storage, name: str, owner: str, setup: TrialSetup) -> dict[str, Tensor] | None:
    """The stored weights of network and classifier; None if there are none, a DamagedError if they do not fit."""
    content = storage.read_sealed(name, owner)
    if content is None:
        return None
    try:
        state = safetensors.torch.load(content)
    except SafetensorError as error:
        raise DamagedError(name, f"is damaged: {error}") from None
    with torch.device("meta"):  # shapes alone: nothing is drawn
        softmax = softmax_of(setup)
    expected = nn.ModuleDict({"model": setup.model, "loss": softmax}).state_dict()
    if {key: value.shape for key, value in state.items()} != {key: value.shape for key, value in expected.items()}:
        raise DamagedError(name, "is of another network")
    return state


def train_classifier(
    setup: TrialSetup, storage: Storage, resumed: Checkpoint
) -> Generator[Progress, None, tuple[dict[str, Tensor], Seconds]]:
    """The weights of network and classifier after pre-training, and the seconds of all that was done so far."""
    torch.manual_seed(seed(setup.trial, "pretrain"))  # independent of what the loss has drawn before
    softmax = softmax_of(setup).to(setup.device)
    _, seconds = yield from fit(setup, pretraining_stage(setup, softmax), storage, resumed)
    state = nn.ModuleDict({"model": setup.model, "loss": softmax}).state_dict()
    return {key: value.contiguous().cpu() for key, value in state.items()}, seconds


def softmax_of(setup: TrialSetup) -> Loss:
    return losses.get("softmax")(setup.fold.train_classes, setup.model.dim)


def pretraining_stage(setup: TrialSetup, softmax: Loss) -> Stage:
    """No augmentation, a constant learning rate and no weight decay: a search over them must not pre-train again."""
    trial = setup.trial
    return Stage(
        name="pretrain",
        loss=softmax,
        batches=Shuffled(len(setup.fold.train), trial.pretrain_batch),
        epochs=trial.pretrain_epochs,
        optimizer=trial.optimizer,
        lr=trial.pretrain_lr,
        head_lr=trial.pretrain_lr * trial.head_lr_factor,
        weight_decay=0.0,
        augment="none",
        precision=trial.precision,
        eps=trial.pretrain_eps,
    )


def under(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, by the rest of their names."""
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
