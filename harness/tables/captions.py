"""The text below a table: how its numbers were made, each loss's budget, and the footnotes of its rows."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import losses
from harness import commands
from harness.analysis import baselines, budget, conditions, reference, tuning
from harness.analysis.budget import Budget, Budgets
from harness.analysis.results import OnDataset, configurations, setting, telling_settings, usual_settings
from harness.spec import Result, Trial, Tuned
from harness.spec.recipes import LLOYD, recipe_of
from harness.tables.layout import Column, Options, Published


def nmi(datasets: Sequence[OnDataset], columns: Sequence[Column], recipe: str) -> list[str]:
    """By which recipe NMI was measured, where a table shows it."""
    if not any(column.name == "NMI" for column in columns):
        return []
    every = all(not other_recipes(dataset.results, recipe) for dataset in datasets)
    return [f"NMI by the k-means recipe {recipe}{'' if every else ', except where a footnote names another'}."]


def unusual_nmi(datasets: Sequence[OnDataset], columns: Sequence[Column], recipe: str) -> list[str]:
    """The same for a terminal, which is spared the usual recipe."""
    return [] if recipe == LLOYD.name else nmi(datasets, columns, recipe)


def other_recipes(runs: Iterable[Result], recipe: str) -> Counter[str]:
    """How many of these runs have an NMI by another recipe, and which."""
    stated = [run.conventions.get("NMI", "not recorded") for run in runs if "NMI" in run.metrics]
    return Counter(text for text in stated if recipe_of({"NMI": text}) != recipe)


def unlike_protocol(datasets: Sequence[OnDataset], own: Sequence[str] = ()) -> list[str]:
    """In which settings most losses differ from the protocol that the table names; of a single row: this row.
    `own`: settings in which rows differ by design."""
    titles_by_difference: dict[str, list[str]] = {}
    for dataset in datasets:
        different = [
            f"{difference.name} = {written(difference.here)} (protocol: {written(difference.there)})"
            for difference in tuning.unlike_protocol(typical(dataset.results, own))
            if difference.name not in own
        ]
        if different:
            titles_by_difference.setdefault("; ".join(different), []).append(dataset.title)
    name = datasets[0].results[0].trial.protocol
    return [f"Protocol {name}{on(titles, datasets)}, but {words}." for words, titles in titles_by_difference.items()]


def left_out_numbers(datasets: Sequence[OnDataset], columns: Sequence[Column], options: Options) -> list[str]:
    """Says how to see the paper's numbers where they do not stand beside ours, because the settings differ; and where
    they are asked for, which datasets have none."""
    paper = reference.paper()["cite"] if reference.published() else ""
    metrics = {column.name for column in columns}
    if options.published == "comparable" and any(
        reference.number(result, metric) and not reference.is_comparable(result)
        for dataset in datasets
        for result in dataset.results
        for metric in metrics
    ):
        return [f"{paper}, has numbers for other settings: --published beside shows them."]
    with_numbers = {number.dataset for number in reference.published()}
    without = [dataset.title for dataset in datasets if dataset.dataset not in with_numbers]
    if paper and without and options.published in ("beside", "rows"):
        return [f"{paper}, has no numbers for {' and '.join(without)}."]
    return []


def typical(results: Sequence[Result], own: Sequence[str] = ()) -> Trial:
    """A trial with the settings of most losses; of baselines alone the untrained network."""
    usual = usual_settings(results, own)
    trained = [run.trial for run in results if not run.trial.is_baseline]
    alike = [trial for trial in trained if all(setting(trial, name, own) == usual[name] for name in usual)]
    networks = [run.trial for run in results if not run.trial.is_pixels]
    return (alike or networks or [results[0].trial])[0]


def on(titles: Sequence[str], datasets: Sequence[OnDataset]) -> str:
    """Names datasets where something holds on some of them only."""
    return "" if len(titles) == len(datasets) else f" on {', '.join(titles)}"


def budgets(datasets: Sequence[OnDataset], stored: Budgets) -> list[str]:
    """The budget per loss on each dataset; equal budgets are stated once."""
    titles_by_budget: dict[str, list[str]] = {}
    counted: list[Budget] = []
    for dataset in datasets:
        spent = [stored.of(runs[0].trial) for runs in configurations(run for run in dataset.results if run.is_single)]
        if spent:
            titles_by_budget.setdefault(budget.describe(spent), []).append(dataset.title)
            counted += spent
    if not counted:
        return []
    lines = [f"Budget per loss{on(titles, datasets)}: {words}." for words, titles in titles_by_budget.items()]
    return [*lines, *guess(counted), *budget.meaning_of_hours(run for one in counted for run in one.runs)]


def guess(budgets: Iterable[Budget]) -> list[str]:
    """Says so if a search is counted that no record calls a loss's own."""
    if not any(one.is_guess for one in budgets):
        return []
    return ["Older runs do not record their search: the one with their settings is counted."]


