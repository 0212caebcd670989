"""The commands as a user types them: the whole path, and every mistake in one line."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.data import loading
from harness.training import trial as train
from tests.conftest import Harness, heed_ctrl_c

QUICK = ("run", "--losses", "group,triplet", "--dataset", "blobs")


def stored(results: Path) -> list[Path]:
    return sorted(results.glob("runs/*/*/*.json"))


def test_run_then_tables_then_nothing_is_missing(small: Path, harness: Harness, tmp_path: Path) -> None:
    first = harness(*QUICK)
    assert first.code == 0
    for words in (
        "### Blobs · losses · tiny · test\\_efficientnet",
        "| Raw pixels",
        "| Untrained network",
        "| Group Loss",
    ):
        assert words.replace("\\", "") in first.out.replace("\\", "")
    assert "epoch 1/1  loss" in first.err
    assert "[4/4]" in first.err
    files = {file: file.read_bytes() for file in stored(tmp_path / "results")}
    assert len(files) == 4

    second = harness(*QUICK)
    assert (second.code, second.out, second.err) == (0, first.out, "")
    assert harness("tables").out == first.out
    assert {file: file.read_bytes() for file in stored(tmp_path / "results")} == files


def test_more_seeds_run_only_the_new_ones(small: Path, harness: Harness) -> None:
    harness(*QUICK, "--losses", "triplet")
    again = harness(*QUICK, "--losses", "triplet", "--seeds", "2")
    assert "[2/2]" in again.err  # the second seed of the loss and of the untrained, random network
    assert "±" in again.out
    assert "2 seeds" in again.out


def test_search_chooses_on_validation_classes_and_reports_on_test_classes(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    said = harness("run", "--losses", "triplet", "--dataset", "blobs", "--trials", "3")
    assert said.code == 0
    records = [json.loads(file.read_text()) for file in stored(tmp_path / "results")]
    searched = [r for r in records if r["trial"]["fold"] == "val0"]
    (final,) = [r for r in records if r["trial"]["fold"] == "test" and r["trial"]["loss"] == "triplet"]
    best = max(searched, key=lambda r: (r["metrics"]["R@1"], [-ord(c) for c in r["id"]]))
    assert len(searched) == 3
    assert final["trial"]["knobs"] == best["trial"]["knobs"]
    assert final["trial"]["lr"] == best["trial"]["lr"]
    assert harness("run", "--losses", "triplet", "--dataset", "blobs", "--trials", "3").err == ""


def test_rerun_replaces_and_rm_removes(small: Path, harness: Harness, tmp_path: Path) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    file = stored(tmp_path / "results")[0]
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "parameters": 12345}))
    assert harness("run", "--losses", "none", "--dataset", "blobs").err == ""
    assert json.loads(file.read_text())["parameters"] == 12345
    assert "[2/2]" in harness("run", "--losses", "none", "--dataset", "blobs", "--rerun").err
    assert json.loads(file.read_text())["parameters"] == record["parameters"]
    assert harness("rm", file.stem[:8]).code == 0
    assert not file.exists()
    assert "[1/1]" in harness("run", "--losses", "none", "--dataset", "blobs").err


@pytest.mark.parametrize("fold", ["test", "val0"])
def test_show_prints_the_record_and_a_command_that_makes_it_again(
    small: Path, harness: Harness, tmp_path: Path, fold: str
) -> None:
    changed = ("lr=0.002", "seed=3", "group.anchors=1", "drops=3,5", "dim=none")
    harness(*QUICK, *(f"--set={one}" for one in changed))
    harness(*QUICK, "--set", f"fold={fold}", "--set", "epochs=2")
    ids = [file.stem for file in stored(tmp_path / "results")]
    assert len(ids) >= 7
    for one in ids:
        said = harness("show", one)
        text, _, command = said.out.partition("\n\nReproduce with:\n  ")
        assert json.loads(text)["id"] == one
        program, *arguments = shlex.split(command)
        assert program == "harness"
        plan = harness(*arguments, "--dry-run", "--results", str(tmp_path / "elsewhere"))
        assert one in plan.out, command


def test_import_merges_another_store(small: Path, harness: Harness, tmp_path: Path) -> None:
    other = tmp_path / "other"
    harness("run", "--losses", "triplet", "--dataset", "blobs", "--results", str(other))
    harness("run", "--losses", "none", "--dataset", "blobs")
    assert harness("import", str(other)).out == "1 imported, 2 already here\n"
    assert harness("run", "--losses", "triplet", "--dataset", "blobs").err == ""
    stored(other)[0].write_text("{")
    said = harness("import", str(other))
    assert said.code == 1
    assert str(stored(other)[0]) in said.err


def test_dry_run_prints_the_plan_and_runs_nothing(small: Path, harness: Harness, tmp_path: Path) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    said = harness(*QUICK, "--trials", "2", "--seeds", "2", "--dry-run")
    assert said.code == 0
    assert said.out.count("-blobs-val0-") == 4
    assert said.out.count("stored") == 2
    assert "then 4 final runs with the values of the best R@1" in said.out
    assert "9 to run: about 0:0" in said.out  # 4 of the search, the untrained network's second seed, 4 final
    assert "MB of disk" in said.out
    assert len(stored(tmp_path / "results")) == 2


def test_tables_in_every_format_and_to_files(small: Path, harness: Harness, tmp_path: Path) -> None:
    harness(*QUICK)
    assert r"\toprule" in harness("tables", "--format", "latex").out
    assert harness("tables", "--format", "csv").out.startswith("source,id,title")
    assert "MAP@R" in harness("tables", "--metrics", "MAP@R,R@1").out
    for form, ending in (("markdown", "md"), ("latex", "tex"), ("csv", "csv"), ("json", "json"), ("html", "html")):
        said = harness("tables", "--format", form, "--out", str(tmp_path / "out"))
        written = Path(said.out.splitlines()[0])
        assert written.suffix == f".{ending}"
        assert written.read_text() == harness("tables", "--format", form).out
    assert (tmp_path / "out" / "references.bib").exists()
    alone = harness("tables", "--format", "latex", "--standalone").out
    assert alone.startswith(r"\documentclass")


def test_all_tables_are_those_that_have_something_to_show(small: Path, harness: Harness) -> None:
    harness(*QUICK)
    titles = [line for line in harness("tables", "--table", "all").out.splitlines() if line.startswith("###")]
    assert [title.split(" · ")[1] for title in titles] == ["losses", "backbones", "search"]
    assert "Params" in harness("tables", "--table", "backbones").out
    assert "--published" in harness("tables", "--help").out
    assert (
        harness("tables", "--published", "none").out == harness("tables", "--published", "rows").out
    )  # none for blobs


@pytest.mark.parametrize("kind", ["losses", "datasets", "protocols", "runs"])
def test_ls_lists(small: Path, harness: Harness, kind: str) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    said = harness("ls", kind)
    assert said.code == 0
    assert {"losses": "proxy_nca", "datasets": "blobs", "protocols": "tiny", "runs": "pixels"}[kind] in said.out


def test_version_and_python_m(harness: Harness) -> None:
    assert harness("--version").out == "harness 0.1.0\n"
    run = subprocess.run([sys.executable, "-m", "harness", "--version"], capture_output=True, text=True)
    assert run.stdout == "harness 0.1.0\n"


@pytest.mark.parametrize(
    "command",
    [
        *(
            (),
            ("run",),
            ("tables",),
            ("ls",),
            ("show",),
            ("rm",),
            ("import",),
            ("status",),
            ("embed",),
            ("eval",),
            ("check-loss",),
        ),
        *(("data",), ("data", "check"), ("data", "download"), ("data", "cache"), ("data", "cache", "ls")),
        ("data", "cache", "rm"),
    ],
)
def test_every_command_has_help_with_an_example(harness: Harness, command: tuple[str, ...]) -> None:
    said = harness(*command, "--help")
    assert said.code == 0
    assert f"Example: harness {' '.join(command)}" in said.out


def test_losses_accept_a_dash(small: Path, harness: Harness) -> None:
    said = harness(
        *("run", "--losses", "proxy-nca,proxy_nca", "--dataset", "blobs", "--dry-run", "--set", "proxy-nca.scale=2")
    )
    assert said.out.count("proxy_nca-blobs-test-") == 1
    assert "scale=2.0" in said.out


# --- mistakes: one line, exit 2, no traceback ---

MISTAKES = [
    ("run --dataset blobs --losses grup", "no loss named 'grup'; did you mean 'group'?"),
    ("run --dataset blobs --losses ,", "--losses: name at least one"),
    ("run --dataset blobs --losses group,none", "no loss named 'none'"),
    ("run --dataset blob", "no dataset named 'blob'; did you mean 'blobs'?"),
    ("run --dataset blobs --protocol tinny", "no protocol named 'tinny'; did you mean 'tiny'?"),
    ("run --dataset blobs --trials -1", "--trials -1: allowed is a whole number of at least 0"),
    ("run --dataset blobs --trials many", "--trials"),
    ("run --dataset blobs --seeds 0", "--seeds 0: allowed is a whole number of at least 1"),
    ("run --dataset blobs --set epochs=abc", "epochs=abc: must be an integer >= 0"),
    ("run --dataset blobs --set epochs", "write FIELD=VALUE"),
    ("run --dataset blobs --set epoch=3", "no setting named 'epoch'; did you mean 'epochs'?"),
    ("run --dataset blobs --set group.anchor=3", "no knob of group named 'anchor'; did you mean 'anchors'?"),
    ("run --dataset blobs --set group.anchors=x", "group.anchors=x: must be an integer >= 0"),
    (
        "run --dataset blobs --set group.similarity=dot",
        "group.similarity=dot: must be one of pearson, cosine",
    ),
    ("run --dataset blobs --losses triplet --set group.anchors=1", "no loss in this run (--set group.anchors=1)"),
    ("run --dataset blobs --set fold=val9", "fold=val9: must be one of val0, val1"),
    ("run --dataset blobs --set fold=val0 --trials 2", "exclude each other"),
    ("run --dataset blobs --set backbone=resnet19", "no backbone named 'resnet19'; did you mean resnet18"),
    ("run --dataset blobs --set backbone=resnet18 --weights package", "no package carries weights of 'resnet18'"),
    ("run --dataset blobs --set weights=package", "weights have an option of their own, --weights"),
    ("run --dataset blobs --weights nowhere.pth", "--weights nowhere.pth: no such file; allowed is hub, package, none"),
    ("run --dataset blobs --set schedule=reloads", "it needs checkpoint=best-test"),
    ("run --dataset blobs --set backbone=pixels", "backbone=pixels: has nothing to train"),
    ("data", "name a command: check, download, cache. See: harness data --help"),
    ("run --dataset blobs --set crop_scale=2", "crop_scale=2: must be a share of the image's area, at most 1"),
    ("run --dataset blobs --set augment=drawings --set aspect=kept", "augment=drawings: needs square images"),
    ("run --losess group", "no option named '--losess'; did you mean '--losses'?"),
    ("run emoji", "unexpected extra argument"),
    ("rnu", "no command named 'rnu'; did you mean 'run'?"),
    ("tables", "no final results in"),
    ("tables --format xml", "--format"),
    ("tables --standalone", "--standalone: allowed with --format latex, not with markdown"),
    ("tables --table search", "no results of losses"),
    ("tables --table search --metrics R@1", "--metrics: allowed with --table losses or ensembles, not with search"),
    ("tables --table search --format csv", "--format csv is the long table"),
    ("tables --table ensembles", "harness run --seeds 2 --ensemble 2"),
    ("ls los", "is not one of 'losses'"),
    ("ls", "Missing argument"),
    ("show 123abc", "no result in"),
    ("rm 123abc", "no result in"),
    ("import nowhere", "nowhere is not a results folder"),
    ("run --dataset blobs --ensemble 2", "--ensemble 2: allowed are whole numbers from 2 to --seeds, which is 1"),
    ("run --dataset blobs --ensemble x --seeds 3", "--ensemble x: allowed are whole numbers"),
    ("run --dataset blobs --cpus-per-trial 0", "--cpus-per-trial 0: allowed is a number of at least 1"),
    ("run --dataset blobs --gpus-per-trial -1", "--gpus-per-trial -1: allowed is a number of at least 0"),
    ("run --dataset blobs --max-failures -1", "--max-failures -1: allowed is a number of at least 0"),
    ("run --dataset blobs --set crop=64", "crop=64: must be at most resize=32; set both"),
    ("run --dataset blobs --set group.temperature=0", "group.temperature=0: must be a number > 0"),
    ("run --dataset blobs --set group.steps=-3", "group.steps=-3: must be an integer >= 0"),
    ("run --dataset blobs --ensemble 2 --seeds 2 --set fold=val0", "--ensemble joins final runs on test classes"),
    ("run --dataset blobs --grid epochs", "--grid epochs: write FIELD=VALUE or LOSS.KNOB=VALUE"),
    ("run --dataset blobs --grid epochs=1,x", "epochs=x: must be an integer >= 0"),
    ("run --dataset blobs --grid epochs=1,", "epochs=: must be an integer >= 0"),
    ("run --dataset blobs --grid epoch=1,2", "no setting named 'epoch'; did you mean 'epochs'?"),
    ("run --dataset blobs --grid group.steps=1,-3", "group.steps=-3: must be an integer >= 0"),
    ("run --dataset blobs --losses triplet --grid group.steps=1,2", "no loss in this run (--grid group.steps=1,2)"),
    ("run --dataset blobs --losses none --grid epochs=1,2", "--grid: name a loss"),
    ("run --dataset blobs --grid fold=val0,val1", "a grid varies neither fold nor seed; --set fold=..., --seeds N"),
    ("run --dataset blobs --grid seed=0,1", "a grid varies neither fold nor seed"),
    ("run --dataset blobs --grid drops=30,50", "commas separate values, and drops is itself a list; --set it"),
    ("run --dataset blobs --grid weights=none,package", "weights have an option of their own, --weights"),
    ("run --dataset blobs --grid backbone=resnet18,resnet34 --weights hub", "--weights hub fits one of them"),
    ("run --dataset blobs --grid backbone=resnet18,resnet19", "no backbone named 'resnet19'"),
    ("run --dataset blobs --grid crop=16,64", "crop=64: must be at most resize=32"),
    (
        "run --dataset blobs --grid epochs=1,2 --set epochs=1",
        "--set epochs=... and --grid epochs=... exclude each other",
    ),
    ("run --dataset blobs --grid group.steps=1 --set group.steps=2", "--grid group.steps=... exclude each other"),
    ("run --dataset blobs --grid epochs=1,2 --trials 2", "--grid and --trials exclude each other"),
    ("run --dataset blobs --grid epochs=1,2 --ensemble 2 --seeds 2", "--grid and --ensemble exclude each other"),
    ("run --dataset blobs --grid epochs=1,2 --curves", "--grid and --curves exclude each other"),
    ("run --dataset blobs --grid epochs=1,2 --scheduler asha", "--grid and --scheduler asha exclude each other"),
    ("run --dataset blobs --curves --set fold=val0", "--curves watches final runs on test classes"),
    ("run --dataset blobs --executor ray --address http://127.0.0.1:8265", "no Ray cluster at http://127.0.0.1:8265"),
    ("run --dataset blobs --storage /dev/null/x", "cannot write to --storage /dev/null/x"),
    ("run --dataset blobs --scheduler asha --executor local", "--scheduler asha needs --executor ray"),
    ("run --dataset blobs --executor slurm", "--executor"),
    ("run --dataset blobs --executor ray --address 127.0.0.1:1", "no Ray cluster at 127.0.0.1:1"),
    ("run --dataset blobs --storage nosuch://x", "--storage nosuch://x"),
    ("embed 123abc x.png", "no result in"),
]


@pytest.mark.parametrize(("line", "complaint"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_line_that_says_what_is_allowed(
    small: Path, harness: Harness, tmp_path: Path, line: str, complaint: str
) -> None:
    said = harness(*line.split())
    assert said.code == 2
    assert said.out == ""
    assert complaint in said.err
    assert said.err.startswith("harness: ")
    assert said.err.count("\n") == 1
    assert not stored(tmp_path / "results")


def test_a_damaged_dataset_file_is_told_before_anything_runs(small: Path, harness: Harness) -> None:
    file = loading.EMBEDDED / "blobs.npz"
    file.write_bytes(b"x" + file.read_bytes())
    said = harness(*QUICK)
    assert said.code == 2
    assert "sha256" in said.err
    assert said.err.count("\n") == 1


def test_a_results_folder_that_cannot_be_written_is_told_before_anything_runs(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    said = harness(*QUICK, "--results", str(tmp_path / "file"))
    assert said.code == 2
    assert f"cannot write results to {tmp_path / 'file'}" in said.err
    said = harness("tables", "--out", str(tmp_path / "file"))
    assert said.code == 2


def test_a_broken_record_is_named_skipped_and_in_the_exit_code(small: Path, harness: Harness, tmp_path: Path) -> None:
    whole = harness(*QUICK)
    foreign = tmp_path / "results" / "runs" / "blobs" / "triplet" / "foreign.json"
    foreign.write_text('{"cut": ')
    for command in (("tables",), QUICK):
        said = harness(*command)
        assert said.code == 1
        assert said.out == whole.out
        assert str(foreign) in said.err
        assert "skipped" in said.err


def test_a_failed_trial_does_not_stop_the_others_and_is_tried_again(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = train.set_up

    def poisoned(job, *more):  # type: ignore[no-untyped-def]
        bench, loss = real(job, *more)
        if job.trial.loss == "group":
            loss.classifier.weight.data[0, 0] = float("nan")
        return bench, loss

    monkeypatch.setattr(train, "set_up", poisoned)
    said = harness(*QUICK)
    assert said.code == 1
    assert "loss is nan at epoch 1, step 1" in said.err
    assert "1 failed; the same command tries them again" in said.err
    assert "| Triplet" in said.out
    assert "| Group Loss" not in said.out
    (failure,) = (tmp_path / "results" / "failures").rglob("*.json")
    assert str(failure) in said.err
    assert "Traceback" in json.loads(failure.read_text())["traceback"]

    monkeypatch.setattr(train, "set_up", real)
    again = harness(*QUICK)
    assert again.code == 0
    assert "[1/1] group-" in again.err
    assert not list((tmp_path / "results" / "failures").rglob("*.json"))


@pytest.mark.parametrize(("keep", "kept"), [("best", 1), ("all", 3), ("none", 0)])
def test_keep_weights_says_which_stay(small: Path, harness: Harness, tmp_path: Path, keep: str, kept: int) -> None:
    said = harness("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "3", "--keep-weights", keep)
    assert said.code == 0
    weights = list((tmp_path / "results" / "artifacts").glob("weights/*.safetensors"))
    assert len(weights) == kept
    if keep == "best":
        records = [json.loads(file.read_text()) for file in stored(tmp_path / "results")]
        final = {r["id"]: r["curve"][-1]["loss"] for r in records if r["trial"]["loss"] == "triplet"}
        assert weights[0].stem == min(final, key=lambda id: final[id])


def test_curves_are_drawn_of_final_runs_alone_and_of_stored_ones_that_lack_them(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    words = ("run", "--losses", "triplet", "--dataset", "blobs", "--trials", "2", "--seeds", "2", "--set", "epochs=2")

    def final() -> dict[str, dict]:
        records = [json.loads(file.read_text()) for file in stored(tmp_path / "results")]
        assert not any("R@1" in row for one in records if one["trial"]["fold"] != "test" for row in one["curve"])
        return {one["id"]: one for one in records if one["trial"]["fold"] == "test" and one["trial"]["loss"] != "none"}

    first, plain = harness(*words, "--ensemble", "2"), final()
    assert "2 to run" in harness(*words, "--dry-run", "--curves").out
    said = harness(*words, "--ensemble", "2", "--curves")
    assert said.code == 0
    assert "[1/2] triplet-blobs-test-" in said.err  # no baseline, no search trial
    assert "[2/2] triplet-blobs-test-" in said.err
    tables = [text.split("Budget")[0] for text in (said.out, first.out)]  # how long it took differs
    assert tables[0] == tables[1]  # to the bit the same networks
    drawn = final()
    assert set(drawn) == set(plain)
    for id, one in drawn.items():
        assert one["metrics"] == plain[id]["metrics"]
        assert all({"R@1", "train R@1"} <= set(row) for row in one["curve"])
        assert len(one["curve"]) == (0 if one["ensemble"] else 2)
    for again in ((*words, "--curves"), words):
        assert harness(*again).err == ""
    assert final() == drawn
    assert "0 to run" in harness(*words, "--dry-run", "--curves").out
    single = next(id for id, one in drawn.items() if not one["ensemble"])
    assert "--curves" in harness("show", single).out.splitlines()[-1]


def test_ensembles_stand_below_their_loss_and_are_stored(small: Path, harness: Harness, tmp_path: Path) -> None:
    words = ("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "3", "--ensemble", "2,3")
    said = harness(*words)
    assert "| Triplet, 2-ensemble |" in said.out
    assert "| Triplet, 3-ensemble |" in said.out
    assert harness(*words).out == said.out
    # a fourth seed makes new ensembles; the table shows those drawn from the most networks
    more = harness("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "4", "--ensemble", "2")
    assert more.out.count("2-ensemble") == 1
    assert harness("tables", "--table", "ensembles").out.count("2-ensemble") == 1


def test_a_users_own_loss_is_named_by_its_file_and_class_and_its_text(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    text = (
        "from losses.base import Loss\n\n\nclass Mine(Loss):\n    title, cite = 'Mine', 'me'\n\n"
        "    def __init__(self, num_classes, dim, *, factor: float = 1.0):\n"
        "        super().__init__(num_classes, dim)\n        self.factor = factor\n\n"
        "    def forward(self, embeddings, labels):\n        return self.factor * embeddings.square().mean()\n"
    )
    file.write_text(text)
    words = ("run", "--losses", f"{file}:Mine", "--dataset", "blobs", "--set", "mine.Mine.factor=2")
    assert "| Mine " in harness(*words).out
    assert harness(*words).err == ""
    file.write_text(text + "# edited\n")
    assert "[1/1] mine.Mine-" in harness(*words).err
    for losses, complaint in (
        (f"{file}:Other", "defines no loss named 'Other'; it has: Mine"),
        (f"{tmp_path}/no.py:Mine", "cannot read"),
    ):
        said = harness("run", "--losses", losses, "--dataset", "blobs")
        assert said.code == 2
        assert complaint in said.err
        assert said.err.count("\n") == 1
    file.write_text("def :")
    said = harness(*words)
    assert said.code == 2
    assert "SyntaxError" in said.err


def test_a_users_file_may_be_called_like_anything_and_has_to_say_what_it_is(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    head = "from losses.base import Loss\nclass A(Loss):\n"
    tail = "    def forward(self, embeddings, labels):\n        return embeddings.square().mean()\n"
    (tmp_path / "losses.py").write_text(head + "    title, cite = 'A', 'me'\n" + tail)
    said = harness("run", "--losses", f"{tmp_path}/losses.py:A,softmax", "--dataset", "blobs", "--dry-run")
    assert said.code == 0, said.err
    assert "losses.A-blobs-test-" in said.out
    (tmp_path / "untitled.py").write_text(head + tail)
    knob = "    def __init__(self, num_classes, dim, *, knob=1):\n        super().__init__(num_classes, dim)\n"
    (tmp_path / "untyped.py").write_text(head + "    title, cite = 'A', 'me'\n" + knob + tail)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "losses.py").write_text(head + "    title, cite = 'B', 'me'\n" + tail)
    for losses, complaint in (
        (f"{tmp_path}/untitled.py:A", "A has no title"),
        (f"{tmp_path}/untyped.py:A", "knob knob of A needs a type: knob: float = 1.0"),
        (f"{tmp_path}/losses.py:A,{tmp_path}/other/losses.py:A", "two different files give a loss named losses.A"),
    ):
        said = harness("run", "--losses", losses, "--dataset", "blobs")
        assert said.code == 2
        assert complaint in said.err
        assert said.err.count("\n") == 1


def test_removing_or_replacing_a_member_removes_its_ensembles(small: Path, harness: Harness, tmp_path: Path) -> None:
    words = ("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "2")
    harness(*words, "--ensemble", "2")
    assert "2-ensemble" in harness("tables", "--table", "all").out
    assert "ensemble" in harness("tables", "--format", "csv").out.splitlines()[0]
    records = [json.loads(file.read_text()) for file in stored(tmp_path / "results")]
    member = next(r["id"] for r in records if r["trial"]["loss"] == "triplet" and not r["ensemble"])
    harness("rm", member)
    assert "2-ensemble" not in harness("tables", "--table", "all").out
    harness(*words, "--ensemble", "2")
    harness(*words, "--rerun")
    assert "2-ensemble" not in harness("tables", "--table", "all").out


def test_weights_that_were_kept_on_purpose_stay(small: Path, harness: Harness, tmp_path: Path) -> None:
    words = ("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "3")
    harness(*words, "--keep-weights", "all")
    harness(*words, "--ensemble", "2")
    assert len(list((tmp_path / "results" / "artifacts").glob("weights/*.safetensors"))) == 3


def test_a_search_that_draws_the_same_values_twice_still_chooses(small: Path, harness: Harness) -> None:
    said = harness("run", "--losses", "softmax", "--dataset", "blobs", "--trials", "3", "--set", "lr=1e-3")
    assert said.code == 0
    assert said.err.count("-val0-") == 2  # an epoch's line and the end's: one trial, not three
    assert "| Softmax" in said.out


def test_a_run_on_a_validation_fold_says_where_its_results_are(small: Path, harness: Harness) -> None:
    said = harness("run", "--losses", "triplet", "--dataset", "blobs", "--set", "fold=val0")
    assert (said.code, said.out) == (0, "")
    assert "harness ls runs" in said.err


def test_what_a_record_says_of_its_command_is_the_users(small: Path, harness: Harness, tmp_path: Path) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    (record, *_) = [json.loads(file.read_text()) for file in stored(tmp_path / "results")]
    assert record["provenance"]["command"].startswith("harness run --losses none --dataset blobs")


def test_status_counts_and_names_failures_with_their_logs(harness: Harness, tmp_path: Path) -> None:
    from harness.spec import Failure
    from harness.storage import Storage
    from harness.store import Store
    from tests.factories import a_result, a_trial

    where = Store(tmp_path / "results")
    where.put(a_result())
    where.note(Failure(a_trial(seed=1), "RuntimeError: x", "Traceback", "/tmp/ray/worker.err"))
    storage = Storage(str(where.artifacts))
    dead = subprocess.Popen(["true"])
    dead.wait()
    sign = {"node": os.uname().nodename, "log": "/tmp/ray/other.err", "time": time.time(), "progress": None}
    storage.write_json("running/a.json", {**sign, "name": "group-emoji-val0-a", "pid": os.getpid()})
    storage.write_json("running/b.json", {**sign, "name": "group-emoji-val0-b", "pid": dead.pid})
    trials = [a_trial().name, a_trial(seed=1).name, "group-emoji-val0-a", "group-emoji-val0-c"]
    storage.write_json("plans/p.json", {"node": sign["node"], "pid": os.getpid(), "started": 0, "trials": trials})
    said = harness("status")
    assert said.code == 0
    first, *rest = said.out.splitlines()
    assert first.startswith("1 done, 1 running, 1 waiting, 1 failed, 1 lost, about ")
    assert f"  {a_trial(seed=1).name}  failed: RuntimeError: x" in rest
    assert "    /tmp/ray/worker.err" in rest
    assert any("group-emoji-val0-a  starting on" in line for line in rest)
    assert any("group-emoji-val0-b  no sign of life" in line and "/tmp/ray/other.err" in line for line in rest)


def test_light_commands_import_neither_torch_nor_ray_nor_scipy(small: Path, harness: Harness, tmp_path: Path) -> None:
    harness("run", "--losses", "none", "--dataset", "blobs")
    code = (
        "import sys; sys.argv = ['harness', *{arguments}]\n"
        "from harness.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {{'torch', 'ray', 'timm', 'scipy', 'sklearn', 'matplotlib'}} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    helps = (["--help"], ["run", "--help"], ["figures", "--help"], ["report", "--help"])
    for arguments in (*helps, ["tables"], ["ls", "runs"], ["ls", "datasets"]):
        environment = {**os.environ, "HARNESS_RESULTS": str(tmp_path / "results")}
        subprocess.run([sys.executable, "-c", code.format(arguments=arguments)], check=True, env=environment)


@pytest.mark.slow
def test_ctrl_c_keeps_what_finished_and_the_same_command_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness", "run", "--losses", "triplet", "--results", str(tmp_path)]
    command += ["--executor", "local", "--weights", "none"]
    for setting in ("backbone=test_efficientnet", "resize=32", "crop=32", "epochs=200"):
        command += ["--set", setting]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    running = subprocess.Popen(command, **pipes, text=True, env=environment, preexec_fn=heed_ctrl_c)
    assert running.stderr is not None
    deadline = time.monotonic() + 240
    lines = []
    while time.monotonic() < deadline:
        lines.append(running.stderr.readline())
        if "epoch 2/200" in lines[-1]:
            break
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130, "".join(lines) + err
    assert "interrupted; what finished is stored" in err
    assert "Traceback" not in err
    assert out == ""
    assert len(stored(tmp_path)) == 2  # the baselines
    again = [part.replace("epochs=200", "epochs=1") for part in command]
    finished = subprocess.run(again, capture_output=True, text=True, env=environment)
    assert finished.returncode == 0
    assert "[1/1] triplet-" in finished.stderr
