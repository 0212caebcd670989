"""KEY=VALUE, as --set and --grid take it, into settings and knobs."""

from typing import Any

from harness.spec import RUN_SETTINGS, SETTINGS, Field, LossSpec, UserError, unknown


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


def _assigned(option: str, assignment: str, chosen: tuple[LossSpec, ...]) -> tuple[Field, str]:
    """What KEY=TEXT assigns to, a setting or the knob LOSS.KNOB of a loss of this run, and the text."""
    by_name = {loss.name: loss for loss in chosen}
    key, equals, text = assignment.partition("=")
    if not equals:
        raise UserError(f"{option} {assignment}: write FIELD=VALUE or LOSS.KNOB=VALUE")
    owner, dot, name = key.strip().rpartition(".")
    owner = owner if owner in by_name else owner.replace("-", "_")
    if not dot:
        if name == "weights":
            raise UserError(f"{option} {assignment}: weights have an option of their own, --weights")
        if name not in SETTINGS:
            raise unknown("setting", name, SETTINGS)
        return SETTINGS[name], text
    if owner not in by_name:
        raise unknown(f"loss in this run ({option} {assignment})", owner, by_name)
    if name not in by_name[owner].knobs:
        raise unknown(f"knob of {owner}", name, by_name[owner].knobs)
    return by_name[owner].knobs[name], text
