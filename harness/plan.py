"""Experiment -> trials: random search and grids on validation classes, final seeds on test classes, the baselines."""

import random
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from harness import config
from harness.config import DEFAULTS, RUN_SETTINGS, TUNABLE
from harness.spec import SETTINGS, Experiment, LossSpec, Protocol, Result, Trial, UserError, has_curves, unknown
from losses.space import Range

BASELINE = "none"  # the loss of the two baselines
SHARED = [name for name in SETTINGS if name not in (*RUN_SETTINGS, *TUNABLE)]  # what fairness wants equal

# Nothing of how a loss is trained is part of a baseline, so that every experiment on the data shares it.
IDLE: Mapping[str, Any] = {
    **{"augment": "none", "classes_per_batch": 1, "samples_per_class": 1, "freeze_bn": False},
    **{"pretrain_epochs": 0, "pretrain_lr": 1.0, "pretrain_eps": 1.0, "pretrain_batch": 2, "crop_scale": 1.0},
    **{"epochs": 0, "optimizer": "adam", "lr": 1.0, "weight_decay": 0.0, "head_lr_factor": 1.0},
    **{"schedule": "drops", "drops": (), "checkpoint": "last"},
}
# The raw-pixel baseline: what the networks see, without one.
PIXELS: Mapping[str, Any] = {
    **{"backbone": "pixels", "weights": "none", "dim": None, "pooling": "avg", "layer_norm": False},
}


def search(experiment: Experiment) -> list[Trial]:
    """`trials` configurations for each loss, drawn before anything runs: the same request names the same trials.

    Draw i does not depend on how many are asked for. What the user set is not searched. Each configuration is one
    trial for each validation fold of the protocol; one that is drawn twice counts once.
    """
    drawn = [
        trial(experiment, loss, _draw(experiment, loss, number), fold=f"val{fold}")
        for loss in experiment.losses
        for number in range(experiment.trials)
        for fold in range(experiment.protocol.folds)
    ]
    return list({one.id: one for one in drawn}.values())


def grid(experiment: Experiment) -> list[Trial]:
    """The cells of a grid: for each loss every combination of the settings and of its own knobs, as if the user had set
    them, and `seeds` runs of each. On validation classes, unless the user names a fold."""
    trials: list[Trial] = []
    for loss in experiment.losses if experiment.grid else ():
        axes = {key: values for key, values in experiment.grid.items() if owner(key) in ("", loss.name)}
        for values in product(*axes.values()):
            settings, knobs = {"fold": "val0", **experiment.settings}, {**experiment.knobs.get(loss.name, {})}
            for key, value in zip(axes, values, strict=True):
                (knobs if owner(key) else settings)[key.rpartition(".")[2]] = value
            trials += final(replace(experiment, losses=(loss,), settings=settings, knobs={loss.name: knobs}), {})
    return trials


def owner(key: str) -> str:
    """The loss whose knob a key of a grid is; empty for a setting."""
    return key.rpartition(".")[0]


def final(experiment: Experiment, chosen: Mapping[str, Mapping[str, Any]]) -> list[Trial]:
    """`seeds` runs of each loss with its chosen values; without a search these are the protocol's own.

    A loss none of whose search trials succeeded is left out: there is nothing honest to run it with.
    """
    first = experiment.settings.get("seed", DEFAULTS["seed"])
    return [
        trial(experiment, loss, chosen.get(loss.name, {}), seed=first + number)
        for loss in experiment.losses
        if loss.name in chosen or not experiment.trials
        for number in range(experiment.seeds)
    ]


def baselines(experiment: Experiment) -> list[Trial]:
    """Raw pixels once; the untrained network once, or for each seed where a part of it is random."""
    first = experiment.settings.get("seed", DEFAULTS["seed"])
    network = [_baseline(experiment, seed=first + number) for number in range(experiment.seeds)]
    random_part = network[0].dim is not None or network[0].weights == "none"
    return [_baseline(experiment, **PIXELS, seed=DEFAULTS["seed"]), *(network if random_part else network[:1])]


def best(results: Iterable[Result], metric: str, folds: int = 1) -> dict[str, dict[str, Any]]:
    """Of each loss the values of its best configuration by the mean over the validation folds.

    A configuration that lacks a fold is no candidate. Equal scores: the first id.
    """
    scored: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda one: one.id):
        scored.setdefault(replace(result.trial, fold="val0").id, []).append(result)
    ranked: dict[str, tuple[float, Trial]] = {}
    for group in scored.values():
        score, one = sum(result.metrics[metric] for result in group) / folds, group[0].trial
        if len(group) == folds and (one.loss not in ranked or score > ranked[one.loss][0]):
            ranked[one.loss] = (score, one)
    return {name: values_of(one) for name, (_, one) in ranked.items()}


def configuration(one: Trial) -> str:
    """The same for trials that differ in their seed only."""
    return replace(one, seed=0).id


def shared(one: Trial) -> tuple[Any, ...]:
    """The settings that every loss of a fair comparison has."""
    return tuple(getattr(one, name) for name in SHARED)


def values_of(one: Trial) -> dict[str, Any]:
    """What search may have chosen: knobs and tunable settings."""
    return {**one.knobs, **{name: getattr(one, name) for name in TUNABLE}}


