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
from harness import pages as pages_of
from harness.cli.main import app

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
        "faults": faults_page(),
        "settings": page(map(markdown, pages_of.of_settings())),
        "python": python_page(),
        **copied_pages(),
    }


# --- losses, protocols, datasets, settings: what `harness show` prints, as Markdown ---


def loss_pages() -> Pages:
    specs = [config.loss(name) for name in losses.names()]
    rows = [[linked(pages_of.Link("losses", spec.name), "."), escape(spec.title), escape(spec.cite)] for spec in specs]
    overview = index("Losses", "Every loss of this package.", ["name", "title", "source"], rows)
    return {
        "losses/index": overview,
        **{f"losses/{spec.name}": page(map(markdown, pages_of.of_loss(spec))) for spec in specs},
    }


def protocol_pages() -> Pages:
    protocols = [config.protocol(name) for name in config.names("protocols")]
    rows = [
        [linked(pages_of.Link("protocols", one.name), "."), escape(one.title), escape(one.source)] for one in protocols
    ]
    overview = index("Protocols", "Every protocol of this package.", ["name", "title", "source"], rows)
    written_pages = {
        f"protocols/{one.name}": page([*map(markdown, pages_of.of_protocol(one)), *file_of("protocols", one.name)])
        for one in protocols
    }
    return {"protocols/index": overview, **written_pages}


def dataset_pages() -> Pages:
    datasets = [config.dataset(name) for name in config.names("datasets")]
    rows = [[linked(pages_of.Link("datasets", one.name), "."), escape(one.title), escape(one.note)] for one in datasets]
    overview = index("Datasets", "Every dataset this package knows.", ["name", "title", "what it holds"], rows)
    written_pages = {
        f"datasets/{one.name}": page([*map(markdown, pages_of.of_dataset(one)), *file_of("datasets", one.name)])
        for one in datasets
    }
    return {"datasets/index": overview, **written_pages}


def file_of(kind: str, name: str) -> list[str]:
    text = (ROOT / "configs" / kind / f"{name}.toml").read_text(encoding="utf-8")
    return ["## The file", block("toml", text)]


def markdown(part: pages_of.Part) -> str:
    """A part of a page as Markdown."""
    match part:
        case str():
            return escape(part)
        case pages_of.Heading(text, level):
            return f"{'#' * level} {escape(text)}"
        case pages_of.Facts(values):
            return listed({name: cell_text(value) for name, value in values.items()})
        case pages_of.Table(headers, rows):
            return table([escape(header) for header in headers], ([cell_text(one) for one in row] for row in rows))
        case pages_of.Block(language, text):
            return block(language, text)
        case pages_of.Docstring(text):
            return prose(text)


def cell_text(value: pages_of.Cell) -> str:
    return linked(value, "..") if isinstance(value, pages_of.Link) else escape(value)


def linked(link: pages_of.Link, folder: str) -> str:
    """A link to the page of a loss, protocol or dataset; `folder` is . in its own folder, and .. in another."""
    place = f"{link.name}.md" if folder == "." else f"../{link.kind}/{link.name}.md"
    return f"[{code(link.name)}]({place})"


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
    """A docstring as Markdown: formulas as they stand in a block of their own, everything else escaped."""
    parts: list[str] = []
    for kind, text in pages_of.Docstring(docstring).parts():
        if kind == "formula":
            parts.append(block("text", text.replace("`", "")))
        elif kind == "item" and parts and parts[-1].startswith("- "):
            parts[-1] += f"\n- {escape(text)}"
        else:
            parts.append(f"- {escape(text)}" if kind == "item" else escape(text))
    return page(parts).rstrip("\n")


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
