"""Ray's own processes die, and drivers work side by side: nothing that is stored is lost or doubled."""

import os
import signal
from pathlib import Path

import pytest

from tests.chaos.conftest import LONG, SlowRun
from tests.processes import bits, finish, leftovers, processes, start, start_until

pytestmark = pytest.mark.chaos_long


@pytest.mark.fault(
    "SIGKILL to the raylet, or to gcs_server, of a Ray of our own",
    "the run ends by itself; the same command continues from the last epoch, same to the bit",
)
@pytest.mark.parametrize("victim", ["raylet/raylet", "gcs_server"])
def test_a_killed_process_of_ray_ends_the_driver_and_loses_nothing(
    slow_run: SlowRun, undisturbed: dict[str, object], tmp_path: Path, victim: str
) -> None:
    words = slow_run.command(tmp_path, "--seeds", "2", nap=2 * LONG)  # Ray notices after 13 s, or after a minute
    running, _ = start_until(words, " epoch 2/4", start_new_session=True)
    (pid,) = (pid for pid, words in processes(running.pid).items() if victim in words.split()[0])
    os.kill(pid, signal.SIGKILL)
    out, _ = running.communicate(timeout=180)
    assert running.returncode != 0 or out.startswith("### ")  # its trials may end before Ray notices
    again = finish(slow_run.command(tmp_path, "--seeds", "2", nap=0))
    assert again.returncode == 0, again.stderr
    assert again.stderr.count(" epoch 1/4") < 2  # of two trials, at least one had a checkpoint or was stored
    assert bits(tmp_path) == undisturbed
    assert not leftovers(tmp_path)


@pytest.mark.fault(
    "two drivers at once with --executor local: the same trials, and others", "each trial is stored once, exit 0"
)
def test_two_serial_drivers_store_each_trial_once(
    slow_run: SlowRun, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    words = slow_run.command(tmp_path, "--executor", "local")
    drivers = [start([*words, *more]) for more in ((), (), ("--set", "seed=1"))]
    ends = [driver.communicate(timeout=300) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0, 0], ends
    assert ends[0][0] == ends[1][0]  # the same table
    assert bits(tmp_path) == undisturbed  # seeds 0 and 1
    assert not leftovers(tmp_path)
