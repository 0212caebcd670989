"""What moves a number and is not part of its trial's id: the contents of the images, torch threads, the device, the
version of torch."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.analysis.results import amount
from harness.spec import Result

NAMES = ("images", "device", "threads", "torch")
THEN = " then "  # between the conditions of two attempts of a run


def of(run: Result) -> dict[str, str]:
    """The conditions that a record states. Raw pixels have no network. A run that was interrupted and went on under
    other conditions has those of each attempt."""
    images = str(run.provenance.get("data_sha256") or "")[:12]
    stated = {"images": images} if images else {}
    if run.trial.is_pixels:
        return stated
    attempts = [of_attempt(recorded) for recorded in run.provenance.get("attempts") or [run.provenance]]
    for name in NAMES:
        values = dict.fromkeys(attempt[name] for attempt in attempts if name in attempt)
        if values:
            stated[name] = THEN.join(values)
    return stated


def of_attempt(recorded: Mapping[str, Any]) -> dict[str, str]:
    """On a GPU the threads hardly matter, and its model does; that of a CPU moves the last bits alone."""
    on_gpu = recorded.get("device_type") == "cuda"
    values = {
        "device": (recorded.get("device") if on_gpu else None) or recorded.get("device_type"),
        "threads": None if on_gpu else recorded.get("threads"),
        "torch": recorded.get("packages", {}).get("torch"),
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def changed(run: Result) -> list[str]:
    """The conditions that were not the same in all attempts of a run."""
    return [f"{name} = {value}" for name, value in of(run).items() if THEN in value]


def usual(results: Iterable[Result]) -> dict[str, str]:
    """Each condition as most losses have it, in all of their attempts; ties go to the most runs, then to the latest."""
    found: dict[str, str] = {}
    trained = [result for result in results if not result.trial.is_baseline]
    for name in NAMES:
        alike: dict[str, list[Result]] = {}
        for run in trained:
            if name in of(run) and THEN not in of(run)[name]:
                alike.setdefault(of(run)[name], []).append(run)
        if alike:
            found[name] = max(
                alike, key=lambda value: (len({run.trial.loss for run in alike[value]}), *amount(alike[value]))
            )
    return found


def apart(first: Iterable[Result], second: Iterable[Result]) -> Iterator[tuple[str, str, str]]:
    """The conditions that are not the same in all of these runs: name, the first's values, the second's."""
    ones, others = ([of(run) for run in runs] for runs in (first, second))
    for name in NAMES:
        one, other = (sorted({stated[name] for stated in side if name in stated}) for side in (ones, others))
        if one and other and len({*one, *other}) > 1:
            yield name, ", ".join(one), ", ".join(other)


def differences(runs: Sequence[Result], usual: dict[str, str]) -> list[str]:
    """In which conditions these runs differ from each other, or from the usual ones."""
    stated = [of(run) for run in runs]
    different = []
    for name in NAMES:
        counts = Counter(values[name] for values in stated if name in values)
        if len(counts) > 1:
            words = [f"{value} ({count} run{'s' if count > 1 else ''})" for value, count in sorted(counts.items())]
            different.append(f"{name} = {', '.join(words)}")
        elif counts and name in usual and usual[name] not in counts:
            different.append(f"{name} = {', '.join(counts)} (usual: {usual[name]})")
        elif any(THEN in value for value in counts):
            different.append(f"{name} = {', '.join(counts)}")
    return different
