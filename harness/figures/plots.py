"""The figures that are lines and points: training, curves, overfitting, search, cost, ensemble."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from harness.analysis.baselines import untrained
from harness.analysis.results import score
from harness.analysis.statistics import estimate, expected_best
from harness.figures import labels, style
from harness.figures.groups import Group, Line, lines, search_of
from harness.figures.registry import Drawing, Sources, missing
from harness.spec import Result

HEIGHT = 2.1  # inches, before legend and note
DIAGNOSTIC = "diagnostic: nothing was selected on these curves"
LEAKED = "the epoch was chosen on these test classes"
PANELS, PANEL = 2, 1.1  # axes side by side, and inches of the height of each
LONG = 30  # letters of a name that does not stand beside its point


def training(group: Group, sources: Sources) -> Iterator[Drawing]:
    """The training loss over epochs. Losses have scales of their own, so each has its own axes."""
    series, remark = with_curve("training", group, "loss")
    rows = -(-len(series) // PANELS)
    figure = style.sheet(0.2 + PANEL * rows)
    for place, line in enumerate(series):
        axes = figure.add_subplot(rows, PANELS, place + 1)
        draw_curve(axes, group, line, "loss", "-", scale=1.0)
        axes.set_title("\n".join(style.wrapped(line.title, style.COLUMN / PANELS - 0.5)), fontsize=style.SMALL)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
        if place >= len(series) - PANELS:
            axes.set_xlabel("Epoch")
    figure.suptitle("\n".join(style.wrapped(group.title, style.COLUMN - 0.3, style.TITLE)), weight="bold")
    finish(figure, group, series, "training loss, each on its own scale", band(series), remark)
    yield Drawing(figure)


def curves(group: Group, sources: Sources) -> Iterator[Drawing]:
    """Recall@1 on test classes over epochs (the paper's Fig. 6)."""
    series, remark = with_curve("curves", group, "R@1")
    figure, axes = plot(group, "Epoch", "Recall@1 (%)")
    for line in series:
        draw_curve(axes, group, line, "R@1", "-")
    before = [line.entry for line in baseline(axes, group, series)]
    style.legend(figure, [*keys(group, series), *before])
    within_percent(axes)
    finish(figure, group, series, band(series), selected_on(series), remark)
    yield Drawing(figure)


def overfitting(group: Group, sources: Sources) -> Iterator[Drawing]:
    """Recall@1 on training classes against that on test classes, over epochs (the paper's Figs. 7 and 8)."""
    series, remark = with_curve("overfitting", group, "R@1", "train R@1")
    figure, axes = plot(group, "Epoch", "Recall@1 (%)")
    for line in series:
        draw_curve(axes, group, line, "train R@1", "--")
        draw_curve(axes, group, line, "R@1", "-")
    sides = [(Line2D([], [], color=style.GREY, linestyle="--"), "training classes")]
    sides += [(Line2D([], [], color=style.GREY), "test classes")]
    style.legend(figure, [*keys(group, series), *sides])
    within_percent(axes)
    finish(figure, group, series, band(series), selected_on(series), remark)
    yield Drawing(figure)


def search(group: Group, sources: Sources) -> Iterator[Drawing]:
    """The best validation score to expect from n trials of random search."""
    trials = search_of(group)
    scores = {loss: values for loss, values in trials.scores.items() if len(values) > 1}
    if not scores:
        raise missing("search", group)
    runs = [run for run in trials.runs if run.trial.loss in scores]
    figure, axes = plot(group, "Trials of random search", f"Expected best {trials.metric} (%)", whole=True)
    for loss, values in scores.items():
        n, mean, deviation = zip(*expected_best([100 * value for value in values]), strict=True)
        look = style.look(loss, group.losses)
        axes.plot(n, mean, color=look.colour, marker=look.marker, markevery=max(1, len(n) // 10), clip_on=False)
        low, high = ([m + sign * d for m, d in zip(mean, deviation, strict=True)] for sign in (-1, 1))
        axes.fill_between(n, low, high, color=look.colour, alpha=0.15, linewidth=0)
    within_percent(axes)
    titles = {run.trial.loss: run.title for run in runs}
    style.legend(figure, [(style.key(style.look(loss, group.losses)), style.words(titles[loss])) for loss in scores])
    style.note(figure, group.note(runs, "validation classes", "band: one standard deviation of the best"))
    yield Drawing(figure)


def cost(group: Group, sources: Sources) -> Iterator[Drawing]:
    """Recall@1 on test classes against the time training took."""
    if not group.final():
        raise missing("cost", group)
    series, remark = lines(group.final(), group.sort)
    figure, axes = plot(group, "Training (minutes of wall time)", "Recall@1 (%)")
    preparing = pretraining([run for line in series for run in line.runs])
    points = []
    for line in series:
        look = style.look(line.loss, group.losses)
        seconds = [trained(run) + preparing[run.trial.seed] for run in line.runs]
        x, y = sum(seconds) / len(seconds) / 60, 100 * score(line.runs, "R@1").score
        half = 100 * (half_width_of(line.runs, sources) or 0.0)
        axes.errorbar(
            x, y, half or None, color=look.colour, marker=look.marker, markersize=5, capsize=2, elinewidth=0.8
        )
        points.append(labels.Named(x, y, style.words(line.title, len(line.title) + 1), look.colour, half))
    before = baseline(axes, group, series)
    level = (before[0].level, before[0].name) if before else None
    figure.set_figheight(figure.get_figheight() + 0.06 * max(0, len(points) - 6))  # names need room
    long = any(len(point.name) > LONG for point in points)
    if long:  # no room beside the points
        style.legend(figure, [*keys(group, series), *(line.entry for line in before)])
    interval = intervals([line.runs for line, point in zip(series, points, strict=True) if point.half])
    axes.margins(y=0.15)
    within_percent(axes)
    middle, span = ends([point.x for point in points])
    axes.set_xlim(max(0.0, middle - 0.8 * span), middle + 0.8 * span)
    finish(figure, group, series, interval, devices(series), remark)
    if not long:
        labels.name_points(figure, axes, points, level)
    yield Drawing(figure)


def ensemble(group: Group, sources: Sources) -> Iterator[Drawing]:
    """Recall@1 on test classes of ensembles, by the number of networks; of one: the mean of the single runs."""
    joined = group.ensembles()
    members = {id for result in joined for id in result.members}
    single = [run for run in group.final() if run.id in members]
    if not single:
        raise missing("ensemble", group)
    series, remark = lines(single, group.sort)
    figure, axes = plot(group, "Networks in the ensemble", "Recall@1 (%)", whole=True)
    drawn: list[Sequence[Result]] = []  # what has a bar
    for place, line in enumerate(series):
        ids = {run.id for run in line.runs}
        sizes: dict[int, tuple[Result, ...]] = {1: line.runs}
        sizes |= {result.ensemble: (result,) for result in joined if ids.issuperset(result.members)}
        look = style.look(line.loss, group.losses)
        x = sorted(sizes)
        y = [100 * score(sizes[size], "R@1").score for size in x]
        halves = [100 * (half_width_of(sizes[size], sources) or 0.0) for size in x]
        beside = [size + 0.04 * (place - (len(series) - 1) / 2) for size in x]  # bars would hide each other
        axes.errorbar(beside, y, halves if any(halves) else None, color=look.colour, marker=look.marker, capsize=2)
        drawn += [sizes[size] for size, half in zip(x, halves, strict=True) if half]
    style.legend(figure, keys(group, series))
    within_percent(axes)
    finish(figure, group, series, "mean over all subsets of that size", intervals(drawn), remark)
    yield Drawing(figure)


def with_curve(name: str, group: Group, *metrics: str) -> tuple[list[Line], str]:
    """The final runs with curves of these metrics, for the figure of this name; one epoch makes no curve."""
    runs = []
    for run in group.final():
        measured = {row["epoch"] for row in run.curve if row["epoch"] and set(metrics) <= set(row)}
        if len(measured) > 1:
            runs.append(run)
    if not runs:
        raise missing(name, group)
    return lines(runs, group.sort)


def spread(runs: Sequence[Result], metric: str, scale: float = 100.0) -> list[tuple[float, float, float, float]]:
    """Epoch, and the lowest, mean and highest value over the runs that were measured after it."""
    by_epoch: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        for row in run.curve:
            if metric in row and row["epoch"]:  # 0: a warm-up
                by_epoch[row["epoch"]].append(scale * row[metric])
    return [(epoch, min(scores), sum(scores) / len(scores), max(scores)) for epoch, scores in sorted(by_epoch.items())]


def draw_curve(axes: Axes, group: Group, line: Line, metric: str, stroke: str, scale: float = 100.0) -> None:
    look = style.look(line.loss, group.losses)
    epochs, low, mean, high = zip(*spread(line.runs, metric, scale), strict=True)
    every = max(1, len(epochs) // 10)
    axes.plot(epochs, mean, stroke, color=look.colour, marker=look.marker, markevery=every, clip_on=False)
    axes.fill_between(epochs, low, high, color=look.colour, alpha=0.15, linewidth=0)


def selected_on(series: Sequence[Line]) -> str:
    """Whether the epoch was chosen on these curves."""
    leaked = any(run.trial.epoch_chosen_on for line in series for run in line.runs)
    return LEAKED if leaked else DIAGNOSTIC


def band(series: Sequence[Line]) -> str:
    return "band: min to max over seeds" if any(len(line.runs) > 1 for line in series) else ""


class Level(NamedTuple):
    """A horizontal line."""

    level: float
    name: str
    drawn: Line2D

    @property
    def entry(self) -> tuple[Line2D, str]:
        """In a legend."""
        return self.drawn, self.name


def baseline(axes: Axes, group: Group, series: Sequence[Line]) -> list[Level]:
    """Draws the untrained network, if it was measured."""
    before = untrained(group.results, series[0].runs[0].trial)
    if not before:
        return []
    level = 100 * score(before, "R@1").score
    line = axes.axhline(level, color=style.GREY, linestyle=":", linewidth=0.9)
    return [Level(level, style.words(before[0].title), line)]


def half_width_of(runs: Sequence[Result], sources: Sources) -> float | None:
    """Half the interval that tables give Recall@1: over test classes and, from three seeds on, over seeds. None with
    two seeds, or without the values of each query."""
    if len(runs) == 2:
        return None
    try:
        half = estimate(sources.per_query.sums(runs, "R@1")).half
    except ValueError:
        return None
    return half if math.isfinite(half) else None


def intervals(drawn: Sequence[Sequence[Result]]) -> str:
    """What the bars of these runs are."""
    alone = {len(runs) == 1 for runs in drawn}
    if not drawn:
        return ""
    if alone == {True}:
        return "bars: 95 % interval over test classes alone"
    also = ", of a single run or an ensemble over test classes alone" if True in alone else ""
    return f"bars: 95 % interval over test classes and seeds{also}"


def within_percent(axes: Axes) -> None:
    """No axis reaches below 0 or above 100 %."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low), min(100.0, high))


def trained(run: Result) -> float:
    """Seconds of training after pre-training, the warm-up and all of a teacher's included; without evaluation and
    waiting."""
    return run.seconds.get("warmup", 0.0) + run.seconds.get("train", 0.0) + run.teacher.get("seconds", 0.0)


def pretraining(runs: Sequence[Result]) -> dict[int, float]:
    """Seconds of pre-training by seed. Losses share it, so it counts for each. (One older record alone counts it; the
    oldest count waiting for it as pre-training, which takes about as long.)"""
    seconds: dict[int, float] = defaultdict(float)
    for run in runs:
        seconds[run.trial.seed] = max(
            seconds[run.trial.seed], run.seconds.get("pretrain", 0.0), run.pretraining.get("seconds", 0.0)
        )
    return seconds


def devices(series: Sequence[Line]) -> str:
    known = {
        f"{' '.join(str(run.provenance['device']).split())}, {run.provenance.get('threads', '?')} threads"
        for line in series
        for run in line.runs
        if run.provenance.get("device")
    }
    return f"on {' and '.join(sorted(known))}".replace(" 1 threads", " 1 thread") if known else "device not recorded"


def ends(values: Sequence[float]) -> tuple[float, float]:
    """The middle of the values, and their spread: at least a quarter of the middle, so that noise looks small."""
    middle = (min(values) + max(values)) / 2
    return middle, max(max(values) - min(values), middle / 4, 0.01)


def plot(group: Group, x: str, y: str, *, whole: bool = False) -> tuple[Figure, Axes]:
    figure = style.sheet(HEIGHT)
    axes = figure.add_subplot(xlabel=x, ylabel=y)
    axes.xaxis.set_major_locator(MaxNLocator(integer=whole or x == "Epoch", nbins=6))
    style.title(figure, axes, group.title)
    return figure, axes


def keys(group: Group, series: Sequence[Line]) -> list[tuple[Line2D, str]]:
    return [(style.key(style.look(line.loss, group.losses)), style.words(line.title)) for line in series]


def finish(figure: Figure, group: Group, series: Sequence[Line], *remarks: str) -> None:
    """Add the note on all runs that are shown."""
    style.note(figure, group.note([run for line in series for run in line.runs], *remarks))
