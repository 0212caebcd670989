"""A stored result -> the `harness run` line that makes it; values as --set reads them."""

import shlex
from collections.abc import Iterator
from typing import Any

import losses
from harness import config
from harness.plan import IDLE, RAW_PIXELS
from harness.spec import BATCH, SETTINGS, Protocol, Result, Trial


def command(result: Result, protocol: Protocol, folder: str = ".") -> str:
    """The `harness run` that makes this result: what differs from the protocol, and every knob.

    The file of a user's own loss is in `folder`.
    """
    trial = result.trial
    usual = config.usual(protocol, trial.dataset, trial.loss)
    words = ["harness", "run", "--losses", loss_option(trial, folder), *dataset_options(result)]
    words += ["--protocol", trial.protocol]
    if result.provenance.get("bad_images_skipped"):
        words.append("--skip-bad-images")
    if trial.weights_kind != usual["weights"] and not trial.is_pixels:
        words += weights_options(result)
    if result.curve and result.has_curves:
        words.append("--curves")
    threads = result.provenance.get("threads") or 1
    if threads != 1:  # numbers depend on it, but not the trial's name
        words += ["--cpus-per-trial", str(threads)]
    if result.is_ensemble:
        words += ["--seeds", str(len(result.members)), "--ensemble", str(result.ensemble)]
    for key, value in assignments(trial, usual, protocol):
        words += ["--set", f"{key}={written(value)}"]
    line = shlex.join(words)
    if result.recipe:
        line += f"; harness eval {result.members[0]} --nmi-recipe {result.recipe}"
    return line


def more_like(result: Result, *options: str) -> str:
    """The `harness run` with these options on a result's dataset, with its protocol and backbone."""
    trial = result.trial
    words = ["harness", "run", *dataset_options(result), "--protocol", trial.protocol]
    protocol = config.find_protocol(trial.protocol)
    if protocol is None or protocol.shared(trial.dataset)["backbone"] != trial.backbone:
        words += ["--set", f"backbone={trial.backbone}"]
    if protocol and trial.weights_kind != protocol.shared(trial.dataset)["weights"] and not trial.is_pixels:
        words += weights_options(result)
    return shlex.join([*words, *options])


def weights_options(result: Result) -> list[str]:
    kind = result.trial.weights_kind
    return ["--weights", result.provenance.get("weights_file") or "FILE" if kind == "file" else kind]


def loss_option(trial: Trial, folder: str = ".") -> str:
    """A registered loss by its name, a user's own by its file: `harness show ID --source DIR` writes it."""
    stem, _, name = trial.loss.rpartition(".")
    return f"{folder}/{stem}.py:{name}" if stem else trial.loss


def dataset_options(result: Result) -> list[str]:
    """A shipped dataset by its name, a user's own by its path."""
    name = result.trial.dataset
    if config.find_dataset(name) is None:
        name = result.provenance.get("data") or f"./{name}"
    return ["--dataset", name]


def assignments(trial: Trial, usual: dict[str, Any], protocol: Protocol) -> Iterator[tuple[str, Any]]:
    """What --set has to say: settings that differ from the usual ones, or where the size of classes decides, and every
    knob."""
    fixed = {"weights"}  # an option of its own
    if trial.is_baseline:
        fixed |= set(IDLE)
    if trial.is_pixels:
        fixed |= set(RAW_PIXELS)
    told = {name for name in SETTINGS if getattr(trial, name) != usual[name] or name in protocol.few_images}
    own_family = protocol.families and trial.loss not in losses.shipped()
    if own_family or told & set(BATCH):  # to set a part of the batch is to set all of it
        told |= set(BATCH)
    for name in SETTINGS:
        if name in told - fixed:
            yield name, getattr(trial, name)
    # knobs that are left out of a trial mean "as before", which need not be their default today
    added = losses.facts(trial.loss).added if trial.loss in losses.shipped() else {}
    for name, value in {**added, **trial.knobs}.items():
        yield f"{trial.loss}.{name}", value


def written(value: Any) -> str:
    """A value as --set reads it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(written, value)) if isinstance(value, list | tuple) else str(value)
