"""The figures that are lines and points: curves, overfitting, search, cost, ensemble."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from harness.analysis.baselines import untrained
from harness.analysis.results import score
from harness.analysis.statistics import ENOUGH_SEEDS, estimate, expected_best
from harness.figures import labels, style
from harness.figures.groups import Group, Line, lines, search_of
from harness.figures.registry import Drawing, Sources, missing
from harness.spec import Result

HEIGHT = 2.1  # inches, before legend and note
DIAGNOSTIC = "diagnostic: nothing was selected on these curves"
LEAKED = "the epoch was chosen on these test classes"


def curves(group: Group, sources: Sources) -> Iterator[Drawing]:
    """Recall@1 on test classes over epochs (the paper's Fig. 6)."""
    series, remark = with_curve("curves", group, "R@1")
    figure, axes = plot("Epoch", "Recall@1 (%)")
    for line in series:
        draw_curve(axes, group, line, "R@1", "-")
    style.legend(figure, keys(group, series))
    finish(figure, group, series, "band: min to max over seeds", selected_on(series), remark)
    yield Drawing(figure)


def overfitting(group: Group, sources: Sources) -> Iterator[Drawing]:
    """Recall@1 on training classes against that on test classes, over epochs (the paper's Figs. 7 and 8)."""
    series, remark = with_curve("overfitting", group, "R@1", "train R@1")
    figure, axes = plot("Epoch", "Recall@1 (%)")
    for line in series:
        draw_curve(axes, group, line, "train R@1", "--")
        draw_curve(axes, group, line, "R@1", "-")
    sides = [(Line2D([], [], color=style.GREY, linestyle="--"), "training classes")]
    sides += [(Line2D([], [], color=style.GREY), "test classes")]
    style.legend(figure, [*keys(group, series), *sides])
    finish(figure, group, series, "band: min to max over seeds", selected_on(series), remark)
    yield Drawing(figure)


def search(group: Group, sources: Sources) -> Iterator[Drawing]:
    """The best validation score to expect from n trials of random search."""
    trials = search_of(group)
    scores = {loss: values for loss, values in trials.scores.items() if len(values) > 1}
    if not scores:
        raise missing("search", group)
    runs = [run for run in trials.runs if run.trial.loss in scores]
    figure, axes = plot("Trials of random search", f"Expected best {trials.metric} (%)", whole=True)
    for loss, values in scores.items():
        n, mean, deviation = zip(*expected_best([100 * value for value in values]), strict=True)
        look = style.look(loss, group.losses)
        axes.plot(n, mean, color=look.colour, marker=look.marker, markevery=max(1, len(n) // 10), clip_on=False)
        low, high = ([m + sign * d for m, d in zip(mean, deviation, strict=True)] for sign in (-1, 1))
        axes.fill_between(n, low, high, color=look.colour, alpha=0.15, linewidth=0)
    titles = {run.trial.loss: run.title for run in runs}
    style.legend(figure, [(style.key(style.look(loss, group.losses)), style.words(titles[loss])) for loss in scores])
    style.note(figure, group.note(runs, "validation classes", "band: one standard deviation of the best"))
    yield Drawing(figure)


def cost(group: Group, sources: Sources) -> Iterator[Drawing]:
    """Recall@1 on test classes against the time training took."""
    if not group.final():
        raise missing("cost", group)
    series, remark = lines(group.final())
    figure, axes = plot("Training (minutes)", "Recall@1 (%)")
    preparing = pretraining([run for line in series for run in line.runs])
    points = []
    for line in series:
        look = style.look(line.loss, group.losses)
        seconds = [training(run) + preparing[run.trial.seed] for run in line.runs]
        x, y = sum(seconds) / len(seconds) / 60, 100 * score(line.runs, "R@1").score
        half = half_interval(line, sources)
        axes.errorbar(
            x, y, half or None, color=look.colour, marker=look.marker, markersize=5, capsize=2, elinewidth=0.8
        )
        points.append(labels.Named(x, y, style.words(line.title), look.colour, half))
    level = None
    before = untrained(group.results, series[0].runs[0].trial)
    if before:
        level = (100 * score(before, "R@1").score, style.words(before[0].title))
        axes.axhline(level[0], color=style.GREY, linestyle=":", linewidth=0.9)
    figure.set_figheight(HEIGHT + 0.06 * max(0, len(points) - 6))  # names need room
    interval = "bars: 95 % interval over test classes and seeds" if any(point.half for point in points) else ""
    axes.margins(y=0.15)
    middle, span = ends([point.x for point in points])
    axes.set_xlim(middle - 0.8 * span, middle + 0.8 * span)
    finish(figure, group, series, interval, devices(series), remark)
    labels.name_points(figure, axes, points, level)
    yield Drawing(figure)


def half_interval(line: Line, sources: Sources) -> float:
    """Half the interval that tables have, in percentage points; 0 without the values of queries or enough seeds."""
    if len(line.runs) < ENOUGH_SEEDS:
        return 0.0
    try:
        return 100 * estimate(sources.per_query.sums(line.runs, "R@1")).half
    except ValueError:
        return 0.0


def ensemble(group: Group, sources: Sources) -> Iterator[Drawing]:
    """Recall@1 on test classes of ensembles, by the number of networks; of one: the mean of the single runs."""
    joined = group.ensembles()
    members = {id for result in joined for id in result.members}
    single = [run for run in group.final() if run.id in members]
    if not single:
        raise missing("ensemble", group)
    series, remark = lines(single)
    figure, axes = plot("Networks in the ensemble", "Recall@1 (%)", whole=True)
    for line in series:
        sizes = {1: score(line.runs, "R@1").score}
        ids = {run.id for run in line.runs}
        sizes |= {result.ensemble: result.metrics["R@1"] for result in joined if ids.issuperset(result.members)}
        look = style.look(line.loss, group.losses)
        x = sorted(sizes)
        axes.plot(x, [100 * sizes[size] for size in x], color=look.colour, marker=look.marker, clip_on=False)
    style.legend(figure, keys(group, series))
    finish(figure, group, series, "mean over all subsets of that size", remark)
    yield Drawing(figure)


def with_curve(name: str, group: Group, *metrics: str) -> tuple[list[Line], str]:
    """The final runs with curves of these metrics, for the figure of this name."""
    runs = [run for run in group.final() if any(set(metrics) <= set(row) for row in run.curve)]
    if not runs:
        raise missing(name, group)
    return lines(runs)


def spread(runs: Sequence[Result], metric: str) -> list[tuple[float, float, float, float]]:
    """Epoch, and the lowest, mean and highest percentage over the runs that were measured after it."""
    percent: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        for row in run.curve:
            if metric in row:
                percent[row["epoch"]].append(100 * row[metric])
    return [(epoch, min(scores), sum(scores) / len(scores), max(scores)) for epoch, scores in sorted(percent.items())]


def draw_curve(axes: Axes, group: Group, line: Line, metric: str, stroke: str) -> None:
    look = style.look(line.loss, group.losses)
    epochs, low, mean, high = zip(*spread(line.runs, metric), strict=True)
    every = max(1, len(epochs) // 10)
    axes.plot(epochs, mean, stroke, color=look.colour, marker=look.marker, markevery=every, clip_on=False)
    axes.fill_between(epochs, low, high, color=look.colour, alpha=0.15, linewidth=0)


def selected_on(series: Sequence[Line]) -> str:
    """Whether the epoch was chosen on these curves."""
    leaked = any(run.trial.epoch_chosen_on for line in series for run in line.runs)
    return LEAKED if leaked else DIAGNOSTIC


def training(run: Result) -> float:
    """Seconds of training after pre-training, the warm-up included; without evaluation and waiting."""
    return run.seconds.get("warmup", 0.0) + run.seconds.get("train", 0.0)


def pretraining(runs: Sequence[Result]) -> dict[int, float]:
    """Seconds of pre-training by seed. Losses share it and only one of them records it, so it counts for each. (An
    older record counts waiting for it as pre-training, which takes about as long.)"""
    seconds: dict[int, float] = defaultdict(float)
    for run in runs:
        seconds[run.trial.seed] = max(seconds[run.trial.seed], run.seconds.get("pretrain", 0.0))
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


def plot(x: str, y: str, *, whole: bool = False) -> tuple[Figure, Axes]:
    figure = style.sheet(HEIGHT)
    axes = figure.add_subplot(xlabel=x, ylabel=y)
    axes.xaxis.set_major_locator(MaxNLocator(integer=whole or x == "Epoch", nbins=6))
    return figure, axes


def keys(group: Group, series: Sequence[Line]) -> list[tuple[Line2D, str]]:
    return [(style.key(style.look(line.loss, group.losses)), style.words(line.title)) for line in series]


def finish(figure: Figure, group: Group, series: Sequence[Line], *remarks: str) -> None:
    """Add the note on all runs that are shown."""
    style.note(figure, group.note([run for line in series for run in line.runs], *remarks))
