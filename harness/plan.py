"""Experiment -> trials: random search and grids on validation classes, final seeds on test classes, the baselines."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from harness import config, draws
from harness.config import DEFAULTS
from harness.spec import (
    BASELINE,
    BATCH,
    PER_LOSS,
    PIXELS,
    SEARCHABLE,
    SETTINGS,
    TUNABLE,
    Experiment,
    LossSpec,
    Measurement,
    Trial,
    UserError,
    Work,
    check_rules,
    pretraining_of,
    recomposed,
    unknown,
)
from losses.space import Choice, Range, Rates, rounded

# How losses are trained is not part of a baseline, so that all experiments of a protocol on the same images share it.
IDLE: Mapping[str, Any] = {
    "augment": "none",
    "crop_scale": 1.0,
    "classes_per_batch": 1,
    "samples_per_class": 1,
    "freeze_bn": False,
    "pretrain_epochs": 0,
    "pretrain_lr": 1.0,
    "pretrain_eps": 1.0,
    "pretrain_batch": 2,
    "epochs": 0,
    "optimizer": "adam",
    "lr": 1.0,
    "weight_decay": 0.0,
    "head_lr_factor": 1.0,
    "schedule": "drops",
    "drops": (),
    "checkpoint": "last",
    "warmup_epochs": 0.0,
    "stop_after": 0,
}
# The raw-pixel baseline: the images as the networks see them, without a network.
RAW_PIXELS: Mapping[str, Any] = {
    "backbone": PIXELS,
    "weights": "none",
    "dim": None,
    "pooling": "avg",
    "layer_norm": False,
}
BASELINE_VERSION = 1
# Where there are more test images than this, version 2 of the raw pixels shrinks them further: k-means of 3,072 numbers
# per image would take longer than training.
MANY_TEST_IMAGES, SMALL_PIXELS_VERSION = 20_000, 2

MOST_TRIALS = 100_000  # of one run


def count(experiment: Experiment) -> int:
    """How many trials an experiment has, at most, without naming them."""
    if experiment.grid:
        cells = [
            math.prod(len(values) for key, values in experiment.grid.items() if owner(key) in ("", loss.name))
            for loss in experiment.losses
        ]
        return sum(cells) * experiment.seeds
    searched = experiment.trials * experiment.protocol.folds
    return len(experiment.losses) * (searched + experiment.seeds) + 1 + experiment.seeds


def search(experiment: Experiment) -> list[Trial]:
    """`trials` configurations per loss, drawn before anything runs: the same request names the same trials.

    Draw i does not depend on how many are asked for. What the user has set is not searched. Each configuration is one
    trial per validation fold of the protocol; a configuration that is drawn twice counts once.
    """
    check_epochs(experiment)
    drawn = [
        trial(experiment, loss, _draw(experiment, loss, number), fold=f"val{fold}")
        for loss in experiment.losses
        for number in range(experiment.trials)
        for fold in range(experiment.protocol.folds)
    ]
    return list({trial.id: trial for trial in drawn}.values())


def check_epochs(experiment: Experiment) -> None:
    """A UserError if the epoch is to be chosen in two ways."""
    checkpoint = {**_shared(experiment), **experiment.settings}["checkpoint"]
    if experiment.trials and experiment.protocol.select_epochs and checkpoint != "last":
        raise UserError(
            f"checkpoint={checkpoint}: chooses the epoch of each run by itself; must be last where a search chooses "
            f"it, as protocols/{experiment.protocol.name}.toml says with select_epochs"
        )


def grid(experiment: Experiment) -> list[Trial]:
    """The cells of a grid: for each loss every combination of the settings and of its own knobs, as if the user had set
    them, and `seeds` runs of each. On validation classes, unless the user names a fold."""
    trials: list[Trial] = []
    if not experiment.grid:
        return trials
    for loss in experiment.losses:
        axes = {key: values for key, values in experiment.grid.items() if owner(key) in ("", loss.name)}
        for values in product(*axes.values()):
            cell = dict(zip(axes, values, strict=True))
            settings = {key: value for key, value in cell.items() if not owner(key)}
            knobs = {key.rpartition(".")[2]: value for key, value in cell.items() if owner(key)}
            cell_experiment = replace(
                experiment,
                losses=(loss,),
                settings={"fold": "val0", **experiment.settings, **settings},
                knobs={loss.name: {**experiment.knobs.get(loss.name, {}), **knobs}},
            )
            trials += final(cell_experiment, {})
    return trials


def owner(key: str) -> str:
    """The loss whose knob a key of a grid is; empty for a setting."""
    return key.rpartition(".")[0]


def final(experiment: Experiment, chosen: Mapping[str, Mapping[str, Any]]) -> list[Trial]:
    """`seeds` runs of each loss with its chosen values; without a search these are the protocol's own.

    A loss whose search trials all failed is left out: no values were chosen for it.
    """
    first = experiment.settings.get("seed", DEFAULTS["seed"])
    return [
        trial(experiment, loss, chosen.get(loss.name, {}), seed=first + number)
        for loss in experiment.losses
        if loss.name in chosen or not experiment.trials
        for number in range(experiment.seeds)
    ]


def baselines(experiment: Experiment) -> list[Trial]:
    """Raw pixels and the untrained network: once per seed if a part of it is random, else once, whatever the seed."""
    pixels = _baseline(experiment, **RAW_PIXELS, seed=DEFAULTS["seed"])
    if experiment.dataset.test_images > MANY_TEST_IMAGES:
        pixels = replace(pixels, loss_version=SMALL_PIXELS_VERSION)
    network = _baseline(experiment, seed=DEFAULTS["seed"])
    if not is_random(network.dim, network.weights):
        return [pixels, network]
    first = experiment.settings.get("seed", DEFAULTS["seed"])
    return [pixels, *(replace(network, seed=first + number) for number in range(experiment.seeds))]


def baseline_count(dim: int | None, weights: str, seeds: int) -> int:
    """Raw pixels, and the untrained network: once, or for each seed if a part of it is random."""
    return 1 + (seeds if is_random(dim, weights) else 1)


def is_random(dim: int | None, weights: str) -> bool:
    """Whether a part of the untrained network is random: an embedding layer, or all of it."""
    return dim is not None or weights == "none"


def ensembles(experiment: Experiment, final: Iterable[Trial]) -> list[Measurement]:
    """An ensemble per loss and size, of all final runs of the loss."""
    runs: dict[str, list[Trial]] = {}
    for trial in final:
        runs.setdefault(trial.configuration, []).append(trial)
    return [
        Measurement(runs=tuple(members), ensemble=size)
        for members in runs.values()
        for size in experiment.ensembles
        if size <= len(members)
    ]


def needs(experiment: Experiment, work: Work) -> tuple[Trial, ...]:
    """What must be stored before a trial or a measurement can start. This is no field of a trial: it follows from its
    fields."""
    if isinstance(work, Measurement):
        return work.runs
    pretraining = pretraining_of(work, own_head=_has_own_head(experiment, work))
    first = (pretraining,) if pretraining else ()
    return (*first, teacher(experiment, work)) if work.teacher else first


def _has_own_head(experiment: Experiment, trial: Trial) -> bool:
    """Whether the loss of a trial builds its head. A teacher's loss need not be among the losses of the experiment."""
    if trial.is_baseline or trial.is_pretraining:
        return False
    named = [loss for loss in experiment.losses if loss.name == trial.loss]
    loss = named[0] if named else config.loss(trial.loss)
    return loss.head_dim > 0


