"""`harness weights`: download pretrained weights."""

from typing import Annotated

import typer

from harness.backbones import downloads
from harness.cli.app import INPUTS, app
from harness.cli.data import bar
from harness.cli.help import Application
from harness.cli.output import say
from harness.spec import UserError

weights = Application(help="Download pretrained weights.")
app.add_typer(weights, name="weights", epilog="Example: harness weights download bn_inception", rich_help_panel=INPUTS)


@weights.command(epilog="Example: harness weights download bn_inception")
def download(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            autocompletion=lambda: list(downloads.URLS),
            help=f"The network: {', '.join(downloads.URLS)}. Others come from timm's hub or from a package.",
        ),
    ],
) -> None:
    """Download the ImageNet weights of a network, where `harness run` finds them. After an interruption, rerun the same
    command to continue. The environment variable HARNESS_CACHE sets the folder."""
    from harness.data.download import Archive, fetch

    if name not in downloads.URLS:
        raise UserError(
            f"no weights named {name!r} to download; known: {', '.join(downloads.URLS)}. "
            "timm's hub is asked when a run starts: --weights hub"
        )
    target = downloads.place(name)
    if target.exists():
        say(f"{name}: exists already as {target}")
        return
    archive = Archive(downloads.URLS[name], f"sha256:{downloads.sha256_prefix(name)}")
    with bar(archive.name, None, size=True) as show:
        fetch(archive, target.parent, show)
    say(f"{name}: downloaded to {target}; its sha256 begins as its name says. `harness run` finds it there.")
