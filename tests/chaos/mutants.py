"""A results folder with every kind of record, and records of it in which one or two fields hold something odd."""

import copy
import hashlib
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from harness.spec import Result, ensemble_id, short_hash
from harness.spec.recipes import HARTIGAN
from harness.storage import Storage
from harness.store import Store
from tests.factories import NETWORK, a_result, a_trial, baseline

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    0.5,
    -3.0,
    1e300,
    -5e9,
    10**400,
    float("nan"),
    float("inf"),
    -float("inf"),
    "",
    " ",
    "x",
    "3",
    "..",
    "../../../../x",
    "/etc/passwd",
    "a/b",
    "none",
    "pixels",
    "test",
    "val9",
    "NMI",
    "\x00",
    "\x1b[31mred\x1b]0;title\x07",
    "\x9b31m",
    "\u202etxt.exe",
    "\u200b",
    "\u2800",
    "\ud800",
    "<script>alert(1)</script>",
    r"$\frac{",
    "n\new\nline",
    "ü" * 300,
    "x" * 20_000,
    [],
    [1],
    [None],
    ["a", "b"],
    [[[[]]]],
    {},
    {"a": 1},
    {"path": "../../x", "sha256": "0" * 64},
    {"path": "x"},
)


@dataclass(frozen=True)
class Mutant:
    """A changed record: the file it would be stored in, and its text."""

    file: Path  # inside the results folder
    text: str

    @property
    def id(self) -> str:
        return self.file.stem


def populate(root: Path) -> list[Result]:
    """Final runs with curves and embeddings, baselines, search trials, a grid, an ensemble and a run measured again."""
    store = Store(root)
    artifacts = embeddings(Storage(str(store.artifacts)))
    results = []
    for loss, knobs in (("triplet", {"margin": 0.2}), ("group", {"anchors": 1, "temperature": 24.0})):
        for seed in (0, 1):
            results.append(made(a_trial(loss=loss, knobs=knobs, seed=seed), 0.5 + seed / 10, artifacts=artifacts))
        for number, purpose in enumerate(("search", "search", "grid", "grid")):
            changed = {**knobs, next(iter(knobs)): 2 + number}
            trial = a_trial(loss=loss, knobs=changed, fold="val0", samples_per_class=2 + number % 2)
            results.append(made(trial, 0.3 + number / 10, purpose=purpose))
    results += [replace(baseline(name, 0.2), seconds={"total": 1.0}) for name in ("pixels", NETWORK)]
    first, second = results[:2]
    members = tuple(sorted((first.id, second.id)))
    results.append(replace(first, ensemble=2, members=members, curve=(), artifacts={}))
    attempts = [{"device_type": "cpu", "threads": threads, "packages": {"torch": "2.15.0"}} for threads in (1, 2)]
    results[1] = replace(second, provenance={**second.provenance, "attempts": attempts})  # it was interrupted
    stated = {**first.conventions, "NMI": str(HARTIGAN)}
    results.append(replace(first, recipe="hartigan", members=(first.id,), conventions=stated, curve=(), artifacts={}))
    for result in results:
        assert store.put(result)
    return results


def made(trial: Any, score: float, purpose: str = "run", artifacts: dict[str, Any] | None = None) -> Result:
    """A trained run as a trial writes it."""
    metrics = {"R@1": score, "R@2": score, "MAP@R": score / 2, "NMI": score}
    curve = tuple(
        {
            "epoch": epoch,
            "loss": 1 / epoch,
            "cosine": 0.5,
            "images": 96,
            "images_per_second": 9.5,
            "R@1": 0.4,
            "train R@1": 0.6,
        }
        for epoch in (1, 2)
    )
    provenance = {
        "command": "harness run",
        "commit": "0123456789ab",
        "packages": {"torch": "2.15.0", "timm": None},
        "device": "a CPU",
        "device_type": "cpu",
        "threads": 1,
        "bad_images_skipped": 1,
        "finished": "2026-11-18T12:00:00+00:00",
        "purpose": purpose,
        "scheduler": "none",
        "data": None,
        "weights_file": None,
        "weights_sha256": "0" * 64,
    }
    seconds = {"train": 1.0, "evaluate": 1.0, "wait": 0.0, "total": 2.0}
    result = replace(a_result(trial, **metrics), curve=curve, provenance=provenance, seconds=seconds)
    return replace(result, title=trial.loss.title(), artifacts=artifacts or {})


def embeddings(storage: Storage) -> dict[str, dict[str, str]]:
    """Twelve points of three classes, as a final run stores them."""
    points = torch.nn.functional.normalize(torch.randn(12, 4, generator=torch.Generator().manual_seed(0)))
    content = safetensors.torch.save({"embeddings": points, "labels": torch.arange(12) % 3})
    return {"embeddings": storage.write_artifact("embeddings", "shared", content)}


def mutants(results: list[Result], count: int, seed: int = 0) -> Iterator[Mutant]:
    """Each with one or two changed fields and the id that its content gives."""
    dice = random.Random(seed)
    records = [json.loads(json.dumps(result.to_json())) for result in results]
    for _ in range(count):
        record = copy.deepcopy(dice.choice(records))
        for _ in range(dice.choice((1, 2))):
            change(record, dice)
        record["id"] = id_of(record)
        yield Mutant(file_of(record), json.dumps(record))


def change(record: dict[str, Any], dice: random.Random) -> None:
    """Give one field, at any depth, an odd value; or remove it; or add one."""
    parent: Any = record
    while True:
        keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
        key = dice.choice(keys)
        child = parent[key]
        if not isinstance(child, dict | list) or not child or dice.random() < 0.2:
            break
        parent = child
    what = dice.random()
    if what < 0.06:
        del parent[key]
    elif what < 0.12 and isinstance(parent, dict):
        parent[dice.choice([odd for odd in ODD if isinstance(odd, str)])] = dice.choice(ODD)
    else:  # half of them of the right type, which gets further
        alike = [odd for odd in ODD if type(odd) is type(child)]
        parent[key] = copy.deepcopy(dice.choice(alike if alike and dice.random() < 0.5 else ODD))


def id_of(record: dict[str, Any]) -> Any:
    """As the record's own content gives it; where that has no meaning, what it was."""
    trial = hashlib.sha256(json.dumps(record.get("trial"), sort_keys=True, separators=(",", ":")).encode()).hexdigest()[
        :12
    ]
    recipe, size, members = record.get("recipe"), record.get("ensemble"), record.get("members")
    follows = isinstance(members, list) and all(isinstance(member, str) for member in members)
    if follows and members:  # a mutated trial is the one that it was made from
        record["members"] = members = sorted({*members[1:], trial})
    if recipe and isinstance(recipe, str) and recipe != "\ud800":
        return short_hash(f"{recipe} of {trial}")
    if size and isinstance(size, int) and follows:
        return ensemble_id(size, members)
    return trial


def file_of(record: dict[str, Any]) -> Path:
    """The place that the record's own content gives, if it names folders."""
    trial = record.get("trial") if isinstance(record.get("trial"), dict) else {}
    parts = [str(trial.get(part)) for part in ("dataset", "loss")]
    safe = [part if re.fullmatch(r"(?!\.+$)[\w.-]{1,80}", part) else "odd" for part in parts]
    return Path("runs", *safe, f"{record['id']}.json")