def teacher(experiment: Experiment, student: Trial) -> Trial:
    """The trial whose network a student learns from. It has the student's seed, fold and settings, but not its rates:
    these and its knobs are the protocol's for its loss. So it follows from the student's fields alone."""
    name = student.knobs["teacher"]
    try:
        loss = config.loss(name)
    except UserError as error:
        raise UserError(f"{student.loss}.teacher={name}: {error}") from None
    if loss.has_teacher or loss.sources:
        kind = "that has no teacher itself" if loss.has_teacher else "that `harness ls losses` names, not a file"
        raise UserError(f"{student.loss}.teacher={name}: must be a loss {kind}")
    shared = {name: getattr(student, name) for name in SETTINGS if name not in (*TUNABLE, "stop_after")}
    return trial(replace(experiment, losses=(loss,), settings=shared, knobs={}, grid={}), loss, {})


def trial(experiment: Experiment, loss: LossSpec, values: Mapping[str, Any], **fixed: Any) -> Trial:
    """One trial of a loss. Stronger last: defaults, the protocol's, its values for this loss, `values`, the user's,
    `fixed`."""
    if experiment.settings.get("backbone") == PIXELS:
        raise UserError(
            "backbone=pixels: has nothing to train; every run measures it, --losses none measures only baselines"
        )
    tuned = _tuned(experiment, loss)
    layers = [{name: knob.default for name, knob in loss.knobs.items()}, tuned, values]
    layers.append(experiment.knobs.get(loss.name, {}))
    knobs = {
        name: loss.knobs[name].proper(value) for layer in layers for name, value in layer.items() if name in loss.knobs
    }
    for name, value in knobs.items():
        if value is None and not loss.knobs[name].optional:
            raise UserError(f"{loss.name}.{name} has no default: --set {loss.name}.{name}=...")
    # an added knob is left out while it means "as before": older trials keep their ids
    knobs = {name: value for name, value in knobs.items() if name not in loss.added or value != loss.added[name]}
    planned = _trial(experiment, loss.name, loss.version, knobs, _settings(experiment, loss, values), fixed)
    _check_pairs(loss, planned)
    if loss.has_teacher:
        taught_by = teacher(experiment, planned)
        planned = replace(planned, teacher=taught_by.id, knobs={**knobs, "teacher": taught_by.loss})
    return planned


