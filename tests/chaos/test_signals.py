"""Ctrl-C and SIGTERM at any moment: one line, a documented exit code, nothing lost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import signals
from harness.storage import Storage
from tests.chaos.conftest import LONG, SlowRun
from tests.conftest import FIRST_WORDS, heed_ctrl_c
from tests.execution.plans import write_plan
from tests.processes import (
    HARNESS,
    bits,
    command,
    finish,
    leftovers,
    processes,
    start,
    start_until,
    until,
    workers_alive,
)

LINE = "harness: interrupted; finished trials are stored; run it again to continue\n"


def end(running: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and what is left of standard error; nothing may stand on standard output."""
    out, err = running.communicate(timeout=60)
    assert out == ""
    return running.returncode, err


@pytest.mark.fault("Ctrl-C while importing, after 1 to 4,000 modules", "ends at once with 130, at most one line")
@pytest.mark.parametrize(
    "modules",
    [
        *(1, 20, 60, 100, 160),
        *(pytest.param(count, marks=pytest.mark.slow) for count in (500, 1500)),
        *(pytest.param(count, marks=pytest.mark.chaos_long) for count in (800, 1100, 2000, 2700, 3300, 3800, 4000)),
    ],
)
def test_ctrl_c_while_importing_ends_at_once(tmp_path: Path, modules: int) -> None:
    words = command(tmp_path / "results")
    words[1:1] = ["-X", "importtime"]  # a line per module on standard error
    running = start(words)
    assert running.stderr is not None
    seen = ""
    while not seen.endswith("harness.cli.entry\n"):
        seen = running.stderr.readline()
        assert seen.startswith("import time:"), seen
    imported, said = 0, ""
    while imported < modules:
        seen = running.stderr.readline()
        assert seen, "there are not so many modules"
        imported += seen.startswith("import time:")
        said += "" if seen.startswith("import time:") else seen
    assert FIRST_WORDS.sub("", said) == ""
    running.send_signal(signal.SIGINT)
    code, err = end(running)
    assert code == 130
    last = [line for line in err.splitlines(keepends=True) if not line.startswith("import time:")]
    assert last in ([], [LINE])  # the line once the run has begun: it imports timm and Ray then


def test_what_is_imported_before_ctrl_c_is_heeded_is_next_to_nothing() -> None:
    """Until then Python answers it with a traceback."""
    ask = "import sys; before = set(sys.modules); import harness.cli.entry; print(*sorted(set(sys.modules) - before))"
    words = [sys.executable, "-S", "-c", ask]  # -S: what an environment imports at its start hides nothing
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
    heavy = {"contextlib", "importlib.util", "pathlib", "re", "typing"}
    assert "harness.cli.signals" in done.stdout.split()
    assert not heavy & set(done.stdout.split())


SCRIPT = """
import signal, time
from harness.cli import signals
signals.GRACE = 1
signals.heed()
{body}
"""


def interrupted(body: str, *numbers: int, before: Callable[[], None] = heed_ctrl_c) -> tuple[int, str, str]:
    """A script that heeds signals, says "heeding" when it is ready for one, and gets these."""
    body = "\n".join(body.splitlines())
    words = [sys.executable, "-c", SCRIPT.format(body=body)]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    running = subprocess.Popen(words, **pipes, text=True, preexec_fn=before)
    assert running.stdout is not None
    for number in numbers:
        assert running.stdout.readline() == "heeding\n"
        running.send_signal(number)
    out, err = running.communicate(timeout=60)
    return running.returncode, out, err


@pytest.mark.fault("code that swallows KeyboardInterrupt and goes on", "the process ends after the time of grace, 130")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_swallows_an_interruption_does_not_keep_the_process_alive(number: int, code: int) -> None:
    stubborn = "\n".join(
        [
            "signals.message = 'interrupted'",
            "while True:",
            "    try:",
            "        print('heeding', flush=True)",
            "        while True: time.sleep(0.1)",
            "    except KeyboardInterrupt: pass",
        ]
    )
    ended, out, err = interrupted(stubborn, number)
    assert (ended, err) == (code, "harness: interrupted\n")
    assert out == "heeding\n"  # it went on


@pytest.mark.fault("Ctrl-C twice", "the second one does not disturb the end that the first one began")
def test_a_second_ctrl_c_does_not_interrupt_the_end() -> None:
    body = "\n".join(
        [
            "try:",
            "    print('heeding', flush=True)",
            "    time.sleep(60)",
            "finally:",
            "    print('heeding', flush=True)",
            "    time.sleep(0.5)",
            "    print('cleaned up', flush=True)",
            "    signals.leave()",
        ]
    )
    assert interrupted(body, signal.SIGINT, signal.SIGINT) == (130, "cleaned up\n", "")


