"""Training that cannot work, or did not, is said: before the run, while it runs, and beside its numbers."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import timm
import torch

from harness.data.folds import shuffled
from tests.conftest import Harness
from tests.data.factories import draw, records

BLOBS = ("run", "--dataset", "blobs")


def lay_classes(folder: Path, sizes: Mapping[int, int]) -> Path:
    """A folder of class folders: class -> images. The first half of the classes trains."""
    for label, size in sizes.items():
        for number in range(size):
            draw(folder / f"thing{label}" / f"{label}-{number}.jpg", label)
    return folder


@pytest.mark.fault(
    "one image per class, or one class per batch, with each pair loss",
    "one line that names the setting and what is allowed, exit 2, nothing runs",
)
@pytest.mark.parametrize("setting", ["samples_per_class", "classes_per_batch"])
@pytest.mark.parametrize("loss", ["triplet", "margin", "multi_similarity", "lifted_structure", "angular"])
def test_a_pair_loss_without_pairs_is_refused(
    small: Path, harness: Harness, tmp_path: Path, loss: str, setting: str
) -> None:
    for option in ("--set", "--grid"):
        said = harness(*BLOBS, "--losses", f"softmax,{loss}", option, f"{setting}=1")
        assert said.code == 2
        assert said.err.startswith(f"harness: {setting}=1: must be at least 2 for {loss}, a pair loss")
        assert said.err.count("\n") == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.fault(
    "one image per class, or one class per batch, with losses that need no pairs",
    "they train",
)
@pytest.mark.parametrize("setting", ["samples_per_class", "classes_per_batch"])
def test_losses_of_other_families_train_without_pairs(
    small: Path, harness: Harness, tmp_path: Path, setting: str
) -> None:
    said = harness(*BLOBS, "--losses", "softmax,proxy_nca", "--set", f"{setting}=1")
    assert said.code == 0, said.err
    trained = [record for record in records(tmp_path) if record["trial"]["loss"] != "none"]
    assert len(trained) == 2
    assert all(record["curve"][0]["loss"] > 0 for record in trained)


@pytest.mark.fault(
    "a protocol gives a family of losses batches of more classes than a fold has",
    "one line, exit 2, nothing runs; a user's own batch for all losses trains",
)
def test_too_few_training_classes_for_a_batch_of_its_own_are_refused(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    """12 training classes fill batches of 12 x 1, the 9 of a validation fold do not."""
    own = 'like = "tiny"\n[family.classification]\nsamples_per_class = 1\n'
    (small / "protocols" / "own.toml").write_text(own)
    run = (*BLOBS, "--losses", "softmax,triplet", "--protocol", "own")
    said = harness(*run, "--trials", "1")
    assert said.code == 2
    assert said.err == (
        "harness: softmax: its batches of 12 classes x 1 need 12 training classes, blobs has 9 of fold val0; choose "
        "another --protocol, or set one batch for all losses: --set samples_per_class=...\n"
    )
    assert not (tmp_path / "results" / "runs").exists()
    assert harness(*run, "--trials", "1", "--set", "classes_per_batch=4").code == 0
    planned = harness(*run, "--dry-run").out
    assert "classes_per_batch=12 samples_per_class=1 bias=true" in planned
    assert "classes_per_batch=4 samples_per_class=3 margin=0.2" in planned
    assert harness(*run).code == 0


@pytest.mark.fault(
    "every training class has a single image, in the whole training half or in a validation fold",
    "one line, exit 2, nothing runs; a loss that needs no pairs still trains",
)
@pytest.mark.usefixtures("own_cache")
def test_training_classes_of_a_single_image_are_refused_for_a_pair_loss(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    singles = {label: 1 if label < 8 else 3 for label in range(16)}
    words = ("run", "--protocol", "tiny", "--dataset", str(lay_classes(tmp_path / "singles", singles)))
    for more in ((), ("--dry-run",)):
        said = harness(*words, "--losses", "triplet", *more)
        assert said.code == 2
        assert "singles: each of the 8 training classes has a single image; triplet, a pair loss" in said.err
    assert not (tmp_path / "results").exists()
    assert harness(*words, "--losses", "proxy_nca").code == 0


@pytest.mark.fault(
    "the only training class with two images is held out by a validation fold",
    "the search is refused before anything runs: one line, exit 2",
)
@pytest.mark.usefixtures("own_cache")
def test_a_validation_fold_without_pairs_is_refused(small: Path, harness: Harness, tmp_path: Path) -> None:
    held_out = shuffled([f"thing{label}" for label in range(8)], "0:val")[0::4]
    assert len(held_out) == 2
    words = ("run", "--protocol", "tiny", "--losses", "triplet", "--trials", "1", "--dry-run", "--dataset")
    for large, code in ((held_out[0], 2), ("thing0" if "thing0" not in held_out else "thing1", 0)):
        sizes = {label: 2 if f"thing{label}" == large or label >= 8 else 1 for label in range(16)}
        said = harness(*words, str(lay_classes(tmp_path / f"large-{large}", sizes)))
        assert said.code == code, said.err
        refused = f"large-{large}: each of the 6 training classes of fold val0 has a single image; triplet, a pair loss"
        assert (refused in said.err) == (code == 2)


@pytest.mark.fault(
    "classes smaller than samples_per_class, and more classes per batch than there are",
    "one line each with the counts before the run, also with --dry-run; the run works",
)
@pytest.mark.usefixtures("own_cache")
def test_batches_that_cannot_be_filled_are_said_before_the_run(small: Path, harness: Harness, tmp_path: Path) -> None:
    sizes = {label: 2 + label % 4 for label in range(16)}  # 2, 3, 4 and 5 images
    words = ("run", "--protocol", "tiny", "--losses", "triplet", "--dataset", str(lay_classes(tmp_path / "few", sizes)))
    ask = ("--set", "samples_per_class=4", "--set", "classes_per_batch=9")
    small_classes = "samples_per_class=4: 4 of the 8 training classes have fewer images, the smallest 2; "
    few_classes = "classes_per_batch=9: there are 8 training classes; each batch has all of them"
    for more in (("--dry-run",), ()):
        said = harness(*words, *ask, *more)
        assert said.code == 0, said.err
        assert said.err.count(small_classes) == 1
        assert said.err.count(few_classes) == 1
    assert "_per_" not in harness(*words, *ask).err  # stored: there is nothing to fill
    searched = harness(*words, "--set", "classes_per_batch=7", "--trials", "1", "--dry-run").err
    assert "classes_per_batch=7: there are 6 training classes of fold val0; each batch has all of them" in searched
    assert "samples_per_class=3: 2 of the 8 training classes have fewer images" in searched


ZERO = """
from losses.base import Loss