def _settings(experiment: Experiment, loss: LossSpec, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a loss. Stronger last: defaults, the protocol's, its values for the family and for this loss,
    `values`, the user's. A loss may have its own number of images per class, in batches of as many images as the other
    losses have; a user who sets a part of the batch sets it for all. A method with a head of its own has the dimension
    that it was published with, unless one is given."""
    shared = _shared(experiment)
    own = {**experiment.protocol.of_family(loss.family), **_tuned(experiment, loss), **values}
    own = {name: value for name, value in own.items() if name in (*SEARCHABLE, "stop_after")}
    samples = own.pop("samples_per_class", None)
    if samples is not None and not _sets_batch(experiment):
        own |= recomposed(shared, samples)
    settings = {**shared, **own, **experiment.settings}
    if loss.head_dim and settings["layer_norm"]:
        raise UserError(f"layer_norm=true: {loss.name} builds its own head, without LayerNorm; must be false")
    if loss.head_dim and settings["dim"] is None:
        settings["dim"] = loss.head_dim
    return settings


def _sets_batch(experiment: Experiment) -> bool:
    """Whether the user says what a batch consists of."""
    return any(name in experiment.settings or name in experiment.grid for name in BATCH)


def has_own_batch(experiment: Experiment, trial: Trial) -> bool:
    """Whether the protocol, or a search, gives a trial another batch than the losses share."""
    shared = _shared(experiment)
    return not _sets_batch(experiment) and any(getattr(trial, name) != shared[name] for name in BATCH)


def _shared(experiment: Experiment) -> dict[str, Any]:
    """The settings that an experiment's losses share, before a user's."""
    dataset = experiment.dataset
    return {**DEFAULTS, **experiment.protocol.shared(dataset.name, dataset.images_per_class)}


def _check_pairs(loss: LossSpec, trial: Trial) -> None:
    """A UserError if no batch could hold what a pair loss compares: its value would be 0 in every step."""
    if loss.family != "pair":
        return
    for name, needed in (("samples_per_class", "images of a class"), ("classes_per_batch", "classes")):
        if getattr(trial, name) < 2:
            raise UserError(
                f"{name}={getattr(trial, name)}: must be at least 2 for {loss.name}, a pair loss, which compares "
                f"{needed} in a batch; losses of other families train with 1: harness ls losses"
            )


def _baseline(experiment: Experiment, **fixed: Any) -> Trial:
    settings = {**_shared(experiment), **experiment.settings}
    return _trial(experiment, BASELINE, BASELINE_VERSION, {}, settings, {**IDLE, **fixed})


def _trial(
    experiment: Experiment,
    loss: str,
    version: int | str,
    knobs: Mapping[str, Any],
    settings: Mapping[str, Any],
    fixed: Mapping[str, Any],
) -> Trial:
    dataset, protocol = experiment.dataset, experiment.protocol
    values = {**settings, **fixed}
    check_rules(values)
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
    allowed = {**loss.knobs, **{name: SETTINGS[name] for name in PER_LOSS}}
    try:
        for name, value in values.items():
            if name not in allowed:
                raise unknown("knob", name, allowed)
            values[name] = allowed[name].check(value)
    except UserError as error:
        raise UserError(f"protocols/{protocol.name}.toml [tuned.{dataset}.{loss.name}]: {error}") from None
    return values


def space(experiment: Experiment, loss: LossSpec) -> dict[str, Range | Choice]:
    """What is drawn for a loss: its own space, and the protocol's ranges."""
    ranges = {
        name: values for name, values in experiment.protocol.search.items() if name in SEARCHABLE or name in loss.knobs
    }
    if "samples_per_class" in ranges:
        composition = ranges.pop("samples_per_class")
        if not _sets_batch(experiment):
            ranges["samples_per_class"] = _allowed(composition, experiment, loss)
    return {**loss.space, **ranges}


def _draw(experiment: Experiment, loss: LossSpec, number: int) -> dict[str, Any]:
    """Draw `number` from the space of a loss."""
    ranges = space(experiment, loss)
    draw = draws.draw(loss, ranges, number)
    rates = [name for name in draw if isinstance(ranges[name], Rates)]
    if rates:
        settings = _settings(experiment, loss, draw)
        head = settings["lr"] * settings["head_lr_factor"]
        draw |= {name: rounded(draw[name] / head) for name in rates}
    return draw


def _allowed(composition: Range | Choice, experiment: Experiment, loss: LossSpec) -> Choice:
    """The numbers of images per class that a search may give to a loss; a UserError if a batch cannot be divided so, or
    if a pair loss is left with none."""
    values = composition.values if isinstance(composition, Choice) else ()
    for samples in values:
        recomposed(_shared(experiment), samples)
    least = 2 if loss.family == "pair" else 1
    allowed = [samples for samples in values if samples >= least]
    if not allowed:
        raise UserError(
            f"protocols/{experiment.protocol.name}.toml [search] samples_per_class={list(values)}: must have a value "
            f">= {least} for {loss.name}, a pair loss, which compares images of a class in a batch"
        )
    return Choice(*allowed)
