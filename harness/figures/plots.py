"""The figures that are lines and points: curves, overfitting, search, cost, ensemble."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from harness.analysis.budget import expected_best
from harness.figures import labels, style
from harness.figures.groups import Group, Line, lines, search_scores
from harness.figures.registry import Asked
from harness.spec import Result
from harness.tables.rows import half_width

HEIGHT = 2.1  # inches, before legend and note
DIAGNOSTIC = "diagnostic: nothing was selected on these curves"
LEAKED = "the epoch was chosen on these test classes"

Drawn = Iterator[tuple[str, Figure]]


def curves(group: Group, asked: Asked) -> Drawn:
    """Recall@1 on test classes over epochs (the paper's Fig. 6)."""
    shown, remark = with_curve(group, "R@1")
    figure, axes = plot("Epoch", "Recall@1 (%)")
    for line in shown:
        draw_curve(axes, group, line, "R@1", "-")
    style.legend(figure, keys(group, shown))
    finish(figure, group, shown, "band: min to max over seeds", told(shown), remark)
    yield "curves", figure


def overfitting(group: Group, asked: Asked) -> Drawn:
    """Recall@1 on training classes against that on test classes, over epochs (the paper's Figs. 7 and 8)."""
    shown, remark = with_curve(group, "R@1", "train R@1")
    figure, axes = plot("Epoch", "Recall@1 (%)")
    for line in shown:
        draw_curve(axes, group, line, "train R@1", "--")
        draw_curve(axes, group, line, "R@1", "-")
    sides = [(Line2D([], [], color=style.GREY, linestyle="--"), "training classes")]
    sides += [(Line2D([], [], color=style.GREY), "test classes")]
    style.legend(figure, [*keys(group, shown), *sides])
    finish(figure, group, shown, "band: min to max over seeds", told(shown), remark)
    yield "overfitting", figure


def search(group: Group, asked: Asked) -> Drawn:
    """The best validation score to expect of so many trials of random search."""
    scores, used, metric = search_scores(group)
    scores = {loss: values for loss, values in scores.items() if len(values) > 1}
    if not scores:
        raise group.missing("random search", "--trials", "10")
    used = [one for one in used if one.trial.loss in scores]
    figure, axes = plot("Trials of random search", f"Expected best {metric} (%)", whole=True)
    for loss, values in scores.items():
        n, mean, deviation = zip(*expected_best([100 * value for value in values]), strict=True)
        one = style.look(loss, group.losses)
        axes.plot(n, mean, color=one.colour, marker=one.marker, markevery=max(1, len(n) // 10), clip_on=False)
        low, high = ([m + sign * d for m, d in zip(mean, deviation, strict=True)] for sign in (-1, 1))
        axes.fill_between(n, low, high, color=one.colour, alpha=0.15, linewidth=0)
    titles = {one.trial.loss: one.title for one in used}
    style.legend(figure, [(style.key(style.look(loss, group.losses)), style.words(titles[loss])) for loss in scores])
    style.note(figure, group.note(used, "validation classes", "band: one standard deviation of the best"))
    yield "search", figure


def cost(group: Group, asked: Asked) -> Drawn:
    """Recall@1 on test classes against the time training took."""
    if not group.singles():
        raise group.missing("final runs")
    shown, remark = lines(group.singles())
    figure, axes = plot("Training (minutes)", "Recall@1 (%)")
    preparing = pretraining([run for line in shown for run in line.runs])
    points = []
    for line in shown:
        one = style.look(line.loss, group.losses)
        found = [100 * run.metrics["R@1"] for run in line.runs]
        spent = [run.seconds.get("train", 0.0) + preparing[run.trial.seed] for run in line.runs]
        x, y, half = sum(spent) / len(spent) / 60, sum(found) / len(found), half_width(found) or 0.0
        axes.errorbar(x, y, half or None, color=one.colour, marker=one.marker, markersize=5, capsize=2, elinewidth=0.8)
        points.append(labels.Named(x, y, style.words(line.title), one.colour, half))
    level = None
    if untrained := group.untrained(shown[0].runs[0].trial):
        level = (100 * sum(one.metrics["R@1"] for one in untrained) / len(untrained), "Untrained network")
        axes.axhline(level[0], color=style.GREY, linestyle=":", linewidth=0.9)
    figure.set_figheight(HEIGHT + 0.06 * max(0, len(points) - 6))  # names need room
    several = any(len(line.runs) > 1 for line in shown)
    interval = "bars: 95 % interval of the mean over seeds" if several else ""
    axes.margins(y=0.15)
    middle, span = ends([point.x for point in points])
    axes.set_xlim(middle - 0.8 * span, middle + 0.8 * span)
    finish(figure, group, shown, interval, devices(shown), remark)
    labels.place(figure, axes, points, level)
    yield "cost", figure


def ensemble(group: Group, asked: Asked) -> Drawn:
    """Recall@1 on test classes of so many networks joined; of one: the mean of the single runs."""
    joined = group.ensembles()
    members = {id for one in joined for id in one.members}
    single = [one for one in group.singles() if one.id in members]
    if not single:
        raise group.missing("ensembles", "--seeds", "3", "--ensemble", "2,3")
    shown, remark = lines(single)
    figure, axes = plot("Networks in the ensemble", "Recall@1 (%)", whole=True)
    for line in shown:
        sizes = {1: sum(run.metrics["R@1"] for run in line.runs) / len(line.runs)}
        ids = {run.id for run in line.runs}
        sizes |= {one.ensemble: one.metrics["R@1"] for one in joined if ids.issuperset(one.members)}
        one = style.look(line.loss, group.losses)
        x = sorted(sizes)
        axes.plot(x, [100 * sizes[size] for size in x], color=one.colour, marker=one.marker, clip_on=False)
    style.legend(figure, keys(group, shown))
    finish(figure, group, shown, "mean over all subsets of that size", remark)
    yield "ensemble", figure


def with_curve(group: Group, *needed: str) -> tuple[list[Line], str]:
    runs = [one for one in group.singles() if any(set(needed) <= set(row) for row in one.curve)]
    if not runs:
        raise group.missing("final runs with curves", "--curves", "--seeds", "3")
    return lines(runs)


def spread(runs: Sequence[Result], metric: str) -> list[tuple[float, float, float, float]]:
    """Epoch, and lowest, mean and highest percentage over the runs that have measured it then."""
    found: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        for row in run.curve:
            if metric in row:
                found[row["epoch"]].append(100 * row[metric])
    return [(epoch, min(of), sum(of) / len(of), max(of)) for epoch, of in sorted(found.items())]


def draw_curve(axes: Axes, group: Group, line: Line, metric: str, stroke: str) -> None:
    one = style.look(line.loss, group.losses)
    epochs, low, mean, high = zip(*spread(line.runs, metric), strict=True)
    every = max(1, len(epochs) // 10)
    axes.plot(epochs, mean, stroke, color=one.colour, marker=one.marker, markevery=every, clip_on=False)
    axes.fill_between(epochs, low, high, color=one.colour, alpha=0.15, linewidth=0)


def told(shown: Sequence[Line]) -> str:
    leaked = any(run.trial.checkpoint == "best-test" for line in shown for run in line.runs)
    return LEAKED if leaked else DIAGNOSTIC


def pretraining(runs: Sequence[Result]) -> dict[int, float]:
    """Seconds by seed. Losses share it, so that only the first to come has paid: it counts for each."""
    spent: dict[int, float] = defaultdict(float)
    for run in runs:
        spent[run.trial.seed] = max(spent[run.trial.seed], run.seconds.get("pretrain", 0.0))
    return spent


def devices(shown: Sequence[Line]) -> str:
    known = {
        f"{' '.join(str(run.provenance['device']).split())}, {run.provenance.get('threads', '?')} threads"
        for line in shown
        for run in line.runs
        if run.provenance.get("device")
    }
    return f"on {' and '.join(sorted(known))}".replace(" 1 threads", " 1 thread") if known else "device not recorded"


def ends(values: Sequence[float]) -> tuple[float, float]:
    """The middle of these, and how far apart they are; at least a quarter, so that no noise looks large."""
    middle = (min(values) + max(values)) / 2
    return middle, max(max(values) - min(values), middle / 4, 0.01)


def plot(x: str, y: str, *, whole: bool = False) -> tuple[Figure, Axes]:
    figure = style.sheet(HEIGHT)
    axes = figure.add_subplot(xlabel=x, ylabel=y)
    axes.xaxis.set_major_locator(MaxNLocator(integer=whole or x == "Epoch", nbins=6))
    return figure, axes


def keys(group: Group, shown: Sequence[Line]) -> list[tuple[Line2D, str]]:
    return [(style.key(style.look(line.loss, group.losses)), style.words(line.title)) for line in shown]


def finish(figure: Figure, group: Group, shown: Sequence[Line], *remarks: str) -> None:
    """The note on all runs that are shown."""
    style.note(figure, group.note([run for line in shown for run in line.runs], *remarks))
