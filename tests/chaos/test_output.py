"""What reaches a terminal: no control characters, whoever wrote them; and on standard output nothing but tables."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.cli.output import ErrorOutput
from harness.execution import local
from harness.execution.display import Display
from harness.spec import Failure, Job, Listener, has_controls, printable
from harness.storage import Storage
from harness.store import Store
from tests.chaos.conftest import SlowRun
from tests.conftest import Harness, Said
from tests.execution.plans import write_heartbeat, write_plan
from tests.execution.test_run import a_run, experiment
from tests.factories import a_result, a_trial
from tests.processes import HARNESS, command, environment, finish

ATTACK = "\x1b[31mred\x1b]0;title\x07\x9b1m\u202etxt\r\u2066x"


def is_harmless(said: Said) -> bool:
    return not any(has_controls(line.replace("\t", " ")) for line in (said.out + said.err).split("\n"))


def hostile(seed: int, **changes: Any) -> Any:
    """A record in which every text that may hold an escape sequence does."""
    trial = a_trial(protocol=f"p{ATTACK}", backbone=f"b{ATTACK}", fingerprint=ATTACK, seed=seed, **changes)
    told = {"device": ATTACK, "platform": ATTACK, "packages": {ATTACK: ATTACK}, "command": ATTACK, "data": ATTACK}
    result = replace(a_result(trial), title=f"T{ATTACK}", cite=ATTACK, provenance=told)
    return replace(result, conventions={"NMI": ATTACK, "collapsed": ATTACK}, metrics={"R@1": 0.5, f"M{ATTACK}": 0.5})


@pytest.mark.fault(
    "ESC, BEL, CR, C1 and bidirectional characters in titles, names, settings, provenance and file names of a foreign "
    "results folder",
    "every command writes them out, as \\u001b; JSON stays JSON; files that commands write have none either",
)
def test_no_control_character_of_a_record_reaches_a_terminal(harness: Harness, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    for seed in (0, 1):
        store.put(hostile(seed))
    store.put(hostile(2, fold="val0"))
    store.note(Failure(a_trial(), f"RuntimeError: {ATTACK}", "", log=ATTACK))
    storage = Storage(str(store.artifacts))
    write_plan(storage, "living", [f"a{ATTACK}-x", "b-y"], command=ATTACK)
    write_heartbeat(storage, "b-y", "living", position=ATTACK, node=ATTACK)
    write_plan(storage, "gone", [f"c{ATTACK}-z"], command=ATTACK, interrupted=True)
    folder = store.root / "runs" / f"folder {ATTACK}"
    folder.mkdir()
    (folder / f"{ATTACK}.json").write_text("{")
    id = hostile(0).id
    commands = [
        *(("tables", "--table", "all", "--format", form) for form in ("markdown", "latex", "html", "json")),
        ("tables", "--format", "csv"),
        ("tables", "--table", "all", "--out", str(tmp_path / "out")),
        ("report", "--out", str(tmp_path / "out" / "report.html")),
        ("figures", "cost", "--format", "png", "--out", str(tmp_path / "figures")),
        ("ls", "runs"),
        ("status",),
        ("show", id),
        ("show", ATTACK),
        ("eval", id),
        ("embed", id, f"{ATTACK}.png"),
        ("import", str(store.root), "--results", str(tmp_path / f"other {ATTACK}")),
        ("rm", id),
        ("data", "check", f"./{ATTACK}"),
        ("run", "--losses", f"./{ATTACK}.py:X"),
        (ATTACK,),
    ]
    written_out = 0
    for words in commands:
        said = harness(*words)
        assert is_harmless(said), words
        written_out += "\\u001b" in said.out + said.err
        if "json" in words:
            assert json.loads(said.out)[0]["rows"][0]["label"] == f"T{ATTACK}"
        if words == ("show", id):
            record, _ = json.JSONDecoder().raw_decode(said.out)
            assert record["title"] == f"T{ATTACK}"
    assert written_out > len(commands) / 2
    for file in (tmp_path / "out").iterdir():
        assert is_harmless(Said(0, file.read_text(), "")), file.name


@pytest.mark.fault(
    "control characters in a loss's title and in the exceptions that it raises, then run and status",
    "written out on the screen and in the table",
)
def test_no_control_character_of_a_loss_reaches_a_terminal(small: Path, harness: Harness, tmp_path: Path) -> None:
    loss = tmp_path / "mine.py"
    lines = ["from losses.base import Loss", "class Mine(Loss):", f"    title, cite = {ATTACK!r}, {ATTACK!r}"]
    lines += ["    def forward(self, embeddings, labels):", f"        raise RuntimeError({ATTACK!r})"]
    loss.write_text("\n".join(lines))
    words = ["run", "--losses", f"{loss}:Mine", "--dataset", "blobs", "--weights", "none"]
    for others in (words, ["status"], ["check-loss", f"{loss}:Mine"]):
        said = harness(*others)
        assert said.code == (0 if others == ["status"] else 1)
        assert "\\u001b[31mred" in said.out + said.err
        assert is_harmless(said)
    loss.write_text("\n".join([*lines[:-1], "        return embeddings.square().mean()"]))
    said = harness(*words)
    assert said.code == 0
    assert "\\u001b" in said.out
    assert is_harmless(said)


def test_what_is_visible_is_printed_as_it_is() -> None:
    text = "Gruppe\tλ ± 0.5 · 损失 👩‍🔬\n"
    assert printable(text) == text
    assert printable("\x1b\x9b\u202e\ud800") == r"\u001b\u009b\u202e\ud800"
    assert json.loads(printable(json.dumps({"a": ATTACK}, ensure_ascii=False))) == {"a": ATTACK}


@pytest.mark.fault(
    "a loss or a library that prints to standard output while `harness run > table.md` trains",
    "the file holds the tables alone; the rest is on standard error",
)
def test_standard_output_holds_the_tables_alone(small: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    real = local.execute

    def noisy(jobs: Sequence[Job], listener: Listener, device: str | None = None) -> None:
        print("printed by Python")
        os.write(1, b"written by something native\n")
        real(jobs, listener, device)

    monkeypatch.setattr(local, "execute", noisy)
    said = harness("run", "--losses", "triplet", "--dataset", "blobs")
    assert said.code == 0
    assert said.out.startswith("### Blobs")
    for noise in ("printed by Python", "written by something native"):
        assert noise not in said.out
        assert noise in said.err


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of a shell in which $HARNESS is the command and $RESULTS a results folder."""
    variables = {"HARNESS": f"{sys.executable} -m harness", "RESULTS": str(folder / "results")}
    words = ["bash", "-c", line]
    return subprocess.run(words, capture_output=True, text=True, env={**environment(), **variables}, timeout=240)


