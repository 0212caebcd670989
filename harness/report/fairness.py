"""How losses were compared: the settings they share, what was chosen on which classes, and the footnotes of tables."""

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from harness import config
from harness.analysis import budget
from harness.analysis.experiments import Purposes
from harness.analysis.results import OnDataset, by_dataset, group_by, on_test
from harness.spec import SHARED, TUNABLE, ExperimentRecord, Result
from harness.tables.captions import written
from harness.tables.layout import Table

RULES = (
    "Classes are split, not images: one half trains, the other half tests. Search uses only validation classes, which "
    "are held out of the training half. Final runs train on the whole training half and are measured on test classes.",
    "All losses of one run have the same network, images, batch size, epochs and number of search trials. A row that "
    "was trained differently is footnoted, and captions state each loss's budget. Raw pixels and the untrained network "
    "are measured too: a loss that does not beat both has not learned a metric.",
)


def notes(results: Sequence[Result], tables: Iterable[Table], experiments: Iterable[ExperimentRecord] = ()) -> str:
    """The general rules, then how far these results follow them."""
    trained = [result for result in results if not result.trial.is_baseline and not result.is_ensemble]
    parts = [paragraphs(RULES)]
    experiments = list(experiments)
    purposes = Purposes(experiments)
    searched = {record.protocol for record in experiments if record.search}
    for protocol, members in group_by(trained, lambda result: result.trial.protocol):
        parts += [
            f"<h3>Protocol {escape(protocol)}</h3>\n",
            paragraphs(of_protocol(protocol, members, purposes, protocol in searched)),
        ]
        for dataset in by_dataset(on_test(members)):
            parts.append(paragraphs(of_dataset(dataset)))
    parts += ["<h3>Chosen on test classes</h3>\n", paragraphs(chosen_on_test(on_test(trained)))]
    lines = footnotes(tables)
    if lines:
        items = "".join(f"<li>{escape(line)}</li>\n" for line in lines)
        parts.append(f"<h3>Footnotes of the tables</h3>\n<ul>\n{items}</ul>\n")
    return "".join(parts)


def paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>\n" for text in texts)


def of_protocol(name: str, results: Sequence[Result], purposes: Purposes, searched: bool) -> Iterable[str]:
    """Where its values come from, and what they were selected by. `searched`: an experiment with it was a search,
    whether or not its trials are still stored."""
    rules = config.find_protocol(name)
    if rules:
        yield f"{rules.title}. Source: {rules.source}."
    folds, metric = budget.selection(name)
    trials = sum("search" in purposes.of(result) for result in results)
    own = f"{', '.join(TUNABLE)} and knobs are each loss's own"
    if trials or searched:
        on = f"validation classes ({', '.join(f'val{number}' for number in range(folds))})"
        yield (
            f"{own}: those with the best {metric} on {on} where a loss was searched, otherwise the protocol's or the "
            f"user's. {trials:,} search trials are stored."
        )
        if budget.selects_epochs(name):
            yield "A search also chooses the number of epochs: the one after which the mean over the folds is best."
    else:
        yield f"{own}: the protocol's or the user's. No search trial is stored."


def of_dataset(dataset: OnDataset) -> Iterable[str]:
    """The settings that a fair comparison keeps equal, as the final runs have them."""
    for backbone, runs in group_by(dataset.results, lambda result: result.trial.backbone):
        counts = {name: Counter(written(getattr(run.trial, name)) for run in runs) for name in SHARED}
        same = [f"{name} = {next(iter(values))}" for name, values in counts.items() if len(values) == 1]
        yield f"{dataset.title}, {backbone}: all {len(runs):,} final runs share {', '.join(same)}."
        different = [
            f"{name} = {' | '.join(f'{value} ({count:,})' for value, count in values.most_common())}"
            for name, values in counts.items()
            if len(values) > 1
        ]
        if different:
            yield f"{dataset.title}, {backbone}: settings that differ, with the number of runs: {'; '.join(different)}."
    recipes = sorted({str(run.conventions["NMI"]) for run in dataset.results if "NMI" in run.conventions})
    if recipes:
        yield f"{dataset.title}: NMI by {' | '.join(recipes)}."


def chosen_on_test(results: Sequence[Result]) -> Iterable[str]:
    """Runs that chose their epoch there, and rows among which a reader would choose."""
    leaked = Counter(f"{run.title} on {run.trial.dataset}" for run in results if run.trial.epoch_chosen_on)
    if leaked:
        losses = ", ".join(f"{what} ({count:,})" for what, count in sorted(leaked.items()))
        yield f"Runs that chose their epoch on test classes: {losses}. These are optimistic; their rows are footnoted."
    else:
        yield "No stored run chose its epoch on test classes."
    several = []
    for (dataset, protocol, backbone, title), runs in group_by(results, place):
        count = len({run.trial.configuration for run in runs})
        if count > 1:
            several.append(f"{title} on {dataset} ({protocol}, {backbone}): {count}")
    if several:
        yield (
            f"Losses with several configurations on test classes: {'; '.join(several)}. Taking the best of "
            "these rows means choosing on test classes."
        )


def place(result: Result) -> tuple[str, str, str, str]:
    return result.trial.dataset, result.trial.protocol, result.trial.backbone, result.title


def footnotes(tables: Iterable[Table]) -> list[str]:
    """Each once, with the rows it is about."""
    rows: dict[str, dict[str, list[str]]] = {}
    for table in tables:
        for row in table.rows:
            for note in row.notes:
                rows.setdefault(note, {}).setdefault(table.title, []).append(row.label)
    lines = []
    for note, by_table in rows.items():
        named = "; ".join(f"{title}: {', '.join(labels)}" for title, labels in by_table.items())
        lines.append(f"{note} ({named})")
    return lines