def epochs(datasets: Sequence[OnDataset], stored: Budgets) -> list[str]:
    """Whose number of epochs a search has chosen."""
    chosen: dict[str, bool] = {}
    for dataset in datasets:
        for runs in configurations(result for result in dataset.results if result.is_single):
            trial = runs[0].trial
            chosen[runs[0].title] = chosen.get(runs[0].title, True) and stored.of(trial).chose_epochs(trial)
    titles = [title for title in chosen if chosen[title]]
    if not titles:
        return []
    whose = "each loss" if len(titles) == len(chosen) else ", ".join(titles)
    return [f"The number of epochs of {whose} was chosen on validation classes."]


def footnotes(runs: Sequence[Result], recipe: str, metrics: Sequence[str]) -> tuple[str, ...]:
    """What a reader has to know about a row, given its runs: what a method has that a loss has not, an epoch chosen on
    test classes, NMI by another recipe."""
    trial = runs[0].trial
    notes = [losses.facts(trial.loss).extras] if reference.is_method(trial.loss) else []
    if trial.epoch_chosen_on:
        notes.append(f"Its epoch was chosen on {trial.epoch_chosen_on}.")
    if trial.stop_after:
        notes.append(f"Trained for {trial.stop_after} of {trial.epochs} epochs, with the schedule of all.")
    if "NMI" in metrics:
        notes += nmi_notes(runs, recipe)
    return tuple(notes)


def image_notes(runs: Sequence[Result], results: Sequence[Result]) -> Iterator[str]:
    """Images that runs of a row left out, and a split that is not on record. `results`: all on their dataset."""
    runs = behind(runs, results)

    def share(part: int) -> str:
        return "" if part == len(runs) else f" ({part} of {len(runs)} runs)"

    skipped = Counter(run.provenance.get("bad_images_skipped", 0) for run in runs)
    for images in sorted(skipped.keys() - {0}):
        words = "1 image could not be read and was" if images == 1 else f"{images} images could not be read and were"
        yield f"{words} left out{share(skipped[images])}."
    older = sum("data_sha256" not in run.provenance for run in runs)
    if older and runs[0].trial.dataset.endswith((".csv", ".toml")):
        yield (
            f"Recorded before a list's split was part of its fingerprint{share(older)}: if the list has a split of its "
            "own, which classes trained is not known."
        )


def setting_notes(trial: Trial, usual: Mapping[str, Any], own: Sequence[str] = ()) -> Iterator[str]:
    """The settings of a row that most losses do not have. `own`: those in which rows differ by design."""
    different = [
        f"{name} = {written(setting(trial, name, own))} (usual: {written(usual[name])})"
        for name in telling_settings(trial)
        if name in usual and setting(trial, name, own) != usual[name]
    ]
    if different:
        yield f"{'Measured' if trial.is_baseline else 'Trained'} differently: {'; '.join(different)}."


def stands_beside(result: Result, published: Published) -> bool:
    """Whether the paper's number, if it has one, stands beside a result."""
    return published == "beside" or (published == "comparable" and reference.is_comparable(result))


def nmi_notes(runs: Sequence[Result], recipe: str) -> Iterator[str]:
    """Which of a row's runs have an NMI by another recipe than the table's."""
    for text, count in other_recipes(runs, recipe).items():
        whose = "Its NMI" if count == len(runs) else f"The NMI of {count} of its {len(runs)} runs"
        name = recipe_of({"NMI": text})
        yield f"{whose} is by {f'{name} ({text})' if name else f'another recipe ({text})'}."


def teacher_notes(spent: Budget) -> Iterator[str]:
    """What the training of a row's teachers has cost, which its budget counts."""
    if spent.teachers:
        hours = sum(teacher["seconds"] for teacher in spent.teachers) / 3600
        titles = " and ".join(sorted({teacher["title"] for teacher in spent.teachers}))
        runs = budget.counted([len(spent.teachers)], "run")
        yield f"Its teacher was trained with {titles}: {runs} of {budget.span([hours])} hours in all."


def condition_notes(runs: Sequence[Result], results: Sequence[Result]) -> Iterator[str]:
    """What moves numbers and is not in a trial's id, where the runs of a row differ in it, or differ from the other
    rows. `results`: all on their dataset."""
    different = conditions.differences(behind(runs, results), conditions.usual(results))
    if different:
        yield f"Run under other conditions: {'; '.join(different)}."


