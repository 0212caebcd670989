"""Results on disk: one JSON per trial and the values of its queries, written once, found by the trial's id."""

import contextlib
import dataclasses
import json
import os
import shlex
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.files import PART, PROBE, check_room, discard, write_part, write_whole, writing
from harness.spec import ExperimentRecord, Failure, Result, Stopped, Trial, UserError, Work, schema, unknown
from harness.spec.queries import PerQuery, digest

FOLDERS: dict[type, str] = {Result: "runs", Failure: "failures", Stopped: "stopped"}
EXPERIMENTS = "experiments"
VALUES = ".npz"  # how the name of the file with a result's values per query ends
LARGEST = 16_000_000  # bytes: a record has some thousands
PART_AGE = 3600  # seconds: writing a record takes less
LARGEST_VALUES = 1_000_000_000  # the values of 60,000 queries have 1 MB; an ensemble may have some hundred subsets


class MisplacedError(ValueError):
    """A record in a file that is not its own. It counts for nothing: a sync tool leaves copies under other names, and
    people leave them in other folders."""


class Store:
    """runs/<dataset>/<loss>/<id>.json and <id>.npz under a folder; failures/, stopped/ and experiments/ beside it.

    Append-only: a result is written to a temporary file, synced, and linked to its name. Linking fails if the name is
    taken, so two writers never mix and every file is whole.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[Path, Result] = {}  # what is stored does not change

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def logs(self) -> Path:
        """What runs said while they ran, a file each."""
        return self.root / "logs"

    def check(self) -> None:
        """A UserError if the folder cannot be written, as far as can be seen without writing."""
        existing = next(path for path in (self.root, *self.root.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise UserError(f"cannot write results to {self.root}: {existing} is a file")
        if not os.access(existing, os.W_OK):
            raise UserError(f"cannot write results to {self.root}: no permission to write to {existing}")

    def prepare(self, needed: int = PROBE) -> None:
        """Raise a UserError now, not after hours of training, if the folder cannot be written or has no room for so
        many bytes."""
        with writing(f"results to {self.root}"):
            check_room(self.root / "runs", needed)

    def path(self, work: Work, kind: type[Result | Failure | Stopped] = Result, id: str | None = None) -> Path:
        """The file of a record. `id`: of what was measured on a trial's embeddings, if only the trial is given."""
        return self.root / FOLDERS[kind] / work.dataset / work.loss_folder / f"{id or work.id}.json"

    def put(self, result: Result, *, replace: bool = False, content: bytes = b"") -> bool:
        """Write a result. Returns False, and keeps the stored result, if its id is taken. `content`: the record as it
        was found elsewhere; one of a newer version may say more than this version reads.

        The values of its queries are on the disk before the record is, and get their name after it: of two drivers only
        the one whose record is stored names its values.
        """
        target, stored = self.path(result.trial, id=result.id), True
        self._read.pop(target, None)
        with _unnamed(values_of(target), result.per_query) as give_name:
            if replace:
                _write(target, result.to_json())
                self.drop_ensembles(result)
            else:
                stored = _write_new(target, content or _encoded(result.to_json()))
            if stored:
                give_name()
        for kind in (Failure, Stopped):
            earlier = self.path(result.trial, kind, result.id)
            if not earlier.is_dir():  # `status` names a folder in its place; the result is stored
                _remove(earlier)
        return stored

    def with_values(self, result: Result) -> Result:
        """A stored result with the file of its values per query, if it has one, as `put` takes it. A ValueError if the
        file is missing or damaged."""
        if "sha256" not in result.queries:
            return result
        file = values_of(self.path(result.trial, id=result.id))
        try:
            content = read_bytes(file, LARGEST_VALUES)
            if digest(content) != result.queries["sha256"]:
                raise ValueError("damaged: its checksum is not the record's")
        except ValueError as error:
            raise ValueError(f"{file.relative_to(self.root)}: {error}") from None
        return dataclasses.replace(result, per_query=content)

    def per_query(self, result: Result) -> PerQuery:
        """The values of each query; a ValueError says why there are none."""
        content = self.with_values(result).per_query
        if not content:
            raise ValueError("the values per query are not stored")
        return PerQuery.from_bytes(content)

    def class_names(self, result: Result) -> tuple[str, ...]:
        """The names of its test classes; empty if they are not stored."""
        try:
            return self.per_query(result).names
        except ValueError:
            return ()

    def content(self, result: Result) -> bytes:
        """The record of a stored result, as it is in its file."""
        return read_bytes(self.path(result.trial, id=result.id), LARGEST)

    def remove(self, file: Path) -> None:
        """Remove a result, readable or not, and the ensembles it is a member of."""
        with contextlib.suppress(ValueError):
            self.drop_ensembles(self.read(file))
        self._discard(file)

    def _discard(self, file: Path) -> None:
        self._read.pop(file, None)
        _remove(file)
        _remove(values_of(file))

    def drop_ensembles(self, member: Result) -> None:
        """Remove the ensembles that were built from this result: the next run builds them again."""
        for built in self.built_from(member):
            self._discard(self.path(built.trial, id=built.id))

    def built_from(self, member: Result) -> list[Result]:
        """The ensembles of this result, and what was measured of it again."""
        built = []
        for file in sorted(self.path(member.trial).parent.glob("*.json")):
            with contextlib.suppress(ValueError):
                result = self.read(file)
                if member.id in result.members:
                    built.append(result)
        return built

    def note(self, event: Failure | Stopped) -> Path:
        """Write the record of a failed or stopped trial. A later record replaces it, a result removes it."""
        target = self.path(event.work if isinstance(event, Failure) else event.trial, type(event))
        _write(target, event.to_json())
        return target

    def stopped(self, trial: Trial) -> bool:
        """Whether a scheduler ended it early. A record that cannot be read does not say so."""
        try:
            self.read_stopped(self.path(trial, Stopped))
        except ValueError:
            return False
        return True

    def read_stopped(self, file: Path) -> Stopped:
        """The record of a trial that was stopped early; a ValueError says why the file is none."""
        stopped = Stopped.from_json(read_json(file))
        self._check_place(file, self.path(stopped.trial, Stopped))
        return stopped

    def stopped_problems(self) -> list[str]:
        """A line for each file that is no record of a trial that was stopped early, and lies where those do."""
        problems = []
        for file in sorted(self.root.glob(f"{FOLDERS[Stopped]}/*/*/*.json")):
            try:
                self.read_stopped(file)
            except ValueError as error:
                if file.exists() or file.is_symlink():  # else its trial has a result just now
                    problems.append(f"{file}: {error}; skipped")
        return problems

    def get(self, work: Work, id: str | None = None) -> Result | None:
        """The stored result of a trial or measurement; a UserError if its file exists but cannot be read."""
        file = self.path(work, id=id)
        if not file.exists():
            return None
        try:
            return self.read(file)
        except ValueError as error:
            raise UserError(f"{file}: {error}; remove it with: harness rm {file.stem}") from None

    def read(self, file: Path) -> Result:
        """The result in a file; a ValueError says why it is none."""
        if file not in self._read:
            result = read(file)
            self._check_place(file, self.path(result.trial, id=result.id))
            self._read[file] = result
        return self._read[file]

    def _check_place(self, file: Path, place: Path) -> None:
        if file != place:
            what = "a copy" if place.exists() else "the record"
            raise MisplacedError(f"{what} of {place.stem}, whose place is {place.relative_to(self.root)}")

    def files(self) -> list[Path]:
        """Every file that may be a result, readable or not."""
        nested = self.root.glob("runs/**/*.json")  # does not follow links to folders
        return sorted({*nested, *self.root.glob("runs/*/*/*.json")})

    def results(self) -> tuple[list[Result], list[str]]:
        """All results, and a line for each file that is not one."""
        results, problems = [], []
        for file in self.files():
            try:
                results.append(self.read(file))
            except ValueError as error:
                problems.append(f"{file}: {error}; skipped")
        return results, problems

    def ended(self) -> dict[str, float]:
        """When each trial ended last, well or not, by its id: the time of its record."""
        times: dict[str, float] = {}
        for folder in FOLDERS.values():
            for file in self.root.glob(f"{folder}/*/*/*.json"):
                with contextlib.suppress(FileNotFoundError):  # removed just now
                    times[file.stem] = max(file.stat().st_mtime, times.get(file.stem, 0.0))
        return times

    def remove_parts(self) -> None:
        """Remove unfinished files that killed drivers left, and values whose record is gone. A recent file may be
        another driver's, at this moment."""
        parts = [file for kind in (".json", VALUES, ".py") for file in self.root.glob(f"*/**/*{kind}.*{PART}")]
        values = [file for file in self.root.glob(f"runs/*/*/*{VALUES}") if not file.with_suffix(".json").exists()]
        for file in (*parts, *values):
            with contextlib.suppress(OSError):
                if time.time() - file.stat().st_mtime > PART_AGE:
                    file.unlink()

    def put_experiment(self, record: ExperimentRecord) -> None:
        """Write the record of a request, or add to the stored one what it lacks. A UserError if that cannot be read.

        Of two drivers that add at the same moment one wins. They add the same, unless trials of their search failed for
        one of them only.
        """
        target = self.root / EXPERIMENTS / f"{record.id}.json"
        if _write_new(target, _encoded(record.to_json())):
            return
        try:
            stored = read_experiment(target)
        except ValueError as error:
            raise UserError(f"{target}: {error}; remove it: the same command writes it again") from None
        joined = stored.joined(record)
        if joined != stored:
            _write(target, joined.to_json())

    def experiments(self) -> tuple[list[ExperimentRecord], list[str]]:
        """The records of all requests, by the time they were made, and a line for each file that is not one."""
        records, problems = [], []
        for file in sorted(self.root.glob(f"{EXPERIMENTS}/*.json")):
            try:
                records.append(read_experiment(file))
            except ValueError as error:
                problems.append(f"{file}: {error}; skipped")
        return sorted(records, key=lambda record: (record.made, record.id)), problems

    def everything(self) -> tuple[list[Result], list[ExperimentRecord], list[str]]:
        """All results, the records of all requests, and a line for each file that is neither."""
        results, problems = self.results()
        experiments, more = self.experiments()
        return results, experiments, [*problems, *more]

    def failures(self) -> list[Path]:
        """Every file that may be the record of a failed trial, readable or not."""
        return sorted(self.root.glob(f"{FOLDERS[Failure]}/*/*/*.json"))

    def read_failure(self, file: Path) -> dict[str, Any]:
        """The record of a failed trial; a ValueError says why the file is none."""
        record: dict[str, Any] = read_json(file)
        schema.check(record, schema.FAILURE)
        try:
            trial = Trial.from_json(record["trial"])
        except (KeyError, TypeError, ValueError):  # of a newer version, perhaps
            return record
        self._check_place(file, self.path(trial, Failure, str(record.get("id", trial.id))))  # an ensemble has its own
        return record

    def find_failure(self, prefix: str) -> Path | None:
        """The record of the one failed trial whose id begins with `prefix`, readable or not; None without one."""
        return self._only(prefix, [file for file in self.failures() if prefix and file.stem.startswith(prefix)])

    def has(self, prefix: str) -> bool:
        """Whether the id of a result begins so."""
        return any(file.stem.startswith(prefix) for file in self.files()) if prefix else False

    def find(self, prefix: str) -> Path:
        """The file of the one result whose id begins with `prefix`, readable or not. A copy does not stand in the way
        of its original."""
        files = [file for file in self.files() if file.stem.startswith(prefix)] if prefix else []
        if not files:
            listed = f"harness ls runs --results {shlex.quote(str(self.root))}"
            raise unknown(f"result in {self.root}", prefix, [file.stem for file in self.files()], see=listed)
        file = self._only(prefix, files)
        assert file is not None
        return file

    def _only(self, prefix: str, files: list[Path]) -> Path | None:
        """Of these files, whose ids begin so, the one that is no copy. None if there are none."""
        files = [file for file in files if not self.is_misplaced(file)] or files
        if len(files) > 1:
            raise UserError(f"{prefix!r} begins several ids: {', '.join(file.stem for file in files)}")
        return files[0] if files else None

    def is_misplaced(self, file: Path) -> bool:
        try:
            if file.is_relative_to(self.root / FOLDERS[Failure]):
                self.read_failure(file)
            else:
                self.read(file)
        except MisplacedError:
            return True
        except ValueError:
            return False
        return False


