"""Damaged files, full and read-only disks, and passwords in the place where files are stored."""

import contextlib
import dataclasses
import io
import os
import pickle
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

from harness import config
from harness.data import loading
from harness.evaluation import ensembles
from harness.execution.account import Account
from harness.execution.recorder import Recorder
from harness.spec import Event, Experiment, Progress, Result, Trial, UserError, finish, pretraining_key
from harness.storage import DamagedError, Storage
from harness.storage import checkpoint as checkpoint_file
from harness.store import Store
from harness.training import checkpoint as checkpoints
from harness.training import measuring, teaching
from harness.training import trial as training
from harness.training.checkpoint import Checkpoint
from tests.conftest import Harness
from tests.data.factories import special_file
from tests.training.trials import blobs, job, run, run_until, set_up, trial

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster as RayCluster

PASSWORD = "SEC/RET"


def notes(reports: list[Progress]) -> list[str]:
    return [event.note for event in reports if event.note]


def same_to_the_bit(result: Result, expected: Result) -> bool:
    def bits(one: Result) -> Any:
        return one.metrics, [(row["epoch"], row["loss"], row["images"]) for row in one.curve], one.artifacts

    return bits(result) == bits(expected)


def flipped(content: bytes) -> bytes:
    """A quarter of the bytes, in the middle, inverted: sizes and structure stay."""
    low, high = len(content) * 3 // 8, len(content) * 5 // 8
    return content[:low] + bytes(byte ^ 0xFF for byte in content[low:high]) + content[high:]


class Attack:
    """What a pickle that is loaded would do."""

    def __reduce__(self) -> tuple[Callable[..., int], tuple[str]]:
        return os.system, ("touch /tmp/harness-pickle-was-executed",)


BYTES: dict[str, Callable[[bytes], bytes]] = {
    "cut in half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "garbage": lambda content: b"\x93garbage\n" * 1000,
    "flipped bytes": flipped,
    "one flipped bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "a pickle": lambda content: pickle.dumps(Attack()),
    "without a checksum, as before": lambda content: content.split(b"\n", 3)[3],
}


# --- checkpoints ---


