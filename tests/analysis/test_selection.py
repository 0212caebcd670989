"""Which stored results a command shows."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from harness import config, plan
from harness.analysis.selection import Selection, since
from harness.spec import Experiment, Result, UserError
from tests.factories import a_result, a_trial, an_experiment


def baselines(**settings: Any) -> list[Result]:
    """Raw pixels and the untrained network as a run with these settings measures them."""
    experiment = Experiment(config.dataset("emoji"), config.protocol("quick"), (), settings=settings)
    trials = plan.baselines(replace(experiment, dataset=replace(experiment.dataset, fingerprint="abc", version=1)))
    return [a_result(trial) for trial in trials]


def finished(result: Result, moment: datetime) -> Result:
    return replace(result, provenance={"finished": moment.isoformat(timespec="seconds")})


TRIPLET = a_result()
GROUP = a_result(a_trial(loss="group", knobs={"anchors": 1}))
SHORT = a_result(a_trial(epochs=1))
SMALL = a_result(a_trial(crop=32, resize=32))
STORED = [TRIPLET, GROUP, SHORT, SMALL]


def ids(results: Sequence[Result]) -> set[str]:
    return {result.id for result in results}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(), STORED),
        (Selection(losses=("group",)), [GROUP]),
        (Selection(losses=("group", "triplet"), where=("epochs=4",)), [TRIPLET, GROUP, SMALL]),
        (Selection(where=("epochs=1",)), [SHORT]),
        (Selection(where=("crop=32", "epochs=4")), [SMALL]),
        (Selection(where=("group.anchors=1.0",)), STORED),  # concerns the Group Loss alone, which has it
        (Selection(losses=("triplet",), where=("triplet.margin=0.2", "crop=32")), [SMALL]),
    ],
)
def test_conditions_all_hold(selection: Selection, expected: list[Result]) -> None:
    assert ids(selection.runs(STORED)) == ids(expected)


@pytest.mark.parametrize(
    ("selection", "complaint"),
    [
        (Selection(losses=("gruop",)), "no loss with results named 'gruop'; did you mean 'group'?"),
        (Selection(where=("epoch=1",)), "no setting named 'epoch'; did you mean 'epochs'?"),
        (Selection(where=("epochs",)), "--where epochs: write SETTING=VALUE or LOSS.KNOB=VALUE, e.g. epochs=4"),
        (Selection(where=("epochs=7",)), "no results with --where epochs=7; stored: epochs=1, epochs=4"),
        (
            Selection(losses=("group",), where=("epochs=1",)),
            "no results with --losses group and --where epochs=1; stored: epochs=4",
        ),
        (Selection(where=("gruop.anchors=1",)), "no loss with results named 'gruop'; did you mean 'group'?"),
        (Selection(where=("group.anchor=1",)), "no knob of group named 'anchor'; did you mean 'anchors'?"),
        (Selection(where=("group.anchors=2",)), "no results with --where group.anchors=2; stored: group.anchors=1"),
        (Selection(where=("epochs=many",)), "epochs=many: must be an integer >= 0"),
        (Selection(since="yesterday"), "--since yesterday: must be a date like 2026-11-18 or 2026-11-18T12:00"),
        (Selection(name="crops"), "no experiment named 'crops'; known: none"),
    ],
)
def test_a_mistake_is_said_in_a_line(selection: Selection, complaint: str) -> None:
    with pytest.raises(UserError) as error:
        selection.runs(STORED)
    assert str(error.value).startswith(complaint)


def test_results_since_a_moment_are_those_that_ended_after_it() -> None:
    now = datetime.now(UTC)
    old, new = finished(TRIPLET, now - timedelta(days=3)), finished(GROUP, now - timedelta(hours=1))
    new_text = (now - timedelta(hours=1)).isoformat(timespec="minutes")
    assert ids(Selection(since="2h").runs([old, new, SHORT])) == {GROUP.id}  # the third does not say when
    assert ids(Selection(since="1w").runs([old, new, SHORT])) == {TRIPLET.id, GROUP.id}
    assert ids(Selection(since=(now - timedelta(days=1)).isoformat()[:16]).runs([old, new])) == {GROUP.id}
    with pytest.raises(UserError, match=re.escape(f"with --since 1m; the newest is of {new_text[:16]}")):
        Selection(since="1m").runs([old, new, SHORT])
    assert since("30m") < now < since("0m") + timedelta(minutes=1)


def test_results_of_a_named_experiment_are_its_trials_and_their_ensembles() -> None:
    seeds = [a_result(a_trial(seed=seed)) for seed in (0, 1)]
    ensemble = replace(seeds[0], ensemble=2, members=tuple(run.id for run in seeds))
    record = an_experiment(name="two seeds", final=tuple(sorted(run.id for run in seeds)))
    selected = Selection(name="two seeds").runs(
        [*seeds, ensemble, GROUP], [record, an_experiment(baseline=("a" * 12,))]
    )
    assert selected == [*seeds, ensemble]
    with pytest.raises(UserError, match="did you mean 'two seeds'"):
        Selection(name="two seed").runs(seeds, [record])


def test_baselines_follow_the_rows_that_are_compared_with_them() -> None:
    usual, small = baselines(), baselines(crop=32, resize=32)
    everything = [*STORED, *usual, *small]
    assert ids(Selection().shown(everything)) == ids(everything)
    assert ids(Selection(losses=("group",)).shown(everything)) == ids([GROUP, *usual])
    assert ids(Selection(where=("crop=32",)).shown(everything)) == ids([SMALL, *small])
    assert ids(Selection(losses=("none",)).shown(everything)) == ids([*usual, *small])


def test_the_search_of_a_row_stays_with_it_whatever_its_rates_are() -> None:
    search = [a_result(a_trial(fold="val0", lr=rate)) for rate in (0.1, 0.2)]
    other = a_result(a_trial(fold="val0", lr=0.1, epochs=1))
    record = an_experiment(search=tuple(sorted(run.id for run in (*search, other))))
    shown = Selection(where=(f"lr={TRIPLET.trial.lr}", "epochs=4"), losses=("triplet",)).shown(
        [TRIPLET, SHORT, *search, other], [record]
    )
    assert ids(shown) == ids([TRIPLET, *search])
