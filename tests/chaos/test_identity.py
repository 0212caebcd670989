"""A result is what its id says: what an id does not cover is stated, and no trial changes the next one."""

import json
import shlex
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from harness import config
from losses import torch_state
from tests.conftest import Harness
from tests.data.factories import records

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster as RayCluster

TRIPLET = ("run", "--losses", "triplet", "--dataset", "blobs")


@pytest.mark.fault(
    "one trial with one thread and with two, with the local executor",
    "it has as many threads as --cpus-per-trial says, one by default; `show` prints the number that it had",
)
def test_the_local_executor_has_the_threads_it_is_told_and_show_says_so(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    torch.set_num_threads(4)
    try:
        assert harness(*TRIPLET).code == 0
        assert {record["provenance"]["threads"] for record in records(tmp_path)} == {1}
        two = (*TRIPLET, "--cpus-per-trial", "2", "--rerun")
        assert harness(*two).code == 0
        assert {record["provenance"]["threads"] for record in records(tmp_path)} == {2}
        (id,) = (record["id"] for record in records(tmp_path) if record["trial"]["loss"] == "triplet")
        command = harness("show", id).out.split("Reproduce with:\n")[1].splitlines()[0]
        assert "--cpus-per-trial 2" in command
        again = harness(*shlex.split(command)[1:], "--results", str(tmp_path / "again" / "results"))
        assert again.code == 0
        assert {record["provenance"]["threads"] for record in records(tmp_path / "again")} == {2}
    finally:
        torch.set_num_threads(1)


@pytest.mark.fault(
    "two seeds of a loss with one thread and with two, beside a loss with one",
    "the table footnotes the row that mixes them",
)
def test_a_row_that_mixes_thread_counts_is_footnoted(small: Path, harness: Harness) -> None:
    harness("run", "--losses", "triplet,softmax", "--dataset", "blobs", "--seeds", "2")
    assert "conditions" not in harness("tables").out
    harness(*TRIPLET, "--set", "seed=1", "--cpus-per-trial", "2", "--rerun")
    table = harness("tables").out
    assert "Run under other conditions: threads = 1 (1 run), 2 (1 run)." in table
    assert "| Triplet[" in table


# --- what a loss does to its process ---

OWN = """
import torch
from losses.base import Loss
{at_import}
class Mine(Loss):
    title, cite = "Mine", "me"

    def forward(self, embeddings, labels):
        {in_forward}
        return (embeddings - embeddings.mean(0)).square().mean()
"""
HOSTILE = {
    "default dtype": "torch.set_default_dtype(torch.float64)",
    "half of it": "torch.set_default_dtype(torch.bfloat16)",
    "default device": "torch.set_default_device('meta')",
    "deterministic mode": "torch.use_deterministic_algorithms(True)",
    "anomaly mode": "torch.autograd.set_detect_anomaly(True)",
    "matmul precision": "torch.set_float32_matmul_precision('medium')",
    "precision of one backend": "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
    "mkldnn": "torch.backends.mkldnn.enabled = False",
    "threads": "torch.set_num_threads(4)",
    "autocast": "torch.set_autocast_enabled('cpu', True)",
    "grad mode": "torch.set_grad_enabled(False)",
    "attention": "torch.backends.cuda.enable_flash_sdp(False)",  # on a CPU too
}


def own(folder: Path, at_import: str = "", in_forward: str = "pass") -> str:
    """A user's own loss that brings images together, and does this on the way."""
    (folder / "mine.py").write_text(OWN.format(at_import=at_import, in_forward=in_forward))
    return f"{folder}/mine.py:Mine"


def numbers(folder: Path, *without: str) -> dict[str, object]:
    """What was measured, by the trials' ids."""
    kept = [record for record in records(folder) if record["trial"]["loss"] not in without]
    return {record["id"]: (record["metrics"], [row["loss"] for row in record["curve"]]) for record in kept}


@pytest.mark.fault(
    "an own loss changes a global setting of torch, when it is imported or in training; a trial in its process follows",
    "the following trials and the baselines have the numbers that they have alone; torch is as it was afterwards",
)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_a_loss_sets_in_torch_ends_with_its_trial(
    small: Path, harness: Harness, tmp_path: Path, hostile: str
) -> None:
    alone = tmp_path / "alone"
    assert harness(*TRIPLET, "--results", str(alone / "results")).code == 0
    before = torch_state.current()
    for kind in ("at_import", "in_forward"):
        loss = own(tmp_path, **{kind: HOSTILE[hostile]})
        both = tmp_path / kind
        said = harness("run", "--losses", f"{loss},triplet", "--dataset", "blobs", "--results", str(both / "results"))
        assert said.code in (0, 1), said.err  # the hostile one may fail
        assert numbers(both, "mine.Mine") == numbers(alone)
        assert torch_state.current() == before
        if kind == "in_forward":
            assert "FAILED  leaves torch's settings as they are" in harness("check-loss", loss).out


@pytest.mark.fault(
    "torch has other settings before a run, as in a notebook",
    "the same numbers; the settings are there afterwards",
)
def test_what_the_callers_process_has_set_does_not_count(small: Path, harness: Harness, tmp_path: Path) -> None:
    assert harness(*TRIPLET, "--results", str(tmp_path / "alone" / "results")).code == 0
    torch.set_default_dtype(torch.float64)
    try:
        assert harness(*TRIPLET).code == 0
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert numbers(tmp_path) == numbers(tmp_path / "alone")


RAISED = {
    "raise KeyboardInterrupt": "KeyboardInterrupt: ",
    "raise GeneratorExit": "GeneratorExit: ",
    "raise BaseException('the end')": "BaseException: the end",
    "raise StopIteration": "RuntimeError: generator raised StopIteration",
    "raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()": "Mute: (its text raises ZeroDivisionError)",
    "error = ValueError('itself'); error.__cause__ = error; raise error": "ValueError: itself",
    "raise ValueError": "ValueError: ",
}


@pytest.mark.fault(
    "an own loss raises KeyboardInterrupt, GeneratorExit, BaseException, an error that cannot say what it is, or that "
    "is its own cause",
    "recorded as the failure of that trial, with its kind and traceback; the others run",
)
@pytest.mark.parametrize("statement", RAISED)
def test_whatever_a_loss_raises_is_the_failure_of_its_trial(
    small: Path, harness: Harness, tmp_path: Path, statement: str
) -> None:
    loss = own(tmp_path, in_forward=statement)
    said = harness("run", "--losses", f"{loss},triplet", "--dataset", "blobs")
    assert said.code == 1
    assert "| Triplet" in said.out
    (file,) = (tmp_path / "results" / "failures").rglob("*.json")
    failure = json.loads(file.read_text())
    assert failure["error"] == RAISED[statement]
    assert 'mine.py", line 9, in forward' in failure["traceback"]


@pytest.mark.fault(
    "an own loss raises an error of 50 MB, or one with bytes that are no text, as of a file name",
    "recorded and shown in short; status and show read the record",
)
@pytest.mark.parametrize("text", ["'x' * 50_000_000", "'line\\n' * 10_000_000", "'caf\\udce9'"])
def test_whatever_an_error_says_its_record_can_be_read(
    small: Path, harness: Harness, tmp_path: Path, text: str
) -> None:
    said = harness("run", "--losses", own(tmp_path, in_forward=f"raise ValueError({text})"), "--dataset", "blobs")
    assert said.code == 1
    assert len(said.err) < 5000
    (file,) = (tmp_path / "results" / "failures").rglob("*.json")
    status, shown = harness("status"), harness("show", file.stem)
    assert (status.code, shown.code) == (0, 0)
    assert "failed: ValueError: " in status.out
    assert len(status.out) < 5000
    assert len(shown.out) < 200_000


@pytest.mark.fault(
    "the file of an own loss raises an error that cannot say what it is, or leaves the program",
    "one line, exit 2",
)
@pytest.mark.parametrize("statement", ["raise GeneratorExit", "raise SystemExit(3)", *list(RAISED)[4:5]])
def test_whatever_a_loss_raises_when_it_is_imported_is_one_line(
    small: Path, harness: Harness, tmp_path: Path, statement: str
) -> None:
    said = harness("run", "--losses", own(tmp_path, at_import=statement), "--dataset", "blobs")
    assert said.code == 2
    assert said.err.count("\n") == 1


@pytest.mark.fault(
    "Ctrl-C while an own loss trains with the local executor",
    "the run ends, as always, and nothing is recorded as a failure",
)
def test_a_real_ctrl_c_ends_the_run(small: Path, harness: Harness, tmp_path: Path) -> None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        loss = own(tmp_path, at_import="import os, signal", in_forward="os.kill(os.getpid(), signal.SIGINT)")
        said = harness("run", "--losses", f"{loss},triplet", "--dataset", "blobs")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert said.code == 130
    assert not list((tmp_path / "results" / "failures").rglob("*.json"))
    assert "triplet" not in {record["trial"]["loss"] for record in records(tmp_path)}


MONKEYPATCH = "torch.nn.functional.normalize = lambda x, *_, **__: x"  # every shipped loss and the evaluation use it


@pytest.mark.chaos_long
@pytest.mark.fault(
    "under Ray, an own loss replaces torch.nn.functional.normalize; other trials follow",
    "each of its trials has a process of its own; the others share workers and have the numbers that they have alone",
)
def test_under_ray_an_own_loss_has_a_process_of_its_own(cluster: "RayCluster", tmp_path: Path) -> None:
    from tests.execution.ray_runs import Record, connected, experiment, jobs_of, same, serially

    shipped = jobs_of(experiment("triplet", "softmax"), tmp_path / "ray")
    hostile = jobs_of(experiment(config.loss(own(tmp_path, in_forward=MONKEYPATCH)), seeds=2), tmp_path / "ray")
    record = Record()
    with connected(cluster, tmp_path / "ray", gpus_per_trial=2.0) as running:  # one trial at a time
        running.execute([hostile[0], shipped[0], hostile[1], shipped[1]], record)
    results = record.results
    assert len(results) == 4
    processes = [results[job.trial.id].provenance["pid"] for job in (*shipped, *hostile)]
    assert processes[0] == processes[1]
    assert len(set(processes)) == 3
    ours = {job.trial.id: results[job.trial.id] for job in shipped}
    assert same(ours, serially(shipped, tmp_path / "serial"))


@pytest.mark.chaos_long
@pytest.mark.fault(
    "under Ray, an own loss raises KeyboardInterrupt, GeneratorExit, or an error that cannot say what it is",
    "recorded at once with its kind, not as the death of a worker after restarts",
)
def test_under_ray_whatever_a_loss_raises_is_the_failure_of_its_trial(cluster: "RayCluster", tmp_path: Path) -> None:
    from tests.execution.ray_runs import Record, connected, experiment, jobs_of

    statements = [*list(RAISED)[:3], list(RAISED)[4]]
    jobs = []
    for number, statement in enumerate(statements):
        folder = tmp_path / str(number)
        folder.mkdir()
        jobs += jobs_of(experiment(config.loss(own(folder, in_forward=statement))), tmp_path / "ray")
    record = Record()
    with connected(cluster, tmp_path / "ray", gpus_per_trial=0.5) as running:
        running.execute(jobs, record)
    assert {failure.error for failure in record.failures} == {RAISED[statement] for statement in statements}
    assert all("in forward" in failure.traceback for failure in record.failures)


# --- losses of one's own ---


@pytest.mark.fault(
    "an own loss in a file whose name a record cannot carry: a space, a bracket, a plus, a colon, 200 letters",
    "one line and exit 2 before anything runs",
)
@pytest.mark.parametrize("stem", ["my loss", "mine (1)", "mine+x", "<b>", "pml:x", "m" * 200])
def test_a_file_name_that_a_record_cannot_carry_is_refused(
    small: Path, harness: Harness, tmp_path: Path, stem: str
) -> None:
    own(tmp_path)
    (tmp_path / "mine.py").rename(tmp_path / f"{stem}.py")
    said = harness("run", "--losses", f"{tmp_path}/{stem}.py:Mine", "--dataset", "blobs")
    assert said.code == 2
    assert f"its results would be named '{stem}.Mine': rename the file" in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.fault(
    "an own loss whose float knob has the default 1, and is searched among whole numbers",
    "1 and 1.0 are one trial, and `show` prints the command of that trial",
)
def test_one_and_1_0_are_one_trial(small: Path, harness: Harness, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from losses.base import Choice, Loss\nclass Mine(Loss):\n    title, cite = 'Mine', 'me'\n"
        "    space = {'margin': Choice(1, 2)}\n"
        "    def __init__(self, num_classes, dim, *, margin: float = 1):\n        super().__init__(num_classes, dim)\n"
        "    def forward(self, embeddings, labels):\n        return embeddings.square().mean()\n"
    )
    words = ("run", "--losses", f"{file}:Mine", "--dataset", "blobs", "--dry-run")
    plan = harness(*words).out
    assert "margin=1.0" in plan
    assert harness(*words, "--set", "mine.Mine.margin=1").out.splitlines()[:-1] == plan.splitlines()[:-1]
    assert "margin=1 " not in harness(*words, "--trials", "4").out


@pytest.mark.fault(
    "an own loss whose knob has a default that no record can hold: NaN, infinity, 400 digits, half a character, bytes, "
    "an object, text for a number",
    "one line and exit 2 before anything runs",
)
@pytest.mark.parametrize(
    ("knob", "complaint"),
    [
        ("m: float = float('nan')", "its default nan must be a number"),
        ("m: float = float('-inf')", "its default -inf must be a number"),
        ("m: float = '3'", "its default '3' must be a number"),
        ("m: int = 10**400", "must be an integer"),
        ("m: int = True", "its default True must be an integer"),
        ("m: str = chr(0xd800)", "must be text"),
        ("m: bytes = b'1'", "its default b'1' must be plain JSON"),
        ("m: object = object()", "must be plain JSON"),
    ],
)
def test_a_default_that_a_record_cannot_hold_is_refused(
    small: Path, harness: Harness, tmp_path: Path, knob: str, complaint: str
) -> None:
    own(tmp_path)
    constructor = f"    def __init__(self, num_classes, dim, *, {knob}):\n        super().__init__(num_classes, dim)\n"
    file = tmp_path / "mine.py"
    file.write_text(file.read_text().replace("    def forward", f"{constructor}\n    def forward"))
    said = harness("run", "--losses", f"{file}:Mine", "--dataset", "blobs")
    assert said.code == 2
    assert "knob m: " in said.err
    assert complaint in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.fault(
    "two own losses of different files with the same title, and one with a shipped loss's title",
    "tables tell them apart by their names",
)
def test_losses_with_the_same_title_are_told_apart(small: Path, harness: Harness, tmp_path: Path) -> None:
    own(tmp_path)
    text = (tmp_path / "mine.py").read_text()
    (tmp_path / "other.py").write_text(text.replace("embeddings.mean(0)", "embeddings.median(0).values"))
    (tmp_path / "third.py").write_text(text.replace('"Mine"', '"Triplet"'))
    files = ",".join(f"{tmp_path}/{stem}.py:Mine" for stem in ("mine", "other", "third"))
    table = harness("run", "--losses", f"{files},triplet", "--dataset", "blobs").out
    labels = [line.split("|")[1].split("[")[0].strip() for line in table.splitlines() if line.startswith("| ")]
    assert set(labels) > {"Mine (mine.Mine)", "Mine (other.Mine)", "Triplet (third.Mine)", "Triplet"}
    assert "| Mine (mine.Mine)" in harness("tables", "--table", "search").out


def with_helper(folder: Path, power: int) -> str:
    """An own loss that imports a module beside it."""
    folder.mkdir(exist_ok=True)
    loss = own(folder, at_import="import helper", in_forward="return helper.spread(embeddings)")
    (folder / "helper.py").write_text(f"def spread(x):\n    return (x - x.mean(0)).abs().pow({power}).mean()\n")
    return loss


@pytest.mark.fault(
    "an own loss imports a module beside its file, which is edited between two runs",
    "it works, the edited one is another trial, and the table tells them apart",
)
def test_an_edited_helper_is_another_trial(small: Path, harness: Harness, tmp_path: Path) -> None:
    words = ("run", "--losses", with_helper(tmp_path / "own", 2), "--dataset", "blobs")
    first = harness(*words)
    assert first.code == 0, first.err
    assert harness(*words).err == ""  # stored
    with_helper(tmp_path / "own", 1)
    second = harness(*words)
    assert "[1/1] mine.Mine-" in second.err
    assert "| Mine (loss_version = " in harness("tables").out
    runs = {record["id"]: record["metrics"] for record in records(tmp_path) if record["trial"]["loss"] == "mine.Mine"}
    assert len(runs) == 2


@pytest.mark.fault(
    "the files of an own loss are edited and lost after its result was stored, here or on another machine",
    "`harness show ID --source DIR` writes them as they were, and the printed command gives the same number",
)
def test_show_writes_the_source_back_and_its_command_reproduces_the_number(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "own"
    harness("run", "--losses", with_helper(folder, 2), "--dataset", "blobs")
    files = {name: (folder / name).read_text() for name in ("mine.py", "helper.py")}
    (id,) = (record["id"] for record in records(tmp_path) if record["trial"]["loss"] == "mine.Mine")
    with_helper(folder, 1)
    monkeypatch.chdir(folder)
    assert f"mine.py is another version: harness show {id} --source DIR writes it." in harness("show", id).out

    there = tmp_path / "there" / "results"
    (there / "runs").mkdir(parents=True)
    assert "imported" in harness("import", str(tmp_path / "results"), "--results", str(there)).out
    said = harness("show", id, "--source", str(tmp_path / "written"), "--results", str(there))
    assert said.code == 0, said.err
    assert {file.name: file.read_text() for file in (tmp_path / "written").iterdir()} == files
    command = said.out.split("Reproduce with:\n")[1].splitlines()[0]
    assert "another version" not in said.out
    again = harness(*shlex.split(command)[1:], "--results", str(tmp_path / "again" / "results"))
    assert again.code == 0, again.err
    assert numbers(tmp_path / "again")[id] == numbers(tmp_path)[id]

    (tmp_path / "written" / "helper.py").write_text("# mine\n")
    refused = harness("show", id, "--source", str(tmp_path / "written"))
    assert refused.code == 2
    assert "helper.py is another version; name another folder" in refused.err
    (shipped,) = (record["id"] for record in records(tmp_path) if record["trial"]["backbone"] == "pixels")
    assert "no source is stored with" in harness("show", shipped, "--source", str(tmp_path / "written")).err


@pytest.mark.fault(
    "results of an own loss share a stored helper; one is removed, then the other; a stored text is damaged",
    "a text stays while a result has it, and goes with the last; a damaged one is not written, and a rerun mends it",
)
def test_stored_sources_go_with_the_last_result_that_has_them(small: Path, harness: Harness, tmp_path: Path) -> None:
    words = ("run", "--losses", with_helper(tmp_path / "own", 2), "--dataset", "blobs", "--seeds", "2")
    harness(*words)
    stored = tmp_path / "results" / "sources"
    assert len(list(stored.iterdir())) == 2
    first, second = (record["id"] for record in records(tmp_path) if record["trial"]["loss"] == "mine.Mine")
    for file in stored.iterdir():
        file.write_text("# flipped\n")
    said = harness("show", first, "--source", str(tmp_path / "written"))
    assert said.code == 2
    assert "is not stored in" in said.err
    assert not (tmp_path / "written").exists()
    harness(*words, "--rerun")
    assert harness("show", first, "--source", str(tmp_path / "written")).code == 0
    harness("rm", first)
    assert len(list(stored.iterdir())) == 2
    foreign = tmp_path / "results" / "runs" / "blobs" / "mine.Mine" / "0123456789ab.json"
    foreign.write_text("{")  # it may be a result of this loss
    harness("rm", second)
    assert len(list(stored.iterdir())) == 2
    foreign.unlink()
    harness(*words)
    harness("rm", first, second)
    assert not list(stored.iterdir())


@pytest.mark.fault(
    "a record whose sources have paths outside of a folder, or checksums that are none",
    "the record is no record: named and skipped, and nothing is written",
)
@pytest.mark.parametrize("path", ["../mine.py", "/tmp/mine.py", "a/../../mine.py", "mine.txt", "mine.py\n"])
def test_a_record_cannot_name_a_source_outside_of_its_folder(
    small: Path, harness: Harness, tmp_path: Path, path: str
) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    file = next((tmp_path / "results" / "runs").rglob("*.json"))
    record = json.loads(file.read_text())
    record["provenance"]["sources"] = {path: "0" * 64}
    file.write_text(json.dumps(record))
    said = harness("show", file.stem, "--source", str(tmp_path / "written"))
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert not (tmp_path / "written").exists()


@pytest.mark.slow
@pytest.mark.fault(
    "an own loss with a helper under Ray; its folder is gone before a worker starts",
    "workers have the texts from the driver: the same number as in one process",
)
def test_under_ray_a_worker_needs_no_file_of_an_own_loss(cluster: "RayCluster", tmp_path: Path) -> None:
    from tests.execution.ray_runs import Record, connected, experiment, jobs_of, same, serially

    jobs = jobs_of(experiment(config.loss(with_helper(tmp_path / "own", 2))), tmp_path / "ray")
    expected = serially(jobs, tmp_path / "serial")
    shutil.rmtree(tmp_path / "own")
    record = Record()
    with connected(cluster, tmp_path / "ray") as running:
        running.execute(jobs, record)
    assert len(record.results) == 1
    assert same(record.results, expected)