def behind(runs: Sequence[Result], results: Sequence[Result]) -> Sequence[Result]:
    """The networks of a row: its runs; of ensembles their members."""
    members = {member for run in runs for member in run.members}
    return [result for result in results if result.id in members] or runs


def origin_notes(spent: Budget, usual: str) -> Iterator[str]:
    """Where the values of a row come from, if not from where those of most losses do, and what they were found with.
    `usual`: the origin of most."""
    if spent.origin != usual:
        yield f"{sentence(spent.origin)} (usual: {usual})."
    yield from lost_trials(spent)
    yield from value_notes(spent)


def lost_trials(spent: Budget) -> Iterator[str]:
    """How much of a row's search is not stored: removed, failed, stopped early, or not imported."""
    if spent.without_result:
        trials = budget.counted([spent.trials], "search trial")
        one = spent.without_result == 1
        yield (
            f"{spent.without_result} of {trials} {'has' if one else 'have'} no result here: hours and images leave "
            f"{'it' if one else 'them'} out."
        )


def value_notes(spent: Budget) -> Iterator[str]:
    """Which values of a row are the protocol's, found or meant for other settings, and which were set by hand."""
    if spent.tuned:
        yield from found_elsewhere(spent.trial, spent.tuned)
    if spent.by_hand:
        yield f"Set by hand: {', '.join(f'{name} = {written(value)}' for name, value in spent.by_hand.items())}."


def found_elsewhere(trial: Trial, values: Tuned) -> Iterator[str]:
    """Says so if the protocol's values, which a trial has, were found with other settings than its own."""
    different = [
        f"{difference.name} = {there(difference)} (here: {written(difference.here)})"
        for difference in tuning.found_elsewhere(trial, values)
    ]
    if different:
        verb = "were found with" if values.trials else "are meant for"
        yield f"Its values {verb} {'; '.join(different)}."


def there(difference: tuning.Difference) -> str:
    """What a setting is elsewhere: 0.1, or 0.1 to 0.2."""
    return " to ".join(map(written, difference.there)) if difference.is_range else written(difference.there)


def sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def training_notes(runs: Sequence[Result], results: Sequence[Result]) -> Iterator[str]:
    """What went wrong in training. `runs`: the seeds of a row; `results`: all on their dataset."""
    epochs, idle = sum(len(run.curve) for run in runs), sum(len(run.idle_epochs) for run in runs)
    if idle:
        words = "every epoch: it was not trained" if idle == epochs else f"{idle} of {epochs} epochs"
        yield f"Its loss was 0 in {words}."
    collapsed = [run for run in runs if run.has_collapsed]
    if collapsed:
        first = sorted({run.collapsed_in for run in collapsed if run.collapsed_in})
        where = f" in epoch{'s' if len(first) > 1 else ''} {from_to(map(str, first))}" if first else ""
        seeds = f" ({len(collapsed)} of {len(runs)} seeds)" if len(runs) > 1 else ""
        cosine = from_to(sorted(run.conventions["collapsed"] for run in collapsed))
        yield f"Its embedding has collapsed{where}{seeds}: {cosine}."
    better = baselines.beaten_by(runs, results)
    if better:
        yield f"Below {' and '.join(better)} in {baselines.FIRST_RECALL}."


def from_to(texts: Iterable[str]) -> str:
    """Of sorted texts that end in a number, the first, and the number of the last: mean cosine 0.9991 to 0.9998."""
    first, *rest = dict.fromkeys(texts)
    return f"{first} to {rest[-1].split()[-1]}" if rest else first


def papers_notes(result: Result, metrics: Sequence[str], published: Published) -> list[str]:
    """With the paper's numbers beside ours, what the paper did differently."""
    if not stands_beside(result, published):
        return []
    different = [
        f"{difference.setting} = {written(difference.value)} ({difference.by}: {any_of(difference.expected)})"
        for difference in reference.differences(result)
    ]
    notes = [f"Not the paper's setting: {'; '.join(different)}."] if different else []
    for metric in metrics:
        number = reference.number(result, metric)
        if number and number.note:
            notes.append(f"The published {metric}: {number.note}.")
    return notes


def any_of(values: Sequence[Any]) -> str:
    """paper, counted or released."""
    *others, last = map(written, values)
    return f"{', '.join(others)} or {last}" if others else last


def written(value: Any) -> str:
    """A value as --set reads it; an empty list is called none."""
    return commands.written(value) or "none"


def joined(notes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The notes of a row, by dataset; those that do not hold on all its datasets name theirs."""
    counts = Counter(note for part in notes.values() for note in part)
    everywhere = [note for note in counts if counts[note] == len(notes)]
    rest = [f"{dataset}: {note}" for dataset, part in notes.items() for note in part if counts[note] < len(notes)]
    return (*everywhere, *rest)
