"""Stored results outlive code: committed records, and what a field, a knob or a range that is added later changes."""

import dataclasses
import hashlib
import json
import random
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer

import losses
from harness import commands, config, plan
from harness import request as request_module
from harness.cli import run as run_command
from harness.cli.main import app
from harness.request import Request
from harness.spec import SETTINGS, Experiment, LossSpec, Result, Trial, UserError
from harness.spec import records as records_module
from harness.spec import trial as trial_module
from harness.spec.field import Field
from losses.space import Choice, Range

RUNS = Path(__file__).parents[2] / "results" / "runs"
RECORDS = sorted(RUNS.rglob("*.json"))

# Loss, backbone, fold, seed and size of ensemble of committed records, as they were called when they were made.
PINNED = {
    "38a7a7c5f39c": ("none", "pixels", "test", 0, 0),
    "5fe5b4f9e528": ("none", "tf_efficientnet_lite0", "test", 0, 0),
    "186aa305ba96": ("group", "tf_efficientnet_lite0", "val0", 0, 0),
    "5a3084bba7c0": ("triplet", "tf_efficientnet_lite0", "test", 1, 0),
    "a4f3588e9914": ("proxy_nca", "tf_efficientnet_lite0", "test", 0, 2),
}
# The Group Loss on CUB-200-2011 without a fingerprint, under each protocol, as 0.1.0 named it.
PLANNED = {
    "counted": "65b74e8e627b",
    "cpu": "c5b3dfee1546",
    "fair": "0640f4c5ec8c",
    "paper": "78de37977926",
    "quick": "4244b1d160ae",
    "released": "0a0f22f1469e",
}
# What these two protocols said then, where they say something else today.
AS_IN_0_1_0: dict[str, dict[str, Any]] = {
    "cpu": {"warmup_epochs": 0.0},
    "quick": {"warmup_epochs": 0.0, "freeze_bn": False, "lr": 2e-3, "head_lr_factor": 1.0},
}


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def canonical(trial: dict[str, Any]) -> str:
    return json.dumps(trial, sort_keys=True, separators=(",", ":"))


def test_there_are_records_to_check() -> None:
    assert len(RECORDS) >= 30


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_a_committed_record_is_read_and_its_id_follows_from_its_content(file: Path) -> None:
    data = json.loads(file.read_text())
    result = Result.from_json(data)
    expected = sha(canonical(data["trial"]))
    assert result.trial.id == expected
    if data["ensemble"]:
        expected = sha(f"{data['ensemble']} of {' '.join(sorted(data['members']))}")
        assert all((file.parent / f"{member}.json").exists() for member in data["members"])
    if data["recipe"]:
        expected = sha(f"{data['recipe']} of {sha(canonical(data['trial']))}")
    assert file.stem == data["id"] == result.id == expected
    assert json.loads(json.dumps(result.to_json())) == data
    assert file.parent.relative_to(RUNS) == Path(result.trial.dataset) / result.trial.loss_folder


@pytest.mark.parametrize(("id", "what"), PINNED.items())
def test_pinned_ids_name_the_same_records(id: str, what: tuple[str, str, str, int, int]) -> None:
    (file,) = RUNS.rglob(f"{id}.json")
    result = Result.from_json(json.loads(file.read_text()))
    trial = result.trial
    assert result.id == id
    assert (trial.loss, trial.backbone, trial.fold, trial.seed, result.ensemble) == what


@pytest.mark.parametrize(("protocol", "id"), PLANNED.items())
def test_the_shipped_protocols_name_the_same_trials(protocol: str, id: str) -> None:
    settings = AS_IN_0_1_0.get(protocol, {})
    asked = Experiment(config.dataset("cub"), config.protocol(protocol), (config.loss("group"),), settings=settings)
    assert [trial.id for trial in plan.final(asked, {})] == [id]


OLDEST = "3a0a7d5606cf"
COMMITTED = {  # the fingerprint of its images -> the settings of an experiment whose results are committed
    OLDEST: AS_IN_0_1_0["cpu"],
    "130c5694ed35": {},
}


def committed(fingerprint: str = OLDEST) -> Experiment:
    losses = tuple(config.loss(name) for name in ("group", "triplet", "proxy_nca", "normalized_softmax"))
    dataset = replace(config.dataset("cub"), fingerprint=fingerprint)
    settings = {"weights": "package", **COMMITTED[fingerprint]}
    return Experiment(dataset, config.protocol("cpu"), losses, trials=4, seeds=2, settings=settings)


