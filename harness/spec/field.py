"""Field: a named value a user may set, with its type, limits, choices and meaning."""

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from harness.spec import schema
from harness.spec.errors import UserError, shortened
from losses.space import Limit

ANY = Limit()  # any number
LARGEST = 10**15  # of integers: what is larger is a slip, and overflows further on
TYPES: Mapping[type, Callable[[Any], bool]] = {
    int: schema.is_whole,
    float: schema.is_number,
    bool: lambda value: isinstance(value, bool),
    str: schema.is_text,
}
WORDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list of integers like 30,50",
}


@dataclass(frozen=True)
class Field:
    """A field of a trial or a knob of a loss."""

    name: str
    kind: type  # int, float, bool, str, or tuple (of ints)
    default: Any = None
    choices: tuple[Any, ...] = ()
    optional: bool = False
    limit: Limit = ANY
    meaning: str = ""
    owner: str = ""  # the loss whose knob it is; empty for a setting

    @classmethod
    def of(cls, name: str, hint: Any, default: Any, **about: Any) -> "Field":
        """From an annotation: int, float, bool, str, tuple[int, ...], `X | None`, Literal[...], or Annotated[X, Limit].
        Other annotations are the author's own and mean nothing here. `about`: limit, meaning, owner."""
        if typing.get_origin(hint) is Annotated:
            hint, *annotations = typing.get_args(hint)
            for annotation in annotations:
                if isinstance(annotation, str):
                    about["meaning"] = annotation
                if isinstance(annotation, Limit):  # a later one tightens an earlier one
                    bounds = {name: bound for name, bound in vars(annotation).items() if bound is not None}
                    about["limit"] = replace(about.get("limit", ANY), **bounds)
        optional = isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint)
        if optional:
            (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        if typing.get_origin(hint) is Literal:
            choices = typing.get_args(hint)
            return cls(name, type(choices[0]), default, choices, optional, **about)
        return cls(name, typing.get_origin(hint) or hint, default, (), optional, **about)

    @property
    def key(self) -> str:
        """As --set names it: epochs, or group.anchors."""
        return f"{self.owner}.{self.name}" if self.owner else self.name

    @property
    def allowed(self) -> str:
        """In words, for error messages and listings."""
        if self.choices:
            words = f"one of {', '.join(str(choice) for choice in self.choices)}"
        else:
            words = f"{WORDS[self.kind]} {self.limit}".rstrip()
        return words + (" or none" if self.optional else "")

    def parse(self, text: str) -> Any:
        """The value a user wrote on the command line."""
        word = text.strip()
        if self.optional and word.lower() == "none":
            return None
        try:
            if self.kind is bool:
                value: Any = {"true": True, "false": False, "1": True, "0": False}[word.lower()]
            elif self.kind is tuple:
                value = tuple(int(part) for part in word.split(",") if part)
            else:
                value = self.kind(word)
        except (ValueError, KeyError):
            raise self.error(text) from None
        return self.check(value, text)

    def check(self, value: Any, text: str | None = None) -> Any:
        """The value in its proper type, or a UserError; `text` is what the user wrote for it."""
        value = self.proper(value)
        if not self.fits(value) or not self.within_limits(value):
            most = f", at most {LARGEST:,}" if too_large(value) else ""
            raise self.error(value if text is None else text, most)
        return value

    def proper(self, value: Any) -> Any:
        """A value in the type that it has here: 1 and 1.0 are one number, and name one trial."""
        if self.kind is float and schema.is_whole(value):
            return float(value)
        return tuple(value) if self.kind is tuple and isinstance(value, list) else value

    def fits(self, value: Any) -> bool:
        """Whether the value has the right type. Stored records are held to this alone: limits may have been tightened
        since."""
        if value is None:
            return self.optional
        if self.kind is tuple:
            return isinstance(value, tuple | list) and all(map(schema.is_whole, value))
        if self.kind not in TYPES:  # an annotation of the loss's author
            return isinstance(value, self.kind)
        return TYPES[self.kind](value)

    def within_limits(self, value: Any) -> bool:
        """Whether a value of the right type is one that a user may set."""
        if value is None:
            return True
        if self.choices:
            return value in self.choices
        if self.kind in (int, tuple) and too_large(value):
            return False
        return self.kind not in (int, float) or self.limit.allows(value)

    def error(self, value: Any, more: str = "") -> UserError:
        return UserError(f"{self.key}={shortened(value)}: must be {self.allowed}{more}")


def too_large(value: Any) -> bool:
    numbers = value if isinstance(value, tuple) else (value,)
    return any(isinstance(number, int) and abs(number) > LARGEST for number in numbers)
