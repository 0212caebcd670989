"""Measurement: what is made of the stored embeddings of final runs; and Work, which is a trial or a measurement."""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.spec.trial import Trial, short_hash


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """An ensemble of final runs that differ in their seed only, or one run measured again with another recipe for NMI.
    It needs the results of its runs, and nothing is trained for it."""

    runs: tuple[Trial, ...]
    ensemble: int = 0  # how many networks are joined at a time
    recipe: str = ""  # of NMI, where a run is measured again

    @property
    def trial(self) -> Trial:
        """The first of its runs, beside which its result is stored."""
        return self.runs[0]

    @property
    def id(self) -> str:
        if self.recipe:
            return recipe_id(self.recipe, self.trial.id)
        return ensemble_id(self.ensemble, (run.id for run in self.runs))

    @property
    def name(self) -> str:
        """What people see, and files are called: group-emoji-2-ensemble-1f2e3d4c5b6a."""
        what = self.recipe or f"{self.ensemble}-ensemble"
        return f"{self.loss_folder}-{self.dataset}-{what}-{self.id}"

    @property
    def label(self) -> str:
        """Its loss, and what is made of it."""
        return f"{self.loss} ({self.recipe})" if self.recipe else f"{self.loss} x {self.ensemble}"

    @property
    def dataset(self) -> str:
        return self.trial.dataset

    @property
    def loss(self) -> str:
        return self.trial.loss

    @property
    def loss_folder(self) -> str:
        return self.trial.loss_folder

    @property
    def fold(self) -> str:
        return self.trial.fold


Work = Trial | Measurement  # what a run consists of, and an executor carries out


def trial_of(work: Work) -> Trial:
    return work.trial if isinstance(work, Measurement) else work


def ensemble_id(size: int, members: Iterable[str]) -> str:
    return short_hash(f"{size} of {' '.join(sorted(members))}")


def recipe_id(recipe: str, run: str) -> str:
    """Of a run that was measured again."""
    return short_hash(f"{recipe} of {run}")
