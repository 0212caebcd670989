"""What stored trials were run for: by the records of experiments or, for older trials, by their own."""

from collections.abc import Iterable, Mapping

from harness.spec import ExperimentRecord, Purpose, Result, Role

PURPOSES: Mapping[Role, Purpose] = {"search": "search", "grid": "grid", "final": "run", "baseline": "run"}


class Purposes:
    """The purposes of trials: several, where experiments share one."""

    def __init__(self, experiments: Iterable[ExperimentRecord] = ()) -> None:
        self.recorded: dict[str, set[Purpose]] = {}
        for experiment in experiments:
            for role, purpose in PURPOSES.items():
                for id in experiment.ids(role):
                    self.recorded.setdefault(id, set()).add(purpose)

    def of(self, result: Result) -> set[Purpose]:
        return self.recorded.get(result.id) or {result.purpose}
