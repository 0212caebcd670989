"""A user's mistakes: each is one line that says what is allowed, exit code 2, no traceback."""

import re
from pathlib import Path

import pytest

from harness.request import loss_names
from tests.cli.records import stored
from tests.conftest import Harness

LONG = "x" * 300  # letters: no file system has such a name
WITH_A_PATH = (
    "run --dataset blobs --results {}",
    "run --dataset blobs --weights {}",
    "run --dataset blobs --losses ./{}.py:Mine",
    "tables --results {}",
    "status --results {}",
    "rm 123abc --results {}",
    "import {}",
    "embed 123abc {}",
)
MISTAKES = [
    ("run --dataset blobs --losses grup", "no loss named 'grup'; did you mean 'group'?"),
    ("run --dataset blobs --losses all,group", "--losses all,group: all stands alone"),
    (
        "run --dataset blobs --losses Multi-Similarty",
        "no loss named 'Multi-Similarty'; did you mean 'multi_similarity'?",
    ),
    ("run --dataset blobs --losses foo", "no loss named 'foo'; see: harness ls losses"),
    (
        "run --dataset blobs --losses ./nowhere.py:Mine",
        "no such file; to write one: harness init-loss ./nowhere.py",
    ),
    ("check-loss ./nowhere.py:Mine", "harness: ./nowhere.py:Mine: "),
    ("run --dataset blobs --losses pml:TripletMarginLos", "did you mean 'TripletMarginLoss'"),
    ("check-loss pml:Nope", "no loss in pytorch-metric-learning named 'Nope'; see: https://"),
    ("run --dataset BLOBS", "no dataset named 'BLOBS'; did you mean 'blobs'?"),
    (
        "run --dataset blobs --set learning_rate=1",
        "no setting named 'learning_rate'; did you mean 'lr' or 'pretrain_lr'?",
    ),
    ("run --dataset blobs --set anchors=1", "no setting named 'anchors'; did you mean 'group.anchors'?"),
    ("run --dataset blobs --set foo=1", "no setting named 'foo'; see: harness ls settings"),
    ("run --dataset blobs --cpus-per-trial 4000 --executor ray", "--cpus-per-trial 4000: this machine has"),
    ("run --dataset blobs --gpus-per-trial 4000 --executor ray", "--gpus-per-trial 4000: this machine has"),
    (
        "run --dataset blobs --losses deep_spectral --set dim=64",
        "needs fewer embedding dimensions (64) than images in a batch (12); --set dim=11",
    ),
    ("run --dataset blobs --losses deep_spectral --set dim=none", "needs fewer embedding dimensions"),
    ("run --dataset blobs --losses triplet --set dim=100000000", "dim=100000000: training takes"),
    ("run --dataset blobs --losses group --grid group.anchors", "--grid group.anchors: write SETTING=V1,V2,..."),
    ("data download ./tests", "./tests: is your own data; only shipped datasets can be downloaded"),
    ("tables --out table.tex", "--out table.tex: is a file; must be a folder, e.g. --out table"),
    ("figures --out figure.png", "--out figure.png: is a file; must be a folder, e.g. --out figure"),
    ("show group --source copies", "--source copies: needs the id of a stored result of a loss of your own, not group"),
    ("embed 123abc nowhere.png", "nowhere.png: no such file"),
    ("run --dataset blobs --losses ,", "--losses: name at least one"),
    ("run --dataset blobs --losses group,none", "--losses group,none: none stands alone"),
    ("run --dataset blob", "no dataset named 'blob'; did you mean 'blobs'?"),
    ("run --dataset blobs --protocol tinny", "no protocol named 'tinny'; did you mean 'tiny'?"),
    ("run --dataset blobs --trials -1", "--trials -1: must be an integer >= 0"),
    ("run --dataset blobs --trials many", "--trials many: must be an integer"),
    ("run --dataset blobs --cpus-per-trial x", "--cpus-per-trial x: must be a number"),
    ("run --dataset blobs --gpus-per-trial x", "--gpus-per-trial x: must be a number"),
    ("run --dataset blobs --seeds 0", "--seeds 0: must be an integer >= 1"),
    ("run --dataset blobs --set epochs=abc", "epochs=abc: must be an integer >= 0"),
    ("run --dataset blobs --set epochs", "--set epochs: write SETTING=VALUE or LOSS.KNOB=VALUE"),
    ("run --dataset blobs --set epoch=3", "no setting named 'epoch'; did you mean 'epochs'?"),
    ("run --dataset blobs --set group.anchor=3", "no knob of group named 'anchor'; did you mean 'anchors'?"),
    ("run --dataset blobs --set group.anchors=x", "group.anchors=x: must be an integer >= 0"),
    (
        "run --dataset blobs --set group.similarity=dot",
        "group.similarity=dot: must be one of pearson, cosine",
    ),
    (
        "run --dataset blobs --losses triplet --set group.anchors=1",
        "anchors=1: no loss in this run named",
    ),
    ("run --dataset blobs --set fold=val9", "fold=val9: must be one of val0, val1"),
    ("run --dataset blobs --set fold=val0 --trials 2", "exclude each other"),
    ("run --dataset blobs --set backbone=resnet19", "no backbone named 'resnet19'; did you mean resnet18"),
    ("run --dataset blobs --set backbone=resnet18 --weights package", "no package carries weights of 'resnet18'"),
    ("run --dataset blobs --set weights=package", "weights have an option of their own, --weights"),
    ("run --dataset blobs --weights nowhere.pth", "--weights nowhere.pth: no such file; must be hub, package, none"),
    ("run --dataset blobs --set schedule=reloads", "it needs checkpoint=best-test"),
    ("run --dataset blobs --set backbone=pixels", "backbone=pixels: has nothing to train"),
    ("run --dataset blobs --set crop_scale=2", "crop_scale=2: must be a share of the image's area, at most 1"),
    ("run --dataset blobs --set augment=drawings --set aspect=kept", "augment=drawings: needs square images"),
    ("run --losess group", "no option named '--losess'; did you mean '--losses'?"),
    ("run --where epochs=4", "no option named '--where'; see: harness run --help"),
    ("run -x", "no option named '-x'; see: harness run --help"),
    ("--verison", "no option named '--verison'; did you mean '--version'?"),
    ("run --losses --executor local", "--losses: needs a value"),
    ("tables --metrics", "--metrics: needs a value"),
    ("run --rerun=1", "--rerun: takes no value"),
    ("run emoji", "emoji: is one argument too many; usage: harness run [OPTIONS]"),
    ("show 1 2", "2: is one argument too many; usage: harness show [OPTIONS] ID|NAME"),
    ("run --losses group triplet", "names are separated by commas: --losses group,triplet"),
    ("run --seeds 3 --ensemble 2 3", "--ensemble 2 3: sizes are separated by commas: --ensemble 2,3"),
    ("run --set epochs=1 lr=1", "--set takes one value; repeat it: --set epochs=1 --set lr=1"),
    ("rnu", "no command named 'rnu'; did you mean 'run'?"),
    ("rum", "no command named 'rum'; did you mean 'run' or 'rm'?"),
    ("data chek blobs", "no command named 'chek'; did you mean 'check'?"),
    ("tables", "no final results in"),
    ("tables --format xml", "--format xml: must be one of markdown, latex, html, json, csv"),
    ("tables --standalone", "--standalone: allowed with --format latex, not with markdown"),
    ("tables --table search", "no results of losses"),
    ("tables --table search --metrics R@1", "--metrics: allowed with --table losses or ensembles, not with search"),
    ("tables --table search --format csv", "--format csv: lists the numbers of every run"),
    ("tables --table ensembles", "harness run --seeds 2 --ensemble 2"),
    ("ls everything", "no listing named 'everything'; known: losses, datasets, protocols, settings, runs"),
    ("ls runs", "no results in"),
    ("ls", "KIND is missing; usage: harness ls [OPTIONS] KIND"),
    ("show", "ID|NAME is missing; usage: harness show [OPTIONS] ID|NAME"),
    ("compare group", "B is missing; usage: harness compare [OPTIONS] A B"),
    ("show 123abc", "no loss, protocol, dataset, or result in"),
    ("rm 123abc", "no result or failed trial in"),
    ("import nowhere", "nowhere: no such folder"),
    ("import .", " is not a results folder: it has no runs/"),
    ("gc --results nowhere", "nowhere: no such folder"),
    ("embed 123abc .", ".: a folder; name the images: ./*"),
    ("run --dataset blobs --ensemble 2", "--ensemble 2: must be integers from 2 to --seeds (1)"),
    ("run --dataset blobs --ensemble x --seeds 3", "--ensemble x: must be integers from 2 to --seeds (3)"),
    ("run --dataset blobs --cpus-per-trial 0", "--cpus-per-trial 0: must be a number >= 1"),
    ("run --dataset blobs --gpus-per-trial -1", "--gpus-per-trial -1: must be a number >= 0"),
    ("run --dataset blobs --max-concurrent 0", "--max-concurrent 0: must be an integer >= 1"),
    ("run --dataset blobs --max-failures -1", "--max-failures -1: must be an integer >= 0"),
    ("run --dataset blobs --set crop=64", "crop=64: must be at most resize=32; set both"),
    ("run --dataset blobs --set group.temperature=0", "group.temperature=0: must be a number > 0"),
    ("run --dataset blobs --set group.steps=-3", "group.steps=-3: must be an integer >= 0"),
    ("run --dataset blobs --ensemble 2 --seeds 2 --set fold=val0", "--ensemble: needs final runs on test classes"),
    ("run --dataset blobs --grid epochs", "--grid epochs: write SETTING=V1,V2,... or LOSS.KNOB=V1,V2,..."),
    ("run --dataset blobs --grid epochs=1,x", "epochs=x: must be an integer >= 0"),
    ("run --dataset blobs --grid epochs=1,", "epochs=: must be an integer >= 0"),
    ("run --dataset blobs --grid epoch=1,2", "no setting named 'epoch'; did you mean 'epochs'?"),
    ("run --dataset blobs --grid group.steps=1,-3", "group.steps=-3: must be an integer >= 0"),
    (
        "run --dataset blobs --losses triplet --grid group.steps=1,2",
        "steps=1,2: no loss in this run named",
    ),
    ("run --dataset blobs --losses none --grid epochs=1,2", "--grid: needs a loss"),
    ("run --dataset blobs --grid fold=val0,val1", "a grid varies neither fold nor seed; --set fold=..., --seeds N"),
    ("run --dataset blobs --grid seed=0,1", "a grid varies neither fold nor seed"),
    ("run --dataset blobs --grid drops=30,50", "commas separate values, and drops is itself a list; --set it"),
    ("run --dataset blobs --grid weights=none,package", "weights have an option of their own, --weights"),
    ("run --dataset blobs --grid backbone=resnet18,resnet34 --weights hub", "--weights hub fits a single backbone"),
    ("run --dataset blobs --grid backbone=resnet18,resnet19", "no backbone named 'resnet19'"),
    ("run --dataset blobs --set backbone=xyz", "no backbone named 'xyz'; see timm.list_models(). Any timm name is"),
    (
        "run --dataset blobs --set backbone=resnet18.a2_in1",
        "no weights of resnet18 named 'a2_in1'; did you mean 'a2_in1k'",
    ),
    ("run --dataset blobs --set backbone=resnet18 --weights package", "no package carries weights of 'resnet18'"),
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
    ("run --dataset blobs --curves --set fold=val0", "--curves: needs final runs on test classes"),
    ("run --dataset blobs --executor ray --address http://127.0.0.1:8265", "must be auto or HOST:PORT"),
    ("run --dataset blobs --executor local --address auto", "--address: --executor local runs trials in this process"),
    ("run --dataset blobs --executor ray --wait-for-nodes", "--wait-for-nodes: needs --address"),
    ("run --dataset blobs --results /dev/null/x", "cannot write results to /dev/null/x: /dev/null is a file"),
    ("run --dataset blobs --storage /dev/null/x", "cannot write to --storage /dev/null/x"),
    ("run --dataset blobs --scheduler asha --executor local", "--scheduler asha: needs --executor ray"),
    (
        "run --dataset blobs --scheduler asha --executor ray",
        "--scheduler asha: stops search trials, so it needs --trials",
    ),
    ("run --dataset blobs --executor slurm", "--executor slurm: must be one of ray, local"),
    ("run --dataset blobs --executor ray --address 127.0.0.1:1", "no Ray cluster at 127.0.0.1:1"),
    ("run --dataset blobs --storage nosuch://x", "--storage nosuch://x"),
    ("run --dataset blobs --storage zip://x.zip", "--storage zip://x.zip: "),
    ("run --dataset blobs --ensemble ² --seeds 3", "--ensemble ²: must be integers from 2 to --seeds (3)"),
    *((line.format(LONG), "File name too long") for line in WITH_A_PATH),
    (f"embed 123abc {__file__}", "no result in"),
]


