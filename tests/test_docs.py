"""The documentation: its commands parse, its links lead somewhere, its tables agree with the files they describe."""

import importlib.util
import inspect
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import yaml
from markdown_it import MarkdownIt
from typer.exceptions import TyperException

import losses
from harness import config
from harness.cli.main import app
from harness.pages import Docstring
from harness.spec import UserError
from tests.processes import HARNESS
from tests.test_architecture import ROOT as PACKAGE
from tests.test_architecture import files, imported, ours, unit

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str = r"\w*") -> Iterator[tuple[Path, str]]:
    """The code blocks of every page."""
    for page in PAGES:
        for found in re.finditer(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            yield page, found[1]


def commands_in_pages() -> Iterator[str]:
    for _, block in blocks():
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("harness "):
                yield " ".join(line.partition(" #")[0].removesuffix("&").split())


def examples_in_help(command: Any) -> Iterator[str]:
    if command.epilog:
        yield command.epilog.removeprefix("Example: ")
    for child in getattr(command, "commands", {}).values():
        yield from examples_in_help(child)


def parse(line: str) -> None:
    """Parse a command line as `harness` does, without running it; raises what the parser raises."""
    command: Any = typer.main.get_command(app)
    program, *words = shlex.split(line)
    assert program == "harness"
    while hasattr(command, "commands"):
        name = words.pop(0)
        assert name in command.commands, f"no command named {name}"
        command = command.commands[name]
    command.make_context(line, words)


@pytest.mark.parametrize("line", list(dict.fromkeys(commands_in_pages())))
def test_a_command_in_the_documentation_is_one_that_harness_accepts(line: str) -> None:
    parse(line)


@pytest.mark.parametrize("line", list(dict.fromkeys(examples_in_help(typer.main.get_command(app)))))
def test_an_example_of_the_help_is_one_that_harness_accepts(line: str) -> None:
    parse(line)


@pytest.mark.parametrize("line", ["harness run --epochs 3", "harness tabels", "harness show", "harness ls everything"])
def test_a_wrong_command_would_be_noticed(line: str) -> None:
    with pytest.raises((AssertionError, TyperException, UserError)):
        parse(line)


def test_the_tour_of_the_readme_has_as_many_commands_as_it_says() -> None:
    tour = (ROOT / "README.md").read_text().partition("## A tour in eleven commands")[2].partition("## ")[0]
    assert len(re.findall(r"^harness ", tour, re.MULTILINE)) == 11


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_relative_link_leads_to_a_file(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    relative = [link.partition("#")[0] for link in links if not re.match(r"https?:|#", link)]
    assert [link for link in relative if not (page.parent / link).exists()] == []


@pytest.mark.parametrize(("page", "code"), list(blocks("python")), ids=lambda value: getattr(value, "name", ""))
def test_python_in_the_documentation_compiles(page: Path, code: str) -> None:
    compile(code, str(page), "exec")


def test_the_datasets_page_has_the_counts_of_the_files() -> None:
    text = (ROOT / "docs" / "datasets.md").read_text()
    for name in config.names("datasets"):
        one = config.dataset(name)
        counts = f"| {one.train_classes:,} / {one.test_classes:,} | {one.train_images:,} / {one.test_images:,} |"
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        assert counts in row


def module(name: str) -> ModuleType:
    """A script of docs/, which is not a package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    return module("generate")


def test_there_is_a_page_for_every_loss_protocol_dataset_and_command(generate: ModuleType) -> None:
    pages = generate.pages()
    assert {f"losses/{name}" for name in losses.names()} <= set(pages)
    assert {f"protocols/{name}" for name in config.names("protocols")} <= set(pages)
    assert {f"datasets/{name}" for name in config.names("datasets")} <= set(pages)
    assert {"commands/harness-run", "commands/harness-data-cache-rm", "settings", "python"} <= set(pages)


def test_the_page_of_a_loss_has_its_formula_knobs_and_ranges(generate: ModuleType) -> None:
    page = generate.pages()["losses/group"]
    assert "X(t+1) = Q^-1 [X(t) * (W X(t))]" in page
    assert "| `group.temperature` | " in page
    assert "| 1 to 100 (log) |" in page


@pytest.mark.parametrize(
    "text",
    ["X * (W X) * Y", "mean of |x|^2 + |y|^2", "w_c^k and w_c^t", "a < b > c, <b>", "[ margin - D ]+ (2.x)", "~ 1 / q"],
)
def test_text_of_a_docstring_is_shown_as_it_is(generate: ModuleType, text: str) -> None:
    (paragraph,) = (
        token for token in MarkdownIt("gfm-like", {"linkify": False}).parse(generate.escape(text)) if token.children
    )
    assert "".join(child.content for child in paragraph.children or ()) == text


def test_a_formula_ends_with_its_sentence_and_the_rest_is_prose(generate: ModuleType) -> None:
    docstring = "What it is.\n\nL = a * b,\nS = c. The paper sums; `k` is 2.\n\n- one\n  item\n- two"
    assert generate.prose(docstring).split("\n\n") == [
        "What it is.",
        generate.block("text", "L = a * b,\nS = c."),
        "The paper sums; `k` is 2.",
        "- one item\n- two",
    ]


def test_items_may_follow_a_sentence_without_a_blank_line() -> None:
    parts = list(Docstring("What it does:\n- one\n  item\n- two").parts())
    assert parts == [("prose", "What it does:"), ("item", "one item"), ("item", "two")]


@pytest.mark.parametrize("name", losses.names())
def test_no_item_and_no_sentence_about_symbols_is_part_of_a_formula(name: str) -> None:
    for kind, text in Docstring(inspect.getdoc(losses.get(name)) or "").parts():
        if kind == "formula":
            assert not re.search(r"[\]\w+)] *\n+ *[A-Z]\w* is ", text), text


def test_a_signature_is_shown_as_it_is_written(generate: ModuleType) -> None:
    def load(self: object, folder: "Path | str" = "results", *, seeds: int = 1) -> "list[str]": ...

    assert generate.arguments(load) == "(folder: Path | str = 'results', *, seeds: int = 1) -> list[str]"


@pytest.mark.parametrize("name", ["packages", "walk"])
def test_the_pictures_are_those_that_draw_py_draws(name: str) -> None:
    assert (ROOT / "docs" / "pictures" / f"{name}.svg").read_text() == module("draw").PICTURES[name]()


def test_every_place_that_the_architecture_names_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("## The packages")[1].split("## The walk of one trial")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    places = [place for row in rows for place in re.findall(r"`([^`]+)`", row)]
    assert len(places) > 15
    assert not [place for place in places if not (ROOT / place).exists()]


def test_every_arrow_between_the_packages_is_an_import() -> None:
    draw = module("draw")
    imports = {(unit(file), ours(name)) for file in files(PACKAGE) for name in imported(file)}
    arrows = {*draw.IMPORTS, *draw.IMPORTED_WHEN_CALLED}
    assert arrows <= imports


def test_every_fault_of_the_reliability_suite_is_on_its_page(generate: ModuleType) -> None:
    """The marker of each has two texts; without a marker `make chaos` leaves a test out."""
    faults = generate.faults()
    assert len(faults) > 50
    assert all(tried.strip() and promised.strip() for tried, promised, _ in faults)
    page = generate.pages()["faults"]
    assert [test for _, _, test in faults if f"`{test}`" not in page] == []


def test_every_test_that_the_reliability_page_names_exists() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 20
    assert [test for file, test in named if f"def {test}(" not in (ROOT / file).read_text()] == []


def manifests() -> list[dict[str, Any]]:
    return [part for _, block in blocks("yaml") for part in yaml.safe_load_all(block)]


def harness_commands(part: Any) -> Iterator[str]:
    """The commands of the containers and jobs in a manifest."""
    if isinstance(part, dict):
        if "entrypoint" in part:
            yield part["entrypoint"]
        if "command" in part:
            yield shlex.join(part["command"])
        for value in part.values():
            yield from harness_commands(value)
    elif isinstance(part, list):
        for value in part:
            yield from harness_commands(value)


def test_manifests_are_yaml_and_run_commands_that_harness_accepts() -> None:
    lines = [line for part in manifests() for line in harness_commands(part)]
    assert len(lines) >= 3  # of a pod, of a RayJob, of a RayJob that joins a RayCluster
    for line in lines:
        parse(line)


def pods(part: Any) -> Iterator[dict[str, Any]]:
    """The specifications of pods in a manifest."""
    if isinstance(part, dict):
        if "containers" in part:
            yield part
        for value in part.values():
            yield from pods(value)
    elif isinstance(part, list):
        for value in part:
            yield from pods(value)


def test_pods_may_write_to_their_volumes_which_are_claimed_and_run_the_image_that_is_pushed() -> None:
    found = list(pods(manifests()))
    assert len(found) >= 5  # a job's; the heads and workers of two clusters
    claimed = {part["metadata"]["name"] for part in manifests() if part.get("kind") == "PersistentVolumeClaim"}
    (pushed,) = (
        re.findall(r"^docker push (\S+)$", block, re.MULTILINE) for _, block in blocks() if "docker push" in block
    )
    for pod in found:
        volumes = [volume for volume in pod.get("volumes", ()) if "persistentVolumeClaim" in volume]
        assert not volumes or pod["securityContext"] == {"fsGroup": 1000}  # the user of the image may write there
        assert {volume["persistentVolumeClaim"]["claimName"] for volume in volumes} <= claimed
        (container,) = pod["containers"]
        assert [container["image"]] == pushed
        mounts = {mount["name"] for mount in container.get("volumeMounts", ())}
        assert mounts == {volume["name"] for volume in pod.get("volumes", ())}


def test_clusters_of_kuberay_grow_from_no_gpu_node_and_ask_for_a_token() -> None:
    job, cluster, joins = (part for part in manifests() if part.get("apiVersion") == "ray.io/v1")
    assert (job["kind"], cluster["kind"], joins["kind"]) == ("RayJob", "RayCluster", "RayJob")
    assert joins["spec"]["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    for spec in (job["spec"]["rayClusterSpec"], cluster["spec"]):
        assert spec["enableInTreeAutoscaling"] is True
        assert spec["authOptions"] == {"mode": "token"}
        assert spec["rayVersion"] == version_in_constraints("ray")
        (group,) = spec["workerGroupSpecs"]
        assert group["minReplicas"] == group["replicas"] == 0 < group["maxReplicas"]
        (worker,) = group["template"]["spec"]["containers"]
        assert worker["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert spec["autoscalerOptions"]["version"] == "v2"  # it reports what it can start no node for


def test_the_configuration_of_ray_up_is_valid_and_its_nodes_ask_for_a_token() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    (configuration,) = (part for part in manifests() if "cluster_name" in part)
    prepared = prepare_config(configuration)
    validate_config(prepared)
    gpu = prepared["available_node_types"]["gpu"]
    assert gpu["min_workers"] == 0
    assert "IamInstanceProfile" in gpu["node_config"]
    assert {"ImageId"} <= prepared["available_node_types"]["head"]["node_config"].keys() & gpu["node_config"].keys()
    assert prepared["file_mounts"]["/home/ubuntu/.ray/auth_token"] == "~/.ray/auth_token"
    assert any("RAY_AUTH_MODE=token" in command for command in prepared["setup_commands"])
    assert [name for name in prepared["rsync_filter"] if not (ROOT / name).exists()] == []


def version_in_constraints(package: str) -> str:
    (line,) = re.findall(rf"^{package}==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return line


def test_the_image_copies_files_that_exist_and_what_the_package_is_built_from() -> None:
    ((_, dockerfile),) = blocks("dockerfile")
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", dockerfile, re.MULTILINE) for word in line.split()]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert {"pyproject.toml", "constraints.txt", "harness", "losses", "configs"} <= set(copied)


# --- the results that are committed ---


def tables(*words: str) -> str:
    """What `harness tables` prints of the committed results that the documents show; others are older."""
    where = ["--since", "2026-11-18", "--results", str(ROOT / "results")]
    return subprocess.run([*HARNESS, "tables", *where, *words], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(("form", "suffix"), [("markdown", "md"), ("latex", "tex")])
def test_the_committed_tables_are_what_the_committed_results_give(form: str, suffix: str, tmp_path: Path) -> None:
    tables("--table", "all", "--published", "beside", "--format", form, "--out", str(tmp_path))
    made, committed = (
        {file.name: file.read_text() for file in folder.glob(f"*.{suffix}")}
        for folder in (tmp_path, ROOT / "results" / "tables")
    )
    assert made == committed


def test_the_table_of_cub_in_the_readme_is_what_the_committed_results_give() -> None:
    section = (ROOT / "README.md").read_text().partition("## One real answer: CUB")[2].partition("\n## ")[0]
    shown, made = ([line for line in text.splitlines() if line.startswith("|")] for text in (section, tables()))
    assert len(shown) == 8
    assert shown == made
