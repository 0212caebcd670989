"""Classification before the loss: trained once per network, data and seed, then shared by every loss."""

import hashlib
import json
import time
from collections.abc import Generator

import safetensors.torch
import torch
from torch import Tensor, nn

import losses
from harness.data.sampler import Shuffled
from harness.spec import Progress, Trial
from harness.storage import Storage
from harness.training.checkpoint import Checkpoint
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
    }
)


def pretraining_key(trial: Trial) -> str:
    """A hash of all that pre-training depends on. It only names a file that is made again where it is missing."""
    values = {name: value for name, value in trial.to_json().items() if name not in NOT_OF_PRETRAINING}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def pretrain(setup: TrialSetup, loss: Loss, storage: Storage, resumed: Checkpoint) -> Generator[Progress, None, float]:
    """Set network and classifier to their pre-trained weights, trained here unless they are stored. Returns seconds.

    The classifier's weights are handed on to a loss that has a classifier of the same shape.
    """
    begun = time.perf_counter()
    name = f"pretrained/{pretraining_key(setup.trial)}.safetensors"
    with storage.lock(name):
        content = storage.read(name)
        if content is None:
            content = yield from train_classifier(setup, storage, resumed)
            storage.write(name, content)
    state = safetensors.torch.load(content)
    setup.model.load_state_dict(under("model.", state))
    own = loss.state_dict()
    classifier = {
        key: value
        for key, value in under("loss.", state).items()
        if key.startswith("classifier.") and key in own and own[key].shape == value.shape
    }
    loss.load_state_dict({**own, **classifier})
    return time.perf_counter() - begun


def train_classifier(setup: TrialSetup, storage: Storage, resumed: Checkpoint) -> Generator[Progress, None, bytes]:
    """The weights of network and classifier after pre-training, as a safetensors file."""
    torch.manual_seed(seed(setup.trial, "pretrain"))  # independent of what the loss has drawn before
    softmax = losses.get("softmax")(setup.fold.train_classes, setup.model.dim).to(setup.device)
    yield from fit(setup, pretraining_stage(setup, softmax), storage, resumed)
    state = nn.ModuleDict({"model": setup.model, "loss": softmax}).state_dict()
    return safetensors.torch.save({key: value.contiguous().cpu() for key, value in state.items()})


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
