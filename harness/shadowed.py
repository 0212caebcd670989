"""A package of the user's own called losses, where Python finds it in place of ours. Imports nothing at the top: the
command line must heed Ctrl-C before anything is imported."""


def why() -> str:
    """What hides our package `losses`, and what to do; "" if nothing does. Python itself would not say why nothing
    works."""
    from importlib.util import find_spec
    from pathlib import Path

    found = find_spec("losses")  # without importing it
    folder = Path(found.origin).parent if found and found.origin else Path(".")
    if folder.parent == Path(__file__).parent.parent:
        return ""
    return (
        f"{folder} hides our package of the same name: it comes first on Python's import path; take its folder out of "
        "PYTHONPATH, or start Python in another folder or with -P"
    )
