"""What keeps a stored result's command from giving the same numbers here."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import losses
from harness import config, provenance, sources
from harness.analysis import reproduction
from harness.spec import Result
from harness.spec.recipes import HARTIGAN
from harness.store import Store
from losses import own
from tests.factories import a_result, a_trial

HERE = {
    "device_type": "cpu",
    "device": provenance.cpu(),
    "threads": 1,
    "packages": {"torch": provenance.version_of("torch")},
    "commit": "0123456789ab",
}


def made(trial: dict[str, Any] | None = None, **recorded: Any) -> Result:
    return replace(a_result(a_trial(**(trial or {}))), provenance={**HERE, **recorded})


def caveats(result: Result, store: Store = Store(Path("nowhere"))) -> list[str]:  # noqa: B008
    return reproduction.caveats(result, store, Path("nowhere"))


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "has_gpu", lambda: False)


def test_what_was_made_like_this_has_no_caveat() -> None:
    assert caveats(made()) == []


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        (
            {"device_type": "cuda", "device": "A GPU"},
            "It ran on a GPU (A GPU): runs on a GPU are not the same to the bit.",
        ),
        ({"threads": None}, "Its number of threads is not recorded: with another one its numbers differ."),
        ({"device": "a Cray"}, "It ran on another processor (a Cray)."),
        ({"packages": {"torch": "1.0"}}, f"It was made with torch 1.0; here is {torch.__version__.split('+')[0]}."),
        ({"packages": {"nowhere": "1.0"}}, "It was made with nowhere 1.0; here is none."),
        ({"commit": "0123+"}, "Its code had changes that were not committed (0123+)."),
        ({"data": "/nowhere/photos"}, "Its images are not at /nowhere/photos here; their fingerprint is abc."),
    ],
)
def test_a_condition_that_differs_is_said(recorded: dict[str, Any], said: str) -> None:
    assert caveats(made(**recorded)) == [said]


def test_a_cpu_run_on_a_machine_with_a_gpu_is_told_how_to_run_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "has_gpu", lambda: True)
    assert caveats(made()) == ["It ran on a CPU, and this machine has a GPU: add --gpus-per-trial 0."]


def test_files_that_the_command_reads_are_named(tmp_path: Path) -> None:
    assert caveats(made(data=str(tmp_path))) == []
    needed = caveats(made({"weights": "file:0123"}, weights_file="mine.pth"))
    assert needed == ["It needs the weights mine.pth, file:0123."]


def test_a_copy_of_known_size_is_named() -> None:
    trial = {"dataset": "cub", "dataset_version": config.dataset("cub").version}
    assert caveats(made(trial)) == []
    assert caveats(made({**trial, "fingerprint": "130c5694ed35"})) == [
        "Its images are a copy of short side 256 px (130c5694ed35): with others it is another trial."
    ]


def test_an_nmi_by_another_recipe_is_said() -> None:
    result = replace(made(), conventions={"NMI": str(HARTIGAN)})
    assert caveats(result) == ["Its NMI is by the recipe hartigan; a new run's is by lloyd."]
    assert caveats(replace(result, recipe="hartigan")) == []  # its command measures by this recipe


def test_a_loss_or_a_dataset_of_another_version_is_another_trial() -> None:
    assert caveats(made({"loss_version": 7})) == [
        "triplet is version 1 here, the record's is 7: the command names another trial."
    ]
    assert caveats(made({"dataset_version": 7})) == [
        "emoji is version 1 here, the record's is 7: the command names another trial."
    ]
    bridged = {"loss": "pml:CircleLoss", "loss_version": "1.0"}
    assert "pml:CircleLoss is version" in caveats(made(bridged))[0]


def test_the_version_of_a_loss_is_read_without_running_it() -> None:
    assert all(losses.facts(name).version == losses.get(name).version for name in losses.shipped())


def test_members_that_differ_are_said(tmp_path: Path) -> None:
    members = [made({"seed": seed}, threads=seed + 1) for seed in range(2)]
    store = Store(tmp_path)
    for member in members:
        store.put(member)
    joined = replace(made(), ensemble=2, members=tuple(member.id for member in members))
    assert caveats(joined, store) == ["Its members differ: threads = 1 (1 run), 2 (1 run)."]


def test_a_pretraining_that_was_made_under_other_conditions_is_said(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = made({"loss": "pretraining", "pretrain_epochs": 1}, threads=2)
    store.put(first)
    shared = {"id": first.id, "seconds": 1.0}
    mine = made(pretraining=shared)
    assert caveats(mine, store) == [
        f"Its pre-training {first.id} was made with threads = 2, {mine.id} with 1.",
    ]
    assert caveats(made(pretraining=shared, threads=2), store) == []
    assert caveats(made(pretraining={**shared, "id": "0" * 12}), store) == []  # it is gone


def test_a_run_that_went_on_under_other_conditions_is_said(tmp_path: Path) -> None:
    attempts = [{**HERE, "threads": 2}, HERE]
    mixed = made(attempts=attempts)
    said = f"{mixed.id} was interrupted and went on under other conditions: threads = 2 then 1."
    assert caveats(mixed) == [said]
    moved = made(attempts=[{**HERE, "device": "a Cray"}, HERE])
    (line,) = caveats(moved)
    assert line.endswith(f"went on under other conditions: processor = a Cray then {HERE['device']}.")
    store = Store(tmp_path)
    store.put(mixed)
    assert said in caveats(replace(mixed, ensemble=1, members=(mixed.id,)), store)


def test_an_own_loss_is_looked_for_where_the_command_does(tmp_path: Path) -> None:
    file, store = tmp_path / "mine.py", Store(tmp_path / "results")
    file.write_text("VALUE = 1\n")
    texts = own.collect(file)
    hashes = {path: own.digest(text) for path, text in texts.items()}
    result = made({"loss": "mine.Mine", "loss_version": own.version(texts)}, sources=hashes)

    def said() -> list[str]:
        return reproduction.caveats(result, store, tmp_path)

    assert said() == []
    file.write_text("VALUE = 2\n")
    assert said() == [f"{file} is another version: it is not stored."]
    sources.put(store, texts.values())
    assert said() == [f"{file} is another version: harness show {result.id} --source DIR writes it."]
    file.unlink()
    assert said() == [f"{file} is not here: harness show {result.id} --source DIR writes it."]
