"""`harness show`: a record and the command that makes it again."""

import json
import shlex
from pathlib import Path

import pytest

import losses
from harness import config
from harness.cli import screen
from tests.cli.records import stored
from tests.conftest import Harness

QUICK = ("run", "--losses", "group,triplet", "--dataset", "blobs")


@pytest.mark.parametrize("fold", ["test", "val0"])
def test_show_prints_the_record_and_a_command_that_makes_it_again(
    small: Path, harness: Harness, tmp_path: Path, fold: str
) -> None:
    changed = ("lr=0.002", "seed=3", "group.anchors=1", "drops=3,5", "dim=none")
    harness(*QUICK, *(f"--set={one}" for one in changed))
    harness(*QUICK, "--set", f"fold={fold}", "--set", "epochs=2")
    ids = [file.stem for file in stored(tmp_path / "results")]
    assert len(ids) >= 7
    for one in ids:
        said = harness("show", one)
        text, _, command = said.out.partition("\n\nReproduce with:\n  ")
        assert json.loads(text)["id"] == one
        program, *arguments = shlex.split(command.splitlines()[0])
        assert program == "harness"
        plan = harness(*arguments, "--dry-run", "--results", str(tmp_path / "elsewhere"))
        assert one in plan.out, command


def test_a_record_whose_protocol_is_gone_is_shown(small: Path, harness: Harness, tmp_path: Path) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    (small / "protocols" / "tiny.toml").unlink()
    id = stored(tmp_path / "results")[0].stem
    said = harness("show", id)
    assert said.code == 0
    assert f'"id": "{id}"' in said.out
    assert "\n\nIts protocol tiny is no longer in configs/protocols, so no command reproduces it.\n" in said.out


