"""KEY=VALUE, as --set and --grid take it, into settings and knobs."""

from collections.abc import Mapping, Sequence
from typing import Any

import losses
from harness.spec import RUN_SETTINGS, SETTINGS, Field, LossSpec, UserError, nearest, unknown

SETTABLE = [name for name in SETTINGS if name != "weights"]  # --weights is an option of its own


def settings_and_knobs(
    assignments: list[str], chosen: tuple[LossSpec, ...]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """--set FIELD=VALUE and --set LOSS.KNOB=VALUE, as settings and as knobs by loss."""
    settings: dict[str, Any] = {}
    knobs: dict[str, dict[str, Any]] = {}
    for assignment in assignments:
        field, value = _assigned("--set", assignment, chosen)
        target = knobs.setdefault(field.owner, {}) if field.owner else settings
        target[field.name] = field.parse(value)
    return settings, knobs


def grid_values(assignments: list[str], chosen: tuple[LossSpec, ...]) -> dict[str, tuple[Any, ...]]:
    """--grid FIELD=V1,V2,... and --grid LOSS.KNOB=V1,V2,...: the values of each, every one once."""
    values: dict[str, tuple[Any, ...]] = {}
    for assignment in assignments:
        field, text = _assigned("--grid", assignment, chosen)
        if field.key in RUN_SETTINGS:
            raise UserError(f"--grid {assignment}: a grid varies neither fold nor seed; --set fold=..., --seeds N")
        if field.kind is tuple:
            raise UserError(f"--grid {assignment}: commas separate values, and {field.key} is itself a list; --set it")
        parsed = [field.parse(word) for word in text.split(",")]
        values[field.key] = tuple(dict.fromkeys([*values.get(field.key, ()), *parsed]))
    return values


def check_settings(assignments: list[str]) -> dict[str, Any]:
    """The settings among --set's assignments, checked before any loss is imported, which takes its time."""
    settings = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        name = key.strip()
        if equals and "." not in name and (name in SETTABLE or nearest(name, SETTABLE)):
            settings[name] = _setting("--set", assignment, name).parse(text)
    return settings


def check_names(option: str, assignments: list[str], names: Sequence[str]) -> None:
    """A UserError for a name that is no setting and no knob of these losses, as far as their sources say it: a loss of
    one's own is not imported yet, and may have any knob."""
    known = [name.replace("-", "_") for name in names if name.replace("-", "_") in losses.shipped()]
    knobs = {name: losses.defaults(name) for name in known}
    for assignment in assignments:
        if len(known) == len(names) or "." not in assignment.partition("=")[0]:
            _located(option, assignment, knobs)


def _setting(option: str, assignment: str, name: str) -> Field:
    if name == "weights":
        raise UserError(f"{option} {assignment}: weights have an option of their own, --weights")
    if name not in SETTABLE:
        raise unknown("setting", name, SETTABLE, see="harness ls settings")
    return SETTINGS[name]


def _assigned(option: str, assignment: str, chosen: tuple[LossSpec, ...]) -> tuple[Field, str]:
    """What KEY=TEXT assigns to, a setting or the knob LOSS.KNOB of a loss of this run, and the text."""
    by_name = {loss.name: loss for loss in chosen}
    owner, name, text = _located(option, assignment, {loss.name: loss.knobs for loss in chosen})
    return by_name[owner].knobs[name] if owner else SETTINGS[name], text


def _located(option: str, assignment: str, knobs: Mapping[str, Mapping[str, Any]]) -> tuple[str, str, str]:
    """The loss, empty for a setting, the name and the text of LOSS.KNOB=TEXT or SETTING=TEXT. `knobs`: those of each
    loss of this run, by name."""
    key, equals, text = assignment.partition("=")
    if not equals:
        values = "V1,V2,..." if option == "--grid" else "VALUE"
        raise UserError(f"{option} {assignment}: write SETTING={values} or LOSS.KNOB={values}")
    owner, dot, name = key.strip().rpartition(".")
    owner = owner if owner in knobs else owner.replace("-", "_")
    if not dot:
        meant = [f"{loss}.{name}" for loss, of_loss in knobs.items() if name in of_loss]
        words = name.replace("_", " ")  # learning_rate is lr
        meant += sorted((other for other in SETTABLE if SETTINGS[other].meaning.startswith(words)), key=len)
        if name not in SETTINGS and meant and not nearest(name, SETTABLE):
            raise UserError(f"no setting named {name!r}; did you mean {' or '.join(map(repr, meant))}?")
        _setting(option, assignment, name)
        return "", name, text
    if owner not in knobs:
        raise UserError(f"{option} {assignment}: {unknown('loss in this run', owner, knobs)}")
    if name not in knobs[owner]:
        raise unknown(f"knob of {owner}", name, knobs[owner])
    return owner, name, text
