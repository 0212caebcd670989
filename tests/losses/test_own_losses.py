"""Losses from elsewhere on the command line: a bridge, an installed package, a file; and check-loss on each."""

import textwrap
from collections.abc import Iterator
from importlib.metadata import EntryPoint, distribution
from pathlib import Path

import pytest
from torch import Tensor

import harness as harness_package
import losses
from harness import config
from harness.analysis import reference
from harness.cli.init_loss import TEMPLATE
from harness.spec import UserError
from losses import contract
from losses.base import Loss, unit
from losses.contract import CHECKS
from tests.conftest import Harness
from tests.losses.factories import reread_registry

SHORTEST = '''
from losses.base import Loss, squared_distances, unit


class MyLoss(Loss):
    """L = mean of d2 within a class, plus the mean of [1 - d2]+ across."""

    title = "My loss"
    cite = "me, 2026"

    def forward(self, embeddings, labels):
        d2 = squared_distances(unit(embeddings))
        same = labels[:, None] == labels
        return (d2 * same).mean() + ((1 - d2).relu() * ~same).mean()
'''


class Pull(Loss):
    """Mean distance from the class mean."""

    title, cite = "Pull", "an installed package, 2026"

    def __init__(self, num_classes: int, dim: int, *, weight: float = 1.0) -> None:
        super().__init__(num_classes, dim)
        self.weight = weight

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        same = (labels[:, None] == labels).to(embeddings.dtype)
        x = unit(embeddings)
        return self.weight * (x - same @ x / same.sum(dim=1, keepdim=True)).square().sum(dim=1).mean()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that brings `pull`, a `group` of its own, and something that is no loss."""
    points = [EntryPoint(name, f"{__name__}:{value}", "harness.losses") for name, value in ENTRIES.items()]
    for point in points:
        vars(point)["dist"] = PACKAGE
    monkeypatch.setattr(losses, "entry_points", lambda group: points if group == "harness.losses" else [])
    reread_registry()
    yield
    reread_registry()


PACKAGE = distribution("pytest")  # stands for the one that brings them
ENTRIES = {"pull": "Pull", "group": "Pull", "wrong": "ENTRIES", "missing": "Nowhere"}


def test_an_installed_packages_loss_is_registered_and_runs(
    installed: None, small: Path, harness: Harness, tmp_path: Path
) -> None:
    assert "pull" in losses.names()
    assert losses.get("pull") is Pull
    said = harness("run", "--losses", "pull", "--dataset", "blobs", "--set", "pull.weight=2")
    assert said.code == 0
    assert "| Pull" in said.out
    stored = {result.trial.loss: result.provenance["packages"] for result in harness_package.load(tmp_path / "results")}
    assert stored["pull"]["pytest"] == PACKAGE.version  # `show` says if it differs
    assert "pytest" not in stored["none"]


def test_a_registered_name_cannot_be_taken(installed: None) -> None:
    assert losses.get("group").title == "Group Loss"


def test_an_installed_packages_loss_has_no_facts_of_ours(installed: None) -> None:
    assert "pull" not in losses.shipped()
    assert reference.key_of("pull") is None


def test_an_entry_point_that_is_no_loss_says_so(installed: None) -> None:
    with pytest.raises(UserError, match=r"the loss wrong of an installed package: .*is not a Loss"):
        config.loss("wrong")
    with pytest.raises(UserError, match="the loss missing of an installed package: AttributeError"):
        config.loss("missing")


def test_the_bridge_runs_with_its_knobs_and_is_reproduced(small: Path, harness: Harness, tmp_path: Path) -> None:
    command = ("run", "--losses", "group,pml:CircleLoss", "--dataset", "blobs")
    said = harness(*command, "--set", "pml:CircleLoss.m=0.25")
    assert said.code == 0
    assert "CircleLoss (PML)" in said.out
    (file,) = (tmp_path / "results" / "runs" / "blobs" / "pml-CircleLoss").glob("*.json")
    shown = harness("show", file.stem).out
    assert "--losses pml:CircleLoss" in shown
    assert "--set pml:CircleLoss.m=0.25" in shown
    assert harness(*command).code == 0  # another trial


def test_all_are_the_registered_ones(small: Path, harness: Harness) -> None:
    said = harness("run", "--losses", "all", "--dataset", "blobs", "--dry-run")
    assert said.code == 0
    assert all(f"\n{name}-blobs-test-" in said.out for name in losses.names())


@pytest.mark.parametrize(
    ("losses_", "complaint"),
    [
        ("pml:CircelLoss", "no loss in pytorch-metric-learning named 'CircelLoss'; did you mean 'CircleLoss'?"),
        ("pml:RankedListLoss", "pml:RankedListLoss.margin has no default: --set pml:RankedListLoss.margin=..."),
    ],
)
def test_a_mistake_with_the_bridge_is_one_line(small: Path, harness: Harness, losses_: str, complaint: str) -> None:
    said = harness("run", "--losses", losses_, "--dataset", "blobs")
    assert said.code == 2
    assert complaint in said.err
    assert said.err.count("\n") == 1


def test_check_loss_passes_ours(harness: Harness) -> None:
    said = harness("check-loss", "contrastive")
    assert said.code == 0
    assert said.out.endswith(f"contrastive keeps all {len(CHECKS)} promises\n")


def test_check_loss_says_under_which_knobs_a_gradient_is_exact(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    promise = "has the gradient of its value"
    monkeypatch.setattr(contract, "CHECKS", {promise: CHECKS[promise]})
    assert (
        "\nThe gradient was checked with boosting=none, diversity=0.0: otherwise" in harness("check-loss", "a_bier").out
    )
    assert "The gradient was checked" not in harness("check-loss", "contrastive").out


def test_a_loss_without_type_hints_and_knobs_keeps_every_promise(harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SHORTEST)
    said = harness("check-loss", f"{tmp_path}/mine.py:MyLoss")
    assert said.code == 0, said.out
    assert f"mine.MyLoss keeps all {len(CHECKS)} promises" in said.out


def test_a_loss_without_a_family_counts_as_pair_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SHORTEST)
    assert config.loss(f"{file}:MyLoss").family == "pair"
    file.write_text(SHORTEST.replace('cite = "me, 2026"', 'cite, family = "me, 2026", "proxies"'))
    with pytest.raises(UserError, match="family='proxies': must be one of classification, proxy, pair"):
        config.loss(f"{file}:MyLoss")


def test_check_loss_says_what_a_broken_one_breaks(harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SHORTEST.replace("(d2 * same).mean()", "(d2 * same).mean() - 50"))
    said = harness("check-loss", f"{tmp_path}/mine.py:MyLoss")
    assert said.code == 1
    assert "FAILED  is not negative: a usual batch: its value is -4" in said.out
    assert "ok      brings a class together" in said.out
    assert f"mine.MyLoss breaks 1 of {len(CHECKS)} promises" in said.out


def test_a_loss_that_leaves_the_program_is_a_failure_like_any_other(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    (tmp_path / "exits.py").write_text(SHORTEST.replace("        d2 =", "        raise SystemExit(3)\n        d2 ="))
    said = harness("run", "--losses", f"{tmp_path}/exits.py:MyLoss,triplet", "--dataset", "blobs")
    assert said.code == 1
    assert "failed: SystemExit: 3" in said.err
    assert "| Triplet" in said.out
    assert "FAILED" in harness("check-loss", f"{tmp_path}/exits.py:MyLoss").out
    (tmp_path / "gone.py").write_text("import sys\nsys.exit(0)\n")
    assert harness("check-loss", f"{tmp_path}/gone.py:MyLoss").code == 2


def test_ls_shows_paper_and_year(harness: Harness) -> None:
    rows = {line.split()[0]: line for line in harness("ls", "losses").out.splitlines()[2:]}
    assert set(rows) == set(losses.names())
    assert all(" 20" in rows[name] for name in losses.shipped())
    assert "Schroff et al., CVPR 2015" in rows["triplet"]


def test_the_loss_that_init_loss_writes_is_complete_and_keeps_every_promise(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = harness("init-loss", "mine.py")
    assert said.code == 0
    lines = [line.split() for line in said.out.splitlines() if line.startswith("  harness ")]
    assert [words[1] for words in lines] == ["check-loss", "show", "run"]
    for words in lines:  # what it prints works as printed
        assert harness(*words[1:], *(["--dataset", "blobs"] if words[1] == "run" else [])).code == 0
    spec = config.loss("./mine.py:MyLoss")
    assert list(spec.knobs) == list(spec.space) == ["margin"]
    assert spec.knobs["margin"].meaning
    again = harness("init-loss", "mine.py")
    assert (again.code, again.err) == (2, "harness: mine.py: exists already; choose another name\n")
    assert harness("init-loss", "mine.txt").code == harness("init-loss", "my-loss.py").code == 2


def test_contributing_shows_the_loss_that_init_loss_writes() -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    block = text.partition("```python\n")[2].partition("  ```")[0]
    assert textwrap.dedent(block) == TEMPLATE
