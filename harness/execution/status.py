"""What is done, running and failed, out of the store and the storage alone: works when Ray is gone."""

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from harness.spec import UserError
from harness.storage import Storage, alive
from harness.store import Store

SILENCE = 300  # seconds without a sign of life before a trial is doubted


def describe(store: Store, storage: Storage) -> str:
    """Lines for a person."""
    results = [one for one in store.results()[0] if not one.recipe]
    try:
        signs = [sign for sign in map(storage.read_json, storage.names("running")) if sign]
        plans = [plan for plan in map(storage.read_json, storage.names("plans")) if plan and alive(plan)]
    except OSError as error:
        raise UserError(f"cannot read --storage {storage.uri}: {error.strerror or error}") from None
    failures = [failure for failure in map(_read, sorted(store.root.glob("failures/*/*/*.json"))) if failure]
    ended = {
        file.stem for folder in ("runs", "stopped", "failures") for file in store.root.glob(f"{folder}/*/*/*.json")
    }
    planned = {name for plan in plans for name in plan["trials"]}
    waiting = {name for name in planned if name.rsplit("-", 1)[-1] not in ended} - {sign["name"] for sign in signs}
    missed = [sign for sign in signs if lost(sign)]
    running = len(signs) - len(missed)
    lines = [f"{len(results)} done, {running} running, {len(waiting)} waiting, {len(failures)} failed"]
    lines[0] += f", {len(missed)} lost" if missed else ""
    done = len(planned) - len(waiting) - len(signs)
    if plans and done > 0:
        spent = time.time() - min(plan["started"] for plan in plans)
        lines[0] += f", about {timedelta(seconds=round(spent / done * (len(planned) - done)))} left"
    best: dict[str, float] = {}
    for one in results:
        if one.trial.fold != "test" and one.trial.loss != "none":
            best[one.trial.loss] = max(one.metrics["R@1"], best.get(one.trial.loss, 0.0))
    if best:
        lines.append("  best validation R@1: " + ", ".join(f"{loss} {100 * r:.1f}" for loss, r in sorted(best.items())))
    lines += [f"  {sign['name']}  {position(sign)}" for sign in sorted(signs, key=lambda sign: str(sign["name"]))]
    for failure in failures:
        lines.append(f"  {failure['name']}  failed: {failure['error']}")
        lines.append(f"    {failure['log'] or 'its worker left no log'}")
    return "\n".join(lines)


def _read(file: Path) -> dict[str, Any] | None:
    """A failure's record; None where it has just been removed or is not one."""
    try:
        found = json.loads(file.read_text())
        return found if {"name", "error", "log"} <= set(found) else None
    except (OSError, ValueError, TypeError):
        return None


def lost(sign: dict[str, Any]) -> bool:
    """Its process is gone, or has said nothing for long."""
    return not alive(sign) or time.time() - sign["time"] > SILENCE


def position(sign: dict[str, Any]) -> str:
    if lost(sign):
        ago = timedelta(seconds=round(time.time() - sign["time"]))
        return f"no sign of life for {ago}; log on {sign['node']}: {sign['log']}"
    progress = sign["progress"]
    if progress is None:
        return f"starting on {sign['node']}"
    if progress["stage"] in ("evaluate", "rank", "cluster"):
        return f"evaluating on {sign['node']}"
    if progress["stage"] == "images":
        return f"preparing images {progress['step']}/{progress['steps']} on {sign['node']}"
    stage = "" if progress["stage"] == "train" else f"{progress['stage']} "
    return (
        f"{stage}epoch {progress['epoch']}/{progress['epochs']}  loss {progress['loss']:.3f}  "
        f"{progress['images_per_second']:.0f} images/s  on {sign['node']}"
    )
