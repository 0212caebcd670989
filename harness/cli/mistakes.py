"""A parser's complaints in our own words: one line with what was typed, what is wrong and what is allowed."""

import typing
from collections.abc import Iterator, Sequence
from typing import Any

from typer.exceptions import TyperException

from harness.spec import UserError, shortened, unknown
from harness.spec.field import WORDS

LISTS = ("NAMES", "SIZES")  # metavars of options whose values are separated by commas


def explain(error: TyperException) -> str:
    """What is wrong with a command line that could not be parsed."""
    context: Any = getattr(error, "ctx", None)
    parameter: Any = getattr(error, "param", None)
    if parameter is not None:
        return wrong_value(error, parameter, context)
    option = getattr(error, "option_name", None)
    message = " ".join(error.format_message().split())
    if option is None:
        return message
    if context is None:  # click does not say of which command
        return f"{option}: {'takes no value' if 'does not take' in message else 'needs a value'}"
    options = [name for one in context.command.params for name in one.opts if name.startswith("--")]
    return str(unknown("option", option, options, see=f"{context.command_path} --help"))


def wrong_value(error: TyperException, parameter: Any, context: Any) -> str:
    """A value of the wrong type, or one that is missing."""
    is_option = parameter.param_type_name == "option"
    name = parameter.opts[0] if is_option else parameter.display_name_raw
    problems = getattr(error.__cause__, "errors", None)  # pydantic's; without them the value is missing
    if problems is None:
        return f"{name} is missing; usage: {usage(context)}"
    value = shortened(problems()[0]["input"])
    descriptor = parameter.type_descriptor
    choices = ", ".join(map(str, descriptor.choices or ()))
    allowed = f"one of {choices}" if choices else next(WORDS[kind] for kind in kinds(descriptor.annotation))
    return f"{name} {value}: must be {allowed}" if is_option else f"{value}: must be {allowed}"


def kinds(annotation: Any) -> Iterator[type]:
    """The types that an annotation allows: float of `float | None`."""
    yield from (kind for kind in (annotation, *typing.get_args(annotation)) if kind in WORDS)


def surplus(context: Any, words: Sequence[str], word: str) -> UserError:
    """An argument too many: most often a second value of an option."""
    options = {name: option for option in context.command.params for name in option.opts}
    for name, value, next_word in zip(words, words[1:], words[2:], strict=False):
        option = options.get(name)
        if option is None or next_word != word:
            continue
        if value in options:
            return UserError(f"{name}: needs a value")
        if option.metavar in LISTS:
            nouns = option.metavar.lower()
            return UserError(f"{name} {value} {word}: {nouns} are separated by commas: {name} {value},{word}")
        if option.multiple:
            return UserError(f"{name} {value} {word}: {name} takes one value; repeat it: {name} {value} {name} {word}")
    return UserError(f"{word}: is one argument too many; usage: {usage(context)}")


def usage(context: Any) -> str:
    """harness show [OPTIONS] ID."""
    return " ".join(str(context.command.get_usage(context)).removeprefix("Usage: ").split())
