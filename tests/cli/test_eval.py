"""`harness eval`: a stored run measured again, its record beside the run's own."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness.execution import announcement, local, measuring, ray_metrics
from harness.execution.census import Census
from harness.request import Request
from harness.spec import Job, Listener, Work
from harness.spec.recipes import HARTIGAN
from harness.storage import Storage
from tests.conftest import Harness

RUN = ("run", "--losses", "triplet", "--dataset", "blobs")


@pytest.fixture
def stored(small: Path, harness: Harness, tmp_path: Path) -> Path:
    """The record of a final run."""
    assert harness(*RUN).code == 0
    (file,) = (tmp_path / "results" / "runs" / "blobs" / "triplet").glob("*.json")
    return file


@pytest.mark.parametrize("recipe", ["hartigan", "faiss", "sklearn"])
def test_a_run_is_measured_again_and_stored_beside_itself(stored: Path, harness: Harness, recipe: str) -> None:
    if recipe == "faiss":
        pytest.importorskip("faiss")
    before = stored.read_bytes()
    said = harness("eval", stored.stem[:8], "--nmi-recipe", recipe)
    assert said.code == 0
    assert stored.read_bytes() == before
    (other,) = [file for file in stored.parent.glob("*.json") if file != stored]
    old, new = json.loads(before), json.loads(other.read_text())
    assert new["recipe"] == recipe
    assert new["members"] == [stored.stem]
    assert {k: v for k, v in new["metrics"].items() if k != "NMI"} == {
        k: v for k, v in old["metrics"].items() if k != "NMI"
    }
    words = {"hartigan": "Hartigan's moves", "faiss": "faiss.Kmeans, random start", "sklearn": "scikit-learn's KMeans"}
    assert words[recipe] in new["conventions"]["NMI"]
    assert words[recipe] in said.out
    written = other.stat().st_mtime_ns
    again = harness("eval", stored.stem, "--nmi-recipe", recipe)
    assert again.out == said.out
    assert other.stat().st_mtime_ns == written


def test_a_run_that_is_by_the_recipe_already_is_not_measured_again(stored: Path, harness: Harness) -> None:
    said = harness("eval", stored.stem)
    assert said.out.startswith(stored.stem)
    assert list(stored.parent.glob("*.json")) == [stored]


def test_an_older_run_gets_the_usual_nmi_once_it_is_measured_again(stored: Path, harness: Harness) -> None:
    record = json.loads(stored.read_text())
    old = {**record, "conventions": {"NMI": str(HARTIGAN)}, "metrics": {**record["metrics"], "NMI": 0.125}}
    stored.write_text(json.dumps(old))
    before = harness("tables").out
    assert "12.5" in before
    assert f"Its NMI is by hartigan ({HARTIGAN})." in before
    assert harness("eval", stored.stem).code == 0
    after = harness("tables").out
    assert "12.5" not in after
    assert "hartigan" not in after
    assert f"{100 * record['metrics']['NMI']:.1f}" in after
    assert harness(*RUN).out.startswith(after)


def test_a_record_by_what_the_recipe_was_once_is_measured_anew(stored: Path, harness: Harness) -> None:
    """Records by `sklearn` once had one start."""
    harness("eval", stored.stem, "--nmi-recipe", "sklearn")
    (other,) = [file for file in stored.parent.glob("*.json") if file != stored]
    measured = json.loads(other.read_text())
    once = {**measured["conventions"], "NMI": "scikit-learn's KMeans, 1 start, arithmetic mean, seed 0"}
    other.write_text(json.dumps({**measured, "conventions": once, "metrics": {**measured["metrics"], "NMI": 0.125}}))
    assert harness("eval", stored.stem, "--nmi-recipe", "sklearn").code == 0
    assert json.loads(other.read_text())["conventions"] == measured["conventions"]
    assert json.loads(other.read_text())["metrics"] == measured["metrics"]


def test_a_record_by_the_name_ours_stays_readable(stored: Path, harness: Harness) -> None:
    from harness.spec import Result

    result = Result.from_json(json.loads(stored.read_text()))
    named = replace(result, recipe="ours", members=(result.id,), conventions={"NMI": str(HARTIGAN)})
    (stored.parent / f"{named.id}.json").write_text(json.dumps(named.to_json()))
    assert "triplet (ours)" in harness("ls", "runs").out
    assert harness("eval", stored.stem, "--nmi-recipe", "ours").code == 2


def test_tables_show_one_recipe_at_a_time_and_the_run_is_not_repeated(stored: Path, harness: Harness) -> None:
    table = harness("tables").out
    harness("eval", stored.stem, "--nmi-recipe", "sklearn")
    assert harness("tables").out == table
    other = harness("tables", "--nmi-recipe", "sklearn").out
    assert "| Triplet[b]" in other  # below raw pixels
    assert "| Untrained network[a]" in other
    assert "recipe sklearn, except where a footnote names another" in other
    assert harness("tables", "--nmi-recipe", "sklaern").code == 2
    assert harness(*RUN).err == ""
    assert "triplet (sklearn)" in harness("ls", "runs").out
    assert harness("tables", "--nmi-recipe", "faiss").code == 2


def test_removing_the_run_removes_what_was_measured_of_it(stored: Path, harness: Harness) -> None:
    harness("eval", stored.stem, "--nmi-recipe", "sklearn")
    assert harness("rm", stored.stem).code == 0
    assert not list(stored.parent.glob("*.json"))


def test_what_cannot_be_measured_again_says_why(small: Path, harness: Harness, tmp_path: Path) -> None:
    assert harness(*RUN, "--seeds", "2", "--ensemble", "2").code == 0
    assert harness(*RUN, "--set", "fold=val0").code == 0
    records = {file.stem: json.loads(file.read_text()) for file in (tmp_path / "results").glob("runs/*/*/*.json")}
    (joined,) = [id for id, one in records.items() if one["ensemble"]]
    pixels = next(id for id, one in records.items() if one["trial"]["backbone"] == "pixels")
    search = next(
        id for id, one in records.items() if one["trial"]["fold"] == "val0" and one["trial"]["loss"] != "none"
    )
    for id, complaint in (
        (joined, "has no embeddings of its own"),
        (pixels, "is a baseline: only final runs of losses keep embeddings"),
        (search, "is a trial on validation classes: only final runs of losses keep embeddings"),
        ("123abc", "no result"),
    ):
        said = harness("eval", id, "--nmi-recipe", "sklearn")
        assert said.code == 2
        assert complaint in said.err
        assert said.err.count("\n") == 1
    assert harness("eval", joined, "--nmi-recipe", "best").code == 2


def test_an_unknown_recipe_is_one_line_that_names_those_there_are(stored: Path, harness: Harness) -> None:
    said = harness("eval", stored.stem, "--nmi-recipe", "sklaern")
    assert said.code == 2
    assert "no NMI recipe named 'sklaern'; did you mean 'sklearn'?" in said.err


def test_many_runs_are_measured_one_after_another_and_one_that_fails_stops_no_other(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    assert harness(*RUN, "--seeds", "3").code == 0
    ids = sorted(file.stem for file in (tmp_path / "results" / "runs" / "blobs" / "triplet").glob("*.json"))
    damaged = next((tmp_path / "results" / "artifacts" / "embeddings").glob(f"{ids[0]}-*"))
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    words = ("eval", *ids, "--nmi-recipe", "sklearn", "--executor", "local")
    said = harness(*words)
    assert said.code == 1
    assert re.findall(r"^\w{12}  triplet-blobs-test-(\w{12})  R@1", said.out, re.MULTILINE) == ids[1:]
    (line,) = [line for line in said.err.splitlines() if line.startswith("failed: ")]
    assert re.match(r"failed: triplet-blobs-sklearn-\w{12}: .* is damaged", line)
    assert re.search(r"\[3/3\] triplet-blobs-sklearn-\w{12}  R@1", said.err)
    assert harness("status").out.count("failed") == 0  # it is no trial that a run would try again
    assert harness("rm", ids[0]).code == 0
    assert harness(*RUN, "--seeds", "3").code == 0
    again = harness(*words)
    assert again.code == 0
    assert again.err.count("begins") == 1
    assert len(re.findall(r"^NMI: scikit", again.out, re.MULTILINE)) == 3


@pytest.mark.parametrize(
    ("ids", "words", "expected"),
    [(1, (), "local"), (2, (), "ray"), (1, ("--address", "head:6379"), "ray"), (2, ("--executor", "local"), "local")],
)
def test_several_runs_are_measured_by_ray_and_one_in_this_process(
    small: Path,
    harness: Harness,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ids: int,
    words: tuple,
    expected: str,
) -> None:
    assert harness(*RUN, "--seeds", "2").code == 0
    stored = sorted(file.stem for file in (tmp_path / "results" / "runs" / "blobs" / "triplet").glob("*.json"))
    requests: list[Request] = []
    monkeypatch.setattr(measuring, "measure_again", lambda runs, recipe, request, *rest: requests.append(request) or [])
    assert harness("eval", *stored[:ids], "--nmi-recipe", "sklearn", *words, "--max-concurrent", "2").code == 0
    assert [(request.executor, request.max_concurrent) for request in requests] == [(expected, 2)]


@dataclass(frozen=True)
class Waiting:
    """A cluster whose node comes when it has been waited for."""

    storage: Path
    announced: list[str]
    tell_waiting: Callable[[str], None] = print
    tell_lost: Callable[[Work], None] = print
    exporting: Callable[[], AbstractContextManager[None]] = nullcontext

    @contextmanager
    def connected(self, *_: object) -> Iterator["Waiting"]:
        with self.exporting():
            yield self

    def execute(self, jobs: Iterable[Job], listener: Listener) -> None:
        for text in ("waiting for a node with 1 CPU", ""):
            self.tell_waiting(text)
            self.announced.extend(plan.waits_for for plan in announcement.read(Storage(str(self.storage))))
        local.execute(jobs, listener)


def test_a_cluster_exports_how_many_are_measured_and_how_many_wait(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert harness(*RUN, "--seeds", "2").code == 0
    ids = [file.stem for file in (tmp_path / "results" / "runs" / "blobs" / "triplet").glob("*.json")]
    exported: list[tuple[str, int, int]] = []

    @contextmanager
    def record(census: Census, dataset: str) -> Iterator[None]:
        exported.append((dataset, census.waiting, census.done))
        yield
        exported.append((dataset, census.waiting, census.done))

    monkeypatch.setattr(ray_metrics, "exported", record)
    monkeypatch.setattr(measuring, "cluster_of", lambda request: Waiting(tmp_path / "results" / "artifacts", []))
    assert harness("eval", *ids, "--nmi-recipe", "sklearn", "--address", "head:6379").code == 0
    assert exported == [("blobs", 2, 0), ("blobs", 0, 2)]


def test_what_is_waited_for_is_told_and_status_knows_it(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert harness(*RUN, "--seeds", "2").code == 0
    ids = [file.stem for file in (tmp_path / "results" / "runs" / "blobs" / "triplet").glob("*.json")]
    announced: list[str] = []
    requests: list[Request] = []

    def cluster(request: Request) -> Waiting:
        requests.append(request)
        return Waiting(tmp_path / "results" / "artifacts", announced)

    monkeypatch.setattr(measuring, "cluster_of", cluster)
    words = ("--nmi-recipe", "sklearn", "--address", "head:6379", "--gpus-per-trial", "1", "--wait-for-nodes")
    said = harness("eval", *ids, *words)
    assert said.code == 0
    assert requests[0].wait_for_nodes
    assert said.err.count("waiting for a node with 1 CPU\n") == 1
    assert announced == ["waiting for a node with 1 CPU", ""]


def test_where_it_runs_is_checked_first(stored: Path, harness: Harness) -> None:
    for words, complaint in (
        (("--max-concurrent", "0"), "--max-concurrent 0: must be an integer >= 1"),
        (("--address", "nowhere"), "--address nowhere: must be auto or HOST:PORT"),
        (("--wait-for-nodes",), "--wait-for-nodes: needs --address"),
    ):
        said = harness("eval", stored.stem, "--nmi-recipe", "sklearn", *words)
        assert said.code == 2
        assert complaint in said.err
