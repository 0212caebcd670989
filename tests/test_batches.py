"""What a batch consists of: a protocol may give a family or a loss its own images per class, in batches of one size."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from harness import commands, config, plan
from harness.analysis.budget import Budgets
from harness.execution.batches import untrained
from harness.spec import BATCH, Experiment, Protocol, Trial, Tuned, UserError
from harness.tables.build import build
from harness.tables.render.markdown import markdown
from losses.space import Choice
from tests.cli.records import stored
from tests.conftest import Harness
from tests.factories import a_result, a_trial, loss_row


def experiment(*losses: str, protocol: Protocol | str = "fair", **changes: Any) -> Experiment:
    rules = config.protocol(protocol) if isinstance(protocol, str) else protocol
    return Experiment(config.dataset("cub"), rules, tuple(config.loss(name) for name in losses), **changes)


def batches(trials: list[Trial]) -> dict[str, tuple[int, int]]:
    return {trial.loss: (trial.classes_per_batch, trial.samples_per_class) for trial in trials}


def fair(**changes: Any) -> Protocol:
    return dataclasses.replace(config.protocol("fair"), **changes)


def test_fair_trains_classification_losses_on_32_classes_of_one_image() -> None:
    planned = batches(plan.final(experiment("softmax", "normalized_softmax", "arcface", "triplet", "proxy_nca"), {}))
    single, usual = (32, 1), (8, 4)
    assert planned == {
        "softmax": single,
        "normalized_softmax": single,
        "arcface": single,
        "triplet": usual,
        "proxy_nca": usual,
    }
    assert batches(plan.search(experiment("arcface", trials=1))) == {"arcface": single}


def test_what_a_protocol_gives_for_a_loss_is_stronger_than_for_its_family() -> None:
    tuned = {"arcface": Tuned({"samples_per_class": 2}), "triplet": Tuned({"samples_per_class": 8})}
    protocol = fair(tuned={"any": tuned})
    asked = experiment("arcface", "softmax", "triplet", protocol=protocol)
    assert batches(plan.final(asked, {})) == {"arcface": (16, 2), "softmax": (32, 1), "triplet": (4, 8)}


@pytest.mark.parametrize(
    ("settings", "batch"),
    [
        ({"samples_per_class": 2}, (8, 2)),
        ({"classes_per_batch": 16}, (16, 4)),
        ({"classes_per_batch": 16, "samples_per_class": 2}, (16, 2)),
    ],
)
def test_a_user_who_sets_a_part_of_the_batch_sets_it_for_all_losses(
    settings: dict[str, int], batch: tuple[int, int]
) -> None:
    asked = experiment("softmax", "triplet", settings=settings)
    assert batches(plan.final(asked, {})) == {"softmax": batch, "triplet": batch}
    (name, value), *_ = settings.items()
    cells = plan.grid(experiment("softmax", "triplet", grid={name: (value,)}))
    assert len(set(batches(cells).values())) == 1


def test_the_size_of_a_batch_is_that_of_the_dataset_and_of_small_classes() -> None:
    protocol = fair(special={"cub": {"classes_per_batch": 5, "samples_per_class": 6}}, few_images={}, few_below=0)
    assert batches(plan.final(experiment("softmax", protocol=protocol), {})) == {"softmax": (30, 1)}
    few = fair(few_images={"classes_per_batch": 10}, few_below=1000)
    assert batches(plan.final(experiment("softmax", protocol=few), {})) == {"softmax": (40, 1)}


def test_images_per_class_that_do_not_divide_the_batch_are_one_line() -> None:
    tuned = {"any": {"softmax": Tuned({"samples_per_class": 5})}}
    for protocol in (fair(families={"classification": 5}), fair(tuned=tuned)):
        asked = experiment("softmax", protocol=protocol)
        with pytest.raises(UserError, match=r"^samples_per_class=5: must divide the 8 x 4 images of a batch$"):
            plan.final(asked, {})


def searching(*values: int) -> Protocol:
    return fair(search={**config.protocol("fair").search, "samples_per_class": Choice(*values)}, folds=1)


def test_search_draws_images_per_class_in_batches_of_one_size_and_moves_no_other_draw() -> None:
    asked = experiment("softmax", "proxy_nca", "triplet", protocol=searching(1, 2, 4), trials=30)
    trials = plan.search(asked)
    assert {trial.classes_per_batch * trial.samples_per_class for trial in trials} == {32}
    drawn = {loss: {t.samples_per_class for t in trials if t.loss == loss} for loss in batches(trials)}
    assert drawn == {"softmax": {1, 2, 4}, "proxy_nca": {1, 2, 4}, "triplet": {2, 4}}
    before = plan.search(dataclasses.replace(asked, protocol=fair(folds=1)))
    assert [dict(trial.knobs) for trial in trials] == [dict(trial.knobs) for trial in before]
    own = dataclasses.replace(config.loss("triplet"), name="mine.Mine", shipped=False)
    of_own = [
        plan.search(dataclasses.replace(asked, losses=(own,), protocol=protocol))
        for protocol in (searching(2, 4), fair(folds=1))
    ]
    assert [dict(trial.knobs) for trial in of_own[0]] == [dict(trial.knobs) for trial in of_own[1]]


def test_the_final_run_has_the_batch_that_search_chose_and_a_users_is_stronger() -> None:
    asked = experiment("softmax", protocol=searching(1, 2, 4), trials=10)
    winner = next(trial for trial in plan.search(asked) if trial.samples_per_class == 2)
    (final,) = plan.final(asked, {"softmax": winner.searched})
    assert (final.classes_per_batch, final.samples_per_class) == (16, 2)
    (other,) = plan.final(dataclasses.replace(asked, settings={"classes_per_batch": 6}), {"softmax": winner.searched})
    assert (other.classes_per_batch, other.samples_per_class) == (6, 4)


def test_a_search_that_leaves_a_pair_loss_nothing_is_one_line() -> None:
    complaint = (
        r"^protocols/fair.toml \[search\] samples_per_class=\[1\]: must have a value >= 2 for triplet, a pair loss"
    )
    with pytest.raises(UserError, match=complaint):
        plan.search(experiment("triplet", protocol=searching(1), trials=1))
    with pytest.raises(UserError, match=r"^samples_per_class=3: must divide the 8 x 4 images of a batch$"):
        plan.search(experiment("softmax", protocol=searching(1, 3), trials=1))


def test_a_budget_counts_search_trials_of_other_batches_if_search_chose_among_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    protocol = searching(1, 2, 4)
    trials = plan.search(experiment("softmax", protocol=protocol, trials=8))
    results = [
        dataclasses.replace(a_result(trial, **{"R@1": 0.5, "MAP@R": 0.5}), provenance={"purpose": "search"})
        for trial in trials
    ]
    (final,) = plan.final(experiment("softmax", protocol=protocol), {"softmax": trials[0].searched})
    monkeypatch.setattr(config, "find_protocol", lambda name: protocol)
    assert len(Budgets(results).of(final).search) == 8
    monkeypatch.setattr(config, "find_protocol", lambda name: fair(folds=1))
    assert len(Budgets(results).of(final).search) < 8


def test_a_row_with_another_batch_is_footnoted() -> None:
    rows = [loss_row(name, name, 0.5) for name in ("triplet", "group")]
    odd = loss_row("softmax", "Softmax", 0.6, classes_per_batch=64, samples_per_class=1)
    note = "Trained differently: classes_per_batch = 64 (usual: 16); samples_per_class = 1 (usual: 4)."
    (table,) = build([*rows, odd])
    assert {row.label: row.notes for row in table.rows} == {"group": (), "triplet": (), "Softmax": (note,)}
    assert note in markdown(table)


# --- the files ---


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[family.proxies]\nsamples_per_class = 1", r"\[family.proxies\]: no family.*did you mean 'proxy'"),
        ("[family.proxy]\nclasses_per_batch = 1", r"\[family.proxy\]: .*'classes_per_batch'.*samples_per_class"),
        ("[family.proxy]", r"\[family.proxy\]: missing samples_per_class"),
        ("[family.proxy]\nsamples_per_class = 0", r"\[family.proxy\]: samples_per_class=0: must be an integer >= 1"),
        ("[family]\nproxy = 1", r"\[family.proxy\]: must be a table"),
        ("[search]\nsamples_per_class = 1", r"samples_per_class=1: must be integers > 0 like \[1, 2, 4\]"),
        ("[search]\nsamples_per_class = []", r"samples_per_class=\[\]: must be integers > 0"),
        ("[search]\nsamples_per_class = [0.5, 2]", r"samples_per_class=\[0.5, 2\]: must be integers > 0"),
    ],
)
def test_a_mistake_in_a_protocols_batches_is_named(small: Path, text: str, complaint: str) -> None:
    (small / "protocols" / "own.toml").write_text(f'like = "tiny"\n{text}\n')
    with pytest.raises(UserError, match=complaint):
        config.protocol("own")


OWN = 'like = "tiny"\n[family.classification]\nsamples_per_class = 1\n'


MINE = """
import torch
from losses.base import Loss
class Mine(Loss):
    title = cite = "Mine"
    family = "classification"
    def __init__(self, num_classes, dim):
        super().__init__(num_classes, dim)
        self.classifier = torch.nn.Linear(dim, num_classes)
    def forward(self, embeddings, labels):
        return torch.nn.functional.cross_entropy(self.classifier(embeddings), labels)