class Zero(Loss):
    title, cite = "Zero", "me"
    def forward(self, embeddings, labels):
        return 0 * embeddings.sum()
"""


@pytest.mark.fault(
    "an own loss that is exactly 0",
    "said while it runs, noted in its record and below its table; exit 0",
)
def test_a_loss_of_0_is_said_and_footnoted(small: Path, harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "zero.py").write_text(ZERO)
    said = harness(*BLOBS, "--losses", f"softmax,{tmp_path}/zero.py:Zero", "--set", "epochs=2")
    assert said.code == 0, said.err
    warnings = [line for line in said.err.splitlines() if "loss of 0 in every step in epoch 1" in line]
    assert len(warnings) == 1
    assert warnings[0].split()[1].startswith("zero.Zero-blobs-test-")  # after the time of day
    assert "Its loss was 0 in every epoch: it was not trained." in said.out
    assert said.out.count("Zero[") == 1
    (record,) = (record for record in records(tmp_path) if record["trial"]["loss"] == "zero.Zero")
    assert [row["loss"] for row in record["curve"]] == [0, 0]
    assert "Its loss was 0 in every epoch" in harness("tables").out


POINT = """
from losses.base import Loss

class Point(Loss):
    title, cite, family = "Point", "me", "classification"
    def forward(self, embeddings, labels):
        return (embeddings - 1).square().sum()
"""


@pytest.mark.fault(
    "an own loss that moves all embeddings to one point",
    "the run and its table say that it ends below the untrained network and the raw pixels",
)
def test_a_loss_below_the_baselines_is_said_and_footnoted(small: Path, harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "point.py").write_text(POINT)
    words = (*BLOBS, "--losses", f"{tmp_path}/point.py:Point", "--set", "epochs=4", "--set", "lr=0.01")
    said = harness(*words)
    assert said.code == 0, said.err
    recalls = {record["title"]: 100 * record["metrics"]["R@1"] for record in records(tmp_path)}
    assert recalls["Point"] < min(recalls["Untrained network"], recalls["Raw pixels"])
    line = (
        f"\nPoint ends below the untrained network ({recalls['Untrained network']:.1f}) and raw pixels "
        f"({recalls['Raw pixels']:.1f}): R@1 {recalls['Point']:.1f}.\n"
    )
    assert said.out.endswith(line)
    assert harness(*words).out == said.out  # stored results say it too
    assert "Below the untrained network and raw pixels in R@1." in said.out


@pytest.mark.fault(
    "the same run with another seed, where nothing in the untrained network is random",
    "the baseline is measured once and counts as one value",
)
def test_a_baseline_without_a_random_part_is_measured_once(small: Path, harness: Harness, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pth"
    torch.save(timm.create_model("test_efficientnet").state_dict(), weights)
    words = (*BLOBS, "--losses", "triplet", "--weights", str(weights), "--set", "dim=none")
    for seed in ("0", "1"):
        said = harness(*words, "--set", f"seed={seed}")
        assert said.code == 0, said.err
    untrained = [record for record in records(tmp_path) if record["title"] == "Untrained network"]
    assert [record["trial"]["seed"] for record in untrained] == [0]
    (row,) = (line for line in harness("tables").out.splitlines() if "Untrained network" in line)
    assert row.split("|")[-2].strip().replace(".", "", 1).isdigit()  # its NMI: one value, not those of two seeds
