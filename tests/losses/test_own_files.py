"""The files of a user's own loss: what is collected, what is imported, and what its version covers."""

import pickle
import sys
import traceback
from pathlib import Path

import pytest

import losses
from losses import LossError, own

LOSS = "from losses.base import Loss\n{}\nclass Mine(Loss):\n    title, cite, VALUE = 'Mine', 'me', {}\n"


def lay(folder: Path, **files: str) -> Path:
    """Files by their path, `/` written as `__`; returns mine.py."""
    for name, text in files.items():
        file = folder / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / "mine.py"


def value(file: Path) -> object:
    """What a loss made of what it imports."""
    return losses.get("mine.Mine", own.collect(file)).VALUE  # type: ignore[attr-defined]


FORMS = {
    "import helper": "helper.ONE",
    "import helper as h": "h.ONE",
    "from helper import ONE": "ONE",
    "from helper import *": "ONE",
    "from .helper import ONE": "ONE",
    "from . import helper": "helper.ONE",
    "import pack.inner": "pack.inner.ONE",
    "import pack.inner as i": "i.ONE",
    "from pack.inner import ONE": "ONE",
    "from pack import inner": "inner.ONE",
    "from pack import ONE": "ONE",
    "import folder.inner": "folder.inner.ONE",
    "from folder import inner": "inner.ONE",
    "from nested.deep.inner import ONE": "ONE",
}


@pytest.mark.parametrize("statement", FORMS)
def test_every_form_of_import_finds_the_module_beside_the_file(tmp_path: Path, statement: str) -> None:
    file = lay(
        tmp_path,
        mine=LOSS.format(statement, FORMS[statement]),
        helper="ONE = 1\n",
        pack__inner="ONE = 1\n",
        folder__inner="ONE = 1\n",  # without an __init__.py
        nested__deep__inner="from ..above import ONE\n",
        nested__above="from helper import ONE\n",
        unused="raise RuntimeError\n",
    )
    (tmp_path / "pack" / "__init__.py").write_text("from .inner import ONE\n")
    assert value(file) == 1
    assert not {"mine", "helper", "pack", "folder", "nested"} & set(sys.modules)
    assert "unused.py" not in own.collect(file)


def test_imports_inside_functions_are_found_when_they_run(tmp_path: Path) -> None:
    text = LOSS.format("def late():\n    import helper\n    return helper.ONE\n", "staticmethod(late)")
    file = lay(tmp_path, mine=text, helper="ONE = 1\n")
    loss = losses.get("mine.Mine", own.collect(file))
    (tmp_path / "helper.py").unlink()
    assert loss.VALUE() == 1  # type: ignore[attr-defined]


def test_two_losses_have_each_their_own_helper_and_an_edited_one_is_imported_anew(tmp_path: Path) -> None:
    files = [
        lay(tmp_path / name, mine=LOSS.format("import helper", "helper.ONE"), helper=f"ONE = {name!r}\n")
        for name in "ab"
    ]
    assert [value(file) for file in files] == ["a", "b"]
    lay(tmp_path / "a", helper="ONE = 'c'\n")
    assert [value(file) for file in files] == ["c", "b"]


def test_the_version_is_that_of_the_file_alone_or_of_all_that_it_imports(tmp_path: Path) -> None:
    alone = lay(tmp_path / "alone", mine="import torch\n", helper="ONE = 1\n")
    assert own.version(own.collect(alone)) == own.digest("import torch\n")[:12]
    file = lay(tmp_path, mine="import a\n", a="import b\n", b="ONE = 1\n", other="ONE = 1\n")
    first = own.version(own.collect(file))
    lay(tmp_path, other="ONE = 2\n")
    assert own.version(own.collect(file)) == first
    lay(tmp_path, b="ONE = 2\n")
    assert own.version(own.collect(file)) != first


@pytest.mark.parametrize("stem", ["losses", "torch", "harness", "json", "helper"])
def test_a_file_may_be_called_like_what_it_imports(tmp_path: Path, stem: str) -> None:
    text = LOSS.format("import json, torch, harness", "torch.__name__")
    file = lay(tmp_path, mine=text, random="raise RuntimeError\n").rename(tmp_path / f"{stem}.py")
    assert list(own.collect(file)) == [f"{stem}.py"]
    assert losses.get(f"{stem}.Mine", own.collect(file)).VALUE == "torch"  # type: ignore[attr-defined]


def test_what_is_installed_is_not_collected(tmp_path: Path) -> None:
    file = lay(tmp_path / "site-packages", mine="import helper\n", helper="ONE = 1\n")
    assert list(own.collect(file)) == ["mine.py"]


def test_modules_that_import_each_other_are_collected_once(tmp_path: Path) -> None:
    file = lay(tmp_path, mine=LOSS.format("import a", "a.ONE"), a="import b\nONE = 1\n", b="import a\n")
    assert set(own.collect(file)) == {"mine.py", "a.py", "b.py"}
    assert value(file) == 1


def test_what_is_missing_says_so(tmp_path: Path) -> None:
    file = lay(tmp_path, mine=LOSS.format("import nowhere_to_be_found", "1"))
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere_to_be_found'"):
            value(file)
    assert not any(isinstance(finder, own.Beside) and "nowhere" in str(finder.sources) for finder in sys.meta_path)


def test_a_helper_that_is_no_python_or_too_large_is_refused(tmp_path: Path) -> None:
    file = lay(tmp_path, mine="import helper\n", helper="def :\n")
    with pytest.raises(LossError, match=r"SyntaxError: invalid syntax \(helper.py, line 1\)"):
        own.collect(file)
    (tmp_path / "helper.py").write_bytes(b"\xff")
    with pytest.raises(LossError, match=r"helper.py cannot be read: 'utf-8' codec"):
        own.collect(file)
    lay(tmp_path, helper="#" * (own.MOST_BYTES + 1))
    with pytest.raises(LossError, match="more than 1,000,000 bytes from its folder"):
        own.collect(file)


def test_nothing_is_run_to_collect_it(tmp_path: Path) -> None:
    file = lay(tmp_path, mine="raise RuntimeError\nimport helper\n", helper="raise RuntimeError\n")
    assert set(own.collect(file)) == {"mine.py", "helper.py"}


def test_classes_of_its_modules_can_be_pickled_and_tracebacks_show_their_lines(tmp_path: Path) -> None:
    helper = "class Thing:\n    def fail(self):\n        return 1 / 0  # here\n"
    file = lay(tmp_path, mine=LOSS.format("from helper import Thing", "Thing()"), helper=helper)
    thing = value(file)
    assert type(pickle.loads(pickle.dumps(thing))) is type(thing)
    try:
        thing.fail()  # type: ignore[attr-defined]
    except ZeroDivisionError:
        assert "return 1 / 0  # here" in traceback.format_exc()


def test_the_reserved_names_are_those_of_the_standard_library_and_ours() -> None:
    assert {"random", "typing", "losses", "harness"} <= own.RESERVED
    assert not {"torch", "helper", "utils"} & own.RESERVED
