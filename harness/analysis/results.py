"""Queries on results: select, group, find the usual settings, score, choose; and results as data frames."""

import dataclasses
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import losses
from harness import config
from harness.analysis.experiments import Purposes
from harness.plan import IDLE
from harness.spec import BASELINE, BATCH, PIXELS, SHARED, Result, Trial, has_epochs, metric_order, unknown
from harness.spec.recipes import LLOYD, recipe_of

if TYPE_CHECKING:
    import pandas as pd


def select(results: Iterable[Result], **keep: str | None) -> list[Result]:
    """The results with these values, with NMI by the usual recipe where it was measured."""
    return matching(with_nmi_by(LLOYD.name, told_apart(results)), **keep)


def told_apart(results: Iterable[Result]) -> list[Result]:
    """The results, where losses share a title with the name of each that is not of this package: Mine (mine.Mine)."""
    results = list(results)
    losses_by_title: dict[str, set[str]] = defaultdict(set)
    for result in results:
        losses_by_title[result.title].add(result.trial.loss)
    ours = {BASELINE, *losses.shipped()}
    return [
        replace(result, title=f"{result.title} ({result.trial.loss})")
        if len(losses_by_title[result.title]) > 1 and result.trial.loss not in ours
        else result
        for result in results
    ]


def with_nmi_by(recipe: str, results: Iterable[Result]) -> list[Result]:
    """The measured results, each once. A run that was measured again with this recipe has that NMI, the others keep
    theirs."""
    results = [result for result in results if not result.trial.is_pretraining]
    measured_again = {
        result.members[0]: result for result in results if result.recipe and recipe_of(result.conventions) == recipe
    }
    return [with_nmi_of(measured_again.get(result.id), result) for result in results if not result.recipe]


def with_nmi_of(measured_again: Result | None, result: Result) -> Result:
    if measured_again is None:
        return result
    return replace(
        result,
        metrics={**result.metrics, "NMI": measured_again.metrics["NMI"]},
        conventions={**result.conventions, "NMI": measured_again.conventions["NMI"]},
    )


def matching(results: Iterable[Result], **keep: str | None) -> list[Result]:
    """The results whose trial has these values; None allows any. Raw pixels go with any backbone. A value that no
    result has is a UserError."""
    selected = list(results)
    for field, value in keep.items():
        if value is not None:
            known = sorted({getattr(result.trial, field) for result in selected})
            if value not in known:
                raise unknown(f"{field} with results", value, known)
            allowed = (value, PIXELS) if field == "backbone" else (value,)
            selected = [result for result in selected if getattr(result.trial, field) in allowed]
    return selected


def on_test(results: Iterable[Result]) -> list[Result]:
    """The results on test classes: only these stand in a table of losses."""
    return [result for result in results if result.trial.on_test]


def group_by(results: Iterable[Result], key: Callable[[Result], Any]) -> list[tuple[Any, list[Result]]]:
    """The results of each value of a key, values in order."""
    return [(value, list(members)) for value, members in groupby(sorted(results, key=key), key=key)]


