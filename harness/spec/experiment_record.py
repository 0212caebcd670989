"""ExperimentRecord: what a request ran its trials for. Requests share trials, so a trial's own record cannot say it."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from harness.spec import schema
from harness.spec.trial import short_hash

Role = Literal["search", "grid", "final", "baseline"]  # what a trial is for in an experiment
ROLES: tuple[Role, ...] = get_args(Role)
EXPERIMENT_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class ExperimentRecord:
    """A request, the trials that it consists of, and what its search chose.

    Its id follows from the trials that the request names and from how it chooses among them, so the same request again
    has the same record. The final trials of a search, and the chosen values, are not known when the record is first
    written: they are added when the search has ended. Nothing is ever taken away.
    """

    command: str  # of the first such request, without passwords
    made: str  # when that was
    dataset: str
    protocol: str
    select: str  # the metric that chooses among search trials
    folds: int  # validation folds a configuration is scored on
    trials: int  # random-search trials per loss
    seeds: int  # final runs per loss; of a grid runs per cell
    scheduler: str  # that may stop search trials early; "none"
    settings: Mapping[str, Any]  # set by hand: epochs=4 as {"epochs": 4}, group.anchors=1 as {"group.anchors": 1}
    space: Mapping[str, Mapping[str, Any]]  # loss -> what search varies, and within which limits
    select_epochs: bool = False  # the search also chooses after which epoch final runs stop
    search: tuple[str, ...] = ()  # ids of trials, sorted
    grid: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()
    chosen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # loss -> the values that search chose
    name: str = ""  # that its user gave it; the same request may be named anew

    @property
    def id(self) -> str:
        requested: dict[str, Any] = {
            "select": self.select,
            "folds": self.folds,
            "scheduler": self.scheduler,
            "seeds": self.seeds,
            **{role: self.ids(role) for role in ROLES},
        }
        if self.search:
            del requested["final"]  # they follow from the search
        if self.select_epochs:  # left out where it is not, as in records from before it was there
            requested["select_epochs"] = True
        return short_hash(json.dumps(requested, sort_keys=True, separators=(",", ":")))

    def ids(self, role: Role) -> tuple[str, ...]:
        ids: tuple[str, ...] = getattr(self, role)
        return ids

    def roles(self, trial: str) -> list[Role]:
        """What a trial is for in this experiment; empty if it is no part of it."""
        return [role for role in ROLES if trial in self.ids(role)]

    def joined(self, later: "ExperimentRecord") -> "ExperimentRecord":
        """This record with what a later one of the same request adds: final trials, chosen values, another name."""
        final = tuple(sorted({*self.final, *later.final}))
        return dataclasses.replace(
            self, final=final, chosen={**self.chosen, **later.chosen}, name=later.name or self.name
        )

    def to_json(self) -> dict[str, Any]:
        record = {"schema": EXPERIMENT_SCHEMA, "id": self.id, **dataclasses.asdict(self)}
        if not self.name:
            del record["name"]
        return record

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """A stored record; a ValueError says why the data is not one."""
        if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
            raise ValueError("not an experiment of this harness")
        if data["schema"] != EXPERIMENT_SCHEMA:
            raise ValueError(f"schema {data['schema']}, this version reads up to {EXPERIMENT_SCHEMA}")
        try:
            schema.check(data, schema.EXPERIMENT)
        except ValueError as error:
            raise ValueError(f"not an experiment of this harness: {error}") from None
        names = [item.name for item in dataclasses.fields(cls)]
        values: dict[str, Any] = {name: data[name] for name in names if name in data}
        values |= {role: tuple(values[role]) for role in ROLES}
        record = cls(**values)
        if data.get("id") != record.id:
            raise ValueError(f"its trials hash to {record.id}, not to its id {data.get('id')}")
        return record
