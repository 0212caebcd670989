"""The paper's published numbers, the setting they were measured in, and whom to cite: configs/reference, read."""

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import losses
from harness import config
from harness.analysis import tuning
from harness.analysis.results import short_side
from harness.spec import Result, Trial

PAPER = "elezi2020"
BN_INCEPTION = "52deb4733"  # how the sha256 of its ImageNet weights begins


@dataclass(frozen=True)
class Published:
    """One number as the paper prints it, misprints included; a note says what is wrong with it or what it is."""

    table: str  # losses | ensembles | backbones | text
    section: str  # of the table, or of the text
    method: str  # as printed
    cite: str  # a BibTeX key
    loss: str  # the registered loss that the method is, or ""
    dataset: str
    metric: str  # R@1, ..., NMI in percent; Params; "R@1 difference": how far above what the note names
    value: float | None  # None: the paper prints "-"
    text: str  # the value as printed: 55, 53.0
    note: str


def published(table: str | None = None) -> tuple[Published, ...]:
    """The numbers of one table of the paper, or all, in its order; none if the configuration has no reference."""
    return tuple(row for row in _published(_folder() / f"{PAPER}.csv") if table in (None, row.table))


def paper() -> Mapping[str, Any]:
    """Title, short citation and BibTeX key of the paper that the numbers are from."""
    return {name: value for name, value in _toml(_file()).items() if not isinstance(value, dict)}


def setting(table: str) -> Mapping[str, Any]:
    """What a trial has to have in common with the numbers of a table: by field a value, a list of those that fit, or,
    where it differs by row, a mapping from the row's method to either. Empty for `text`, which has no one setting."""
    return _with_none(_toml(_file()).get(table, {}))


def number(result: Result, metric: str) -> Published | None:
    """The paper's number for what a result measures: the loss, or its ensemble, on the dataset; of the Group Loss with
    the result's backbone where the paper has that one too."""
    trial, table = result.trial, _table(result)
    for row in published():
        if (row.loss, row.dataset, row.metric) != (trial.loss, trial.dataset, metric) or row.value is None:
            continue
        if table == "ensembles":
            fits = row.method == f"Ours {result.ensemble}-ensemble"
        elif table == "backbones":
            fits = row.table == table and setting(table)["backbone"][row.method] == trial.backbone
        else:  # single networks of Table 1, those of Table 2, and SoftTriple of the supplement
            fits = row.table == "losses" or row.method == "SofTriple" or _is_single(row, trial)
        if fits:
            return row
    return None


def section(loss: str) -> str:
    """The section of Table 2 in which the paper has a loss, or a method that is more than a loss, as one network; empty
    if it has none."""
    return next((row.section for row in published("ensembles") if row.loss == loss and _is_one_network(row)), "")


def _is_one_network(row: Published) -> bool:
    """Of the sections with ensembles only what is a method by itself: not three networks of the ranked list loss."""
    several = row.section in ("Loss+Ensembles", "Ours") and not is_method(row.loss)
    return row.table == "ensembles" and not several


def _is_single(row: Published, trial: Trial) -> bool:
    """Whether a row of Table 2 is of a network like this one; of ABE with as many learners."""
    learners = trial.knobs.get("learners")
    return _is_one_network(row) and (trial.loss != "abe" or row.method == f"ABE {learners}")


def is_method(loss: str) -> bool:
    """Whether a loss of this package has something that a loss has not."""
    return bool(loss) and loss in losses.shipped() and bool(losses.facts(loss).extras)


@dataclass(frozen=True)
class Difference:
    """A setting in which a run is not as the paper's number for it was made."""

    setting: str
    value: Any
    expected: tuple[Any, ...]  # any of these
    by: Literal["paper", "protocol"]  # who expects it: the paper, or the protocol that stands for it


def differences(result: Result) -> list[Difference]:
    """The settings in which a run differs from the paper; empty if the paper has no number for the run."""
    if number(result, "R@1") is None:
        return []
    trial = result.trial
    papers = {**setting(_table(result)), **_with_none(_toml(_file()).get("loss", {}).get(trial.loss, {}))}
    different = []
    for field, value in papers.items():
        if isinstance(value, dict):  # by row: that of the trial's network
            value = next(part for row, part in value.items() if papers["backbone"][row] == trial.backbone)
        expected = tuple(value) if isinstance(value, list) else (value,)
        mine = _trained_on(trial) if field == "weights" else getattr(trial, field)
        if mine not in expected:
            different.append(Difference(field, mine, expected, "paper"))
    side = short_side(trial.dataset, trial.fingerprint)
    if side:
        different.append(Difference("images", f"short side {side} px", ("as published",), "paper"))
    if trial.protocol in papers.get("protocol", ()):
        different += [
            Difference(unlike.name, unlike.here, (unlike.there,), "protocol")
            for unlike in tuning.unlike_protocol(trial)
            if unlike.name not in papers
        ]
    return different


def is_comparable(result: Result) -> bool:
    """Whether the paper has a number for a run, made in the run's settings."""
    return number(result, "R@1") is not None and not differences(result)


def title_of(method: str) -> str:
    """A method or a section of the paper as others call it: the paper calls its own "Ours"."""
    return method.replace("Ours", paper()["method"])


def _table(result: Result) -> str:
    """Where the paper has its number for such a run."""
    if result.is_ensemble:
        return "ensembles"
    others = set(setting("backbones").get("backbone", {}).values()) - {setting("losses").get("backbone")}
    return "backbones" if result.trial.loss == "group" and result.trial.backbone in others else "losses"


def _trained_on(trial: Trial) -> str:
    """The packages' weights, timm's that were trained on nothing else before, and the usual file of BN-Inception are
    ImageNet's; another file may be anything."""
    kind, _, which = trial.weights.partition(":")
    hub = kind == "hub" and which.endswith("in1k") and "_ft_" not in which
    file = kind == "file" and which.startswith(BN_INCEPTION)
    return "ImageNet" if kind == "package" or hub or file else trial.weights


def bibliography() -> str:
    """Every BibTeX entry, each once: the losses', then references.bib. LaTeX takes those that a table cites."""
    facts = [losses.facts(name) for name in losses.shipped()]
    entries = {loss.key: loss.bibtex for loss in facts}  # two losses may come from one paper
    file = _folder() / "references.bib"
    others = file.read_text(encoding="utf-8") if file.exists() else ""
    return "\n\n".join(["% The losses.", *entries.values(), others])


def key_of(loss: str) -> str | None:
    """The BibTeX key of a loss of this package; None for any other."""
    return losses.facts(loss).key if loss in losses.shipped() else None


def _folder() -> Path:
    return config.CONFIGS / "reference"


@cache
def _published(file: Path) -> tuple[Published, ...]:
    return tuple(
        Published(**{**row, "text": row["value"], "value": float(row["value"]) if row["value"] else None})
        for row in _rows(file)
    )


@cache
def _rows(file: Path) -> tuple[dict[str, Any], ...]:
    if not file.exists():
        return ()
    with file.open(encoding="utf-8", newline="") as lines:
        return tuple(csv.DictReader(lines))


def _file() -> Path:
    return _folder() / f"{PAPER}.toml"


@cache
def _toml(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _with_none(value: Any) -> Any:
    """TOML has no null: as in protocols, "none" stands for it."""
    if isinstance(value, dict):
        return {name: _with_none(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_with_none(part) for part in value]
    return None if value == "none" else value
