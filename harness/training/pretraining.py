"""Classification before the loss: trained once per network, data and seed, then shared by every loss."""

import time
from collections.abc import Callable, Generator, Sequence
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
from harness.spec import Progress, pretraining_key
from harness.storage import DamagedError, Storage
from harness.training.checkpoint import Checkpoint, Curve, Seconds
from harness.training.loop import fit
from harness.training.setup import Stage, TrialSetup, seed
from losses.base import Loss

State = dict[str, Tensor]


def pretrain(
    setup: TrialSetup, loss: Loss, storage: Storage, resumed: Checkpoint
) -> Generator[Progress, None, Seconds]:
    """Set network and classifier to their pre-trained weights. A trial of its own has stored them; where they are
    missing or damaged they are trained here. Returns the seconds of all that was done so far, waiting apart from
    training.

    The classifier's weights are handed on to a loss that has a classifier of the same shape. Where a method builds its
    own head, the trunk alone is pre-trained.
    """
    name, *owners = file_of(setup, own_head=isinstance(setup.model, MethodEmbedder))
    setup = with_usual_head(setup)
    state, seconds = intact(lambda: stored(storage, name, owners, setup)), resumed.seconds
    if state is None:
        state, seconds = yield from pretrain_here(setup, storage, resumed, name, owners)
    setup.model.load_state_dict(under("model.", state))
    own = loss.state_dict()
    classifier = {
        key: value
        for key, value in under("loss.", state).items()
        if key.startswith("classifier.") and key in own and own[key].shape == value.shape
    }
    loss.load_state_dict({**own, **classifier})
    return seconds


def pretrain_here(
    setup: TrialSetup, storage: Storage, resumed: Checkpoint, name: str, owners: Sequence[str]
) -> Generator[Progress, None, tuple[State, Seconds]]:
    """Train and store what is missing or damaged, one trial at a time. Returns the weights, and the seconds of all that
    was done so far."""
    begun = time.perf_counter()
    with (yield from entered(storage, name)):
        resumed = resumed.after(wait=time.perf_counter() - begun)
        state = None
        try:
            state = stored(storage, name, owners, setup)  # another trial may have done it meanwhile
        except DamagedError as damage:
            yield Progress.idle("pretrain", note=storage.set_aside(damage))
        if state is not None:
            return state, resumed.seconds
        state, _, seconds = yield from train_classifier(setup, storage, resumed)
        storage.write_sealed(name, owners[0], safetensors.torch.save(state))
        return state, seconds


def with_usual_head(setup: TrialSetup) -> TrialSetup:
    """The same trunk without the head that a method has built."""
    if not isinstance(setup.model, MethodEmbedder):
        return setup
    plain = Embedder(setup.model.trunk, setup.model.width, replace(setup.trial, dim=None))
    return replace(setup, model=plain.to(setup.device))


def share(
    setup: TrialSetup, storage: Storage, resumed: Checkpoint
) -> Generator[Progress, None, tuple[dict[str, str], Curve, Seconds]]:
    """Train network and classifier, and store them for the trials that share them. Returns the reference to the file,
    the curve, and the seconds of all that was done so far."""
    state, curve, seconds = yield from train_classifier(setup, storage, resumed)
    name, owner, _ = file_of(setup)
    return storage.write_sealed(name, owner, safetensors.torch.save(state)), curve, seconds


def file_of(setup: TrialSetup, *, own_head: bool = False) -> tuple[str, str, str]:
    """The file that trials share, its owner, and what earlier versions called that."""
    key = pretraining_key(setup.trial, own_head=own_head)
    words = f"pre-training {key}"
    return f"pretrained/{key}.safetensors", f"{words} on images {setup.images.contents[:12]}", words


def intact(read: Callable[[], State | None]) -> State | None:
    """What is stored, unless it is missing or damaged. Read without the lock, so that trials that need the same file
    read it at the same time."""
    try:
        return read()
    except DamagedError:
        return None


def entered(storage: Storage, name: str, stage: str = "pretrain") -> Generator[Progress, None, ExitStack]:
    """The lock of a shared file, held. Reports while another trial holds it."""
    held = ExitStack()
    while True:
        try:
            held.enter_context(storage.lock(name, timeout=1))
        except Timeout:
            yield Progress.idle(stage)
        else:
            return held


def stored(storage: Storage, name: str, owners: Sequence[str], setup: TrialSetup) -> State | None:
    """The stored weights of network and classifier; None if there are none, a DamagedError if they do not fit."""
    content = storage.read_sealed(name, *owners)
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
) -> Generator[Progress, None, tuple[State, Curve, Seconds]]:
    """The weights of network and classifier after pre-training, the curve, and the seconds of all that was done so
    far."""
    torch.manual_seed(seed(setup.trial, "pretrain"))  # independent of what the loss has drawn before
    softmax = softmax_of(setup).to(setup.device)
    curve, seconds = yield from fit(setup, pretraining_stage(setup, softmax), storage, resumed)
    state = nn.ModuleDict({"model": setup.model, "loss": softmax}).state_dict()
    return {key: value.contiguous().cpu() for key, value in state.items()}, curve, seconds


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


def under(prefix: str, state: State) -> State:
    """The tensors whose names begin with the prefix, by the rest of their names."""
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
