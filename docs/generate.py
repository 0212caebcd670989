"""Writes the reference pages: one per loss, protocol, dataset and command, the settings, the faults that are tried, and
the Python interface.

Everything comes from the code itself: the registry of losses, the TOML files, the command-line application and the
signatures of `harness`. `make docs` calls `write` through conf.py; the pages are never committed.
"""

import ast
import inspect
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

import harness
import losses
from harness import config
from harness.cli.main import app
from harness.spec import SEARCHABLE, SETTINGS, Tuned

ROOT = Path(__file__).parent.parent
Pages = dict[str, str]  # path without its ending -> Markdown


def write(folder: Path) -> None:
    """Write every page below `folder`, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in pages().items():
        file = folder / f"{name}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def pages() -> Pages:
    return {
        **loss_pages(),
        **protocol_pages(),
        **dataset_pages(),
        **command_pages(),
        "settings": settings_page(),
        "faults": faults_page(),
        "python": python_page(),
        **copied_pages(),
    }


# --- losses ---


def loss_pages() -> Pages:
    specs = [config.loss(name) for name in losses.names()]
    rows = [[f"[{code(spec.name)}]({spec.name}.md)", escape(spec.title), escape(spec.cite)] for spec in specs]
    overview = index("Losses", "Every loss of this package.", ["name", "title", "source"], rows)
    return {"losses/index": overview, **{f"losses/{spec.name}": loss_page(spec) for spec in specs}}


def loss_page(spec: Any) -> str:
    loss = losses.get(spec.name)
    facts = {
        "Name": code(spec.name),
        "File": code(f"losses/{spec.name}.py"),
        "Source": escape(spec.cite),
        "Version": code(spec.version),
        "Family": escape(spec.family),
    }
    parts = [
        f"# {escape(spec.title)}",
        listed(facts),
        block("bash", f"harness run --losses {spec.name}"),
        "## Formula, source and deviations",
        prose(inspect.getdoc(loss) or ""),
        "## Knobs",
        knob_table(spec),
    ]
    if used := tuned_rows(spec.name):
        parts += ["## Values that protocols use", table(["protocol", "dataset", "values", "source"], used)]
    if bibtex := getattr(loss, "bibtex", ""):
        parts += ["## BibTeX", block("bibtex", inspect.cleandoc(bibtex))]
    return page(parts)


def knob_table(spec: Any) -> str:
    if not spec.knobs:
        return "This loss has no knobs."
    rows = [
        [
            code(f"{spec.name}.{name}"),
            escape(knob.allowed),
            code(written(knob.default)),
            escape(str(spec.space.get(name, "no"))),
        ]
        for name, knob in spec.knobs.items()
    ]
    return page(
        [
            f"Set one with `--set {rows[0][0].strip('`')}=VALUE`. The last column is what random search draws from.",
            table(["knob", "allowed", "default", "searched"], rows),
        ]
    )


def tuned_rows(loss: str) -> list[list[str]]:
    """The protocols that give values for a loss, with the source they state."""
    return [
        [
            f"[{code(name)}](../protocols/{name}.md)",
            code(dataset),
            assignments(values[loss].values),
            source(values[loss]),
        ]
        for name in config.names("protocols")
        for dataset, values in config.protocol(name).tuned.items()
        if loss in values
    ]


# --- protocols, settings, datasets ---


def protocol_pages() -> Pages:
    protocols = [config.protocol(name) for name in config.names("protocols")]
    rows = [[f"[{code(one.name)}]({one.name}.md)", escape(one.title), escape(one.source)] for one in protocols]
    overview = index("Protocols", "Every protocol of this package.", ["name", "title", "source"], rows)
    return {"protocols/index": overview, **{f"protocols/{one.name}": protocol_page(one) for one in protocols}}


def protocol_page(protocol: Any) -> str:
    ranges = [[code(name), escape(str(values))] for name, values in protocol.search.items()]
    folds = "on one validation fold" if protocol.folds == 1 else f"averaged over {protocol.folds} validation folds"
    parts = [
        f"# {escape(protocol.name)}: {escape(protocol.title)}",
        f"Source: {escape(protocol.source)}.",
        block("bash", f"harness run --protocol {protocol.name}"),
        f"Search trials are compared by {escape(protocol.select)} {folds}."
        + (" A search also chooses the number of epochs." if protocol.select_epochs else ""),
        "## Settings",
        "[Settings](../settings.md) lists what is allowed. An empty cell below a dataset means the common value.",
        shared_table(protocol),
        *(
            f"Losses of the family `{family}` have `samples_per_class` = {samples} in batches of the same size."
            for family, samples in protocol.families.items()
        ),
        "## Random search",
        "`--trials N` draws these, and the knobs of each loss from the loss's own ranges.",
        table(["setting", "range"], ranges),
    ]
    used = [
        [code(dataset), f"[{code(loss)}](../losses/{loss}.md)", assignments(tuned.values), source(tuned)]
        for dataset, by_loss in protocol.tuned.items()
        for loss, tuned in by_loss.items()
    ]
    if used:
        parts += ["## Values for single losses", table(["dataset", "loss", "values", "source"], used)]
    return page([*parts, "## The file", block("toml", toml("protocols", protocol.name))])


def shared_table(protocol: Any) -> str:
    """The settings every loss shares: a column for each dataset that differs from the common values."""
    special = {
        dataset: values
        for dataset, values in ((name, protocol.shared(name)) for name in config.names("datasets"))
        if values != protocol.settings
    }
    rows = [
        [
            code(name),
            code(written(value)),
            *(code(written(own[name])) if own[name] != value else "" for own in special.values()),
        ]
        for name, value in protocol.settings.items()
    ]
    return table(["setting", "value", *(code(name) for name in special)], rows)


def settings_page() -> str:
    rows = [[code(setting.key), escape(setting.allowed), escape(setting.meaning)] for setting in SETTINGS.values()]
    return page(
        [
            "# Settings",
            "The settings of a trial. A protocol gives their values; `--set KEY=VALUE` overrides one for every loss.",
            table(["setting", "allowed", "meaning"], rows),
        ]
    )


def dataset_pages() -> Pages:
    datasets = [config.dataset(name) for name in config.names("datasets")]
    rows = [[f"[{code(one.name)}]({one.name}.md)", escape(one.title), escape(one.note)] for one in datasets]
    overview = index("Datasets", "Every dataset this package knows.", ["name", "title", "what it holds"], rows)
    return {"datasets/index": overview, **{f"datasets/{one.name}": dataset_page(one) for one in datasets}}


def dataset_page(dataset: Any) -> str:
    counts = [
        ["training", f"{dataset.train_classes:,}", f"{dataset.train_images:,}"],
        ["test", f"{dataset.test_classes:,}", f"{dataset.test_images:,}"],
    ]
    if dataset.query_images:
        counts.append(["of the test images, queries", "", f"{dataset.query_images:,}"])
    facts = {
        "Source": escape(dataset.cite),
        "Default protocol": f"[{code(dataset.protocol)}](../protocols/{dataset.protocol}.md)",
        "Recall@K": "K = " + ", ".join(map(str, dataset.recall_at)),
        "Version": code(dataset.version),
    }
    parts = [
        f"# {escape(dataset.title)}",
        escape(dataset.note) + ".",
        block("bash", f"harness run --dataset {dataset.name}"),
        table(["classes are split, never images", "classes", "images"], counts),
        listed(facts),
        "## How to get it",
    ]
    if dataset.layout == "embedded":
        parts.append("It comes with the package.")
    if dataset.archives:
        parts.append(block("bash", f"harness data download {dataset.name}\nharness data check {dataset.name}"))
        parts.append(table(["archive", "checksum"], [[code(a["url"]), code(a["checksum"])] for a in dataset.archives]))
    if dataset.manual:
        parts.append(f"By hand: {escape(dataset.manual)}.")
    return page([*parts, "## The file", block("toml", toml("datasets", dataset.name))])


# --- commands ---


def command_pages() -> Pages:
    commands = dict(leaves(typer.main.get_command(app), "harness"))
    rows = [
        [f"[{code(path)}]({path.replace(' ', '-')}.md)", escape(sentences(command.help)[0])]
        for path, command in commands.items()
    ]
    overview = index("Commands", "Every command of `harness`.", ["command", "what it does"], rows)
    written_pages = {f"commands/{path.replace(' ', '-')}": command_page(path, one) for path, one in commands.items()}
    return {"commands/index": overview, **written_pages}


def leaves(command: Any, path: str) -> Iterable[tuple[str, Any]]:
    """Every command that is not a group of commands, by what one types."""
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from leaves(child, f"{path} {name}")
    else:
        yield path, command


def command_page(path: str, command: Any) -> str:
    context = command.make_context(path, [], resilient_parsing=True)
    usage = command.get_usage(context).removeprefix("Usage: ")
    example = (command.epilog or "").removeprefix("Example: ")
    parts = [f"# {path}", escape(inspect.cleandoc(command.help or "")), block("text", usage)]
    if example:
        parts += ["Example:", block("bash", example)]
    records = [one.get_help_record(context) for one in command.params]
    arguments = [help_entry(record) for record in records if record and not record[0].startswith("-")]
    options = [help_entry(record) for record in records if record and record[0].startswith("-")]
    if arguments:
        parts += ["## Arguments", *arguments]
    if options:
        parts += ["## Options", *options]
    return page(parts)


def help_entry(record: tuple[str, str]) -> str:
    """A line of --help as an entry of a definition list.

    What --help says in brackets at the end, the default and the environment variable, stands beside the option's name.
    """
    form, text = record
    meaning, _, bracket = text.partition("  [")
    facts = [fact.partition(": ") for fact in bracket.removesuffix("]").split("; ") if fact]
    words = ", ".join(f"{name} {code(value)}".strip() for name, _, value in facts)
    return f"{code(form)}{f' ({words})' if words else ''}\n: {escape(meaning) or '-'}"


# --- faults ---


def faults() -> list[tuple[str, str, str]]:
    """What each test of the reliability suite tries and promises, as its marker says, and where it is."""
    found = []
    for file in sorted((ROOT / "tests" / "chaos").glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                    tried, promised = (str(ast.literal_eval(text)) for text in mark.args)
                    found.append((tried, promised, f"{file.name}::{node.name}"))
    return found


def faults_page() -> str:
    sentence = "What `make chaos` tries, and what is promised. Each row is a test in `tests/chaos`."
    rows = [[escape(tried), escape(promised), code(test)] for tried, promised, test in faults()]
    return page(["# Faults", sentence, table(["tried", "promised", "test"], rows)])


# --- the Python interface ---


def python_page() -> str:
    """The public names of `harness`, in the order in which `harness.__all__` has them."""
    parts = ["# Python interface", escape(inspect.getdoc(harness) or "")]
    for name in getattr(harness, "__all__", ()):
        item = getattr(harness, name)
        if inspect.isclass(item):
            parts.append(described("py:class", f"harness.{name}", item, members(item)))
        elif inspect.isfunction(item):
            parts.append(described("py:function", f"harness.{name}{arguments(item)}", item))
    return page(parts)


def members(item: type) -> list[str]:
    public = {name: member for name, member in vars(item).items() if not name.startswith("_")}
    methods = [
        described("py:method", name + arguments(one), one) for name, one in public.items() if inspect.isfunction(one)
    ]
    return methods + [described("py:property", name, one) for name, one in public.items() if isinstance(one, property)]


def described(kind: str, signature: str, item: Any, inside: Sequence[str] = ()) -> str:
    """A Sphinx object description: what autodoc makes, with docstrings as plain text instead of reStructuredText."""
    fence = "`" * (9 if inside else 8)  # longer than that of a code block
    return f"{fence}{{{kind}}} {signature}\n{page([prose(inspect.getdoc(item) or ''), *inside])}{fence}"


@dataclass(frozen=True)
class Unquoted:
    """An annotation that is a string, shown without its quotes."""

    text: str

    def __repr__(self) -> str:
        return self.text


def arguments(function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [
        one.replace(annotation=plain(one.annotation)) for one in signature.parameters.values() if one.name != "self"
    ]
    whole = signature.replace(parameters=parameters, return_annotation=plain(signature.return_annotation))
    return re.sub(r"\b(?:collections\.abc|pathlib|typing)\.", "", str(whole))


def plain(annotation: Any) -> Any:
    return Unquoted(annotation) if isinstance(annotation, str) else annotation


# --- text ---


def prose(docstring: str) -> str:
    """A docstring as Markdown: formulas as they stand in a block of their own, everything else escaped.

    A formula is a line that begins `L = `, `X(t+1) = `, `J_ij = `; it goes on to the end of its sentence.
    """
    parts: list[str] = []
    for paragraph in re.split(r"\n\s*\n", docstring):
        formula, rest = split_formula(paragraph)
        if formula:
            parts.append(block("text", formula.replace("`", "")))
        if re.match(r"- ", rest):
            items = re.split(r"\n(?=- )", rest)
            parts.append("\n".join("- " + escape(" ".join(item.split())[2:]) for item in items))
        elif rest:
            parts.append(escape(" ".join(rest.split())))
    return page(parts).rstrip("\n")


FORMULA = re.compile(r"^\s*[A-Z]\w*(\([^)\n]*\))? *= ", re.MULTILINE)


def split_formula(paragraph: str) -> tuple[str, str]:
    """What of a paragraph is formula, and the prose after it."""
    starts = [found.start() for found in FORMULA.finditer(paragraph)]
    if not starts or starts[0] != 0:
        return "", paragraph
    end = re.compile(r"\.\s+(?=[A-Z`])").search(paragraph, starts[-1])
    cut = end.end() if end else len(paragraph)
    return paragraph[:cut].rstrip(), paragraph[cut:]


def escape(text: str) -> str:
    """Plain text as Markdown that shows it as it is; what stands between backticks stays code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        part if number % 2 else re.sub(r"([\\`*_{}\[\]<>#|~$^])", r"\\\1", part) for number, part in enumerate(parts)
    )


