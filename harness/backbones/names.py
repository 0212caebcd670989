"""The names of timm's networks, read from its source: a typo is found before timm is imported, which takes seconds."""

import difflib
import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from harness.spec import PIXELS, UserError


def check(backbone: str) -> None:
    """A UserError for a name that stands nowhere in timm's source. Whether timm builds a network of that name is known
    when it is imported."""
    name = backbone.partition(".")[0]  # resnet50.a1_in1k: the rest names weights
    if backbone != PIXELS and known() and name not in known() and not re.search(rf"\b{re.escape(name)}\b", source()):
        raise unknown(backbone, known())


def unknown(backbone: str, names: Sequence[str]) -> UserError:
    # timm knows a thousand names, so only the nearest are listed
    near = difflib.get_close_matches(backbone, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "see timm.list_models()."
    return UserError(f"no backbone named {backbone!r}; {hint} Any timm name is allowed")


@cache
def known() -> list[str]:
    """The names as far as they can be read; none if timm is laid out in another way than today."""
    return sorted(re.findall(r"^@register_model\s+def (\w+)\(", source(), re.MULTILINE))


@cache
def source() -> str:
    """The source of all networks: timm's, and those beside this file."""
    spec = find_spec("timm")
    timm = [Path(folder) / "models" for folder in (spec and spec.submodule_search_locations) or ()]
    files = [file for folder in (*timm, Path(__file__).parent) for file in sorted(folder.glob("*.py"))]
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