def trial(experiment: Experiment, loss: LossSpec, values: Mapping[str, Any], **fixed: Any) -> Trial:
    """One trial of a loss. Stronger last: defaults, the protocol's, its values for this loss, `values`, the user's,
    `fixed`."""
    if experiment.settings.get("backbone") == PIXELS["backbone"]:
        raise UserError(
            "backbone=pixels has nothing to train: it is measured with every run, --losses none for it alone"
        )
    tuned = _tuned(experiment, loss)
    layers = [{name: knob.default for name, knob in loss.knobs.items()}, tuned, values]
    layers.append(experiment.knobs.get(loss.name, {}))
    knobs = {name: value for layer in layers for name, value in layer.items() if name in loss.knobs}
    for name, value in knobs.items():
        if value is None and not loss.knobs[name].optional:
            raise UserError(f"{loss.name}.{name} has no default: --set {loss.name}.{name}=...")
    settings = {name: value for layer in (tuned, values) for name, value in layer.items() if name in TUNABLE}
    return _trial(experiment, loss.name, loss.version, knobs, settings, fixed)


def _baseline(experiment: Experiment, **fixed: Any) -> Trial:
    return _trial(experiment, BASELINE, 1, {}, {}, {**IDLE, **fixed})


def _trial(
    experiment: Experiment,
    loss: str,
    version: int | str,
    knobs: Mapping[str, Any],
    settings: Mapping[str, Any],
    fixed: Mapping[str, Any],
) -> Trial:
    dataset, protocol = experiment.dataset, experiment.protocol
    values = {**DEFAULTS, **protocol.shared(dataset.name), **settings, **experiment.settings, **fixed}
    if values["crop"] > values["resize"]:
        raise UserError(f"crop={values['crop']} is larger than resize={values['resize']}: set both")
    if values["crop_scale"] > 1:
        raise UserError(f"crop_scale={values['crop_scale']:g}: allowed is a share of the image, up to 1")
    if values["augment"] == "drawings" and values["aspect"] == "kept":
        raise UserError("augment=drawings wants square images: aspect=square")
    if values["schedule"] == "reloads" and values["checkpoint"] == "last":
        raise UserError("schedule=reloads goes back to the best epoch: it needs checkpoint=best-test")
    return Trial(
        dataset=dataset.name,
        dataset_version=dataset.version,
        fingerprint=dataset.fingerprint,
        protocol=protocol.name,
        loss=loss,
        loss_version=version,
        knobs=dict(knobs),
        **values,
    )


def _tuned(experiment: Experiment, loss: LossSpec) -> dict[str, Any]:
    """The protocol's values for this loss on this dataset, their names checked."""
    protocol, dataset = experiment.protocol, experiment.dataset.name
    values = protocol.values(dataset, loss.name)
    allowed = {**loss.knobs, **{name: SETTINGS[name] for name in TUNABLE}}
    try:
        for name, value in values.items():
            if name not in allowed:
                raise unknown("knob", name, allowed)
            values[name] = allowed[name].check(value)
    except UserError as error:
        raise UserError(f"protocols/{protocol.name}.toml [tuned.{dataset}.{loss.name}]: {error}") from None
    return values


def _draw(experiment: Experiment, loss: LossSpec, number: int) -> dict[str, Any]:
    """Draw `number` from the loss's space and the protocol's ranges, in a fixed order of names."""
    rng = random.Random(f"{loss.name}:{number}")
    ranges = {
        name: Range(low, high, log=True)
        for name, (low, high) in experiment.protocol.search.items()
        if name in TUNABLE or name in loss.knobs
    }
    space = {**loss.space, **ranges}
    return {name: space[name].sample(rng) for name in sorted(space)}


def command(result: Result, protocol: Protocol) -> str:
    """The `harness run` that makes this result: what differs from the protocol, and every knob."""
    one = result.trial
    usual = {**DEFAULTS, **protocol.shared(one.dataset), **protocol.values(one.dataset, one.loss)}
    settings = [name for name in SETTINGS if getattr(one, name) != usual.get(name, DEFAULTS.get(name))]
    kind = one.weights.partition(":")[0]
    settings = [name for name in settings if name != "weights"]
    if one.loss == BASELINE:
        fixed = {*IDLE, *(PIXELS if one.backbone == PIXELS["backbone"] else ())}
        settings = [name for name in settings if name not in fixed]
    stem, _, own = one.loss.rpartition(".")  # a user's file is not stored: it has to be where the command is run
    words = ["harness", "run", "--losses", f"./{stem}.py:{own}" if stem else one.loss]
    shipped = one.dataset in config.names("datasets")
    words += ["--dataset", one.dataset if shipped else result.provenance.get("data") or f"./{one.dataset}"]
    words += ["--protocol", one.protocol]
    if result.provenance.get("bad_images_skipped"):
        words += ["--skip-bad-images"]
    if kind != usual["weights"] and one.backbone != PIXELS["backbone"]:
        words += ["--weights", result.provenance.get("weights_file") or "FILE" if kind == "file" else kind]
    if result.curve and has_curves(result.curve):
        words += ["--curves"]
    if result.ensemble:
        words += ["--seeds", str(len(result.members)), "--ensemble", str(result.ensemble)]
    for name in settings:
        words += ["--set", f"{name}={written(getattr(one, name))}"]
    for name, value in one.knobs.items():
        words += ["--set", f"{one.loss}.{name}={written(value)}"]
    again = f"; harness eval {result.members[0]} --nmi-recipe {result.recipe}" if result.recipe else ""
    return shlex.join(words) + again


def written(value: Any) -> str:
    """A value as --set reads it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