@pytest.mark.fault(
    "a checkpoint: cut in half, empty, garbage, flipped bytes, a pickle, one of an older version",
    "set aside with one line that names it; the trial starts again, same to the bit",
)
@pytest.mark.parametrize("damage", BYTES.values(), ids=BYTES)
def test_a_damaged_checkpoint_is_as_good_as_none(small: Path, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    resumable = trial("group", epochs=3, warmup_epochs=1.0)
    whole, _ = run(resumable, tmp_path / "whole")
    run_until(resumable, tmp_path / "cut", "train", 2)
    file = tmp_path / "cut" / checkpoint_file(resumable.id)
    damaged = damage(file.read_bytes())
    file.write_bytes(damaged)
    again, reports = run(resumable, tmp_path / "cut")
    assert same_to_the_bit(again, whole)
    (line,) = notes(reports)
    assert line.startswith(f"checkpoints/{resumable.id}.pt is damaged")
    assert line.count("\n") == 0
    (aside,) = (tmp_path / "cut" / "damaged").iterdir()
    assert aside.read_bytes() == damaged
    assert str(aside.relative_to(tmp_path / "cut")) in line
    assert not Path("/tmp/harness-pickle-was-executed").exists()


def beyond_the_end(stored: Checkpoint) -> Checkpoint:
    return dataclasses.replace(stored, epoch=99)


def beyond_the_end_with_a_curve(stored: Checkpoint) -> Checkpoint:
    return dataclasses.replace(stored, epoch=4, curve=[{**stored.curve[-1], "epoch": epoch} for epoch in range(1, 5)])


def without_a_curve(stored: Checkpoint) -> Checkpoint:
    return dataclasses.replace(stored, curve=[])


def without_an_optimizer(stored: Checkpoint) -> Checkpoint:
    return dataclasses.replace(stored, state={"model": stored.state["model"]})


def of_another_network(stored: Checkpoint) -> Checkpoint:
    setup, _ = set_up(trial("group", dim=4))
    return dataclasses.replace(stored, state={**stored.state, "model": setup.model.state_dict()})


def of_an_unknown_stage(stored: Checkpoint) -> Checkpoint:
    return dataclasses.replace(stored, stage="distil")


def with_a_text_as_epoch(stored: Checkpoint) -> Checkpoint:
    return dataclasses.replace(stored, epoch="2")  # type: ignore[arg-type]


@pytest.mark.fault(
    "a whole checkpoint of this trial: beyond its end, without a curve, of another network, of an unknown stage",
    "set aside with one line; the trial starts again, same to the bit",
)
@pytest.mark.parametrize(
    "change",
    [
        beyond_the_end,
        beyond_the_end_with_a_curve,
        without_a_curve,
        without_an_optimizer,
        of_another_network,
        of_an_unknown_stage,
        with_a_text_as_epoch,
    ],
)
def test_a_checkpoint_that_does_not_fit_its_trial_is_as_good_as_none(
    small: Path, tmp_path: Path, change: Callable[[Checkpoint], Checkpoint]
) -> None:
    resumable, storage = trial("group", epochs=3), Storage(str(tmp_path / "cut"))
    whole, _ = run(resumable, tmp_path / "whole")
    run_until(resumable, tmp_path / "cut", "train", 2)
    images = blobs().sha256
    change(Checkpoint.read(storage, resumable, images)).write(storage, resumable, images)
    again, reports = run(resumable, tmp_path / "cut")
    assert same_to_the_bit(again, whole)
    assert len(notes(reports)) == 1
    assert len(storage.names("damaged")) == 1


@pytest.mark.fault("a checkpoint that is a list, or has a part of another version", "as any other damaged checkpoint")
@pytest.mark.parametrize("content", [["a", "list"], {"generator": 1}], ids=["a list", "an unknown part"])
def test_a_checkpoint_of_another_version_is_as_good_as_none(small: Path, tmp_path: Path, content: Any) -> None:
    resumable, storage, buffer = trial(epochs=1), Storage(str(tmp_path / "cut")), io.BytesIO()
    torch.save(content, buffer)
    storage.write_sealed(
        checkpoint_file(resumable.id), checkpoints.owners(resumable, blobs().sha256)[0], buffer.getvalue()
    )
    again, reports = run(resumable, tmp_path / "cut")
    assert same_to_the_bit(again, run(resumable, tmp_path / "whole")[0])
    assert "of another version" in notes(reports)[0]


@pytest.mark.fault(
    "another seed's checkpoint, whole, under the name of this trial's", "set aside with one line; same to the bit"
)
def test_the_checkpoint_of_another_trial_is_not_used(small: Path, tmp_path: Path) -> None:
    mine, other = trial(epochs=3, seed=0), trial(epochs=3, seed=1)
    whole, _ = run(mine, tmp_path / "whole")
    run_until(other, tmp_path / "cut", "train", 2)
    folder = tmp_path / "cut" / "checkpoints"
    (folder / f"{other.id}.pt").rename(folder / f"{mine.id}.pt")
    again, reports = run(mine, tmp_path / "cut")
    assert same_to_the_bit(again, whole)
    assert f"belongs to 'checkpoint of {other.id} on images " in notes(reports)[0]
    assert f", not to 'checkpoint of {mine.id} on images " in notes(reports)[0]


def on_other_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the files of the dataset have the contents that they have, and had others before."""
    now = dataclasses.replace(loading.embedded(blobs()), contents="0" * 64)
    monkeypatch.setattr(loading, "embedded", lambda dataset: now)


@pytest.mark.fault(
    "an interrupted trial, whose images change at equal size before it goes on",
    "its checkpoint is set aside with one line; the result is of the new images alone",
)
@pytest.mark.parametrize("stage", ["pretrain", "train"])
def test_the_checkpoint_of_other_images_is_not_used(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    mine = trial(epochs=3, pretrain_epochs=3)
    whole, _ = run(mine, tmp_path / "whole")
    run_until(mine, tmp_path / "cut", stage, 2)
    on_other_images(monkeypatch)
    again, reports = run(mine, tmp_path / "cut")
    assert same_to_the_bit(again, whole)
    line = notes(reports)[0]
    assert line.startswith(f"checkpoints/{mine.id}.pt belongs to 'checkpoint of {mine.id} on images ")
    assert f", not to 'checkpoint of {mine.id} on images {'0' * 12}'; moved to " in line


@pytest.mark.fault(
    "a shared pre-training, and weights of a teacher, that were trained on images that have changed at equal size",
    "set aside with one line; made again",
)
def test_what_was_trained_on_other_images_is_not_used(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, storage = trial(pretrain_epochs=1), Storage(str(tmp_path))
    whole, _ = run(mine, tmp_path)
    teaching.put(storage, mine, blobs().sha256, set_up(mine)[0].model)
    storage.remove(checkpoint_file(mine.id))  # as the driver does at the end of a trial
    on_other_images(monkeypatch)
    again, reports = run(mine, tmp_path)
    assert same_to_the_bit(again, whole)
    (line,) = notes(reports)
    assert line.startswith(f"pretrained/{pretraining_key(mine)}.safetensors belongs to ")
    with pytest.raises(DamagedError, match="on images"):
        teaching.stored(storage, mine, "0" * 64)


@pytest.mark.fault(
    "a checkpoint and a shared pre-training of the version before, which did not name their images", "they are used"
)
def test_files_that_do_not_name_their_images_are_used(small: Path, tmp_path: Path) -> None:
    mine, storage = trial(epochs=3, pretrain_epochs=1), Storage(str(tmp_path / "cut"))
    whole, _ = run(mine, tmp_path / "whole")
    run_until(mine, tmp_path / "cut", "train", 2)
    for name in (checkpoint_file(mine.id), f"pretrained/{pretraining_key(mine)}.safetensors"):
        file = tmp_path / "cut" / name
        seal, owner, rest = file.read_bytes().split(b"\n", 2)
        file.write_bytes(b"\n".join((seal, owner.partition(b" on images ")[0], rest)))
    again, reports = run(mine, tmp_path / "cut")
    assert same_to_the_bit(again, whole)
    assert not notes(reports)
    assert not storage.names("damaged")
    assert min(event.epoch for event in reports if event.stage == "train") == 3
    assert not [event for event in reports if event.stage == "pretrain"]


@pytest.mark.fault(
    "a trial is interrupted, and goes on with another number of threads",
    "its record has both; its row is footnoted; show says that no command repeats it",
)
def test_a_trial_that_goes_on_with_other_threads_says_so(small: Path, tmp_path: Path, harness: Harness) -> None:
    mine = trial(epochs=2)
    alone, _ = run(mine, tmp_path / "alone")
    run_until(mine, tmp_path / "cut", "train", 1)
    mixed = finish(training.run(dataclasses.replace(job(mine, tmp_path / "cut"), threads=2)))
    assert "attempts" not in alone.provenance
    assert [attempt["threads"] for attempt in mixed.provenance["attempts"]] == [1, 2]
    assert Store(tmp_path / "results").put(mixed)
    assert "Run under other conditions: threads = 1 then 2." in harness("tables").out
    said = harness("show", mine.id).out
    assert f"{mine.id} was interrupted and went on under other conditions: threads = 1 then 2." in said


@pytest.mark.fault(
    "a folder, a pipe or a device in the place of a checkpoint",
    "never opened; set aside with one line; same to the bit",
)
@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a device"])
def test_what_is_no_file_in_the_place_of_a_checkpoint_is_moved_away(small: Path, tmp_path: Path, kind: str) -> None:
    mine = trial()
    file = tmp_path / checkpoint_file(mine.id)
    file.parent.mkdir()
    special_file(file, kind)
    again, reports = run(mine, tmp_path)
    assert again.metrics == run(mine, tmp_path / "whole")[0].metrics
    assert ("is a folder" if kind == "a folder" else "is not a file") in notes(reports)[0]


@pytest.mark.fault(
    "a damaged checkpoint, then the same command", "one line on the screen that names it; exit 0; a stored result"
)
def test_the_command_says_what_was_damaged_and_goes_on(small: Path, tmp_path: Path, harness: Harness) -> None:
    mine = trial()
    file = tmp_path / "results" / "artifacts" / checkpoint_file(mine.id)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"garbage")
    said = harness("run", "--losses", "triplet", "--dataset", "blobs", "--weights", "none")
    assert said.code == 0
    assert said.err.count(f"checkpoints/{mine.id}.pt is damaged, or of another version; moved to damaged/") == 1
    assert Store(tmp_path / "results").get(mine) is not None


@pytest.mark.chaos_long
@pytest.mark.fault("a damaged checkpoint, on a worker of Ray", "the line reaches the driver; same to the bit")
def test_a_worker_of_ray_reports_what_was_damaged(cluster: "RayCluster", tmp_path: Path) -> None:
    from tests.execution.ray_runs import Record, connected, experiment, jobs_of, same, serially

    jobs, record = jobs_of(experiment("triplet"), tmp_path), Record()
    Storage(str(tmp_path)).write(checkpoint_file(jobs[0].trial.id), b"garbage")
    with connected(cluster, tmp_path) as ray:
        ray.execute(jobs, record)
    assert same(record.results, serially(jobs, tmp_path / "whole"))
    (line,) = notes(record.progress)
    assert line.startswith(f"checkpoints/{jobs[0].trial.id}.pt is damaged")


# --- shared pre-training ---


@pytest.mark.fault(
    "the shared pre-training: cut in half, empty, garbage, flipped bytes, a pickle, one of an older version",
    "set aside with one line that names it; made again; every loss the same to the bit",
)
@pytest.mark.parametrize("damage", BYTES.values(), ids=BYTES)
def test_a_damaged_pretraining_is_made_again(small: Path, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    first, second = trial("triplet", pretrain_epochs=1), trial("group", pretrain_epochs=1)
    whole, _ = run(second, tmp_path / "whole")
    run(first, tmp_path / "shared")
    (file,) = (tmp_path / "shared" / "pretrained").glob("*.safetensors")
    undamaged = file.read_bytes()
    file.write_bytes(damage(undamaged))
    again, reports = run(second, tmp_path / "shared")
    assert same_to_the_bit(again, whole)
    (line,) = notes(reports)
    assert line.startswith(f"pretrained/{pretraining_key(second)}.safetensors is damaged")
    assert file.read_bytes() == undamaged
    assert notes(run(first, tmp_path / "shared")[1]) == []


@pytest.mark.fault("the pre-training of another seed, or of another network", "set aside with one line; made again")
@pytest.mark.parametrize("owner", ["other's", "mine"])
def test_the_pretraining_of_another_trial_is_not_used(small: Path, tmp_path: Path, owner: str) -> None:
    mine, other = trial(pretrain_epochs=1), trial(pretrain_epochs=1, dim=4)
    whole, _ = run(mine, tmp_path / "whole")
    run(other, tmp_path / "shared")
    storage, keys = Storage(str(tmp_path / "shared")), [pretraining_key(one) for one in (mine, other)]
    names = [f"pretrained/{key}.safetensors" for key in keys]
    images = blobs().sha256[:12]
    content = storage.read_sealed(names[1], f"pre-training {keys[1]} on images {images}")
    whose = keys[0] if owner == "mine" else keys[1]
    storage.write_sealed(names[0], f"pre-training {whose} on images {images}", content)
    again, reports = run(mine, tmp_path / "shared")
    assert same_to_the_bit(again, whole)
    assert notes(reports)[0].startswith(names[0] + (" is of another network" if owner == "mine" else " belongs to"))


@pytest.mark.fault("a sealed pre-training that is no safetensors file", "set aside with one line; made again")
def test_a_pretraining_of_another_format_is_made_again(small: Path, tmp_path: Path) -> None:
    mine, storage = trial(pretrain_epochs=1), Storage(str(tmp_path / "shared"))
    key = pretraining_key(mine)
    storage.write_sealed(f"pretrained/{key}.safetensors", f"pre-training {key}", b"something else")
    again, reports = run(mine, tmp_path / "shared")
    assert same_to_the_bit(again, run(mine, tmp_path / "whole")[0])
    assert len(notes(reports)) == 1


# --- embeddings and weights ---


@pytest.mark.fault(
    "stored embeddings flipped, or a pipe, then eval and ensemble; stored weights flipped, then embed",
    "one line says damaged and how to make them again; exit 2, of what is measured from them 1: others go on",
)
def test_damaged_embeddings_and_weights_are_called_damaged(small: Path, tmp_path: Path, harness: Harness) -> None:
    command = ["run", "--losses", "triplet", "--dataset", "blobs", "--weights", "none", "--seeds", "2"]
    assert harness(*command, "--keep-weights", "all").code == 0
    store = Store(tmp_path / "results")
    (result, *_) = [one for one in store.results()[0] if one.is_final]
    for entry in result.artifacts.values():
        file = store.artifacts / entry["path"]
        file.write_bytes(flipped(file.read_bytes()))
    image = tmp_path / "image.png"
    image.touch()
    embeddings = result.artifacts["embeddings"]["path"]
    for words in (["eval", result.id, "--nmi-recipe", "hartigan"], [*command, "--ensemble", "2"]):
        said = harness(*words)
        assert said.code == 1
        (line,) = [line for line in said.err.splitlines() if line.startswith("failed: triplet-blobs-")]
        assert f"{embeddings} is damaged" in line
        assert f"harness rm {result.id}" in line
    (store.artifacts / embeddings).unlink()
    os.mkfifo(store.artifacts / embeddings)
    said = harness("eval", result.id, "--nmi-recipe", "hartigan")
    assert said.code == 1
    assert f"{embeddings} is not a file; to make it again: harness rm {result.id}" in said.err
    said = harness("embed", result.id, str(image))
    assert said.code == 2
    assert f"{result.artifacts['weights']['path']} is damaged" in said.err
    assert said.err.count("\n") == 1
    assert harness("rm", result.id).code == 0
    assert harness(*command, "--ensemble", "2").code == 0  # made again, by the command that the line names


@pytest.mark.fault(
    "two drivers run one trial on hardware whose bits differ from run to run",
    "the stored record's embeddings are there and match its checksum; the other driver's are removed",
)
def test_two_drivers_do_not_overwrite_each_others_embeddings(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, storage = trial(), Storage(str(tmp_path / "storage"))
    experiment = Experiment(blobs(), config.protocol("tiny"), (config.loss("triplet"),))
    recorders = [Recorder(Account(experiment, Store(tmp_path / "results")), storage) for _ in range(2)]
    results = []
    for noise in (0.0, 1e-6):
        with monkeypatch.context() as patched:
            real = measuring.embed
            patched.setattr(measuring, "embed", lambda *given, real=real, noise=noise: real(*given) + noise)
            results.append(run(shared, tmp_path / "storage")[0])
    for recorder, result in zip(recorders, results, strict=True):
        recorder(shared, result)
    record = Store(tmp_path / "results").get(shared)
    assert record is not None
    assert record.artifacts == results[0].artifacts != results[1].artifacts
    assert ensembles.load(record, storage)["embeddings"].shape == (48, 8)
    assert storage.names("embeddings") == [record.artifacts["embeddings"]["path"]]


# --- disks ---

Disk = Callable[..., Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mounts small disks under tmp_path; the test is skipped where that is not allowed."""
    mounted: list[Path] = []

    def mount(name: str, options: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"mounting a small disk is not allowed here: {getattr(error, 'stderr', '') or error}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def remount(folder: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(4096))


RUN = ["run", "--losses", "triplet", "--dataset", "blobs", "--weights", "none"]


@pytest.mark.fault(
    "--results or --storage on a disk that is full from the start, or has no inodes left",
    "exit 2 before training, one line: what is needed and what is free",
)
@pytest.mark.parametrize("option", ["--results", "--storage"])
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("size=1m", r"No space left on device \(needed: about [0-9.]+ MB; 0.0 MB free\)"),
        ("size=1m,nr_inodes=2", r"No space left on device \(needed: .* MB free, but no inode for another file\)"),
    ],
    ids=["full", "without inodes"],
)
def test_a_full_disk_is_noticed_before_training(
    small: Path, disk: Disk, harness: Harness, option: str, options: str, complaint: str
) -> None:
    folder = disk("disk", options)
    if "inodes" not in options:
        fill(folder)
    else:
        (folder / "file").touch()
    said = harness(*RUN, option, str(folder / "below"))
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert re.search(complaint, said.err)