def search_ids(fingerprint: str) -> set[str]:
    trials = [json.loads(file.read_text())["trial"] for file in RECORDS]
    found = [trial for trial in trials if (trial["fingerprint"], trial["fold"]) == (fingerprint, "val0")]
    return {Trial.from_json(trial).id for trial in found}


@pytest.mark.parametrize("fingerprint", COMMITTED)
def test_a_committed_search_is_drawn_as_it_was(fingerprint: str) -> None:
    assert {trial.id for trial in plan.search(committed(fingerprint))} == search_ids(fingerprint)


# --- what is added later ---


@dataclass(frozen=True, kw_only=True)
class LaterTrial(Trial):
    """Trial in a later version, with a setting that stored records do not have."""

    rehearsals: int = trial_module._added("epochs of rehearsal", neutral=0, least=0)


def test_a_field_that_is_added_changes_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    for file in RECORDS:
        data = json.loads(file.read_text())["trial"]
        later = LaterTrial.from_json(data)
        assert later.rehearsals == 0
        assert later.id == Trial.from_json(data).id
        assert later.to_json() == data
    monkeypatch.setattr(plan, "Trial", LaterTrial)
    for fingerprint in COMMITTED:
        assert {trial.id for trial in plan.search(committed(fingerprint))} == search_ids(fingerprint)


def test_a_field_that_is_added_counts_where_it_is_used() -> None:
    neutral = LaterTrial.from_json(json.loads(RECORDS[0].read_text())["trial"])
    used = replace(neutral, rehearsals=2)
    assert used.id != neutral.id
    assert used.to_json()["rehearsals"] == 2
    assert LaterTrial.from_json(used.to_json()) == used
    assert trial_module.settings_of(LaterTrial)["rehearsals"].default == 0
    with pytest.raises(ValueError, match="rehearsals are missing or unknown"):
        Trial.from_json(used.to_json())


def with_bonus(spec: LossSpec, default: float, space: dict[str, Any] | None = None) -> LossSpec:
    """A loss in a later version, with one more knob: 0 means "as before"."""
    knobs = {**spec.knobs, "bonus": Field("bonus", float, default, owner=spec.name)}
    return replace(spec, knobs=knobs, added={**spec.added, "bonus": 0.0}, space={**spec.space, **(space or {})})


def test_a_knob_that_is_added_changes_no_id_while_it_means_as_before() -> None:
    asked = committed()
    later = replace(asked, losses=tuple(with_bonus(loss, 0.0) for loss in asked.losses))
    assert plan.search(later) == plan.search(asked)
    assert plan.final(replace(later, trials=0), {}) == plan.final(replace(asked, trials=0), {})


def test_a_knob_that_is_added_counts_where_it_means_something_else() -> None:
    asked = replace(committed(), trials=0, seeds=1)
    before = plan.final(asked, {})[0]
    changed = replace(asked, losses=(with_bonus(asked.losses[0], 0.5),))
    assert plan.final(changed, {})[0].knobs["bonus"] == 0.5
    assert plan.final(changed, {})[0].id != before.id
    as_before = replace(changed, knobs={"group": {"bonus": 0.0}})
    assert plan.final(as_before, {})[0] == before


@pytest.mark.parametrize("name", ["aaa", "bonus", "zzz"])
def test_a_range_that_is_added_moves_no_older_draw(name: str) -> None:
    asked = committed()
    for loss in asked.losses:
        before = plan.search(replace(asked, losses=(loss,)))
        knob = {name: Field(name, float, 0.0, owner=loss.name)}
        ranges = {**loss.space, name: Range(0.0, 1.0)}
        later = replace(loss, knobs={**loss.knobs, **knob}, space=ranges)
        after = plan.search(replace(asked, losses=(later,)))
        assert len({trial.knobs[name] for trial in after}) == len(after)
        for old, new in zip(before, after, strict=True):
            assert {**old.searched, name: new.knobs[name]} == new.searched


def test_a_range_of_an_existing_knob_moves_no_other_draw() -> None:
    asked = committed()
    group = replace(asked.losses[0], space={**asked.losses[0].space, "steps": Choice(1, 2, 3)})
    before = plan.search(replace(asked, losses=(asked.losses[0],)))
    after = plan.search(replace(asked, losses=(group,)))
    for old, new in zip(before, after, strict=True):
        assert {**new.searched, "steps": old.knobs["steps"]} == old.searched


