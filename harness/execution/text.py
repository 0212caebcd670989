"""A trial in words: how far it is, and how it ended. `harness run` and `harness status` print them."""

from collections.abc import Collection, Mapping
from datetime import timedelta

from harness.analysis.results import score, score_at_best_epoch
from harness.spec import Failure, Metrics, Progress, Purpose, Result, Stopped, percent

CENTURY = 100 * 365 * 24 * 3600  # seconds


def duration(seconds: float) -> str:
    """3:25:00. Of a plan that no one will see the end of, no more is said."""
    return str(timedelta(seconds=round(seconds))) if seconds < CENTURY else "100 years or more"


def position(progress: Progress) -> str:
    """Where a running trial is."""
    if progress.note:
        return progress.note
    if progress.stage == "pretrain" and not progress.step:
        return "waiting for the pre-training, which another trial does"
    if progress.stage == "images" and not progress.step:
        return "waiting for the images, which another trial prepares"
    speed = f"{progress.images_per_second:.0f} images/s  {duration(progress.seconds_left)} left"
    if progress.stage == "images":
        return f"preparing images  {progress.step}/{progress.steps}  {speed}"
    if progress.stage == "evaluate":
        return f"evaluating  {speed}"
    if progress.stage == "rank":
        return f"ranking  {progress.step}/{progress.steps} queries"
    if progress.stage == "cluster":
        return f"clustering for NMI  start {progress.epoch}/{progress.epochs}  step {progress.step}/{progress.steps}"
    stage = "" if progress.stage == "train" else f"{progress.stage} "
    loss = f"{progress.loss:.3f}" if abs(progress.loss) < 1e6 else f"{progress.loss:.3g}"
    return f"{stage}epoch {progress.epoch}/{progress.epochs}  loss {loss}  {speed}"


def outcome(event: Result | Stopped | Failure) -> str:
    """How a trial ended."""
    if isinstance(event, Failure):
        return f"failed: {event.error}"
    if isinstance(event, Stopped):
        metrics = headline(event.metrics)
        return f"stopped by the scheduler after epoch {event.epochs}" + (f" ({metrics})" if metrics else "")
    return f"{headline(event.metrics)}  {event.seconds['total']:.0f} s"


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
