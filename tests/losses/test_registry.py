"""The registry: which files are losses, what their classes state, and the bibliography that is made of it."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import losses
from harness import config
from harness.analysis import reference
from harness.spec import UserError
from tests.losses.factories import reread_registry

SHIPPED = {
    "a_bier": "pair",
    "abe": "pair",
    "angular": "pair",
    "arcface": "classification",
    "bias_triplet": "pair",
    "bier": "pair",
    "contrastive": "pair",
    "deep_spectral": "pair",
    "divide_conquer": "pair",
    "facility_location": "pair",
    "group": "pair",
    "hdc": "pair",
    "hierarchical_triplet": "pair",
    "lifted_structure": "pair",
    "margin": "pair",
    "multi_similarity": "pair",
    "n_pairs": "pair",
    "normalized_softmax": "classification",
    "proxy_anchor": "proxy",
    "proxy_nca": "proxy",
    "ranked_list": "pair",
    "soft_triple": "proxy",
    "softmax": "classification",
    "triplet": "pair",
}
CITED = {
    "deng2019arcface",
    "duan2019sampling",
    "elezi2020group",
    "ge2018hierarchical",
    "hadsell2006dimensionality",
    "kim2018attention",
    "kim2020proxy",
    "krause2013cars",
    "law2017spectral",
    "liu2016deepfashion",
    "movshovitzattias2017proxies",
    "musgrave2020reality",
    "opitz2017bier",
    "opitz2020boosting",
    "park2019relational",
    "qian2019softtriple",
    "sanakoyeu2019divide",
    "schroff2015facenet",
    "sohn2016npair",
    "song2016lifted",
    "song2017facility",
    "wah2011cub",
    "wang2017angular",
    "wang2019multi",
    "wang2019ranked",
    "wu2017sampling",
    "xu2019asymmetric",
    "yu2018bias",
    "yuan2017hard",
    "zhai2019classification",
}
MINE = '''"""A loss of mine."""

from losses.base import Loss


class Mine(Loss):
    """L = 0."""

    title = "Mine"
    cite = "Doe, 2026"
    bibtex = r"""
    @article{doe2026mine,
      author = {Doe, J{\\"o}rn},
    }
    """
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the package's folder in its place."""
    copy = tmp_path / "losses"
    shutil.copytree(losses.FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(losses, "FOLDER", copy)
    monkeypatch.setattr(losses, "__path__", [str(copy)])
    reread_registry()
    yield copy
    reread_registry()
    sys.modules.pop("losses.mine", None)


def test_the_losses_of_this_package_are_registered() -> None:
    assert set(losses.shipped()) >= set(SHIPPED)
    assert set(losses.names()) >= set(SHIPPED)
    assert list(losses.names()) == sorted(losses.names())


def test_names_and_facts_do_not_import_torch() -> None:
    code = "import sys, losses; [losses.facts(name) for name in losses.shipped()]; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", losses.shipped())
def test_facts_are_what_the_class_states(name: str) -> None:
    loss, facts = losses.get(name), losses.facts(name)
    assert (facts.class_name, facts.title, facts.cite) == (loss.__name__, loss.title, loss.cite)
    assert facts.bibtex.split() == loss.bibtex.split()
    assert facts.bibtex.startswith("@")
    assert facts.bibtex.endswith("\n}")


@pytest.mark.parametrize("name", losses.shipped())
def test_every_loss_states_its_family(name: str) -> None:
    assert "family" in vars(losses.get(name)), "the default is for losses of users"
    assert config.loss(name).family == SHIPPED.get(name, losses.get(name).family)


@pytest.mark.parametrize("name", losses.shipped())
def test_every_loss_has_a_test_file_that_pins_its_knobs(name: str) -> None:
    text = (Path(__file__).parent / f"test_{name}.py").read_text()
    assert f'assert defaults("{name}") == ' in text


def test_losses_of_one_paper_state_one_entry() -> None:
    assert losses.facts("softmax").bibtex == losses.facts("group").bibtex


def test_every_key_is_in_the_bibliography_once() -> None:
    keys = re.findall(r"^@\w+\{(\w+),$", reference.bibliography(), re.MULTILINE)
    assert set(keys) >= CITED
    assert len(keys) == len(set(keys))


def test_a_new_file_is_a_registered_loss_with_its_citation(folder: Path) -> None:
    before = losses.names()
    (folder / "mine.py").write_text(MINE)
    reread_registry()
    assert set(losses.names()) == {*before, "mine"}
    assert losses.get("mine").title == "Mine"
    assert losses.facts("mine").key == "doe2026mine"
    assert losses.facts("mine").bibtex == '@article{doe2026mine,\n  author = {Doe, J{\\"o}rn},\n}'
    assert reference.key_of("mine") == "doe2026mine"
    assert losses.facts("mine").bibtex in reference.bibliography()


@pytest.mark.parametrize(
    "text",
    [
        "def hardest(distances):\n    return distances.argmin(dim=1)\n",
        "from losses.base import Loss\n\nclass Miner:\n    of = Loss\n",
        "from losses.base import Loss\n\ndef make():\n    class Made(Loss):\n        pass\n    return Made\n",
    ],
)
def test_a_file_that_defines_no_loss_is_not_one(folder: Path, text: str) -> None:
    (folder / "miners.py").write_text(text)
    assert "miners" not in losses.names()
    with pytest.raises(losses.LossError, match="no loss named 'miners'; known: a_bier, "):
        losses.get("miners")


def test_a_file_that_defines_two_losses_says_so(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE + "\n\nclass Other(Loss):\n    pass\n")
    complaint = r"losses/mine.py defines 2 losses \(Mine, Other\); a file may define one"
    for question in (losses.get, losses.facts):
        with pytest.raises(losses.LossError, match=complaint):
            question("mine")
    with pytest.raises(UserError, match=complaint):
        config.loss("mine")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('    title = "Mine"\n', 'losses/mine.py: Mine has no title; write title = "..." in its class'),
        ('    cite = "Doe, 2026"\n', 'losses/mine.py: Mine has no cite; write cite = "..." in its class'),
        ("@article{doe2026mine,", "losses/mine.py: bibtex is not a BibTeX entry"),
    ],
)
def test_a_class_that_does_not_state_its_facts_is_refused_before_it_runs(
    folder: Path, line: str, complaint: str
) -> None:
    (folder / "mine.py").write_text(MINE.replace(line, ""))
    with pytest.raises(UserError, match=complaint):
        config.loss("mine")


def test_facts_are_of_losses_of_this_package() -> None:
    with pytest.raises(losses.LossError, match="no loss in this package named 'pml:CircleLoss'; known: a_bier, "):
        losses.facts("pml:CircleLoss")


@pytest.mark.parametrize("name", losses.shipped())
def test_every_knob_says_what_it_means(name: str) -> None:
    assert [knob.key for knob in config.loss(name).knobs.values() if not knob.meaning] == []
