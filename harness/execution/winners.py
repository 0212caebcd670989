"""What a search chose: a line per loss, when its last trial has ended."""

from collections.abc import Collection, Iterator

from harness import commands
from harness.execution.account import Account
from harness.spec import percent

OTHER_CLASSES = "Validation scores are of other and fewer classes than test scores: the two are not comparable."


def lines(account: Account, losses: Collection[str]) -> Iterator[str]:
    """Which trial of each of these losses won, with which values, and what follows."""
    experiment = account.experiment
    metric, seeds = experiment.protocol.select, experiment.seeds
    follow = f"{seeds} final run{'s' if seeds > 1 else ''}"
    for loss in experiment.losses:
        if loss.name not in losses:
            continue
        winner = account.winners.get(loss.name)
        if winner is None:
            yield f"{loss.name}: no search trial finished; no final runs"
            continue
        searched = account.space()[loss.name]
        values = [f"{name}={commands.written(value)}" for name, value in winner.values.items() if name in searched]
        if winner.epoch:
            values.append(f"{winner.epoch} epochs")
        ids = ", ".join(run.id for run in winner.runs)
        yield (
            f"{loss.name}: best of {experiment.trials} on validation classes: {metric} {percent(winner.score)} with "
            f"{' '.join(values) or 'the only values'} ({ids}); {follow}"
        )
    if losses and set(account.decided) == set(losses):  # the first that chose
        yield OTHER_CLASSES
