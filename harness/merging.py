"""Another machine's results, merged into a store: what is new is copied, what is here stays."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness import sources
from harness.spec import Result, schema
from harness.storage import DamagedError, Storage
from harness.store import Store

Entry = Mapping[str, str]  # of a record's artifacts: path and sha256


@dataclass(frozen=True)
class Merged:
    """Which of their results were new here, which were known, and which are here with other numbers: ours, theirs."""

    new: list[Result]
    known: list[Result]
    different: list[tuple[Result, Result]]
    problems: list[str]  # a line for each file that is damaged there

    @property
    def stored(self) -> list[Result]:
        """What is here now of all of them."""
        return [*self.new, *self.known, *(ours for ours, _ in self.different)]


@dataclass(frozen=True)
class Copied:
    """What became of files that were to be copied."""

    copied: int
    missing: int  # they are not there either
    problems: list[str]


def merge(source: Store, store: Store) -> Merged:
    """Copy experiments, and the results that are not here yet, with the values of their queries and the files of their
    losses. Records are copied as they are: a newer version may have written more than this one reads."""
    theirs, problems = source.results()
    merged = Merged([], [], [], problems)
    for result in theirs:
        sources.put(store, sources.get(source, result).values())
        if store.put(with_values(result, source, problems), content=source.content(result)):
            merged.new.append(result)
            continue
        ours = store.get(result.trial, result.id)
        if ours is None or ours.metrics == result.metrics:
            merged.known.append(result)
        else:
            merged.different.append((ours, result))
    experiments, unreadable = source.experiments()
    for experiment in experiments:
        store.put_experiment(experiment)
    problems += unreadable
    return merged


def with_values(result: Result, source: Store, problems: list[str]) -> Result:
    try:
        return source.with_values(result)
    except ValueError as error:
        problems.append(f"{source.root}/{error}; {result.id} was imported without it")
        return result


def missing_files(results: Iterable[Result], storage: Storage) -> list[Entry]:
    """The embeddings and weights that these records refer to and that are not in the storage."""
    files = [result.artifacts[kind] for result in results for kind in schema.ARTIFACTS if kind in result.artifacts]
    entries = {entry["path"]: entry for entry in files}
    return [entry for path, entry in entries.items() if not storage.exists(path)]


def copy_files(entries: Iterable[Entry], source: Storage, storage: Storage) -> Copied:
    """Copy these files, each checked against the checksum in its record."""
    copied, missing, problems = 0, 0, []
    for entry in entries:
        try:
            content = source.read_artifact(entry)
        except DamagedError as damage:
            problems.append(f"{source.title}/{damage}; not copied")
            continue
        if content is None:
            missing += 1
        else:
            storage.write(entry["path"], content)
            copied += 1
    return Copied(copied, missing, problems)