def configurations(results: Iterable[Result]) -> list[list[Result]]:
    """Runs of losses, in groups that differ only in their seed."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        if not result.trial.is_baseline:
            groups.setdefault(result.trial.configuration, []).append(result)
    return list(groups.values())


def largest_ensembles(results: Iterable[Result]) -> list[Result]:
    """Of each size and configuration the ensemble that was drawn from the most networks."""
    ensembles: dict[tuple[int, str], Result] = {}
    for result in sorted(results, key=lambda result: len(result.members)):
        if result.is_ensemble:
            ensembles[result.ensemble, result.trial.configuration] = result
    return list(ensembles.values())


@dataclass(frozen=True)
class Comparison:
    """Results that may stand in one table: of one protocol and one backbone."""

    protocol: str
    backbone: str
    results: tuple[Result, ...]


def comparisons(results: Iterable[Result]) -> list[Comparison]:
    """By protocol, then by backbone. Raw pixels, which have no backbone, are part of every comparison of their
    protocol."""
    compared = []
    for protocol, members in group_by(results, lambda result: result.trial.protocol):
        pixels = [result for result in members if result.trial.is_pixels]
        networks = [result for result in members if not result.trial.is_pixels]
        for backbone, runs in group_by(networks, lambda result: result.trial.backbone):
            compared.append(Comparison(protocol, backbone, (*pixels, *runs)))
        if not networks:
            compared.append(Comparison(protocol, PIXELS, tuple(pixels)))
    return compared


@dataclass(frozen=True)
class OnDataset:
    """The results on one dataset. Copies of it that differ in their version or in their files are kept apart."""

    name: str  # in file names: cub; where there are several copies cub-v1-0123456789ab
    title: str
    results: tuple[Result, ...]

    @property
    def dataset(self) -> str:
        return self.results[0].trial.dataset


def by_dataset(results: Iterable[Result]) -> list[OnDataset]:
    """The results of each dataset, in the order that the configuration gives; other datasets follow by name."""
    results = list(results)
    orders = {name: dataset_order(name) for name in {result.trial.dataset for result in results}}

    def copy(result: Result) -> tuple[float, str, int, str]:
        trial = result.trial
        return orders[trial.dataset], trial.dataset, trial.dataset_version, trial.fingerprint

    groups = group_by(results, copy)
    copies = Counter(name for (_, name, _, _), _ in groups)
    datasets = []
    for (_, name, version, fingerprint), members in groups:
        several = copies[name] > 1
        slug = f"{name}-v{version}-{fingerprint}" if several else name
        side = short_side(name, fingerprint)
        copy_of = f", short side {side} px" if side else f" (version {version}, {fingerprint})" if several else ""
        title = title_of(name) + copy_of
        datasets.append(OnDataset(slug, title, tuple(members)))
    return datasets


def title_of(dataset: str) -> str:
    """What people call a dataset; of a user's own its name."""
    shipped = config.find_dataset(dataset)
    return shipped.title if shipped else dataset


def short_side(dataset: str, fingerprint: str) -> int:
    """Of the images of a copy that the dataset's configuration knows, in pixels; else 0."""
    shipped = config.find_dataset(dataset)
    return shipped.resized.get(fingerprint, 0) if shipped else 0


def dataset_order(name: str) -> float:
    shipped = config.find_dataset(name)
    return shipped.order if shipped and shipped.order else math.inf


def usual_settings(results: Iterable[Result], own: Sequence[str] = ()) -> dict[str, Any]:
    """The settings that most losses share, of those that a fair comparison keeps equal, among results of one protocol.
    Settings are compared as a whole, so that some losses were trained with exactly these. Ties go to the most runs,
    then to the latest run. Empty if there are no losses. `own`: settings in which results differ by design."""
    trained = [result for result in results if not result.trial.is_baseline]
    if not trained:
        return {}
    names = [name for name in compared_settings(trained[0].trial.protocol) if name not in own]
    alike: dict[tuple[Any, ...], list[Result]] = defaultdict(list)
    for result in trained:
        alike[tuple(setting(result.trial, name, own) for name in names)].append(result)
    usual = max(alike, key=lambda values: (len({run.trial.loss for run in alike[values]}), *amount(alike[values])))
    return dict(zip(names, usual, strict=True))


def setting(trial: Trial, name: str, own: Sequence[str] = ()) -> Any:
    """The value of a setting; where backbones differ by design, of weights the kind, because each has its own."""
    return trial.weights_kind if name == "weights" and "backbone" in own else getattr(trial, name)


def compared_settings(protocol: str) -> tuple[str, ...]:
    """The settings that a fair comparison keeps equal. What the protocol searches is each loss's own, and with the
    images per class the classes per batch."""
    rules = config.find_protocol(protocol)
    searched = set(rules.search if rules else ())
    if "samples_per_class" in searched:
        searched.update(BATCH)
    return tuple(name for name in SHARED if name not in searched)


def trained_with(trial: Trial, settings: Mapping[str, Any]) -> bool:
    """Whether a trial has these settings; of a batch the number of images, because a protocol may give losses their own
    images per class."""
    others = all(getattr(trial, name) == value for name, value in settings.items() if name not in BATCH)
    batch = [name for name in BATCH if name in settings]
    return others and math.prod(getattr(trial, name) for name in batch) == math.prod(settings[name] for name in batch)


def amount(runs: Sequence[Result]) -> tuple[int, str, str]:
    """Sorts few runs before many, early before late; nothing is chosen by a score."""
    return len(runs), max(str(run.provenance.get("finished", "")) for run in runs), max(run.id for run in runs)


def telling_settings(trial: Trial) -> tuple[str, ...]:
    """The shared settings that matter for a trial: a baseline is not trained, and raw pixels have no network."""
    if trial.is_pixels:
        return ()
    return tuple(name for name in SHARED if not trial.is_baseline or name not in IDLE)