@pytest.mark.fault("--storage too small for one checkpoint", "exit 2 before training, one line with both sizes")
def test_a_disk_that_is_too_small_for_a_checkpoint_is_refused(small: Path, disk: Disk, harness: Harness) -> None:
    said = harness(*RUN, "--storage", str(disk("disk", "size=1m")))
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert "No space left on device (needed: about 3." in said.err
    assert "MB; 1.0 MB free)" in said.err


@pytest.mark.fault(
    "--storage turns read-only in the middle", "recorded, one line, exit 2; the same command resumes, same to the bit"
)
def test_a_storage_that_turns_read_only_ends_the_run_in_one_line(
    small: Path, tmp_path: Path, disk: Disk, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = disk("disk", "size=64m"), Checkpoint.write
    words = [*RUN, "--set", "epochs=3", "--storage", str(folder)]

    def write(self: Checkpoint, storage: Storage, of: Trial, images: str) -> None:
        if self.epoch == 2:
            remount(folder, "ro")
        real(self, storage, of, images)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "write", write)
        said = harness(*words)
    assert said.code == 2
    assert "Traceback" not in said.err
    assert "Read-only file system" in said.err.splitlines()[-1]
    assert len(list((tmp_path / "results" / "failures").rglob("*.json"))) == 1
    remount(folder, "rw")
    said = harness(*words)
    assert said.code == 0
    assert "epoch 2/3" in said.err
    assert "epoch 1/3" not in said.err
    (resumed,) = [one for one in Store(tmp_path / "results").results()[0] if one.is_final]
    assert same_to_the_bit(resumed, run(resumed.trial, tmp_path / "whole", keep_weights=True)[0])


