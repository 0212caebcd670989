"""Trials and results to test with: each with usual values, and whatever a test wants to be different."""

from dataclasses import replace
from typing import Any

import numpy as np

from harness import config, plan
from harness.spec import ExperimentRecord, Result, Trial
from harness.spec.queries import PerQuery
from harness.spec.recipes import LLOYD


def a_trial(**changes: Any) -> Trial:
    """Triplet loss on emoji, protocol quick, on test classes."""
    values = {
        "dataset": "emoji",
        "dataset_version": 1,
        "fingerprint": "abc",
        "protocol": "quick",
        "loss": "triplet",
        "loss_version": 1,
        "knobs": {"margin": 0.2},
        **config.DEFAULTS,
        **config.protocol("quick").settings,
    }
    return Trial(**{**values, **changes})


def a_result(trial: Trial | None = None, **metrics: float) -> Result:
    return Result(
        trial=trial or a_trial(),
        title="Triplet",
        cite="Schroff et al., CVPR 2015",
        metrics=metrics or {"R@1": 0.5, "R@2": 0.6, "NMI": 0.7, "MAP@R": 0.3},
        conventions={"NMI": str(LLOYD)},
        curve=({"epoch": 1, "loss": 0.5},),
        seconds={"train": 1.0, "total": 2.0},
        parameters=10,
        artifacts={},
        provenance={},
    )


def an_experiment(**changes: Any) -> ExperimentRecord:
    """The record of a request on emoji, protocol quick."""
    values = {
        "command": "harness run",
        "made": "2026-11-18T12:00:00+00:00",
        "dataset": "emoji",
        "protocol": "quick",
        "select": "R@1",
        "folds": 1,
        "trials": 0,
        "seeds": 1,
        "scheduler": "none",
        "settings": {},
        "space": {},
    }
    return ExperimentRecord(**{**values, **changes})


def answered(name: str, seed: int = 0, level: float = 0.5, classes: int = 20, **changes: Any) -> Result:
    """A loss that answers queries at rank 1 with about this chance, with the values of each query: 10 per class. The
    seed moves all classes a little; classes are as hard for every loss."""
    random = np.random.default_rng([seed, *name.encode()])
    hard = np.random.default_rng(classes).normal(0, 0.15, classes)
    chances = np.clip(level + hard + random.normal(0, 0.01) + random.normal(0, 0.03, classes), 0, 1)
    hits = random.random((classes, 10)) < chances[:, None]
    ranks = np.where(hits, 1, random.integers(2, 6, hits.shape)).reshape(1, -1)
    precision = (1.0 / ranks[0]).astype(np.float32)
    names = tuple(f"class_{number}" for number in range(classes))
    values = PerQuery(np.repeat(np.arange(classes), 10), ranks, precision, precision**2, depth=5, names=names)
    metrics = {metric: float(values.values(metric).mean()) for metric in ("R@1", "R@2", "MAP@R", "RP")}
    file = values.to_bytes()
    result = a_result(a_trial(loss=name, seed=seed, **changes), **metrics, NMI=level)
    return replace(result, title=name.capitalize(), queries=values.summary(file), per_query=file)


def loss_row(name: str, title: str, value: float, **changes: Any) -> Result:
    """A loss with this value for every metric, R@10 a little above."""
    trial = a_trial(loss=name, **changes)
    return replace(a_result(trial, **{"R@1": value, "R@10": value + 0.1, "R@2": value, "NMI": value}), title=title)


def baseline(backbone: str, value: float) -> Result:
    fixed = {**plan.IDLE, **(plan.RAW_PIXELS if backbone == "pixels" else {}), "backbone": backbone, "knobs": {}}
    title = "Raw pixels" if backbone == "pixels" else "Untrained network"
    return replace(loss_row("none", title, value, **fixed), cite="")


def cub(name: str, value: float, seed: int = 0, **changes: Any) -> Result:
    """A loss on CUB-200-2011 with this value for every metric, in the paper's setting."""
    metrics = {"R@1": value, "R@2": value, "R@4": value, "R@8": value, "NMI": value}
    settings = {**config.DEFAULTS, **config.protocol("paper").shared("cub"), "weights": "hub:in1k"}
    trial = a_trial(**{"loss": name, "dataset": "cub", "protocol": "paper", **settings, "seed": seed, **changes})
    return replace(a_result(trial, **metrics), title=name)


NETWORK = a_trial().backbone
USUAL = [
    loss_row("triplet", "Triplet", 0.6),
    loss_row("group", "Group Loss", 0.7),
    baseline("pixels", 0.5),
    baseline(NETWORK, 0.4),
]
