"""Shared pre-training: which trials share one, and the trial that does it."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from harness.spec.trial import PRETRAINING, Trial

# Fields of a trial on which pre-training does not depend, and the values they have in the trial that does it: trials
# that differ in them share it. A field that is not listed counts: forgetting one here costs time, never a wrong result.
NOT_OF_PRETRAINING: Mapping[str, Any] = {
    "protocol": "any",
    "loss": PRETRAINING,
    "loss_version": 1,
    "knobs": {},
    "augment": "none",
    "crop_scale": 1.0,
    "classes_per_batch": 1,
    "samples_per_class": 1,
    "epochs": 0,
    "lr": 1.0,
    "weight_decay": 0.0,
    "schedule": "drops",
    "drops": (),
    "checkpoint": "last",
    "warmup_epochs": 0.0,
    "stop_after": 0,
    "teacher": "",
}


def pretraining_key(trial: Trial, *, own_head: bool = False) -> str:
    """A hash of all that pre-training depends on. It names the file that trials share. A method with a head of its own
    shares what losses without an embedding layer have."""
    trial = dataclasses.replace(trial, dim=None) if own_head else trial
    values = {name: value for name, value in trial.to_json().items() if name not in NOT_OF_PRETRAINING}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def pretraining_of(trial: Trial, *, own_head: bool = False) -> Trial | None:
    """The trial that does the pre-training of this one, which has the same key; None if there is none."""
    if not trial.pretrain_epochs or trial.is_baseline or trial.is_pretraining:
        return None
    return dataclasses.replace(trial, **NOT_OF_PRETRAINING, dim=None if own_head else trial.dim)
