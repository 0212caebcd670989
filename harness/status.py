"""What is done, running and failed, out of the store and the storage alone: works when Ray is gone."""

import json
import platform
import time
from datetime import timedelta
from typing import Any

from harness.storage import Storage, alive
from harness.store import Store

SILENCE = 300  # seconds without a sign of life before a trial is doubted


def describe(store: Store, storage: Storage) -> str:
    """Lines for a person."""
    done = len(list(store.files()))
    running = [sign for sign in map(storage.read_json, storage.names("running")) if sign]
    plans = [plan for plan in map(storage.read_json, storage.names("plans")) if plan and alive(plan)]
    stored = {file.stem for file in store.files()}
    waiting = {name for plan in plans for name in plan["trials"] if name.rsplit("-", 1)[-1] not in stored}
    failures = [json.loads(file.read_text()) for file in sorted(store.root.glob("failures/*/*/*.json"))]
    waiting -= {sign["name"] for sign in running} | {failure["name"] for failure in failures}
    lines = [f"{done} done, {len(running)} running, {len(waiting)} waiting, {len(failures)} failed"]
    lines += [f"  {sign['name']}  {position(sign)}" for sign in sorted(running, key=lambda sign: sign["name"])]
    for failure in failures:
        lines.append(f"  {failure['name']}  failed: {failure['error']}")
        lines.append(f"    {failure['log'] or 'its log is gone with its worker'}")
    return "\n".join(lines)


def position(sign: dict[str, Any]) -> str:
    silent = time.time() - sign["time"]
    gone = sign["node"] == platform.node() and not alive(sign)
    if gone or silent > SILENCE:
        ago = timedelta(seconds=round(silent))
        return f"no sign of life for {ago}; log on {sign['node']}: {sign['log']}"
    progress = sign["progress"]
    if progress is None:
        return f"starting on {sign['node']}"
    if progress["stage"] == "evaluate":
        return f"evaluating on {sign['node']}"
    stage = "" if progress["stage"] == "train" else f"{progress['stage']} "
    return (
        f"{stage}epoch {progress['epoch']}/{progress['epochs']}  loss {progress['loss']:.3f}  "
        f"{progress['images_per_second']:.0f} images/s  on {sign['node']}"
    )