@pytest.mark.fault(
    "rm, eval, tables --out and run --rerun on results that are read-only",
    "exit 2, one line; what is stored stays; commands that only read work",
)
def test_commands_on_read_only_results_are_one_line(small: Path, disk: Disk, harness: Harness) -> None:
    folder = disk("disk", "size=64m")
    results = ("--results", str(folder / "results"))
    assert harness(*RUN, *results).code == 0
    stored = [file for file in (folder / "results").rglob("*") if file.is_file()]
    (result,) = [one for one in Store(folder / "results").results()[0] if one.is_final]
    remount(folder, "ro")
    for words in (
        ("rm", result.id, *results),
        ("eval", result.id, "--nmi-recipe", "hartigan", *results),
        ("tables", "--out", str(folder / "tables"), *results),
        (*RUN, "--rerun", *results),
    ):
        said = harness(*words)
        assert (said.code, said.err.count("\n")) == (2, 1), said
        assert "Read-only file system" in said.err or "no permission to write" in said.err
    for words in (("tables",), ("ls", "runs"), ("status",), ("show", result.id)):
        assert harness(*words, *results).code == 0, words
    assert [file for file in (folder / "results").rglob("*") if file.is_file()] == stored
    remount(folder, "rw")


@pytest.mark.chaos_long
@pytest.mark.fault("--storage turns read-only in the middle, on Ray", "recorded, one line, exit 2")
def test_a_storage_that_turns_read_only_under_ray_ends_the_run_in_one_line(
    cluster: "RayCluster", tmp_path: Path, disk: Disk
) -> None:
    from tests.execution.ray_runs import connected, experiment, run_of

    folder = disk("storage", "size=64m")

    def turn(_: Trial, event: Event) -> None:
        if isinstance(event, Progress) and event.closes_epoch:
            remount(folder, "ro")

    with connected(cluster, folder) as ray:
        running = run_of(experiment("triplet", settings={"epochs": 3}), tmp_path, ray.execute)
        running.listeners = (turn,)
        with pytest.raises(UserError, match=r"Read-only file system.*finished trials are stored") as raised:
            running()
    assert str(raised.value).count("\n") == 0
    assert len(running.failures) == 1