def test_a_new_loss_of_this_package_draws_each_name_by_itself() -> None:
    spec = replace(config.loss("triplet"), name="newer", space={"margin": Range(0.0, 1.0)}, shipped=True)
    drawn = plan.search(replace(committed(), losses=(spec,)))[2]
    assert drawn.knobs["margin"] == Range(0.0, 1.0).sample(random.Random("newer:2:margin"))


def test_a_limit_that_is_tightened_leaves_records_readable() -> None:
    data = {**json.loads(RECORDS[0].read_text())["trial"], "optimizer": "sgd", "epochs": -1, "lr": 0.0}
    assert Trial.from_json(data).to_json() == data
    for name in ("optimizer", "epochs", "lr"):
        with pytest.raises(UserError, match="must be"):
            SETTINGS[name].check(data[name])


def test_a_value_of_another_type_is_no_trial() -> None:
    data = json.loads(RECORDS[0].read_text())["trial"]
    for name, value in (("epochs", "3"), ("lr", None), ("drops", ["a"]), ("freeze_bn", 1)):
        with pytest.raises(ValueError, match=rf"trial\.{name}="):
            Trial.from_json({**data, name: value})


def test_a_record_of_an_older_schema_is_upgraded_and_one_of_a_newer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.loads(RECORDS[0].read_text())
    with pytest.raises(ValueError, match="schema 2, this version reads up to 1"):
        Result.from_json({**data, "schema": 2})

    def second(old: dict[str, Any]) -> dict[str, Any]:
        return {**old, "schema": 2, "title": old["title"].upper()}

    monkeypatch.setattr(records_module, "SCHEMA", 2)
    monkeypatch.setattr(records_module, "UPGRADES", {1: second})
    assert Result.from_json(data).title == data["title"].upper()


def test_every_field_of_today_is_part_of_the_canonical_json() -> None:
    """The list is of 0.1.0: a field may be added to a trial, none may leave it."""
    data = json.loads(RECORDS[0].read_text())["trial"]
    names = {item.name for item in dataclasses.fields(Trial) if "neutral" not in item.metadata}
    assert names == set(data)


def test_annotations_that_are_no_limits_mean_nothing() -> None:
    field = Field.of("angle", Annotated[float, "in radians"], 0.5)
    assert field.parse("1.5") == 1.5
    assert Field.of("kind", Literal["a", "b"], "a").choices == ("a", "b")


def test_the_command_of_an_old_record_says_what_an_added_knob_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.loads(next(RUNS.rglob("186aa305ba96.json")).read_text())
    result = Result.from_json(data)
    assert "bonus" not in commands.command(result, config.protocol("cpu"))
    facts = replace(losses.facts("group"), added={"bonus": 0.0})
    monkeypatch.setattr(losses, "facts", lambda name: facts)
    assert "--set group.bonus=0.0" in commands.command(result, config.protocol("cpu"))


def planned_by(command: str, monkeypatch: pytest.MonkeyPatch, fingerprint: str) -> Experiment:
    """The experiment that a printed command line asks for, read by the command line's own parser. The images are not
    here, so their fingerprint is given."""
    requests: list[Request] = []
    monkeypatch.setattr(run_command, "execute", lambda request, dry_run: requests.append(request))
    monkeypatch.setattr(request_module, "check_existence", lambda *given: None)
    monkeypatch.setattr(
        request_module, "identify", lambda request, dataset, say: replace(dataset, fingerprint=fingerprint)
    )
    _, *words = shlex.split(command)
    typer.main.get_command(app)(words, prog_name="harness", standalone_mode=False)
    (request,) = requests
    return request_module.experiment(request)


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_the_printed_command_of_a_committed_record_names_the_same_trial(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Result.from_json(json.loads(file.read_text()))
    line = commands.command(result, config.protocol(result.trial.protocol))
    asked = planned_by(line, monkeypatch, result.trial.fingerprint)
    trials = plan.baselines(asked) if result.trial.is_baseline else plan.final(asked, {})
    if result.is_ensemble:
        assert {trial.id for trial in trials} == set(result.members)
        assert asked.ensembles == (result.ensemble,)
    else:
        assert result.id in {trial.id for trial in trials}
        assert asked.curves == (result.has_curves and not result.trial.is_baseline)
