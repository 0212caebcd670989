"""The storage: whole files, names, locks and heartbeats, in a folder and in an object store."""

import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import pytest
from filelock import FileLock, Timeout
from fsspec.implementations.memory import MemoryFileSystem

from harness import storage as names
from harness.spec import UserError
from harness.storage import DamagedError, Storage


@pytest.fixture
def memory() -> Iterator[Storage]:
    """An object store: it has no folders of its own, no locks and no partial files."""
    MemoryFileSystem.store.clear()
    yield Storage("memory://bucket/harness")
    MemoryFileSystem.store.clear()


@pytest.fixture(params=["folder", "object store"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, memory: Storage) -> Storage:
    return memory if request.param == "object store" else Storage(str(tmp_path / "storage"))


def test_what_is_written_is_read_back_and_the_last_write_counts(storage: Storage) -> None:
    storage.prepare()
    assert storage.read("weights/a.safetensors") is None
    for content in (b"one", b"", b"three"):
        storage.write("weights/a.safetensors", content)
        assert storage.read("weights/a.safetensors") == content
    assert storage.exists("weights/a.safetensors")
    assert not storage.exists("weights/b.safetensors")


def test_names_are_those_of_a_folder_in_order_also_after_a_change(storage: Storage) -> None:
    assert storage.names("plans") == []
    for name in ("plans/b.json", "plans/a.json", "running/c.json", "plans/a.json"):
        storage.write_json(name, {})
    assert storage.names("plans") == ["plans/a.json", "plans/b.json"]
    storage.remove("plans/a.json")
    storage.remove("plans/a.json")  # removing a missing file is no error
    assert storage.names("plans") == ["plans/b.json"]
    storage.remove_folder("plans")
    storage.remove_folder("plans")
    assert storage.names("plans") == []
    assert storage.names("running") == ["running/c.json"]


def test_preparing_leaves_nothing_behind(storage: Storage) -> None:
    storage.prepare()
    assert not [path for path in storage.files.find(storage.root) if "probe" in path]


def test_json_that_is_damaged_or_no_object_reads_as_none(storage: Storage) -> None:
    storage.write_json("running/a.json", {"epoch": 3})
    assert storage.read_json("running/a.json") == {"epoch": 3}
    for content in (b"", b"{", b"[1]", b"\xff"):
        storage.write("running/a.json", content)
        assert storage.read_json("running/a.json") is None


def test_an_artifact_is_read_only_if_it_is_the_one_the_result_was_made_with(storage: Storage) -> None:
    entry = storage.write_artifact("embeddings", "1f2e", b"vectors")
    assert storage.read_artifact(entry) == b"vectors"
    storage.write(entry["path"], b"flipped")
    with pytest.raises(DamagedError, match=f"^{entry['path']} is damaged: "):
        storage.read_artifact(entry)
    assert storage.write_artifact("embeddings", "1f2e", b"vectors") == entry
    assert storage.read_artifact(entry) == b"vectors"
    assert [storage.read(name) for name in storage.names("damaged")] == [b"flipped"]
    storage.remove(entry["path"])
    assert storage.read_artifact(entry) is None
    assert storage.read_artifact({}) is None


def test_artifacts_of_one_run_with_other_content_have_other_names(storage: Storage) -> None:
    entries = [storage.write_artifact("embeddings", "1f2e", content) for content in (b"one", b"another")]
    assert [storage.read_artifact(entry) for entry in entries] == [b"one", b"another"]


def test_a_sealed_file_is_read_only_by_its_owner_and_as_it_was_written(storage: Storage) -> None:
    name = "checkpoints/a.pt"
    assert storage.read_sealed(name, "trial a") is None
    for content in (b"", b"state", b"\n\n"):
        storage.write_sealed(name, "trial a", content)
        assert storage.read_sealed(name, "trial a") == content
    with pytest.raises(DamagedError, match=f"^{name} belongs to 'trial a', not to 'trial b'$"):
        storage.read_sealed(name, "trial b")
    storage.write_sealed(name, "trial a", b"state")
    sealed = storage.read(name)
    for place in range(len(sealed)):
        storage.write(name, sealed[:place])
        with pytest.raises(DamagedError):
            storage.read_sealed(name, "trial a")
        storage.write(name, sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :])
        with pytest.raises(DamagedError):
            storage.read_sealed(name, "trial a")