@pytest.mark.fault(
    "RAY_TMPDIR on a disk of 200 KB, on a read-only disk, or a file", "exit 2, one line that names it, at once"
)
@pytest.mark.parametrize("place", ["a small disk", "a read-only disk", "a file"])
def test_a_folder_that_ray_cannot_use_is_named(
    small: Path, tmp_path: Path, disk: Disk, harness: Harness, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place == "a file":
        folder = tmp_path / "file"
        folder.touch()
    else:
        folder = disk("ray", "size=200k")
        if place == "a read-only disk":
            remount(folder, "ro")
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    said = harness(*RUN, "--executor", "ray")
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert f"cannot write Ray's files to {folder} (set RAY_TMPDIR to a folder with room): " in said.err


def test_a_folder_that_ray_itself_refuses_is_named(
    small: Path, tmp_path: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    def refuse(*_: object, **__: object) -> None:
        raise OSError("AF_UNIX path length cannot exceed 107 bytes")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    said = harness(*RUN, "--executor", "ray")
    assert said.code == 2
    assert said.err == (
        f"harness: Ray cannot start in {tmp_path} (set by RAY_TMPDIR): AF_UNIX path length cannot exceed 107 bytes\n"
    )


@pytest.mark.fault(
    "the disk fills up while tables, figures, a report or embeddings are written",
    "exit 2, one line; the file of before is whole, and no half file is left",
)
@pytest.mark.parametrize(
    "command",
    ["tables", "embed", *(pytest.param(name, marks=pytest.mark.slow) for name in ("report", "figures"))],
)
def test_outputs_are_written_whole_or_not_at_all(
    small: Path, tmp_path: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    assert harness(*RUN).code == 0
    out = tmp_path / "out"
    more: dict[str, list[str]] = {"figures": ["cost"]}
    if command == "embed":
        out.mkdir()
        (weights,) = (tmp_path / "results" / "artifacts" / "weights").iterdir()
        Image.new("RGB", (16, 16)).save(tmp_path / "image.png")
        more["embed"] = [weights.stem.split("-")[0], str(tmp_path / "image.png")]
    target = out / {"report": "report.html", "embed": "points.npy"}.get(command, "")
    words = [command, *more.get(command, []), "--out", str(target)]
    assert harness(*words).code == 0
    before = {file: file.read_bytes() for file in out.iterdir()}
    assert before

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    said = harness(*words)
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert "No space left on device" in said.err
    assert {file: file.read_bytes() for file in out.iterdir()} == before


# --- passwords ---


@pytest.mark.fault(
    "--storage memory://user:SECRET@x/y", "the password is in no record, no heartbeat and no message, also of a failure"
)
def test_a_password_of_the_storage_is_written_nowhere(
    small: Path, tmp_path: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    MemoryFileSystem.store.clear()
    storage = f"memory://user:{PASSWORD}@x/y"
    artifact, write, written = Storage.write_artifact, Storage.write, list[bytes]()

    def refuse(self: Storage, kind: str, id: str, content: bytes) -> dict[str, str]:
        raise ConnectionError(f"no answer from {self.uri}")

    def spy(self: Storage, name: str, content: bytes, **options: bool) -> None:
        written.append(content)
        write(self, name, content, **options)

    monkeypatch.setattr(Storage, "write", spy)
    monkeypatch.setattr(Storage, "write_artifact", refuse)
    texts = [harness(*RUN, "--storage", storage)]
    monkeypatch.setattr(Storage, "write_artifact", artifact)
    texts += [harness(*RUN, "--storage", storage), harness("status", "--storage", storage)]
    texts.append(harness(*RUN, "--storage", storage.replace("memory", "nosuch")))
    assert [said.code for said in texts] == [1, 0, 0, 2]
    records = [file.read_text() for file in (tmp_path / "results").rglob("*.json")]
    assert any("://***@x/y" in record for record in records)
    for part in PASSWORD.split("/"):
        assert not [record for record in records if part in record]
        assert not [said for said in texts if part in said.out + said.err]
        assert not [content for content in written if part.encode() in content]
    MemoryFileSystem.store.clear()
