"""`harness run` on datasets from disk: small sets in the real layouts, and a user's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from harness.execution import inputs
from harness.execution.account import Account
from harness.spec import Progress
from harness.storage import Storage
from tests.conftest import PROTOCOL, Harness
from tests.data.factories import draw, lay_cub, lay_inshop, photos, records, small_sop, spoil

pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_run_on_sop_stores_results_and_prints_its_recalls_and_then_has_nothing_to_do(
    root: Path, harness: Harness, tmp_path: Path
) -> None:
    words = ("run", "--losses", "group,triplet", "--dataset", "sop", "--data-root", str(root))
    without = harness(*words)
    assert without.code == 2
    assert without.err.count("\n") == 1
    for part in (
        f"searched {root} and its Stanford_Online_Products, sop for Ebay_train.txt, Ebay_test.txt",
        "see: harness show sop",
    ):
        assert part in without.err
    assert not (tmp_path / "results").exists()

    small_sop(root)
    first = harness(*words)
    assert first.code == 0, first.err
    assert "137 images go to the cache" in first.err
    header = next(line for line in first.out.splitlines() if "R@1" in line)
    assert [word for word in header.replace("|", " ").split() if word.startswith("R@")] == ["R@1", "R@10", "R@100"]
    for row in ("| Raw pixels", "| Untrained network", "| Group Loss", "| Triplet"):
        assert row in first.out
    stored = records(tmp_path)
    assert len(stored) == 4
    for record in stored:
        assert 0 < record["metrics"]["R@1"] <= record["metrics"]["R@10"] <= record["metrics"]["R@100"] <= 1
        assert record["provenance"]["bad_images_skipped"] == 0
    second = harness(*words)
    assert (second.code, second.out, second.err) == (0, first.out, "")


def nearest_first(embeddings: torch.Tensor, query: int, gallery: list[int]) -> list[int]:
    """A slow loop: the gallery by distance."""
    return sorted(gallery, key=lambda image: float((embeddings[image] - embeddings[query]).square().sum()))


def test_inshop_queries_search_the_gallery_only(root: Path, harness: Harness, tmp_path: Path) -> None:
    items = [(label, "train", 3) for label in range(1, 7)]
    for label in range(7, 12):
        items += [(label, "query", 3), (label, "gallery", 5)]
    lay_inshop(root / "In-shop", items, write=draw)
    said = harness("run", "--losses", "triplet", "--dataset", "inshop", "--data-root", str(root), "--curves")
    assert said.code == 0, said.err
    (record,) = (record for record in records(tmp_path) if record["trial"]["loss"] == "triplet")
    arrays = load_file(tmp_path / "results" / "artifacts" / record["artifacts"]["embeddings"]["path"])
    embeddings, labels, queries = arrays["embeddings"].double(), arrays["labels"].tolist(), arrays["queries"].tolist()
    assert (len(labels), sum(queries)) == (40, 15)
    gallery = [index for index in range(40) if not queries[index]]
    assert 0 < record["metrics"]["R@1"] < 1  # else the comparison shows nothing
    ranked = {index: nearest_first(embeddings, index, gallery) for index in range(40) if queries[index]}
    for k in (1, 2, 5):
        hits = [any(labels[near] == labels[query] for near in order[:k]) for query, order in ranked.items()]
        assert record["metrics"][f"R@{k}"] == pytest.approx(sum(hits) / 15)
    assert record["curve"][-1]["R@1"] == record["metrics"]["R@1"]
    # R is 5 for every query: its class's images in the gallery
    right = [sum(labels[near] == labels[query] for near in order[:5]) / 5 for query, order in ranked.items()]
    assert record["metrics"]["RP"] == pytest.approx(sum(right) / 15)


def test_a_grid_of_sizes_has_a_cache_for_each(
    root: Path, harness: Harness, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    words = ("run", "--losses", "triplet", "--dataset", "./photos", "--protocol", "tiny")
    said = harness(*words, "--grid", "resize=32,40", "--grid", "epochs=0,1", "--set", "fold=test")
    assert said.code == 0, said.err
    assert said.err.count("32 images go to the cache") == 2
    assert len([folder for folder in own_cache.glob("photos-*") if folder.is_dir()]) == 2
    assert len(records(tmp_path)) == 4


def test_a_users_own_folder_list_and_description_run_without_code(
    root: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    files = sorted((tmp_path / "photos").rglob("*.jpg"))
    rows = [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in files]
    (tmp_path / "list.csv").write_text("path,label\n" + "\n".join(rows) + "\n")
    (tmp_path / "mine.toml").write_text('layout = "folder"\nfolder = "photos"\nprotocol = "tiny"\nrecall_at = [1, 3]\n')
    scores = {}
    for name, more in (
        ("./photos", ["--protocol", "tiny"]),
        ("./list.csv", ["--protocol", "tiny"]),
        ("./mine.toml", []),
    ):
        said = harness("run", "--losses", "none", "--dataset", name, *more)
        assert said.code == 0, said.err
        assert f"### {name[2:]}" in said.out.replace("\\", "")
        assert ("R@3" in said.out) == (name == "./mine.toml")
        assert harness("run", "--losses", "none", "--dataset", name, *more).err == ""
        (pixels,) = (
            record
            for record in records(tmp_path)
            if record["trial"]["dataset"] == name[2:] and record["title"] == "Raw pixels"
        )
        scores[name] = pixels["metrics"]["R@1"]
    assert len(set(scores.values())) == 1


def test_a_protocol_of_a_users_data_is_the_shipped_one_for_laptops(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    (small / "protocols" / "cpu.toml").write_text(PROTOCOL)
    said = harness("run", "--losses", "triplet", "--dataset", str(photos(tmp_path / "photos")), "--dry-run")
    assert said.code == 0, said.err
    assert "triplet-photos-test-" in said.out
    assert not list((tmp_path / "cache").glob("photos-*"))


def test_wrong_numbers_stop_a_run_before_it_begins(root: Path, harness: Harness, tmp_path: Path) -> None:
    lay_cub(root / "cub", each=3, write=draw)
    said = harness("run", "--losses", "none", "--dataset", "cub", "--data-root", str(root))
    assert said.code == 2
    assert said.err == f"harness: cub: expected 12 training images, found 9 under {root / 'cub'}\n"
    assert not (tmp_path / "results").exists()


def test_files_that_change_after_planning_stop_the_run_in_a_clear_line(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos(tmp_path / "photos")
    real = inputs.prepare

    def meddle(account: Account, storage: Storage) -> Iterator[Progress]:
        with (folder / "thing0" / "0-0.jpg").open("ab") as file:
            file.write(b"more")
        return real(account, storage)

    monkeypatch.setattr(inputs, "prepare", meddle)
    said = harness("run", "--losses", "none", "--dataset", str(folder), "--protocol", "tiny")
    assert said.code == 2
    assert f"the files under {folder} are not those the run was planned with" in said.err
    assert records(tmp_path) == []
    monkeypatch.setattr(inputs, "prepare", real)
    assert harness("run", "--losses", "none", "--dataset", str(folder), "--protocol", "tiny").code == 0


def test_a_bad_image_is_named_and_going_on_without_is_recorded(small: Path, harness: Harness, tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    bad = spoil(folder)
    words = ("run", "--losses", "triplet", "--dataset", str(folder), "--protocol", "tiny")
    for _ in range(2):  # the second time they are known from the cache
        said = harness(*words)
        assert said.code == 2
        (complaint,) = (line for line in said.err.splitlines() if line.startswith("harness: "))  # once, not per trial
        assert "3 of 32 images cannot be read, e.g. thing0/0-1.jpg; list them with harness data check" in complaint
        assert complaint.endswith("or continue without them: --skip-bad-images")
        assert records(tmp_path) == []
        assert not (tmp_path / "results" / "failures").exists()
    said = harness(*words, "--skip-bad-images")
    assert said.code == 0, said.err
    stored = records(tmp_path)
    assert [record["provenance"]["bad_images_skipped"] for record in stored] == [len(bad)] * 3
    (record,) = (record for record in stored if record["trial"]["loss"] == "triplet")
    arrays = load_file(tmp_path / "results" / "artifacts" / record["artifacts"]["embeddings"]["path"])
    assert arrays["labels"].bincount().tolist() == [4, 3, 4, 3]  # things 4 to 7, without the two that are bad


def test_good_copies_of_the_bad_images_make_another_dataset_that_runs(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    folder = photos(tmp_path / "photos")
    words = ("run", "--losses", "none", "--dataset", str(folder), "--protocol", "tiny")
    spoil(folder)
    assert harness(*words, "--skip-bad-images").code == 0
    photos(folder)
    assert harness(*words).code == 0
    assert sorted(record["provenance"]["bad_images_skipped"] for record in records(tmp_path)) == [0, 0, 3, 3]


def test_a_bad_image_that_is_mended_is_good_again_though_its_size_is_the_same(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    """The fingerprint knows sizes only, so the cache is the same one."""
    folder = photos(tmp_path / "photos")
    bad = sorted(folder.rglob("*.jpg"))[0]
    good = bad.read_bytes()
    bad.write_bytes(bytes(len(good)))
    said = harness("run", "--losses", "none", "--dataset", str(folder), "--protocol", "tiny")
    assert said.code == 2
    assert bad.name in said.err
    bad.write_bytes(good)
    assert harness("run", "--losses", "none", "--dataset", str(folder), "--protocol", "tiny").code == 0


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('layout = "folder"\nfolder = 3', "folder=3: must be a layout of files and the path"),
        ('layout = "embedded"\nfolder = "x"', "layout=embedded"),
        ('layout = "folder"\nfolder = "x"\nrecall_at = 3', "recall_at=3: must be a list"),
        ('layout = "folder"\nfolder = "x"\nrecall_at = [true]', "must be integers > 0 like"),
        ('layout = "folder"\nfolder = "x"\ntrain_classes = true', "train_classes=True: must be an integer"),
        ('layout = "folder"\nfolder = "x"\narchives = [{checksum = ""}]', "an entry of archives has no url"),
    ],
)
def test_a_mistake_in_a_users_toml_is_one_line(harness: Harness, tmp_path: Path, line: str, complaint: str) -> None:
    (tmp_path / "mine.toml").write_text(line)
    said = harness("run", "--dataset", str(tmp_path / "mine.toml"))
    assert said.code == 2
    assert complaint in said.err
    assert said.err.count("\n") == 1


def test_a_dataset_with_fewer_test_images_than_neighbours_asked_for_leaves_those_out(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    for label in range(4):
        for n in range(3):
            draw(tmp_path / "few" / f"thing{label}" / f"{n}.jpg", label)
    said = harness("run", "--losses", "none", "--dataset", str(tmp_path / "few"), "--protocol", "tiny")
    assert said.code == 0, said.err
    assert "R@4" in said.out
    assert "R@8" not in said.out  # 6 test images: 5 others


def test_another_split_seed_is_another_dataset(small: Path, harness: Harness, tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    ids = []
    for seed in (0, 7):
        lines = f'layout = "folder"\nfolder = "photos"\nprotocol = "tiny"\nsplit_seed = {seed}\n'
        (tmp_path / "mine.toml").write_text(lines)
        ids.append(harness("run", "--losses", "triplet", "--dataset", str(tmp_path / "mine.toml"), "--dry-run").out)
    assert ids[0].splitlines()[2] != ids[1].splitlines()[2]


@pytest.mark.parametrize("name", ["..", "/"])
def test_a_folder_is_named_by_what_it_is_not_by_dots(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path / "photos" / "thing0")
    said = harness("run", "--losses", "none", "--dataset", f"./{name}" if name == ".." else name, "--protocol", "tiny")
    if name == "/":
        assert said.code == 2
        assert "has none" in said.err
    else:
        assert said.code == 0
        assert (tmp_path / "results" / "runs" / "photos").is_dir()


def test_show_names_the_users_folder_and_what_was_skipped(small: Path, harness: Harness, tmp_path: Path) -> None:
    folder = photos(tmp_path / "my photos")
    sorted(folder.rglob("*.jpg"))[0].write_bytes(b"x")
    words = ("run", "--losses", "none", "--dataset", str(folder), "--protocol", "tiny", "--skip-bad-images")
    assert harness(*words).code == 0
    (file, *_) = (tmp_path / "results").glob("runs/*/*/*.json")
    command = harness("show", file.stem).out.split("Reproduce with:\n  ")[1]
    assert f"--dataset '{folder}'" in command
    assert "--skip-bad-images" in command


def test_a_folder_named_without_its_dot_is_pointed_out(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    said = harness("run", "--dataset", "photos")
    assert said.code == 2
    assert "for your own data write ./photos" in said.err


def test_inside_a_ray_job_a_dataset_by_its_path_needs_no_data_root(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ray job's working directory is a temporary copy: what has to be absolute is what the run reads."""
    photos(tmp_path / "photos")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.chdir(tmp_path)
    run = ("run", "--losses", "triplet", "--protocol", "tiny", "--dry-run", "--results", str(tmp_path / "results"))
    assert harness(*run, "--dataset", str(tmp_path / "photos")).code == 0
    refused = harness(*run, "--dataset", "./photos")
    assert refused.err == (
        "harness: --dataset ./photos: inside a Ray job the working directory is a temporary copy; give an absolute "
        "path\n"
    )