@pytest.mark.parametrize(("line", "complaint"), MISTAKES, ids=[line.replace(LONG, "LONG") for line, _ in MISTAKES])
def test_a_mistake_is_one_line_that_says_what_is_allowed(
    small: Path, harness: Harness, tmp_path: Path, line: str, complaint: str
) -> None:
    said = harness(*line.split())
    assert said.code == 2
    assert said.out == ""
    assert complaint in said.err
    assert said.err.startswith("harness: ")
    assert said.err.count("\n") == 1
    assert len(said.err) < 300
    assert not re.search("Input should be|Value error|Got unexpected|Invalid value|Option '", said.err)
    assert not stored(tmp_path / "results")


@pytest.mark.parametrize(
    "line",
    [
        "run --dataset blobs --set learning_rate=1",
        "run --dataset blobs --set anchors=1",
        "run --dataset blobs --set epochs",
        "run --dataset blobs --set group.anchor=3",
        "run --dataset blobs --losses triplet --set group.anchors=1",
        "run --dataset blobs --grid group.anchor=1,2",
        "run --dataset blobs --grid group.anchors",
        "run --dataset blobs --set fold=test --trials 2",
        "run --dataset blobs --grid epochs=1,x",
        "run --dataset blobs --grid crop=16,64",
        "run --dataset blobs --set backbone=resnet19",
        "run --dataset blobs --grid backbone=resnet18,resnet19",
        "run --dataset blobs --set backbone=resnet18 --weights package",
        "run --dataset blobs --losses pml:TripletMarginLos",
    ],
)
def test_a_typo_is_found_before_losses_are_imported(
    small: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """They import torch, which takes seconds."""
    monkeypatch.delattr("harness.request.choose_losses")
    assert harness(*line.split()).code == 2


def test_a_knob_of_a_loss_of_ones_own_is_left_to_its_file(small: Path, harness: Harness, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    assert harness("init-loss", str(file)).code == 0
    said = harness(
        "run", "--dataset", "blobs", "--losses", f"{file}:MyLoss", "--set", "mine.MyLoss.margin=0.7", "--dry-run"
    )
    assert said.code == 0, said.err
    assert "margin=0.7" in said.out
    said = harness(
        "run", "--dataset", "blobs", "--losses", f"{file}:MyLoss", "--set", "mine.MyLoss.margn=0.7", "--dry-run"
    )
    assert "no knob of mine.MyLoss named 'margn'; did you mean 'margin'?" in said.err


def test_a_folder_that_is_suggested_is_not_the_file_itself(harness: Harness, tmp_path: Path) -> None:
    file = tmp_path / "tables"
    file.write_text("mine")
    said = harness("tables", "--out", str(file))
    assert said.code == 2
    assert f"must be a folder, e.g. --out {file}-folder" in said.err


def test_a_grid_may_mend_what_alone_does_not_go_together(small: Path, harness: Harness) -> None:
    """crop=64 is too large for the protocol's resize=32, not for the grid's."""
    said = harness(
        "run", "--dataset", "blobs", "--losses", "triplet", "--set", "crop=64", "--grid", "resize=64,96", "--dry-run"
    )
    assert said.code == 0, said.err
    assert "to run" in said.out


def test_a_loss_that_is_named_twice_counts_once() -> None:
    assert loss_names("group, triplet,group") == ["group", "triplet"]