def open_existing(folder: Path) -> Store:
    """The store in a results folder; a UserError if the folder is not one."""
    if not folder.exists():
        raise UserError(f"{folder}: no such folder")
    if not (folder / "runs").is_dir():
        raise UserError(f"{folder} is not a results folder: it has no runs/")
    return Store(folder)


def read(file: Path) -> Result:
    """One stored result; a ValueError says why the file is not one."""
    return Result.from_json(read_json(file))


def read_experiment(file: Path) -> ExperimentRecord:
    """The record of a request; a ValueError says why the file is not one."""
    record = ExperimentRecord.from_json(read_json(file))
    if file.stem != record.id:
        raise ValueError(f"a copy of {record.id}.json")
    return record


def values_of(record: Path) -> Path:
    """The file beside a record that has the values of each query."""
    return record.with_suffix(VALUES)


def read_bytes(file: Path, largest: int) -> bytes:
    """A ValueError if the file cannot be read, or has more bytes than any of its kind."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe would be waited for
            raise ValueError(f"cannot be read: {'Is a directory' if file.is_dir() else 'Not a file'}")
        with file.open("rb") as stream:
            content = stream.read(largest + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if len(content) > largest:
        raise ValueError(f"larger than any record ({largest / 1e6:g} MB)")
    return content


def read_json(file: Path) -> Any:
    """What a JSON file holds; a ValueError if it holds something else, or more than any record has."""
    content = read_bytes(file, LARGEST)
    try:
        return json.loads(content.decode())
    except RecursionError:
        raise ValueError("nested too deeply for a record") from None
    except ValueError as error:
        raise ValueError(f"not JSON ({error}), perhaps cut short") from None


def _write(target: Path, data: dict[str, Any]) -> None:
    """Write a record, in the place of one that is there. A failure stops the command."""
    with writing(target):
        write_whole(target, _encoded(data))


def _write_new(target: Path, content: bytes) -> bool:
    """Write a record under a new name. Returns False if the name is taken: linking fails then, also between two writers
    at the same moment."""
    with writing(target):
        part = write_part(target, content)
        try:
            os.link(part, target)
        except FileExistsError:
            return False
        finally:
            discard(part)
        return True


@contextmanager
def _unnamed(target: Path, content: bytes) -> Iterator[Callable[[], None]]:
    """Write a file that gets its name when the block asks for it; without content no file keeps that name."""
    with writing(target):
        part = write_part(target, content) if content else None

    def give_name() -> None:
        if part is None:
            _remove(target)
        else:
            with writing(target):
                part.replace(target)

    try:
        yield give_name
    finally:
        if part is not None:
            discard(part)


def _encoded(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot remove {file}: {error.strerror}") from None
