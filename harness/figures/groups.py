"""Which stored results enter a figure. Imports neither torch nor matplotlib."""

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from harness import config, plan
from harness.analysis import budget
from harness.analysis.results import configurations as by_configuration
from harness.spec import BASELINE, SHARED, Result, Trial, UserError
from harness.tables import build as tables
from harness.tables import rows as measured

FEW = 4  # so many ids are named


@dataclass(frozen=True)
class Group:
    """What one figure is drawn from: the results of one dataset, protocol and backbone, on any classes."""

    dataset: str  # of copies of one: with its version and fingerprint
    protocol: str
    backbone: str
    results: tuple[Result, ...]
    losses: tuple[str, ...]  # of all groups: a loss looks alike in every figure

    @property
    def slug(self) -> str:
        return filename(f"{self.dataset}-{self.protocol}-{self.backbone}")

    def singles(self) -> list[Result]:
        """Final runs of losses."""
        return [one for one in self.results if one.trial.fold == "test" and not one.ensemble and not _baseline(one)]

    def validation(self) -> list[Result]:
        return [one for one in self.results if one.trial.fold != "test" and not _baseline(one)]

    def ensembles(self) -> list[Result]:
        """Of each size and configuration the one drawn from the most networks."""
        return [one for one in measured.largest(list(self.results)) if one.ensemble]

    def untrained(self, like: Trial) -> list[Result]:
        """The network before training, as these runs have it and see with it."""
        same = [name for name in SHARED if name not in plan.IDLE]
        found = [one for one in self.results if _baseline(one) and one.trial.fold == "test"]
        return [one for one in found if all(getattr(one.trial, name) == getattr(like, name) for name in same)]

    def missing(self, what: str, *options: str) -> UserError:
        """What this group lacks, and the command that makes it."""
        trial = self.results[0].trial
        data = trial.dataset
        if data not in config.names("datasets"):
            data = self.results[0].provenance.get("data") or f"./{data}"
        words = ["harness", "run", "--dataset", data, "--protocol", trial.protocol]
        known = trial.protocol in config.names("protocols")
        if not known or config.protocol(trial.protocol).shared(trial.dataset)["backbone"] != trial.backbone:
            words += ["--set", f"backbone={trial.backbone}"]
        where = f"{self.dataset}, {self.protocol}, {self.backbone}"
        return UserError(f"no {what} of {where}; make some with: {shlex.join([*words, *options])}")

    def note(self, runs: Sequence[Result], *remarks: str) -> str:
        """Where a figure comes from, for its corner."""
        ids = f": {', '.join(sorted(one.id[:6] for one in runs))}" if len(runs) <= FEW else ""
        count = f"{len(runs)} run{'s' if len(runs) != 1 else ''}{ids}"
        parts = [self.dataset, self.protocol, self.backbone, count, *remarks]
        return " · ".join(part for part in parts if part)


@dataclass(frozen=True)
class Line:
    """A loss in a figure: the final runs of one of its configurations, by seed."""

    loss: str
    runs: tuple[Result, ...]

    @property
    def title(self) -> str:
        return self.runs[0].title


def groups(results: Iterable[Result], **keep: str | None) -> list[Group]:
    """By dataset, copy of it, protocol and backbone. Raw pixels have no backbone and no figure; what was measured again
    stands in tables only."""
    results = tables.select(results, "", **keep)
    parts: dict[tuple[Any, ...], list[Result]] = defaultdict(list)
    for one in results:
        t = one.trial
        if not t.is_pixels:
            parts[t.dataset, t.protocol, t.backbone, t.dataset_version, t.fingerprint].append(one)
    copies = Counter(key[:3] for key in parts)
    losses = tuple(sorted({one.trial.loss for one in results} - {BASELINE}))
    return [
        Group(
            f"{dataset}-v{version}-{fingerprint}" if copies[dataset, protocol, backbone] > 1 else dataset,
            protocol,
            backbone,
            tuple(members),
            losses,
        )
        for (dataset, protocol, backbone, version, fingerprint), members in sorted(parts.items())
    ]


def lines(runs: Iterable[Result]) -> tuple[list[Line], str]:
    """Of each loss one configuration, all trained alike; and a remark on runs that are not shown for that.

    The settings that fairness wants equal are those most losses have. Of a loss's configurations it is the one with
    the most seeds, then the latest: nothing is chosen by a score on test classes.
    """
    all_of_them = by_configuration(list(runs))
    alike: dict[tuple[Any, ...], list[list[Result]]] = defaultdict(list)
    for one in all_of_them:
        alike[one[0].trial.shared].append(one)
    usual = max(alike.values(), key=lambda some: (len({one[0].trial.loss for one in some}), _weight(chain(*some))))
    chosen: dict[str, list[Result]] = {}
    for one in sorted(usual, key=_weight):
        chosen[one[0].trial.loss] = one
    hidden = sum(map(len, all_of_them)) - sum(map(len, chosen.values()))
    remark = f"{hidden} run{'s' if hidden != 1 else ''} with other settings not shown" if hidden else ""
    by_seed = {loss: tuple(sorted(found, key=lambda one: one.trial.seed)) for loss, found in chosen.items()}
    return [Line(loss, by_seed[loss]) for loss in sorted(by_seed)], remark


def search_scores(group: Group) -> tuple[dict[str, list[float]], list[Result], str]:
    """Of each loss the scores of its search trials, the results they come from, and the metric.

    A search is not marked as one. Its trials are the validation runs whose settings, but for what is searched, are
    those of the final runs, or else the most frequent ones.
    """
    folds, metric = budget.selection(group.protocol)
    found = [one for one in group.validation() if one.trial.fold in folds]
    counts = Counter(one.trial.shared for one in found)
    final = {line.runs[0].trial.shared for line in lines(group.singles())[0]} if group.singles() else set()
    usual = max(counts, key=lambda key: (key in final, counts[key], repr(key)), default=None)
    scores: dict[str, list[float]] = {}
    used: list[Result] = []
    for one in sorted(found, key=lambda one: one.trial.loss):
        if one.trial.shared == usual and one.trial.loss not in scores:
            spent = budget.of(one.trial, group.results)
            scores[one.trial.loss] = list(spent.scores)
            used += spent.search
    return {loss: values for loss, values in scores.items() if values}, used, metric


def filename(text: str) -> str:
    return re.sub(r"[^\w.-]", "-", text)


def _baseline(one: Result) -> bool:
    return one.trial.loss == BASELINE


def _weight(some: Iterable[Result]) -> tuple[int, str, str]:
    """Few before many, early before late."""
    runs = list(some)
    return len(runs), max(str(one.provenance.get("finished", "")) for one in runs), max(one.id for one in runs)
