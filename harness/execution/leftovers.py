"""What drivers and workers leave that were killed, or stopped at the wrong moment: the next run removes it."""

import contextlib
from collections.abc import Iterable

from harness.execution import announcement, heartbeat
from harness.spec import Result
from harness.storage import DAMAGED, TEACHERS, Storage, checkpoint, teacher
from harness.store import Store, read_json

KEPT = 30 * 24 * 3600  # seconds: a plan that nobody continues is forgotten
FOLDERS = ("checkpoints", "embeddings", "weights", "pretrained", TEACHERS, announcement.FOLDER, heartbeat.FOLDER)


def sweep(storage: Storage, store: Store) -> None:
    """Remove files that are of no more use. While another driver is at work here, most of them may be its own."""
    plans = {plan.file: plan for plan in announcement.read(storage)}
    living = {plan.id for plan in plans.values() if plan.is_alive}
    ended, resumable = store.ended(), set[str]()
    for name in storage.names(announcement.FOLDER):
        plan = plans.get(name)
        if plan is not None and plan.id in living:
            continue
        unfinished = plan.unfinished(ended) if plan is not None and plan.silence < KEPT else []
        if unfinished:  # `harness status` says so, and their checkpoints are good for the same command again
            resumable |= set(map(announcement.id_of, unfinished))
        else:
            storage.remove(name)
    for name in storage.names(heartbeat.FOLDER):
        beat = heartbeat.read_file(storage, name)
        if beat is None or beat.plan not in living:
            storage.remove(name)
    if living:
        return
    storage.remove_folder("tune")
    for folder in FOLDERS:
        for name in storage.names(folder, parts=True):
            storage.remove(name)
    useless = {checkpoint(file.stem) for file in store.files()} - {checkpoint(id) for id in resumable}
    for name in useless.intersection(storage.names("checkpoints")):
        storage.remove(name)
    if not resumable:
        for name in teachers_done(storage, store):
            storage.remove(name)
    store.remove_parts()


def teachers_done(storage: Storage, store: Store) -> list[str]:
    """Weights of teachers whose students have ended, well: those of a failed one are wanted when it runs again."""
    wanted = set()
    for file in store.failures():
        with contextlib.suppress(ValueError, AttributeError, LookupError, TypeError):
            wanted.add(teacher(str(read_json(file)["trial"].get("teacher"))))
    return [name for name in storage.names(TEACHERS) if name.removesuffix(".lock") not in wanted]


def unused(storage: Storage, store: Store, results: Iterable[Result]) -> dict[str, int]:
    """Embeddings, weights and checkpoints that no record refers to, and damaged files that were set aside: their names
    and sizes. Checkpoints of trials that a run can continue stay: those that failed, and those of interrupted runs."""
    used = {entry["path"] for result in results for entry in result.artifacts.values()}
    ended = store.ended()
    left = {id for plan in announcement.read(storage) for id in map(announcement.id_of, plan.unfinished(ended))}
    used |= {checkpoint(id) for id in (*left, *(file.stem for file in store.failures()))}
    used |= set(storage.names(TEACHERS)) - set(teachers_done(storage, store))
    folders = ("embeddings", "weights", "checkpoints", DAMAGED, *(() if left else (TEACHERS,)))
    sizes = {name: size for folder in folders for name, size in storage.sizes(folder).items()}
    return {name: size for name, size in sizes.items() if name not in used}
