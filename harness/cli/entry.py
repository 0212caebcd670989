"""What the command `harness` and `python -m harness` call: it heeds Ctrl-C before anything else is imported."""

from typing import NoReturn

from harness.cli import signals


def main() -> NoReturn:
    signals.heed()
    try:
        from harness.cli.main import main as run_command
        from harness.cli.output import prepare_streams

        prepare_streams()
        run_command()
    except KeyboardInterrupt:
        signals.leave()
    finally:
        signals.ending = True
