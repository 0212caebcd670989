"""Help and parsing of commands: options in groups, help without a command, and our own words for mistakes."""

import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from harness.cli.mistakes import surplus
from harness.cli.output import say
from harness.spec import unknown

# -h everywhere; wider than click's 80 columns where the terminal is
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
NAME_WIDTH = 26  # at most, of the column of names; a longer name gets a line of its own


Function = TypeVar("Function", bound=Callable[..., Any])
FORM = re.compile(r" <(.*)>$")
Headings = dict[str, list[tuple[str, str]]]  # heading -> names and what they mean


class Command(TyperCommand):
    """A command whose options stand under the headings they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_parameters(self.get_params(ctx), ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)  # {ID...}... where several are taken
        return [piece.strip("{}.") + "..." * ("..." in piece) if "{" in piece else piece for piece in pieces]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True  # so that a word too many is our error and not click's
        words = list(args)
        super().parse_args(ctx, args)
        if ctx.args and not ctx.resilient_parsing:
            raise surplus(ctx, words, ctx.args[0])
        return []


class Commands(TyperGroup):
    """A group of commands under headings. Without a command it prints its help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        headings: Headings = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            headings.setdefault(heading, []).append((name, first_sentence(command.help or "")))
        write_headings(formatter, headings)
        write_parameters(self.get_params(ctx), ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            say(ctx.get_help())
            raise typer.Exit
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise unknown("command", args[0], self.commands)
        return super().resolve_command(ctx, args)


class Application(typer.Typer):
    """A Typer whose groups are Commands and whose commands are Command."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            cls=Commands,
            context_settings=CONTEXT,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            **options,
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        return super().command(name, cls=Command, context_settings=CONTEXT, **options)


def write_parameters(parameters: Iterable[Any], ctx: Any, formatter: Any) -> None:
    """Arguments first, then options under their headings."""
    headings: Headings = {}
    for parameter in parameters:
        usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
        record = parameter.get_help_record(ctx)
        if record is not None:
            row = (FORM.sub(form, record[0]), record[1])
            headings.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(row)
    write_headings(formatter, headings)


def form(found: re.Match[str]) -> str:
    """Of `<none|asha>` the words; of `ID <str>` nothing, because a type in Python's words tells a user nothing."""
    return f" {found[1]}" if "|" in found[1] else ""


def write_headings(formatter: Any, headings: Headings) -> None:
    """The names of all sections fill one column. Unlike click's own lists, words are not broken at hyphens."""
    width = min(max(len(name) for rows in headings.values() for name, _ in rows), NAME_WIDTH)
    for heading, rows in headings.items():
        with formatter.section(heading):
            for name, text in rows:
                lines = textwrap.wrap(text, formatter.width - width - 4, break_on_hyphens=False) or [""]
                if len(name) > width:
                    lines.insert(0, "")
                column = [name, *[""] * (len(lines) - 1)]
                for left, right in zip(column, lines, strict=True):
                    formatter.write(f"  {left:{width}}  {right}".rstrip() + "\n")


def first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.split()))[0].removesuffix(".")