@dataclass(frozen=True)
class Scored:
    """A configuration with its score: the mean of a metric over its runs, which are folds of a search or seeds of a
    grid."""

    runs: tuple[Result, ...]
    score: float
    epoch: int = 0  # after which it was scored, if the search chose one; 0: at the end

    @property
    def loss(self) -> str:
        return self.runs[0].trial.loss

    @property
    def values(self) -> dict[str, Any]:
        """Its knobs and tunable settings, and the epoch to stop after, which search chose."""
        trial = self.runs[0].trial
        early = self.epoch and self.epoch < trial.last_epoch
        return {**trial.searched, **({"stop_after": self.epoch} if early else {})}


def score(runs: Sequence[Result], metric: str) -> Scored:
    """The one way a configuration is scored, for choosing and for reporting."""
    return Scored(tuple(runs), sum(run.metrics[metric] for run in runs) / len(runs))


def score_at_best_epoch(runs: Sequence[Result], metric: str) -> Scored:
    """A configuration scored after the epoch with the best mean over its runs, the first of equal ones; at the end, if
    not every run was measured after every epoch."""
    if not all(has_epochs(run.curve, metric) for run in runs):
        return score(runs, metric)
    curves = [{int(row["epoch"]): row[metric] for row in run.curve if row["epoch"]} for run in runs]
    means = {epoch: sum(curve[epoch] for curve in curves) / len(curves) for epoch in curves[0]}
    if not means:
        return score(runs, metric)
    epoch = max(means, key=lambda epoch: (means[epoch], -epoch))
    return Scored(tuple(runs), means[epoch], epoch)


def scored_search(results: Iterable[Result], metric: str, folds: int, *, select_epochs: bool = False) -> list[Scored]:
    """The configurations that have a result on each of the protocol's validation folds, by id. One that lacks a fold is
    no candidate. With `select_epochs`, each counts as it was after its best epoch."""
    wanted = {f"val{number}" for number in range(folds)}
    groups: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: result.id):
        if result.trial.fold in wanted and metric in result.metrics:
            groups.setdefault(result.trial.id_without("fold"), []).append(result)
    scored = score_at_best_epoch if select_epochs else score
    return [scored(runs, metric) for runs in groups.values() if len(runs) == folds]


def best(results: Iterable[Result], metric: str, folds: int, *, select_epochs: bool = False) -> dict[str, Scored]:
    """The best configuration of each loss by its mean over the validation folds. Equal scores: the first id."""
    winners: dict[str, Scored] = {}
    for candidate in scored_search(results, metric, folds, select_epochs=select_epochs):
        if candidate.loss not in winners or candidate.score > winners[candidate.loss].score:
            winners[candidate.loss] = candidate
    return winners


def frame(results: Iterable[Result], purposes: Purposes) -> "pd.DataFrame":
    """One row per result: its trial's settings, what it was run for, each knob as knob.<name>, each metric as a column,
    unrounded."""
    import pandas as pd

    results = list(results)
    knobs = sorted({name for result in results for name in result.trial.knobs})
    metrics = sorted({name for result in results for name in result.metrics}, key=metric_order)
    rows = []
    for result in results:
        row = {**_identity(result), "purpose": ",".join(sorted(purposes.of(result)))}
        del row["knobs"]
        row |= {f"knob.{name}": result.trial.knobs.get(name) for name in knobs}
        row |= {name: result.metrics.get(name) for name in metrics}
        rows.append(row | _cost(result))
    return pd.DataFrame(rows)


def long_frame(results: Iterable[Result]) -> "pd.DataFrame":
    """One row per metric of a result."""
    import pandas as pd

    rows = []
    for result in results:
        row = {**_identity(result), **_cost(result)}
        rows += [{**row, "metric": metric, "value": value} for metric, value in result.metrics.items()]
    return pd.DataFrame(rows)


def _identity(result: Result) -> dict[str, Any]:
    """What was run: columns of both frames."""
    trial = {item.name: getattr(result.trial, item.name) for item in dataclasses.fields(Trial)}
    return {
        "id": result.id,
        "title": result.title,
        "cite": result.cite,
        **trial,
        "knobs": json.dumps(dict(result.trial.knobs), sort_keys=True),
        "drops": ",".join(str(epoch) for epoch in result.trial.drops),
        "ensemble": result.ensemble,
        "members": " ".join(result.members),
        "recipe": result.recipe,
    }


def _cost(result: Result) -> dict[str, Any]:
    return {"parameters": result.parameters, "seconds": result.seconds["total"]}
