"""Classification before the loss, shared by every loss."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Generator

import safetensors.torch
import torch
from safetensors.torch import save
from torch import nn

import losses
from harness.data.sampler import Shuffled
from harness.spec import Progress, Trial
from harness.storage import Storage
from harness.training.checkpoint import Checkpoint
from harness.training.loop import fit
from harness.training.setup import Bench, Stage, seed
from losses.base import Loss


def pretrain(bench: Bench, loss: Loss, storage: Storage, resumed: Checkpoint) -> Generator[Progress, None, float]:
    """Classification before the loss: once for a backbone, data and seed, then shared by every loss. Returns seconds.

    The classifier's weights are handed on where the loss has one of the same shape. No augmentation, a constant
    learning rate and no weight decay: a search over weight decay must not retrain it.
    """
    trial, model = bench.trial, bench.model
    begun = time.perf_counter()
    name = f"pretrained/{pretraining_key(trial)}.safetensors"
    with storage.lock(name):
        content = storage.read(name)
        if content is None:
            torch.manual_seed(seed(trial, "pretrain"))  # whatever the loss has drawn before
            softmax = losses.get("softmax")(bench.fold.train_classes, model.dim).to(bench.device)
            stage = Stage(
                name="pretrain",
                loss=softmax,
                batches=Shuffled(len(bench.fold.train), trial.pretrain_batch),
                epochs=trial.pretrain_epochs,
                lr=trial.pretrain_lr,
                weight_decay=0.0,
                augment="none",
                eps=trial.pretrain_eps,
            )
            yield from fit(bench, stage, storage, resumed)
            state = nn.ModuleDict({"model": model, "loss": softmax}).state_dict()
            content = save({key: value.contiguous().cpu() for key, value in state.items()})
            storage.write(name, content)
    state = safetensors.torch.load(content)
    model.load_state_dict({key[6:]: value for key, value in state.items() if key.startswith("model.")})
    own = loss.state_dict()
    handed = {key[5:]: value for key, value in state.items() if key.startswith("loss.classifier.")}
    handed = {key: value for key, value in handed.items() if key in own and own[key].shape == value.shape}
    loss.load_state_dict({**own, **handed})
    return time.perf_counter() - begun


def pretraining_key(trial: Trial) -> str:
    """A hash of all that pre-training depends on, and of nothing else."""
    shared = (
        *("dataset", "dataset_version", "fingerprint", "fold", "seed", "backbone", "weights", "dim", "pooling"),
        *("layer_norm", "freeze_bn", "resize", "aspect", "crop", "head_lr_factor", "optimizer", "precision"),
        *("pretrain_epochs", "pretrain_lr", "pretrain_eps", "pretrain_batch"),
    )
    values = {name: value for name, value in dataclasses.asdict(trial).items() if name in shared}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
