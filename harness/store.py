"""Results on disk: one JSON per trial, written once, found by the trial's id."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.files import PROBE, check_room, write_part, writing
from harness.spec import ExperimentRecord, Failure, Result, Stopped, Trial, UserError, unknown

FOLDERS: dict[type, str] = {Result: "runs", Failure: "failures", Stopped: "stopped"}
EXPERIMENTS = "experiments"


class Store:
    """runs/<dataset>/<loss>/<id>.json under a folder; failures/, stopped/ and experiments/ beside it.

    Append-only: a result is written to a temporary file, synced, and linked to its name. Linking fails if the name is
    taken, so two writers never mix and every file is whole.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[Path, Result] = {}  # what is stored does not change

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    def prepare(self, needed: int = PROBE) -> None:
        """Raise a UserError now, not after hours of training, if the folder cannot be written or has no room for so
        many bytes."""
        with writing(f"results to {self.root}"):
            check_room(self.root / "runs", needed)

    def path(self, trial: Trial, kind: type[Result | Failure | Stopped] = Result, id: str | None = None) -> Path:
        """The file of a trial's record; ensembles and runs measured again have ids of their own."""
        return self.root / FOLDERS[kind] / trial.dataset / trial.loss_folder / f"{id or trial.id}.json"

    def put(self, result: Result, *, replace: bool = False) -> bool:
        """Write a result. Returns False, and keeps the stored result, if its id is taken."""
        target = self.path(result.trial, id=result.id)
        self._read.pop(target, None)
        part = _write_part(target, result.to_json())
        try:
            with writing(target):
                return self._put_in_place(part, target, result, replace=replace)
        finally:
            part.unlink(missing_ok=True)
            for kind in (Failure, Stopped):
                self.path(result.trial, kind).unlink(missing_ok=True)

    def _put_in_place(self, part: Path, target: Path, result: Result, *, replace: bool) -> bool:
        if replace:
            os.replace(part, target)
            self.drop_ensembles(result)
            return True
        try:
            os.link(part, target)
        except FileExistsError:
            return False
        return True

    def remove(self, file: Path) -> None:
        """Remove a result, readable or not, and the ensembles it is a member of."""
        with contextlib.suppress(ValueError):
            self.drop_ensembles(self._result(file))
        self._read.pop(file, None)
        file.unlink(missing_ok=True)

    def drop_ensembles(self, member: Result) -> None:
        """Remove the ensembles that were built from this result: the next run builds them again."""
        for file in self.path(member.trial).parent.glob("*.json"):
            with contextlib.suppress(ValueError):
                if member.id in self._result(file).members:
                    self._read.pop(file, None)
                    file.unlink()

    def note(self, event: Failure | Stopped) -> Path:
        """Write the record of a failed or stopped trial. A later record replaces it, a result removes it."""
        target = self.path(event.trial, type(event))
        os.replace(_write_part(target, event.to_json()), target)
        return target

    def stopped(self, trial: Trial) -> bool:
        return self.path(trial, Stopped).exists()

    def get(self, trial: Trial, id: str | None = None) -> Result | None:
        """The stored result of a trial or ensemble; a UserError if its file exists but cannot be read."""
        file = self.path(trial, id=id)
        if not file.exists():
            return None
        try:
            return self._result(file)
        except ValueError as error:
            raise UserError(f"{file}: {error}; remove it with: harness rm {file.stem}") from None

    def _result(self, file: Path) -> Result:
        if file not in self._read:
            self._read[file] = read(file)
        return self._read[file]

    def files(self) -> Iterator[Path]:
        """Every result file, readable or not."""
        return iter(sorted(self.root.glob("runs/*/*/*.json")))

    def results(self) -> tuple[list[Result], list[str]]:
        """All results, and a line for each file that is not one."""
        results, problems = [], []
        for file in self.files():
            try:
                results.append(self._result(file))
            except ValueError as error:
                problems.append(f"{file}: {error}; skipped")
        return results, problems

    def put_experiment(self, record: ExperimentRecord) -> None:
        """Write the record of a request, or add to the stored one what it lacks. A UserError if that cannot be read.

        Of two drivers that add at the same moment one wins. They add the same, unless trials of their search failed for
        one of them only.
        """
        target = self.root / EXPERIMENTS / f"{record.id}.json"
        part = _write_part(target, record.to_json())
        try:
            with writing(target), contextlib.suppress(FileExistsError):
                os.link(part, target)
                return
        finally:
            part.unlink(missing_ok=True)
        try:
            stored = read_experiment(target)
        except ValueError as error:
            raise UserError(f"{target}: {error}; remove it: the same command writes it again") from None
        joined = stored.joined(record)
        if joined != stored:
            part = _write_part(target, joined.to_json())
            with writing(target):
                os.replace(part, target)

    def experiments(self) -> tuple[list[ExperimentRecord], list[str]]:
        """The records of all requests, by the time they were made, and a line for each file that is not one."""
        records, problems = [], []
        for file in sorted(self.root.glob(f"{EXPERIMENTS}/*.json")):
            try:
                records.append(read_experiment(file))
            except ValueError as error:
                problems.append(f"{file}: {error}; skipped")
        return sorted(records, key=lambda record: (record.made, record.id)), problems

    def find(self, prefix: str) -> Path:
        """The file of the one result whose id begins with `prefix`."""
        files = [file for file in self.files() if file.stem.startswith(prefix)] if prefix else []
        if not files:
            raise unknown(f"result in {self.root}", prefix, [file.stem for file in self.files()][:20])
        if len(files) > 1:
            raise UserError(f"{prefix!r} begins several ids: {', '.join(file.stem for file in files)}")
        return files[0]


def open_existing(folder: Path) -> Store:
    """The store in a results folder; a UserError if the folder is not one."""
    if not (folder / "runs").is_dir():
        raise UserError(f"{folder} is not a results folder: it has no runs/")
    return Store(folder)


def read(file: Path) -> Result:
    """One stored result; a ValueError says why the file is not one."""
    return Result.from_json(_json(file))


def read_experiment(file: Path) -> ExperimentRecord:
    """The record of a request; a ValueError says why the file is not one."""
    record = ExperimentRecord.from_json(_json(file))
    if file.stem != record.id:
        raise ValueError(f"a copy of {record.id}.json")
    return record


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"not JSON ({error}), perhaps cut short") from None


def _write_part(target: Path, data: dict[str, Any]) -> Path:
    """Write the record to a synced temporary file beside its target. A failure stops the command."""
    text = json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n"
    with writing(target):
        return write_part(target, text.encode())