def test_damaged_files_are_set_aside_and_only_the_last_few_stay(storage: Storage) -> None:
    for number in range(names.DAMAGED_KEPT + 2):
        storage.write("checkpoints/a.pt", f"{number}".encode())
        line = storage.set_aside(DamagedError("checkpoints/a.pt", "is damaged"))
        assert line.startswith("checkpoints/a.pt is damaged; moved to damaged/")
        assert not storage.exists("checkpoints/a.pt")
    kept = [storage.read(name) for name in storage.names("damaged")]
    assert kept == [f"{number}".encode() for number in range(2, names.DAMAGED_KEPT + 2)]
    storage.set_aside(DamagedError("checkpoints/a.pt", "is damaged"))  # another process was faster


def test_a_name_that_leads_out_of_the_storage_is_refused(storage: Storage) -> None:
    with pytest.raises(UserError, match=r"'embeddings/../../a' is not the name of a file in a storage"):
        storage.read_artifact({"path": "embeddings/../../a", "sha256": ""})


def test_an_object_store_has_no_locks_so_two_may_enter(memory: Storage) -> None:
    with memory.lock("pretrained/a"), memory.lock("pretrained/a"):
        memory.write("pretrained/a", b"x")
    assert memory.names("pretrained") == ["pretrained/a"]


def test_a_folder_lets_one_at_a_time_in(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    with storage.lock("pretrained/a"), pytest.raises(Timeout):
        FileLock(tmp_path / "pretrained" / "a.lock").acquire(timeout=0)
    FileLock(tmp_path / "pretrained" / "a.lock").acquire(timeout=0).lock.release()


def test_a_lock_that_another_thread_closes_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is torn down closes its generators from another thread."""
    locks: list[FileLock] = []  # new versions of filelock release a lock that nobody refers to

    def referred_to(*arguments: Any, **options: Any) -> FileLock:
        locks.append(FileLock(*arguments, **options))
        return locks[-1]

    monkeypatch.setattr(filelock, "FileLock", referred_to)

    def hold() -> Iterator[None]:
        with Storage(str(tmp_path)).lock("a"):
            yield

    holding = hold()
    next(holding)
    closing = threading.Thread(target=holding.close)  # type: ignore[attr-defined]
    closing.start()
    closing.join()
    FileLock(tmp_path / "a.lock").acquire(timeout=0).lock.release()


def test_a_write_that_fails_keeps_the_old_file_and_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(str(tmp_path))
    storage.write("checkpoints/a.pt", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        storage.write("checkpoints/a.pt", b"new")
    assert storage.read("checkpoints/a.pt") == b"old"
    assert os.listdir(tmp_path / "checkpoints") == ["a.pt"]


def test_what_has_to_survive_a_power_failure_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats and plans, which are written often, are not."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    storage = Storage(str(tmp_path))
    storage.write("checkpoints/a.pt", b"12345")
    assert synced == [5]
    storage.write_sealed("pretrained/a.safetensors", "its owner", b"12345")
    assert len(synced) == 2
    storage.write_json("running/a.json", {})
    assert len(synced) == 2


def test_what_a_killed_writer_left_is_listed_apart(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    storage.write("checkpoints/a.pt", b"whole")
    (tmp_path / "checkpoints" / "b.pt.1f2e.part").write_bytes(b"half")
    assert storage.names("checkpoints") == ["checkpoints/a.pt"]
    assert storage.names("checkpoints", parts=True) == ["checkpoints/b.pt.1f2e.part"]


def test_a_storage_that_does_not_work_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--storage nosuch://x: Protocol not known: nosuch"):
        Storage("nosuch://x")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"^cannot write to --storage {tmp_path}/file/below: "):
        Storage(str(tmp_path / "file" / "below")).prepare()


def test_a_process_is_alive_until_it_ends_and_on_another_node_for_all_we_know() -> None:
    here = platform.node()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert names.alive(here, os.getpid())
    assert not names.alive(here, ended.pid)
    assert names.alive("another", ended.pid)
    assert not names.alive(here, 10**12)


def test_a_folder_that_somebody_still_writes_to_may_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that Ctrl-C is stopping: sweeping up behind it must not turn an interruption into a crash."""
    storage = Storage(str(tmp_path))
    storage.write("tune/a/state", b"x")

    def refilled(*_: object, **__: object) -> None:
        raise OSError(39, "Directory not empty")

    with monkeypatch.context() as patched:
        patched.setattr(type(storage.files), "rm", refilled)
        storage.remove_folder("tune")
    assert (tmp_path / "tune" / "a" / "state").exists()
    storage.remove_folder("tune")
    assert not (tmp_path / "tune").exists()
    storage.remove_folder("tune")  # nothing there is nothing to do


def test_a_storage_that_is_a_file_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write to --storage .*/file: it is a file"):
        Storage(str(tmp_path / "file")).prepare()
