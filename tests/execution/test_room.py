"""How much disk a run needs at least."""

from pathlib import Path

from harness import config
from harness.execution import room
from harness.execution.account import Account
from harness.files import PROBE
from harness.spec import Experiment
from harness.store import Store
from tests.training.trials import blobs, set_up, trial


def test_a_run_needs_room_for_results_embeddings_and_the_checkpoints_of_one_trial(small: Path, tmp_path: Path) -> None:
    """By hand: raw pixels, two untrained networks, two search trials, two final runs with 48 embeddings of 8 numbers;
    the values of 48 queries of all five on test classes; a checkpoint and the next one beside it hold the network four
    times each."""
    losses = (config.loss("triplet"),)
    experiment = Experiment(blobs(), config.protocol("tiny"), losses, trials=2, seeds=2)
    needed = room.needed(Account(experiment, Store(tmp_path / "results")))
    setup, _ = set_up(trial())
    parameters = sum(parameter.numel() for parameter in setup.model.parameters())
    assert needed.results == PROBE + 7 * room.RESULT_BYTES + 5 * 48 * room.QUERY_BYTES
    assert needed.storage == PROBE + 2 * 48 * 8 * 4 + 8 * 4 * parameters