def code(value: Any) -> str:
    text = str(value)
    return f"`{text}`" if text else ""


def block(language: str, text: str) -> str:
    return f"```````{{code-block}} {language}\n{text.rstrip()}\n```````"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headers, [":--"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def cell(text: str) -> str:
    """A bar inside code would end the cell, so it is escaped; elsewhere `escape` has done it."""
    return re.sub(r"`[^`]+`", lambda found: found[0].replace("|", "\\|"), " ".join(text.split()))


def listed(facts: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts.items() if value)


def page(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def index(title: str, sentence: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An overview whose first column links to the pages below it."""
    entries = [re.sub(r".*\((.*)\.md\)", r"\1", row[0]) for row in rows]
    contents = "\n".join(["```{toctree}", ":hidden:", "", *entries, "```"])
    return page([f"# {title}", sentence, table(headers, rows), contents])


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.;])\s", " ".join(text.split()))


def written(value: Any) -> str:
    """A value as --set reads it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "(empty)"
    return f"{value:g}" if isinstance(value, float) else str(value)


def assignments(values: Mapping[str, Any]) -> str:
    return ", ".join(code(f"{key}={written(value)}") for key, value in values.items())


def source(tuned: Tuned) -> str:
    """Where values come from; of those that a search found also its trials and its settings."""
    if not tuned.trials:
        return escape(tuned.source)
    ranges = {
        name: value for name, value in tuned.found_with.items() if name in SEARCHABLE and isinstance(value, tuple)
    }
    settings = {name: value for name, value in tuned.found_with.items() if name not in ranges}
    found = ", ".join(
        [assignments(settings), *(f"{code(name)} from {low:g} to {high:g}" for name, (low, high) in ranges.items())]
    )
    return f"{escape(tuned.source)}; {tuned.trials} trials with {found}"


def toml(kind: str, name: str) -> str:
    return (ROOT / "configs" / kind / f"{name}.toml").read_text(encoding="utf-8")


# --- pages of the repository that lie outside docs/ ---


def copied_pages() -> Pages:
    """Copies under the same path; conf.py leads the links of docs/ to them."""
    tables = {
        f"results/tables/{file.stem}": "---\norphan: true\n---\n\n" + file.read_text(encoding="utf-8")
        for file in sorted((ROOT / "results" / "tables").glob("*.md"))
    }
    return {name: copied(name) for name in ("CONTRIBUTING", "CHANGELOG")} | tables


def copied(name: str) -> str:
    """A page of the repository's root, its links as they are seen from docs/generated."""
    text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/([^)]+)\)", r"](../\1)", text)
    return re.sub(r"\]\((?!\.\./|https?:|#)([^)]+)\)", r"](../../\1)", text)
