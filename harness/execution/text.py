"""A trial in words: how far it is, and how it ended. `harness run` and `harness status` print them."""

import math
from collections.abc import Collection, Mapping
from datetime import timedelta

from harness.analysis.results import score, score_at_best_epoch
from harness.spec import Failure, Metrics, Progress, Purpose, Result, Stopped, percent

WAITED_FOR = {"images": "images", "pretrain": "pre-training", "teacher": "its teacher"}  # by stage
CENTURY = 100 * 365 * 24 * 3600  # seconds


def duration(seconds: float) -> str:
    """3:25:00. Of a plan that no one will see the end of, no more is said."""
    return str(timedelta(seconds=round(seconds))) if seconds < CENTURY else "100 years or more"


def phase(progress: Progress) -> str:
    """The stage of a running trial, and how far it is in it, in a few words."""
    if not progress.step and progress.stage in WAITED_FOR:
        return f"waiting for {WAITED_FOR[progress.stage]}"
    if progress.stage == "images":
        return f"preparing images {progress.step}/{progress.steps}"
    if progress.stage == "evaluate":
        return "evaluating"
    subset = f"subset {progress.subset}  " if progress.subset else ""
    if progress.stage == "rank":
        return f"{subset}ranking {progress.step}/{progress.steps}"
    if progress.stage == "cluster":
        return f"{subset}clustering {progress.epoch}/{progress.epochs}"
    return f"{'' if progress.stage == 'train' else progress.stage + ' '}epoch {progress.epoch}/{progress.epochs}"


def loss_value(progress: Progress) -> str:
    """The loss of a stage that has one."""
    if math.isnan(progress.loss):
        return ""
    return f"loss {progress.loss:.3f}" if abs(progress.loss) < 1e6 else f"loss {progress.loss:.3g}"


def position(progress: Progress) -> str:
    """Where a running trial is, in a line."""
    if progress.note:
        return progress.note
    words = [phase(progress)]
    if progress.stage == "rank":
        words = [f"{words[0]} queries"]
    if progress.stage == "cluster":
        subset = f"subset {progress.subset}  " if progress.subset else ""
        where = f"start {progress.epoch}/{progress.epochs}  step {progress.step}/{progress.steps}"
        words = [f"{subset}clustering for NMI  {where}"]
    words.append(loss_value(progress))
    if progress.images_per_second:
        words.append(f"{progress.images_per_second:.0f} images/s")
    if progress.seconds_left:
        words.append(f"{duration(progress.seconds_left)} left")
    return "  ".join(filter(None, words))


def outcome(event: Result | Stopped | Failure) -> str:
    """How a trial ended."""
    if isinstance(event, Failure):
        return f"failed: {event.error}"
    if isinstance(event, Stopped):
        metrics = headline(event.metrics)
        return f"stopped by the scheduler after epoch {event.epochs}" + (f" ({metrics})" if metrics else "")
    words = (headline(event.metrics), f"{event.seconds['total']:.0f} s")
    return "  ".join(word for word in words if word)


def headline(metrics: Metrics) -> str:
    return "  ".join(f"{name} {percent(metrics[name])}" for name in ("R@1", "NMI") if name in metrics)


class BestScores:
    """The best validation score of each loss so far, by the protocol's metric. A search trial's score is the mean over
    its folds and counts when all of them have ended."""

    def __init__(self, metric: str, folds: int, *, select_epochs: bool = False) -> None:
        self.metric = metric
        self.folds = folds
        self.score = score_at_best_epoch if select_epochs else score
        self.runs: dict[str, list[Result]] = {}  # of configurations that are not complete
        self.scores: dict[str, float] = {}

    def add(self, result: Result, purposes: Collection[Purpose]) -> None:
        trial = result.trial
        if trial.on_test or trial.is_baseline or not result.is_single or self.metric not in result.metrics:
            return
        runs = [result]
        if "search" in purposes:
            runs = self.runs.setdefault(trial.id_without("fold"), [])
            runs.append(result)
            if len(runs) < self.folds:
                return
        mean = self.score(runs, self.metric).score
        self.scores[trial.loss] = max(mean, self.scores.get(trial.loss, mean))

    def __str__(self) -> str:
        return f"best validation {self.metric}: {listed(self.scores)}" if self.scores else ""


def listed(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{loss} {percent(value)}" for loss, value in sorted(scores.items()))
