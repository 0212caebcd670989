"""What the file of a protocol says, checked table by table and read into a Protocol."""

import sys
import typing
from collections.abc import Sequence
from typing import Any

import losses
from harness.spec import (
    NEUTRAL,
    RUN_SETTINGS,
    SEARCHABLE,
    SETTINGS,
    VALIDATION_FOLDS,
    Field,
    Protocol,
    Tuned,
    UserError,
    allowed_metrics,
    check_keys,
    known_metric,
    shortened,
    unknown,
)
from losses.space import Choice, Range, Rates

WEIGHTS = ("hub", "package", "none")  # a protocol names no file


def read(name: str, data: dict[str, Any], datasets: Sequence[str]) -> Protocol:
    """A protocol from what its file says, over the one that it is like. `datasets`: the names that it may use."""
    place = f"protocols/{name}.toml"
    needed = {"title", "source", "select", "folds", "train", "search"}
    tables = ("tuned", "dataset", "few_images", "family")
    check_keys(place, data, needed, {*needed, *tables, "select_epochs"})
    for table in ("train", "search", *tables):
        if not isinstance(data.get(table, {}), dict):
            raise UserError(f"{place}: {table}={data[table]}: must be a table, [{table}]")
    settable = set(SETTINGS) - set(RUN_SETTINGS)
    check_keys(f"{place} [train]", data["train"], settable - set(NEUTRAL), settable)
    check_keys(f"{place} [search]", data["search"], set(), {*SEARCHABLE, "lr_factor"})
    if not known_metric(str(data["select"])):
        raise UserError(f"{place}: select={data['select']}: must be a metric: {allowed_metrics()}")
    return Protocol(
        name=name,
        title=data["title"],
        source=data["source"],
        select=data["select"],
        folds=_folds(place, data["folds"]),
        settings=_settings(place, data["train"]),
        search={key: _searched(f"{place} [search] {key}", key, value) for key, value in data["search"].items()},
        tuned={
            dataset: _tuned(f"{place} [tuned.{dataset}", dataset, values, datasets)
            for dataset, values in data.get("tuned", {}).items()
        },
        special=_special(place, data.get("dataset", {}), datasets),
        select_epochs=_flag(place, "select_epochs", data.get("select_epochs", False)),
        families=_families(place, data.get("family", {})),
        **_few_images(f"{place} [few_images]", data.get("few_images", {})),
    )


def _folds(place: str, value: Any) -> int:
    folds: int = _checked(place, Field("folds", int, choices=tuple(range(1, VALIDATION_FOLDS + 1))), value)
    return folds


def _flag(place: str, name: str, value: Any) -> bool:
    flag: bool = _checked(place, Field(name, bool), value)
    return flag


def _checked(place: str, field: Field, value: Any) -> Any:
    try:
        return field.check(value)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None


def _few_images(place: str, table: dict[str, Any]) -> dict[str, Any]:
    """[few_images]: settings that differ where a training class has fewer images than `below`, on average."""
    if not table:
        return {}
    check_keys(place, table, {"below"}, {"below", *SETTINGS} - set(RUN_SETTINGS))
    below = table.pop("below")
    if type(below) is not int or below < 1:
        raise UserError(f"{place}: below={below}: must be an integer > 0")
    return {"few_images": _settings(place, table), "few_below": below}


def _special(place: str, tables: dict[str, Any], datasets: Sequence[str]) -> dict[str, dict[str, Any]]:
    """[dataset.NAME]: settings that differ on one dataset."""
    special = {}
    for dataset, values in tables.items():
        table = f"{place} [dataset.{dataset}]"
        if dataset not in datasets:
            raise UserError(f"{table}: {unknown('dataset', dataset, datasets)}")
        if not isinstance(values, dict):
            raise UserError(f"{table}: must be a table")
        check_keys(table, values, set(), set(SETTINGS) - set(RUN_SETTINGS))
        special[dataset] = _settings(table, values)
    return special


