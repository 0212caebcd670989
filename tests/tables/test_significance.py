"""Intervals and marks by the number of seeds: what is bold, what is underlined, and what is not tested."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest

from harness.analysis.queries import Queries
from harness.analysis.statistics import Sums, estimate, pairs
from harness.spec import Result, UserError
from harness.store import Store
from harness.tables import legend
from harness.tables.build import build
from harness.tables.layout import Cell, Kind, Options, Table
from harness.tables.render.html import html
from harness.tables.render.latex import latex
from harness.tables.render.markdown import markdown
from tests.factories import NETWORK, a_result, a_trial, answered, baseline
from tests.tables.reading import cell


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def table_of(store: Store, results: list[Result], kind: Kind = "losses", **options: object) -> Table:
    for result in results:
        store.put(result)
    (table,) = build(store.results()[0], kind, Options(**options), queries=Queries(store))
    return table


def seeds(name: str, level: float, count: int = 3, **changes: object) -> list[Result]:
    return [answered(name, seed, level, **changes) for seed in range(count)]


def measured_once(title: str, backbone: str, level: float) -> Result:
    return replace(answered("none", 9, level), trial=baseline(backbone, level).trial, title=title)


def sums(store: Store, results: list[Result]) -> Sums:
    return Queries(store).sums(results, "R@1")


def test_from_three_seeds_on_there_is_an_interval_over_classes_and_seeds(store: Store) -> None:
    runs = seeds("group", 0.6)
    table = table_of(store, runs)
    found = cell(table, 0)
    assert found.half == pytest.approx(estimate(sums(store, runs)).half)
    assert found.over == "classes and seeds"
    assert found.mean == pytest.approx(fmean(run.metrics["R@1"] for run in runs))
    assert f"{100 * found.mean:.1f} ± {100 * found.half:.1f}" in markdown(table)
    assert "mean over 3 seeds. ± is the 95 % interval over test classes and seeds." in table.caption


def test_what_is_not_told_apart_from_the_best_is_underlined(store: Store) -> None:
    rows = [seeds("group", 0.70), seeds("triplet", 0.69), seeds("margin", 0.30)]
    table = table_of(store, [run for row in rows for run in row])
    found = {row.label: row.cells[0] for row in table.rows}
    best = max(found.values(), key=lambda one: one.mean)
    other = next(found[label] for label in ("Group", "Triplet") if found[label] is not best)
    assert (best.best, best.tied) == (True, False)
    assert (other.best, other.tied) == (False, True)
    assert (found["Margin"].best, found["Margin"].tied) == (False, False)
    tested = pairs([sums(store, row) for row in rows])  # what the marks are made from
    assert tested.level(0, 1)
    assert not tested.level(0, 2)
    text = f"{100 * other.mean:.1f}"
    assert f"<ins>{text}</ins> ±" in markdown(table)
    assert rf"\underline{{{text}}}\,$\pm$\,{other.interval}" in latex(table)
    assert f"<u>{text}</u> ±" in html(table)
    assert f"**{100 * best.mean:.1f}** ±" in markdown(table)
    assert "with Holm's correction for their number (5 %). Intervals leave out that another search" in table.caption


def test_one_seed_has_an_interval_over_classes_and_no_mark(store: Store) -> None:
    table = table_of(store, [answered("group", level=0.7), answered("triplet", level=0.2)])
    for row in table.rows:
        assert row.cells[0].over == "classes"
        assert not row.cells[0].best
        assert not row.cells[0].tied
    hits = [store.per_query(answered("group", level=0.7)).values("R@1")[10 * c : 10 * c + 10].mean() for c in range(20)]
    half = 2.093024 * stdev(hits) / math.sqrt(20)  # t with 19 degrees of freedom, 97.5 %
    assert cell(table, 0).half == pytest.approx(half, rel=1e-5)
    assert (
        "1 seed. ± is the 95 % interval over test classes alone: it leaves out the randomness of training."
        in table.caption
    )
    assert "Differences are not tested: a test needs two losses with 3 seeds each." in table.caption


def test_two_seeds_show_both_values_without_interval_and_mark(store: Store) -> None:
    runs = seeds("group", 0.7, 2)
    table = table_of(store, [*runs, *seeds("triplet", 0.2, 2)])
    first, second = (f"{100 * run.metrics['R@1']:.1f}" for run in runs)
    assert f"| {first}, {second} |" in markdown(table)
    assert all(one.half is None and not one.best and not one.tied for row in table.rows for one in row.cells)
    assert "±" not in markdown(table)
    assert "With two seeds both values are shown, without an interval." in table.caption


def test_a_row_with_fewer_seeds_is_not_tested_beside_others_that_are(store: Store) -> None:
    table = table_of(store, [*seeds("group", 0.6), *seeds("margin", 0.3), answered("triplet", level=0.9)])
    marks = {row.label: (row.cells[0].best, row.cells[0].tied) for row in table.rows}
    assert marks == {"Group": (True, False), "Margin": (False, False), "Triplet": (False, False)}
    assert "Bold: the best mean of the rows that are tested; underlined" in table.caption
    for caption in (table.caption, " ".join(table.short)):  # a terminal's is the short one
        assert "Rows with fewer than 3 seeds are not tested." in caption


def test_baselines_are_compared_with_the_best_and_never_bold(store: Store) -> None:
    pixels, network = measured_once("Raw pixels", "pixels", 0.95), measured_once("Untrained", NETWORK, 0.6)
    table = table_of(store, [pixels, network, *seeds("group", 0.6), *seeds("triplet", 0.3)])
    above, level, best, below = (cell(table, row) for row in range(4))
    assert (above.best, above.tied) == (False, False)  # told apart, though above
    assert (level.best, level.tied) == (False, True)
    assert (best.best, below.best, below.tied) == (True, False, False)
    assert "Baselines are tested against the best loss alone, and are never bold." in table.caption


def test_nmi_has_an_interval_over_seeds_from_three_on_and_no_mark(store: Store) -> None:
    runs = [
        replace(run, metrics={**run.metrics, "NMI": 0.5 + run.trial.seed / 100})
        for run in [*seeds("group", 0.6), *seeds("triplet", 0.3)]
    ]
    found = cell(table_of(store, runs), 0, "NMI")
    assert found.half == pytest.approx(4.302653 * 0.01 / math.sqrt(3), rel=1e-6)
    assert found.over == "seeds"
    assert not found.best
    caption = table_of(store, runs).caption
    assert "NMI has an interval from three seeds on, over seeds alone; it is not tested." in caption
    pair = table_of(store, [*seeds("margin", 0.6, 2)], metrics=("NMI",))
    assert [row.cells[0].half is None for row in pair.rows if row.label == "Margin"] == [True]


def test_an_ensemble_has_an_interval_over_classes_and_no_mark(store: Store) -> None:
    runs = seeds("group", 0.6)
    joined = replace(answered("group", 7, 0.9), trial=runs[0].trial, ensemble=2, members=tuple(r.id for r in runs))
    table = table_of(store, [*runs, joined], "ensembles")
    single, ensemble = (cell(table, row) for row in range(2))
    assert (single.over, ensemble.over) == ("classes and seeds", "classes")
    assert not ensemble.best
    assert "± of an ensemble is the 95 % interval over test classes alone" in table.caption


@pytest.mark.parametrize("damage", ["older", "cut short", "missing"])
def test_rows_without_values_are_footnoted_and_not_tested(store: Store, damage: str) -> None:
    broken = seeds("group", 0.9)
    if damage == "older":
        broken = [replace(a_result(a_trial(loss="group", seed=seed)), title="Group") for seed in range(3)]
    table_of(store, [*broken, *seeds("triplet", 0.5), *seeds("margin", 0.3)])
    file = store.path(broken[1].trial).with_suffix(".npz")
    if damage == "cut short":
        file.write_bytes(file.read_bytes()[:-5])
    if damage == "missing":
        file.unlink()
    (table,) = build(store.results()[0], queries=Queries(store))
    rows = {row.label: row for row in table.rows}
    why = {
        "older": "the values per query are not stored",
        "cut short": f"runs/emoji/group/{file.name}: damaged: its checksum is not the record's",
        "missing": f"runs/emoji/group/{file.name}: cannot be read: No such file or directory",
    }
    assert f"No interval, not tested: {why[damage]}." in rows["Group"].notes
    assert (rows["Group"].cells[0].best, rows["Group"].cells[0].half) == (False, None)
    assert rows["Triplet"].cells[0].best
    assert not any("not tested" in note for note in rows["Triplet"].notes)


def test_losses_that_answered_other_queries_are_not_told_apart(store: Store) -> None:
    table = table_of(store, [*seeds("group", 0.9), *seeds("triplet", 0.5, classes=19)])
    marks = [(one.cells[0].best, one.cells[0].tied) for one in table.rows]
    assert marks == [(True, False), (False, False)]
    assert "they share fewer than 3 seeds with it or answered other queries: Triplet." in table.caption


def test_a_row_that_shares_too_few_seeds_with_the_best_is_named(store: Store) -> None:
    """It would read as told apart from the best."""
    others = [answered("triplet", seed, 0.8) for seed in (1, 2, 3)]
    table = table_of(store, [*seeds("group", 0.9), *seeds("margin", 0.5), *others])
    marks = {row.label: (row.cells[0].best, row.cells[0].tied, row.cells[0].unpaired) for row in table.rows}
    assert marks["Triplet"] == (False, False, True)
    assert marks["Margin"] == (False, False, False)
    assert "because they share fewer than 3 seeds with it or answered other queries: Triplet." in table.caption
    assert "share fewer" not in table_of(store, [answered("triplet", 0, 0.8)]).caption  # now they share three


def test_any_recall_follows_from_the_stored_values(store: Store) -> None:
    """R@3 is in no record. It has its interval and its mark; a row without stored values has a dash."""
    older = [replace(run, per_query=b"", queries={}) for run in seeds("softmax", 0.6)]
    table = table_of(store, [*seeds("group", 0.9), *seeds("triplet", 0.2), *older], metrics=("R@3", "R@1"))
    cells = {row.label: row.cells[0] for row in table.rows}
    values = [store.per_query(run).values("R@3").mean() for run in seeds("group", 0.9)]
    assert cells["Group"].values == pytest.approx(values)
    assert cells["Group"].over == "classes and seeds"
    assert cells["Group"].best
    assert cells["Softmax"].text == "-"


def test_a_recall_beyond_the_stored_neighbours_is_one_line(store: Store) -> None:
    with pytest.raises(UserError, match="R@6: not measured, and beyond the neighbours"):
        table_of(store, seeds("group", 0.9), metrics=("R@6",))


def test_a_recall_of_records_without_stored_values_is_said_to_be_of_such(store: Store) -> None:
    older = [replace(run, per_query=b"", queries={}) for run in seeds("group", 0.9)]
    with pytest.raises(UserError, match="R@6: not measured, and no values of queries are stored"):
        table_of(store, older, metrics=("R@6",))


def test_queries_without_a_match_are_counted_in_the_caption(store: Store) -> None:
    run = answered("group")
    lonely = replace(run, queries={**run.queries, "without_match": 3})
    assert "3 of 200 queries have no image of their class in the gallery" in table_of(store, [lonely]).caption


def test_equal_means_are_both_the_best(store: Store) -> None:
    runs = seeds("group", 0.6)
    same = [replace(run, trial=replace(run.trial, loss="triplet"), title="Triplet") for run in runs]
    table = table_of(store, [*runs, *same])
    assert [cell(table, row).best for row in range(2)] == [True, True]


def test_a_terminal_speaks_of_nmi_only_where_it_is_shown() -> None:
    cells = [Cell("44.3", over="classes and seeds")]
    assert "of NMI over seeds" in legend.short_interval(cells, with_nmi=True)
    assert "NMI" not in legend.short_interval(cells, with_nmi=False)
