"""What the command `harness` and `python -m harness` call: it heeds Ctrl-C before anything else is imported."""

import sys

from harness import shadowed
from harness.cli import signals


def stop_if_hidden() -> None:
    """End if nothing would work, because another package called losses is found in place of ours."""
    reason = shadowed.why()
    if reason:
        sys.stderr.write(f"harness: {reason}\n")  # not with `say`, which imports losses
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
