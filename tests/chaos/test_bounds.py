"""Numbers that no run can have: refused in one line, before anything is drawn up."""

from pathlib import Path

import pytest

import harness as api
from harness import plan
from harness.execution.text import duration
from harness.spec import SETTINGS, Trial, UserError
from tests.conftest import PROTOCOL, Harness
from tests.data.factories import pictures
from tests.factories import a_trial

DIGITS = "9" * 5000
RUN = ("run", "--losses", "triplet,group", "--dataset", "blobs", "--dry-run")


@pytest.mark.fault(
    "--seeds 99999999999999999999, --trials 1000000, a grid of a million cells, integers of 20 and 5,000 digits",
    "one line with the bound, exit 2, before a single trial is named",
)
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["--seeds", "99999999999999999999"],
            "--seeds 99999999999999999999: must be an integer >= 1 and at most 100,000",
        ),
        (["--seeds", DIGITS], "... (5,000 characters): must be an integer"),
        (["--trials", "1000000"], "--trials 1000000: must be an integer >= 0 and at most 100,000"),
        (["--trials", "50000"], "100,004 trials are too many: must be at most 100,000 in a run"),
        (["--grid", "lr=1,2,3,4,5,6,7,8,9,10", "--seeds", "9999"], "199,980 trials are too many"),
        (
            ["--set", "epochs=99999999999999999999"],
            "epochs=99999999999999999999: must be an integer >= 0, at most 1,000,000,000,000,000",
        ),
        (["--set", "epochs=10**30"], "epochs=10**30: must be an integer >= 0"),
        (
            ["--set", f"epochs={DIGITS}"],
            "epochs=9999999999999999999999999999999999999999... (5,000 characters): must be",
        ),
        (
            ["--set", f"drops=1,{10**20}"],
            "drops=1,100000000000000000000: must be a list of integers like 30,50, at most",
        ),
        (["--set", f"lr={DIGITS}"], "... (5,000 characters): must be a number > 0"),
        (["--set", f"group.anchors={10**20}"], "group.anchors=100000000000000000000: must be an integer >= 0, at most"),
        (["--losses", DIGITS], "no loss named '9999999999999999999999999999999999999999... (5,000 characters)'"),
        (["--ensemble", DIGITS], "... (5,000 characters): must be integers from 2 to --seeds (1)"),
        (["--cpus-per-trial", "nan"], "--cpus-per-trial nan: must be a number >= 1"),
        (["--cpus-per-trial", "inf"], "--cpus-per-trial inf: must be a number >= 1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_absurd_number_is_refused_before_trials_are_named(
    small: Path,
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    complaint: str,
) -> None:
    def named(*_: object, **__: object) -> Trial:
        raise AssertionError("a trial is named")

    monkeypatch.setattr(plan, "trial", named)
    said = harness(*RUN, *words)
    assert said.code == 2
    assert said.err.startswith("harness: ")
    assert complaint in said.err
    assert said.err.count("\n") == 1
    assert len(said.err) < 1000


@pytest.mark.fault("integers of 20, 400 and 5,000 digits in a protocol", "one line that names the file, exit 2")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epochs = 1\n", f"epochs = {10**20}\n"),
        ("epochs = 1\n", f"epochs = {DIGITS}\n"),
        ("lr = 1e-3\n", f"lr = {10**400}\n"),
        ("lr = [1e-4, 1e-2]", f"lr = [1e-4, {10**400}]"),
        ("drops = []", "drops = " + "[" * 5000 + "]" * 5000),
    ],
    ids=["20 digits", "5,000 digits", "a float of 400 digits", "a range to 400 digits", "5,000 nested lists"],
)
def test_an_absurd_number_in_a_protocol_names_the_file(small: Path, harness: Harness, old: str, new: str) -> None:
    assert old in PROTOCOL
    (small / "protocols" / "tiny.toml").write_text(PROTOCOL.replace(old, new))
    said = harness(*RUN)
    assert said.code == 2
    assert "tiny.toml" in said.err
    assert said.err.count("\n") == 1
    assert len(said.err) < 1000


@pytest.mark.fault(
    "a protocol that selects by R@8, and a validation fold with four images, in a search and in a grid",
    "one line, exit 2, before anything runs",
)
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("more", [("--trials", "2"), ("--grid", "lr=0.1,0.2")])
def test_a_fold_too_small_for_what_selects_is_refused(
    small: Path, harness: Harness, tmp_path: Path, more: tuple[str, ...]
) -> None:
    (small / "protocols" / "tiny.toml").write_text(PROTOCOL.replace('select = "R@1"', 'select = "R@8"'))
    folder = pictures(tmp_path / "few", classes=16, each=2)
    words = ("run", "--losses", "triplet", "--dataset", str(folder), "--protocol", "tiny", "--weights", "none")
    said = harness(*words, *more)
    assert said.code == 2
    expected = "protocols/tiny.toml: select=R@8: the held-out classes of fold val0 of few have 4 images; choose another"
    assert said.err.splitlines()[-1].startswith(f"harness: {expected}")
    assert not (tmp_path / "results").exists()
    assert harness(*words, "--dry-run").code == 0  # nothing is selected


def test_the_python_interface_refuses_them_too(small: Path, tmp_path: Path) -> None:
    for options in (
        {"seeds": 10**5000},
        {"trials": 10**6},
        {"set": {"epochs": 10**5000}},
        {"set": {"epochs": 10**20}},
        {"ensemble": 10**5000},
    ):
        with pytest.raises(UserError):
            api.run("triplet", "blobs", results=tmp_path, executor="local", quiet=True, **options)


def test_what_is_counted_is_what_is_planned(small: Path, harness: Harness) -> None:
    searched = harness(*RUN, "--trials", "3", "--seeds", "2")
    assert "\n13 to run" in searched.out  # 2 losses with 3 draws and 2 seeds, raw pixels, 2 untrained networks
    grid = harness(*RUN, "--grid", "lr=0.1,0.2", "--grid", "group.anchors=0,1,2", "--seeds", "2")
    assert "\n16 to run" in grid.out  # (2 + 2 x 3) x 2


def test_a_stored_trial_with_a_number_above_the_bound_still_loads() -> None:
    stored = a_trial(seed=10**30)
    assert Trial.from_json(stored.to_json()) == stored
    with pytest.raises(UserError, match="at most"):
        SETTINGS["seed"].check(10**30)


@pytest.mark.fault("the largest number of epochs that is allowed, with --dry-run", "a plan; its time does not overflow")
def test_an_estimate_does_not_overflow(small: Path, harness: Harness) -> None:
    said = harness(*RUN, "--set", f"epochs={10**15}")
    assert said.code == 0, said.err
    assert "about 100 years or more with one trial at a time" in said.out


@pytest.mark.parametrize("seconds", [1e30, float("inf"), float("nan")])
def test_a_duration_beyond_a_century_is_said_to_be_one(seconds: float) -> None:
    assert duration(seconds) == "100 years or more"
    assert duration(3661.4) == "1:01:01"