def _families(place: str, tables: dict[str, Any]) -> dict[str, int]:
    """[family.NAME]: the samples_per_class of the losses of one family, in batches of the usual size."""
    families = {}
    known = typing.get_args(losses.Family)
    for family, values in tables.items():
        table = f"{place} [family.{family}]"
        if family not in known:
            raise UserError(f"{table}: {unknown('family', family, known)}")
        if not isinstance(values, dict):
            raise UserError(f"{table}: must be a table")
        check_keys(table, values, {"samples_per_class"}, {"samples_per_class"})
        families[family] = _settings(table, values)["samples_per_class"]
    return families


def _tuned(place: str, dataset: str, tables: Any, datasets: Sequence[str]) -> dict[str, Tuned]:
    """[tuned.DATASET.LOSS]: values for a loss, and where they come from. [tuned.DATASET.found_with] has the settings
    that the searches of all of them had in common. Values are checked when the loss is planned: that needs its
    signature, and so torch."""
    known = ["any", *datasets]
    if dataset not in known:
        raise UserError(f"{place}]: {unknown('dataset', dataset, known)}")
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise UserError(f"{place}]: must be a table of tables, one for each loss")
    common = _found_with(f"{place}.found_with]", tables.get("found_with", {}))
    tuned = {}
    for loss in tables:
        if loss == "found_with":
            continue
        if loss not in losses.names():
            raise UserError(f"{place}.{loss}]: {unknown('loss', loss, losses.names())}")
        tuned[loss] = _values(f"{place}.{loss}]", dict(tables[loss]), common)
    return tuned


def _values(place: str, table: dict[str, Any], common: dict[str, Any]) -> Tuned:
    """One table of tuned values. Those that a search found say how many trials it had, and with which settings."""
    source, trials = table.pop("source", ""), table.pop("trials", 0)
    found_with = _found_with(place, table.pop("found_with", {}))
    if type(trials) is not int or trials < 0:
        raise UserError(f"{place}: trials={trials}: must be an integer >= 0")
    if found_with and not trials:
        raise UserError(f"{place}: found_with: is for values that a search found, so it needs trials")
    if trials and not {**common, **found_with}:
        raise UserError(f"{place}: trials={trials}: needs found_with, the settings that the search had")
    return Tuned(table, source, trials, {**common, **found_with} if trials else {})


def _found_with(place: str, table: Any) -> dict[str, Any]:
    """Settings of a search; of lr, weight_decay or warmup_epochs, which search draws, also [low, high]."""
    if not isinstance(table, dict):
        raise UserError(f"{place}: found_with={table}: must be a table")
    check_keys(place, table, set(), set(SETTINGS) - set(RUN_SETTINGS))
    found_with: dict[str, Any] = {}
    for key, value in table.items():
        if key in SEARCHABLE and isinstance(value, list):
            found_with[key] = _range(f"{place} {key}", value)
        else:
            found_with |= _settings(place, {key: value})
    return found_with


def _searched(place: str, key: str, value: Any) -> Range | Choice:
    """What [search] draws a value from: [low, high]; for lr_factor also {absolute = [low, high]}, rates; for
    samples_per_class the values themselves."""
    if key == "samples_per_class":
        if not isinstance(value, list) or not value or not all(type(count) is int and count > 0 for count in value):
            raise UserError(f"{place}={value}: must be integers > 0 like [1, 2, 4]")
        return Choice(*value)
    if key == "lr_factor" and isinstance(value, dict):
        check_keys(place, value, {"absolute"}, {"absolute"})
        return Rates(*_range(f"{place}.absolute", value["absolute"]))
    return Range(*_range(place, value), log=True)


def _range(place: str, value: Any) -> tuple[float, float]:
    numbers = isinstance(value, list) and all(isinstance(number, int | float) for number in value)
    if not numbers or len(value) != 2 or not 0 < value[0] < value[1] <= sys.float_info.max:
        raise UserError(f"{place}={shortened(value)}: must be [low, high] with 0 < low < high")
    return float(value[0]), float(value[1])


def _settings(place: str, values: dict[str, Any]) -> dict[str, Any]:
    """TOML values, checked. TOML has no null, so an optional one is written "none"."""
    settings = {}
    for key, value in values.items():
        if key == "weights" and value not in WEIGHTS:
            raise UserError(f"{place}: weights={value}: must be one of {', '.join(WEIGHTS)}")
        try:
            empty = SETTINGS[key].optional and value == "none"
            settings[key] = None if empty else SETTINGS[key].check(value)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
    return settings