def test_the_command_states_what_the_size_of_classes_would_decide(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    """The blobs have 6 images per class; the record has the batches of large classes, because they were asked for."""
    protocol = small / "protocols" / "tiny.toml"
    protocol.write_text(protocol.read_text() + "\n[few_images]\nbelow = 10\nclasses_per_batch = 2\n")
    harness(*QUICK, "--set", "classes_per_batch=4")
    for file in stored(tmp_path / "results"):
        command = harness("show", file.stem).out.partition("Reproduce with:\n  ")[2].splitlines()[0]
        plan = harness(*shlex.split(command)[1:], "--dry-run", "--results", str(tmp_path / "elsewhere"))
        assert file.stem in plan.out, command


def test_what_may_keep_a_run_from_the_same_numbers_is_printed_below_its_command(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    (file, *_) = stored(tmp_path / "results")
    record = json.loads(file.read_text())
    record["provenance"]["packages"]["torch"] = "1.0"
    file.write_text(json.dumps(record))
    below = harness("show", file.stem).out.partition("Reproduce with:\n  ")[2].splitlines()[1:]
    assert below[0].startswith("In this folder it is stored: ")
    assert below[1:3] == ["", "The numbers may differ:"]
    assert any(line.startswith("  It was made with torch 1.0; here is ") for line in below)


def test_a_terminal_gets_the_command_in_lines_that_fit_and_a_pipe_in_one(
    small: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = "Ann's crops, and more than one blank"
    harness(*QUICK, "--set", "group.anchors=1", "--name", name)
    one = next(file.stem for file in stored(tmp_path / "results") if file.parent.name == "group")
    piped = harness("show", one).out.partition("Reproduce with:\n  ")[2]
    monkeypatch.setattr(screen, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    drawn = harness("show", one).out.partition("Reproduce with:\n  ")[2]
    assert max(map(len, drawn.splitlines())) <= 80
    assert drawn != piped
    assert "--set \\" not in drawn  # an option stays with its value
    read, expected = (
        [shlex.split(line) for line in text.replace("\\\n", " ").splitlines() if "harness run " in line]
        for text in (drawn, piped)
    )
    assert read == expected
    assert any(name in words for words in read)


def test_json_is_nothing_but_the_record(small: Path, harness: Harness, tmp_path: Path) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    file = stored(tmp_path / "results")[0]
    said = harness("show", file.stem, "--json")
    assert json.loads(said.out)["id"] == file.stem
    assert said.err == ""


@pytest.mark.parametrize("name", ["group", "paper", "cub"])
def test_json_is_of_records_not_of_names(harness: Harness, name: str) -> None:
    said = harness("show", name, "--json")
    assert (said.code, said.out) == (2, "")
    assert said.err == f"harness: --json: must be with the id of a stored result or a failed trial, not with {name}\n"


def test_a_failed_trial_is_shown_with_its_traceback_as_lines(small: Path, harness: Harness, tmp_path: Path) -> None:
    said = harness("run", "--losses", "triplet", "--dataset", "blobs", "--set", "lr=1e30")
    assert said.code == 1
    (failed,) = (tmp_path / "results" / "failures").rglob("*.json")
    said = harness("show", failed.stem[:8])
    assert said.code == 0
    assert said.out.startswith(f"triplet-blobs-test-{failed.stem}  failed: FloatingPointError: loss is nan at ")
    assert "\nTraceback (most recent call last):\n  File " in said.out
    assert f"Its record: {failed}" in said.out
    assert json.loads(harness("show", failed.stem, "--json").out)["id"] == failed.stem


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", [*losses.names(), *config.names("protocols"), *config.names("datasets")])
def test_a_loss_a_protocol_and_a_dataset_are_shown(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, name: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    said = harness("show", name)
    assert said.code == 0
    assert "`" not in said.out
    text = [line for line in said.out.splitlines() if "://" not in line]
    assert max(map(len, text)) <= width
    if name in losses.names():
        for knob in config.loss(name).knobs.values():
            assert f"\n{knob.key}" in said.out
            assert " ".join(knob.meaning.split()) in " ".join(said.out.split())


def test_a_protocol_has_every_setting_also_those_of_small_classes(harness: Harness) -> None:
    """Classes of sop have five images on average, those of cars eighty."""
    said = harness("show", "cpu").out
    settings = said.partition("Random search")[0].splitlines()
    rows = {words[0]: words[1:] for words in map(str.split, settings) if words}
    assert rows["setting"] == ["value", "cars", "emoji", "inshop", "sop"]
    assert rows["warmup_epochs"] == ["1", "4", "4", "4"]
    assert rows["samples_per_class"] == ["9", "7", "5", "5", "6"]
    assert rows["stop_after"] == ["0"]
    few = "fewer than 10 images on average: classes_per_batch=12, samples_per_class=5, warmup_epochs=4"
    assert few in " ".join(said.split())


def test_an_own_loss_is_shown(harness: Harness, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from typing import Annotated\n\nfrom losses.base import Loss, Positive, Range\n\n\n"
        'class Mine(Loss):\n    """L = factor * mean of x^2."""\n\n    title, cite = \'My loss\', \'me\'\n'
        "    space = {'factor': Range(1, 2)}\n\n"
        "    def __init__(self, num_classes, dim, *, factor: Annotated[Positive, 'of the square'] = 1.0):\n"
        "        super().__init__(num_classes, dim)\n\n"
        "    def forward(self, embeddings, labels):\n        return embeddings.square().mean()\n"
    )
    said = harness("show", f"{file}:Mine")
    for part in ("My loss\n", "  L = factor * mean of x^2.", "mine.Mine.factor", "of the square", "1 to 2"):
        assert part in said.out


def test_what_is_no_name_and_no_id_gets_a_suggestion(harness: Harness) -> None:
    said = harness("show", "tripplet")
    assert said.code == 2
    assert "no loss, protocol, dataset, or result in" in said.err
    assert said.err.endswith("named 'tripplet'; did you mean 'triplet'?\n")


def test_a_dataset_names_the_copies_that_results_are_of(harness: Harness) -> None:
    said = harness("show", "cub").out
    for fingerprint, side in config.dataset("cub").resized.items():
        assert f"{side} px ({fingerprint})" in said.replace("\n", " ")
    assert "harness data resize cub --short-side 256 --out DIR" in said