@pytest.mark.fault(
    "standard output or standard error on a full disk, closed by the caller, or in an encoding without our letters",
    "standard output on a full disk: one line, exit 2; nothing else matters to a command",
)
def test_streams_that_take_nothing_stop_no_command(tmp_path: Path) -> None:
    Store(tmp_path / "results").put(a_result())
    tables = "$HARNESS tables --results $RESULTS"
    full = shell(f"{tables} > /dev/full", tmp_path)
    assert (full.returncode, full.stderr) == (
        2,
        "harness: cannot write to standard output: No space left on device\n",
    )
    for line, code in (
        (f"{tables} > /dev/full 2> /dev/full", 2),
        (f"{tables} >&-", 0),
        ("$HARNESS tables --results nowhere 2> /dev/full", 2),
        ("$HARNESS tables --results nowhere 2>&-", 2),
    ):
        done = shell(line, tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (code, "", ""), line
    narrow = shell(f"PYTHONIOENCODING=ascii {tables}", tmp_path)
    assert (narrow.returncode, narrow.stderr) == (0, "")
    assert "\\xb7 losses \\xb7" in narrow.stdout


def broken_pipe() -> int:
    """The writing end of a pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.fault(
    "whoever reads a run's standard error is gone: `2> >(head)`, a `tee` or an `ssh` that died", "it runs"
)
def test_a_run_whose_standard_error_is_a_broken_pipe_goes_on(tmp_path: Path) -> None:
    stream = ErrorOutput(os.fdopen(broken_pipe(), "wb"), line_buffering=True)
    run = a_run(tmp_path, experiment("triplet"))
    run.display = Display(Console(file=stream))  # rich ends the process if it hears of it
    assert len(run()) == 3
    print("x" * 100_000, file=stream, flush=True)
    assert os.fstat(stream.fileno()).st_rdev == os.stat(os.devnull).st_rdev  # what children say goes nowhere, too


@pytest.mark.fault("the same, and the command is a mistake", "exit 2, as if it had been read")
def test_a_broken_pipe_does_not_change_the_exit_code(tmp_path: Path) -> None:
    words = [*HARNESS, "tables", "--results", str(tmp_path / "nowhere")]
    writer = broken_pipe()
    assert subprocess.run(words, stderr=writer, env=environment(), timeout=240).returncode == 2
    os.close(writer)


@pytest.mark.chaos_long
@pytest.mark.fault(
    "the disk of a run's log is full",
    "it trains and stores all the same",
)
def test_a_run_whose_log_cannot_be_written_trains(slow_run: SlowRun, tmp_path: Path) -> None:
    words = shlex.join(slow_run.command(tmp_path / "results", "--executor", "local", nap=0))
    done = shell(f"{words} 2> /dev/full", tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("### ")


@pytest.mark.chaos_long
@pytest.mark.fault("a worker of Ray dies while `harness run > table.md` trains", "the file holds the tables alone")
def test_standard_output_holds_the_tables_alone_when_a_worker_dies(tmp_path: Path) -> None:
    loss, order = tmp_path / "mine.py", tmp_path / "die"
    order.touch()
    lines = ["import os", "from losses.base import Loss", "class Mine(Loss):", "    title, cite = 'Mine', 'me'"]
    lines += ["    def forward(self, embeddings, labels):", f"        if os.path.exists({str(order)!r}):"]
    lines += [f"            os.remove({str(order)!r})", "            os._exit(7)"]
    lines += ["        return embeddings.square().mean()"]
    loss.write_text("\n".join(lines))
    words = command(tmp_path / "results", losses=f"{loss}:Mine", seeds=1)
    done = finish([word.replace("fold=val0", "fold=test") for word in words])
    assert done.returncode == 0, done.stderr
    assert not order.exists()
    assert done.stdout.startswith("### "), done.stdout
    assert "raylet" not in done.stdout