@pytest.mark.fault(
    "Ctrl-C while Python runs a `__del__`, which swallows it", "130 after the time of grace, no traceback"
)
def test_ctrl_c_in_a_finalizer_ends_without_a_traceback() -> None:
    body = "\n".join(
        [
            "class Slow:",
            "    def __del__(self):",
            "        print('heeding', flush=True)",
            "        time.sleep(60)",
            "Slow()",
            "time.sleep(60)",
        ]
    )
    assert interrupted(body, signal.SIGINT) == (130, "", "")


@pytest.mark.fault("Ctrl-C during an import that waits for a subprocess, and swallows it", "130 at once, no traceback")
def test_ctrl_c_during_an_import_that_runs_a_subprocess_is_not_swallowed(tmp_path: Path) -> None:
    lines = [
        "import os, subprocess",
        "reader, writer = os.pipe()",  # the subprocess ends with us
        "try:",
        "    subprocess.run(['sh', '-c', 'echo heeding; cat'], stdin=reader)",
        "except BaseException: pass",
        "print('swallowed')",
    ]
    (tmp_path / "asks.py").write_text("\n".join(lines))
    body = f"import sys\nsignals.GRACE = 60\nsys.path.insert(0, {str(tmp_path)!r})\nimport asks"
    assert interrupted(body, signal.SIGINT) == (130, "", "")


def ignore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.fault("a shell that runs the command in the background, where Ctrl-C is not meant for it", "it goes on")
def test_an_ignored_signal_stays_ignored() -> None:
    body = "print('heeding', flush=True)\ntime.sleep(0.5)\nprint('done')"
    assert interrupted(body, signal.SIGINT, before=ignore_ctrl_c) == (0, "done\n", "")


def stop(words: list[str], sign: str, send: Callable[[int, int], None] = os.kill) -> str:
    """Start a command, send SIGTERM at a sign on standard error; what it had said by then."""
    running, seen = start_until(words, sign, start_new_session=True)
    send(running.pid, signal.SIGTERM)
    code, err = end(running)
    assert code == 143
    assert err.endswith(LINE)
    assert "Traceback" not in seen + err
    assert "***" not in seen + err  # as Ray's stack dump begins
    return seen


def resume(words: list[str], results: Path, undisturbed: dict[str, object]) -> None:
    """The same command continues from a checkpoint and ends with what an undisturbed run gives."""
    again = finish(words)
    assert again.returncode == 0, again.stderr
    begun = {line.split()[1] for line in again.stderr.splitlines() if " epoch 1/4" in line}
    assert {line.split()[1] for line in again.stderr.splitlines() if " epoch 3/4" in line} - begun
    assert not leftovers(results)
    assert bits(results).items() <= undisturbed.items()