"""


def test_the_command_of_a_record_names_its_batch_again(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a family that the protocol treats apart, as the protocol has it and as a user has set it; and of a loss whose
    family no record states."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (small / "protocols" / "own.toml").write_text(OWN)
    run = ("run", "--losses", "softmax,./mine.py:Mine,triplet", "--dataset", "blobs", "--protocol", "own")
    for settings in ((), ("samples_per_class=2",), ("classes_per_batch=6",), ("samples_per_class=3",)):
        assert harness(*run, *(f"--set={setting}" for setting in settings)).code == 0
    records = [json.loads(file.read_text()) for file in stored(tmp_path / "results")]
    seen = {(r["trial"]["loss"], *(r["trial"][name] for name in BATCH)) for r in records}
    assert {("softmax", 12, 1), ("mine.Mine", 12, 1), ("triplet", 4, 3)} < seen
    assert {("softmax", 4, 2), ("mine.Mine", 4, 2), ("softmax", 6, 3), ("softmax", 4, 3), ("mine.Mine", 4, 3)} < seen
    for record in records:
        command = harness("show", record["id"]).out.partition("Reproduce with:\n  ")[2].splitlines()[0]
        assert record["id"] in harness(*shlex.split(command)[1:], "--dry-run", "--results", "elsewhere").out, command


def test_the_usual_batch_of_a_loss_is_not_repeated_in_its_command() -> None:
    (trial,) = plan.final(experiment("softmax", settings={"weights": "hub:x"}), {})
    result = a_result(trial)
    assert "per_batch" not in commands.command(result, config.protocol("fair"))
    other = dataclasses.replace(result, trial=dataclasses.replace(trial, samples_per_class=2))
    line = commands.command(other, config.protocol("fair"))
    assert "--set classes_per_batch=32 --set samples_per_class=2" in line


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"epochs": 0}, 1),
        ({"epochs": 0, "warmup_epochs": 2.0}, 1),  # it has no embedding layer to learn
        ({"epochs": 0, "warmup_epochs": 2.0, "dim": 8}, 0),
        ({"epochs": 0, "pretrain_epochs": 1}, 0),
        ({"epochs": 1}, 0),
    ],
)
def test_a_run_that_trains_nothing_says_so(changes: dict[str, Any], lines: int) -> None:
    trial = a_trial(**{"dim": None, "pretrain_epochs": 0, "warmup_epochs": 0.0, **changes})
    assert len(list(untrained([trial]))) == lines
