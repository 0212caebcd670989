"""What the command `harness` and `python -m harness` call: it heeds Ctrl-C before anything else is imported."""

import sys

import harness
from harness.cli import signals


def stop_if_hidden() -> None:
    """End if another package called losses is found in place of ours: nothing would work, and Python would not say
    why."""
    from importlib.util import find_spec
    from pathlib import Path

    found = find_spec("losses")  # without importing it
    folder = Path(found.origin).parent if found and found.origin else Path(".")
    if folder.parent != Path(harness.__file__).parent.parent:
        sys.stderr.write(  # not with `say`, which imports losses
            f"harness: {folder} hides our package of the same name: it comes first on Python's import path; "
            "take its folder out of PYTHONPATH\n"
        )
        sys.exit(2)


def main() -> None:
    signals.heed()
    try:
        stop_if_hidden()
        from harness.cli.main import main as run_command
        from harness.cli.output import prepare_streams

        prepare_streams()
        run_command()
    except KeyboardInterrupt:
        signals.leave()
    finally:
        signals.ending = True
