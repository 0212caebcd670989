"""What was compared how: the settings losses share, what was chosen on which classes, and the footnotes of tables."""

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from harness import commands, config
from harness.analysis import budget
from harness.spec import BASELINE, SHARED, TUNABLE, Result
from harness.tables import rows as measured
from harness.tables.build import Table, final


def notes(results: Sequence[Result], built: Iterable[Table]) -> str:
    """General rules, then what these results kept of them."""
    trained = [one for one in results if one.trial.loss != BASELINE and not one.ensemble]
    parts = [paragraphs(RULES)]
    for protocol, members in measured.by(trained, lambda one: one.trial.protocol):
        parts += [f"<h3>Protocol {escape(protocol)}</h3>\n", paragraphs(of_protocol(protocol, members))]
        for group, runs in measured.datasets(final(members)):
            parts.append(paragraphs(of_dataset(group, runs)))
    parts += ["<h3>Chosen on test classes</h3>\n", paragraphs(on_test_classes(trained))]
    if said := footnotes(built):
        parts += ["<h3>Footnotes of the tables</h3>\n<ul>\n", *(f"<li>{escape(one)}</li>\n" for one in said), "</ul>\n"]
    return "".join(parts)


RULES = (
    "Classes are split, never images: one half trains, the other tests. Search sees only validation classes, "
    "which are held out of the training half; final runs train on the whole of that half and are measured on test "
    "classes.",
    "Every loss of one run has the same network, images, batches, epochs and number of search trials. A row that was "
    "trained otherwise than the rest is footnoted, and under the tables of losses stands what each was given. Raw "
    "pixels and the untrained network are measured too: a loss that does not beat both has not learned a metric.",
)


def paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>\n" for text in texts)


def of_protocol(name: str, results: Sequence[Result]) -> Iterable[str]:
    """Where its values come from, and what chose."""
    if name in config.names("protocols"):
        rules = config.protocol(name)
        yield f"{rules.title}. Source: {rules.source}."
    folds, select = budget.selection(name)
    searched = sum(one.trial.fold in folds for one in results)
    own = f"{', '.join(TUNABLE)} and knobs are each loss's own"
    if searched:
        yield (
            f"{own}: where a loss was searched, those with the best {select} on validation classes "
            f"({', '.join(folds)}), of {searched:,} stored runs; else the protocol's or the user's."
        )
    else:
        yield f"{own}: the protocol's or the user's. No run on validation classes is stored."


def of_dataset(group: str, results: Sequence[Result]) -> Iterable[str]:
    """The settings that fairness wants equal, as the final runs have them."""
    networks = measured.by(results, lambda one: one.trial.backbone)
    for backbone, members in networks:
        counts = {
            name: Counter(commands.written(getattr(one.trial, name)) or "none" for one in members) for name in SHARED
        }
        alike = [f"{name} = {next(iter(found))}" for name, found in counts.items() if len(found) == 1]
        yield f"{group}, {backbone}: all {len(members):,} final runs share {', '.join(alike)}."
        unlike = [
            f"{name} = {' | '.join(f'{value} ({count:,})' for value, count in found.most_common())}"
            for name, found in counts.items()
            if len(found) > 1
        ]
        if unlike:
            yield f"{group}, {backbone}: they differ, with so many runs each, in {'; '.join(unlike)}."
    recipes = sorted({str(one.conventions["NMI"]) for one in results if "NMI" in one.conventions})
    if recipes:
        yield f"{group}: NMI by {' | '.join(recipes)}."


def on_test_classes(results: Sequence[Result]) -> Iterable[str]:
    """Runs whose epoch was, and rows among which a reader would choose."""
    tests = final(results)
    chosen = Counter(f"{one.title} on {one.trial.dataset}" for one in tests if one.trial.checkpoint == "best-test")
    if chosen:
        losses = ", ".join(f"{what} ({count:,})" for what, count in sorted(chosen.items()))
        yield f"Runs whose epoch was: {losses}. Their rows are footnoted; they are no fair measure."
    else:
        yield "No stored run chose its epoch there."
    several = []
    places = measured.by(tests, lambda one: (one.trial.dataset, one.trial.protocol, one.trial.backbone, one.title))
    for (dataset, protocol, backbone, title), members in places:
        if len(configurations := {one.trial.configuration for one in members}) > 1:
            several.append(f"{title} on {dataset} ({protocol}, {backbone}): {len(configurations)}")
    if several:
        yield (
            f"Losses with several configurations measured there: {'; '.join(several)}. Whoever takes the best of these "
            "rows has chosen on test classes."
        )


def footnotes(built: Iterable[Table]) -> list[str]:
    """Each once, with the rows it is about."""
    found: dict[str, dict[str, list[str]]] = {}
    for table in built:
        for row in table.rows:
            for note in row.notes:
                found.setdefault(note, {}).setdefault(table.title, []).append(row.label)
    return [
        f"{note} ({'; '.join(f'{title}: ' + ', '.join(labels) for title, labels in where.items())})"
        for note, where in found.items()
    ]
