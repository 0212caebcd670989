"""What moves a number and is not part of its trial's id: the contents of the images, torch threads, the kind of device,
the version of torch."""

from collections import Counter
from collections.abc import Iterable, Sequence

from harness.analysis.results import amount
from harness.spec import Result

NAMES = ("images", "device", "threads", "torch")


def of(run: Result) -> dict[str, str]:
    """The conditions that a record states. On a GPU the threads hardly matter; raw pixels have no network."""
    recorded = run.provenance
    values = {
        "images": str(recorded.get("data_sha256") or "")[:12] or None,
        "device": recorded.get("device_type"),
        "threads": recorded.get("threads") if recorded.get("device_type") != "cuda" else None,
        "torch": recorded.get("packages", {}).get("torch"),
    }
    telling = ("images",) if run.trial.is_pixels else NAMES
    return {name: str(values[name]) for name in telling if values[name] is not None}


def usual(results: Iterable[Result]) -> dict[str, str]:
    """Each condition as most losses have it; ties go to the most runs, then to the latest."""
    found: dict[str, str] = {}
    trained = [result for result in results if not result.trial.is_baseline]
    for name in NAMES:
        alike: dict[str, list[Result]] = {}
        for run in trained:
            if name in of(run):
                alike.setdefault(of(run)[name], []).append(run)
        if alike:
            found[name] = max(
                alike, key=lambda value: (len({run.trial.loss for run in alike[value]}), *amount(alike[value]))
            )
    return found


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
            different.append(f"{name} = {', '.join(counts)} (others: {usual[name]})")
    return different