@pytest.mark.slow
@pytest.mark.fault(
    "SIGTERM while training, --executor local", "one line, 143; the same command resumes, same to the bit"
)
def test_sigterm_ends_a_serial_run_like_ctrl_c(
    slow_run: SlowRun, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    words = slow_run.command(tmp_path, "--executor", "local")
    stop(words, " epoch 2/4")
    resume(words, tmp_path, undisturbed)


@pytest.mark.chaos_long
@pytest.mark.fault(
    "SIGTERM while training, on a Ray of our own",
    "one line, 143, no stack dump; workers stop; the same command resumes, same to the bit",
)
def test_sigterm_ends_a_run_on_ray_like_ctrl_c(
    slow_run: SlowRun, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    stop(slow_run.command(tmp_path), " epoch 2/4")
    until(lambda: not workers_alive(tmp_path))
    resume(slow_run.command(tmp_path, "--executor", "local"), tmp_path, undisturbed)


@pytest.mark.chaos_long
@pytest.mark.fault(
    "SIGTERM on a Ray of our own: at the dashboard's line, while training to the whole process group",
    "one line, 143, no stack dump; workers stop; the same command resumes, same to the bit",
)
def test_sigterm_at_any_moment_of_a_run_on_ray(
    slow_run: SlowRun, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    words = slow_run.command(tmp_path, "--seeds", "2", nap=LONG)
    stop(words, "Ray dashboard")
    stop(words, " epoch 2/4", os.killpg)
    until(lambda: not workers_alive(tmp_path))
    resume(slow_run.command(tmp_path, "--seeds", "2", nap=0), tmp_path, undisturbed)
    assert bits(tmp_path) == undisturbed


@pytest.mark.chaos_long
@pytest.mark.fault(
    "Ctrl-C on a Ray of our own: at the dashboard's line, twice while training, to the whole process group; SIGHUP",
    "ends within seconds, 130 without a traceback (SIGHUP: by the signal); workers stop; resumes, same to the bit",
)
@pytest.mark.parametrize(
    ("sign", "send"),
    [
        ("Ray dashboard", lambda pid: os.kill(pid, signal.SIGINT)),
        (" epoch 2/4", lambda pid: [os.kill(pid, signal.SIGINT), time.sleep(0.2), os.kill(pid, signal.SIGINT)]),
        (" epoch 2/4", lambda pid: os.killpg(pid, signal.SIGINT)),
        (" epoch 2/4", lambda pid: os.kill(pid, signal.SIGHUP)),
    ],
    ids=["dashboard", "twice", "group", "SIGHUP"],
)
def test_ctrl_c_at_any_moment_of_a_run_on_ray(
    slow_run: SlowRun,
    undisturbed: dict[str, object],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    sign: str,
    send: Callable[[int], object],
) -> None:
    words = slow_run.command(tmp_path, nap=LONG)
    running, seen = start_until(words, sign, start_new_session=True)
    send(running.pid)
    code, err = end(running)
    if "SIGHUP" in request.node.name:
        assert code == -signal.SIGHUP
    else:
        assert code == 130
        assert err.endswith(LINE)
    assert "Traceback" not in seen + err
    until(lambda: not workers_alive(tmp_path))
    again = finish(slow_run.command(tmp_path, "--executor", "local", nap=0))
    assert again.returncode == 0, again.stderr
    assert (" epoch 1/4" in again.stderr) == ("epoch" not in sign)
    assert not leftovers(tmp_path)
    assert bits(tmp_path).items() <= undisturbed.items()


@pytest.mark.chaos_long
@pytest.mark.fault("SIGTERM while Ray starts, at 8 moments", "one line, 143; no process stays")
@pytest.mark.parametrize("seconds", [0, 1, 2, 3, 4, 5, 6, 8])
def test_sigterm_while_ray_starts(slow_run: SlowRun, tmp_path: Path, seconds: float) -> None:
    running = start(slow_run.command(tmp_path), start_new_session=True)
    until(lambda: "gcs_server" in str(processes(running.pid)))
    time.sleep(seconds)
    running.send_signal(signal.SIGTERM)
    code, err = end(running)
    assert code == 143
    assert err.endswith(LINE)
    assert "Traceback" not in err
    assert "***" not in err
    until(lambda: not processes(running.pid))


def test_docker_stop_leaves_more_time_than_an_end_in_order_has() -> None:
    assert signals.GRACE < 10


@pytest.mark.fault("Ctrl-C during a command that only reads", "130, without a traceback")
def test_ctrl_c_during_status_watch(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    write_plan(Storage(str(tmp_path / "artifacts")), "p", [])
    running = start([*HARNESS, "status", "--watch", "--results", str(tmp_path)])
    assert running.stdout is not None
    running.stdout.readline()
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (130, "")


@pytest.mark.fault(
    "the Slurm script of docs/cluster.md gets SIGTERM before its time limit",
    "it passes the signal on, waits for the end and puts itself back into the queue",
)
def test_the_slurm_script_requeues_itself(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    script = page.partition("```bash\n")[2].partition("```")[0]
    assert "#SBATCH --signal=B:TERM@" in script
    stubs = {
        "harness": "trap 'exit 143' TERM; touch begun; while :; do read -t 0.1 < /dev/zero; done",
        "scontrol": 'if [ "$1" = show ]; then echo host; else echo "$@" > requeued; fi',
        "srun": 'until [ "$1" = ray ]; do shift; done; echo "$SRUN_CPUS_PER_TASK CPUs: $@" >> started',
        **dict.fromkeys(("ray", "sleep"), ":"),
    }
    bin = tmp_path / ".venv" / "bin"
    bin.mkdir(parents=True)
    for name, body in stubs.items():
        (bin / name).write_text(f"#!/bin/bash\n{body}\n")
        (bin / name).chmod(0o755)
    (bin / "activate").write_text(f"PATH={bin}:$PATH\n")
    job = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "host", "SLURM_NNODES": "2"}
    job["SLURM_CPUS_PER_TASK"] = "32"
    running = subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env=job)
    until(lambda: (tmp_path / "begun").exists())
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=60) == 143
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    started = sorted((tmp_path / "started").read_text().splitlines())
    assert started == [
        "32 CPUs: ray start --address=host:6379 --block",
        "32 CPUs: ray start --head --port=6379 --block",
    ]
    (tmp_path / "requeued").unlink()
    (bin / "harness").write_text("#!/bin/bash\nexit 2\n")
    assert subprocess.run(["bash", "-c", script], cwd=tmp_path, env=job, timeout=60).returncode == 2
    assert not (tmp_path / "requeued").exists()  # it would fail again
