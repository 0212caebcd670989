"""The listener that stores results, and the one that stops a run whose disk is full."""

from harness import storage
from harness.execution.account import Account
from harness.spec import Event, Failure, Progress, Result, Stopped, Trial, UserError


class Recorder:
    """Stores results and failures; only then removes the checkpoint and the heartbeat of a trial."""

    def __init__(self, account: Account, files: storage.Storage) -> None:
        self.account = account
        self.store = account.store
        self.files = files
        self.failures: list[Failure] = []
        self.ran: set[str] = set()  # ids of the trials that this run has finished

    def __call__(self, trial: Trial, event: Event) -> None:
        if isinstance(event, Progress):
            return
        if isinstance(event, Result):
            self.store.put(event, replace=self.account.replaces(trial))
            self.ran.add(trial.id)
        else:
            self.store.note(event)
        if isinstance(event, Result | Stopped):
            self.files.remove(storage.checkpoint(trial.id))
        else:
            self.failures.append(event)  # its checkpoint stays: the next run continues from there
        self.files.remove(storage.heartbeat(trial.id))


def stop_on_full_disk(trial: Trial, event: Event) -> None:
    """Every other trial would fail in the same way."""
    if isinstance(event, Failure) and event.disk_full:
        raise UserError(f"{trial.name}: no space left; finished trials are stored")
