"""`harness data`: check, download, resize, push and cache datasets."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import config
from harness.assignments import check_settings
from harness.cli import completion
from harness.cli.app import DATA_ROOT, INPUTS, DataRootOption, app, exit_on_problems
from harness.cli.help import Application
from harness.cli.output import say
from harness.spec import Dataset, UserError

if TYPE_CHECKING:
    from harness.data.listing import Listing

data = Application(help="Check, download, resize, push and cache datasets.")
cache = Application(help="List and remove caches of decoded images.")
app.add_typer(data, name="data", epilog="Example: harness data check cub", rich_help_panel=INPUTS)
data.add_typer(cache, name="cache", epilog="Example: harness data cache ls")

SIZE = ("resize", "aspect")  # the settings that say how large images are
NAMED = 10  # images that `check` names on a terminal

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME|PATH",
        help="A shipped dataset (see: harness ls datasets), or your own: a folder of class folders, a .csv or a .toml.",
    ),
]


@contextmanager
def bar(
    description: str, total: int | None, *, size: bool = False, tenths: bool = False
) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on standard error, if that is a terminal; `size` if it counts bytes. Elsewhere nothing, or with
    `tenths` a line for each tenth."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn() if size else MofNCompleteColumn())
    told = 0

    def show(done: int, total: int | None) -> None:
        nonlocal told
        progress.update(task, completed=done, total=total)
        tenth = 10 * done // total if total else 0
        if tenths and not console.is_terminal and told < tenth < 10:
            told = tenth
            say(f"{description}: {tenth}0 %", error=True)

    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=total)
        yield show


@data.command(epilog="Example: harness data check cub --data-root ~/datasets")
def check(name: NameArgument, data_root: DataRootOption = DATA_ROOT) -> None:
    """Count classes and images, decode every image, and list the missing, the damaged and the identical ones."""
    from harness.data import contents, images, listing

    dataset = config.dataset(name)
    if dataset.layout == "embedded":
        from harness.data.loading import embedded

        embedded(dataset)
        say(f"{dataset.name}: ships with the package; its checksum and counts are right")
        return
    files = listing.survey(dataset, data_root)
    with bar(f"opening {dataset.name}", len(files.paths)) as show:
        bad = dict(images.broken(files.folder, files.paths, show))
    digests = contents.read(dataset.name, files)
    print_counts(dataset, files, contents.sha256(digests))
    if not bad:
        say("every image can be read")
    advice = f"unpack or download the dataset again ({dataset.manual})" if dataset.manual else "replace the files"
    problems = [f"{files.folder / path}: {reason}" for path, reason in bad.items()]
    if sys.stderr.isatty() and len(bad) > NAMED:
        problems[NAMED:] = [f"and {len(bad) - NAMED} more; a file gets all of them: 2> bad.txt"]
    if bad:
        count = f"{len(bad)} of {len(files.paths)} images cannot be read"
        problems.append(f"{count}; {advice}, or run with --skip-bad-images")
    problems += [f"{problem}; {advice}" for problem in listing.miscounts(dataset, files)]
    problems += listing.unmatched(dataset, files)
    problems += listing.links(dataset, files)
    copies = list(listing.copies(dataset, files, digests))
    if dataset.copies and copies:
        say(f"{len(copies)} test images are copies of others, which belong to the dataset; results say how many")
    problems += [] if dataset.copies else copies
    exit_on_problems(problems)


def print_counts(dataset: Dataset, files: "Listing", contents: str) -> None:
    from harness.data import listing

    counts = files.counts()
    queries = f", {counts['query_images']} of them queries" if counts["query_images"] else ""
    fingerprint = listing.fingerprint(files)
    side = dataset.resized.get(fingerprint)
    copied = f" (the copy with a short side of {side} px)" if side else ""
    titled = f" ({dataset.title})" if dataset.title != dataset.name else ""
    say(f"{dataset.name}{titled}: {files.folder}, fingerprint {fingerprint}{copied}, contents {contents[:12]}")
    say(f"training: {counts['train_classes']} classes, {counts['train_images']} images")
    say(f"test: {counts['test_classes']} classes, {counts['test_images']} images{queries}")


@data.command(epilog="Example: harness data download cub --data-root ~/datasets")
def download(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A shipped dataset; harness ls datasets lists them.")],
    data_root: DataRootOption = DATA_ROOT,
) -> None:
    """Download a dataset from its official address. After an interruption, rerun the same command to continue."""
    from harness.data import listing
    from harness.files import writing

    dataset = config.dataset(name)
    if dataset.layout == "embedded":
        say(f"{dataset.name}: ships with the package; nothing to download")
        return
    if dataset.is_own:
        raise UserError(f"{name}: is your own data; only shipped datasets can be downloaded: harness ls datasets")
    if listing.exists(dataset, data_root):
        say(f"{dataset.name}: exists already in {listing.locate(dataset, data_root)}")
        return
    if not dataset.archives:
        raise UserError(f"{dataset.name}: cannot be downloaded; get it by hand: {dataset.manual}")
    with writing(f"to --data-root {data_root}"):
        data_root.mkdir(parents=True, exist_ok=True)
    fetch_archives(dataset, data_root)
    folder = listing.read(dataset, data_root).folder
    say(f"{dataset.name}: downloaded to {folder}; check every image with: harness data check {name}")


@data.command(epilog="Example: harness data resize cub --short-side 256 --out ~/datasets/cub256")
def resize(
    name: NameArgument,
    short_side: Annotated[
        int, typer.Option("--short-side", metavar="PIXELS", help="Shrink images until their short side is this.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write the copy to.")],
    data_root: DataRootOption = DATA_ROOT,
) -> None:
    """Make a copy of a dataset with smaller images. Every image is encoded again, JPEGs with quality 78.
    After an interruption, rerun the same command to continue."""
    from harness.data import listing, resize

    if short_side < 1:
        raise UserError(f"--short-side {short_side}: must be an integer >= 1")
    dataset = config.dataset(name)
    if dataset.layout == "embedded":
        raise UserError(f"{dataset.name}: ships with the package, at its only size")
    files = listing.read(dataset, data_root)
    with bar(f"resizing {dataset.name}", len(files.paths)) as show:
        bad = resize.copy(dataset, files, out, short_side, show)
    exit_on_problems(f"{files.folder / path}: {why}" for path, why in bad.items())
    say(f"{dataset.name}: {len(files.paths)} images in {out}, short side at most {short_side} px, {resize.pillow()}")
    place = out / Path(dataset.folder).name if files.folder != listing.locate(dataset, data_root) else out
    copied = replace(dataset, folder=str(place.absolute())) if dataset.is_own else dataset
    fingerprint = listing.fingerprint(listing.read(copied, out))
    say(f"fingerprint {fingerprint}{verdict(dataset, fingerprint, short_side)}")
    words = ["--dataset", str(place.absolute())] if dataset.is_own else ["--dataset", name, "--data-root", str(out)]
    say(f"use it with: {shlex.join(['harness', 'run', *words])}")


def verdict(dataset: Dataset, fingerprint: str, short_side: int) -> str:
    """Whether a copy is one that the dataset's configuration knows."""
    expected = [known for known, side in dataset.resized.items() if side == short_side]
    known = f"the copy of {short_side} px that results of this repository are measured on"
    if fingerprint in expected:
        return f": {known}"
    return f": not {' or '.join(expected)}, {known}" if expected else ""


@data.command(epilog="Example: harness data push cub --storage s3://bucket/harness")
def push(
    name: NameArgument,
    storage: Annotated[
        str, typer.Option("--storage", metavar="DIR|URI", help="The --storage of the runs, e.g. s3://bucket/harness.")
    ],
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=completion.protocols,
            help="The protocol that says how large images are. Default: the dataset's.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change the size: resize=288 or aspect=kept. Repeatable."),
    ] = None,
    data_root: DataRootOption = DATA_ROOT,
) -> None:
    """Put the image cache of a dataset into a storage, in checksummed parts. Nodes that have neither the images nor a
    cache take it from there. After an interruption, rerun the same command to continue."""
    from harness.data import cache, cache_parts, listing, loading
    from harness.spec import finish
    from harness.storage import open_storage

    dataset = config.dataset(name)
    size = size_of_images(dataset, protocol, set_ or [])
    if dataset.layout == "embedded":
        say(f"{dataset.name}: ships with the package; nothing to push")
        return
    dataset = listing.identify(dataset, data_root, say)
    target = open_storage(storage, Path())
    target.prepare()
    key = cache.Key(dataset.name, dataset.fingerprint, size["resize"], size["aspect"])
    with bar(f"preparing {dataset.name}", None, tenths=True) as show:
        images = finish(loading.mapped(key, dataset, str(data_root)), lambda step: show(step.done, step.total))
    with bar(f"pushing {dataset.name}", None, size=True, tenths=True) as show:
        before = finish(cache_parts.push(key, target), lambda sent: show(*sent))
    total = cache.summary(key.folder).bytes
    continued = f", {cache.gigabytes(before)} of it from an earlier push" if before else ""
    say(f"{dataset.name}: {len(images.paths)} images in {target.title}, {cache.gigabytes(total)}{continued}")
    if images.skipped:
        count = f"{len(images.skipped)} image{'s' if len(images.skipped) > 1 else ''}"
        say(f"{count} cannot be read; run with --skip-bad-images, or: harness data check {name}")
    words = ["harness", "run", "--dataset", name, *(["--protocol", protocol] if protocol else [])]
    words += [word for assignment in set_ or [] for word in ("--set", assignment)]
    say(f"nodes without images take them from there: {shlex.join([*words, '--storage', target.title])}")


def size_of_images(dataset: Dataset, protocol: str | None, assignments: list[str]) -> dict[str, Any]:
    """Side and aspect that a run with these options has."""
    chosen = config.protocol(protocol or dataset.protocol)
    for assignment in assignments:
        if assignment.partition("=")[0].strip() not in SIZE:
            raise UserError(f"--set {assignment}: must be resize=PIXELS or aspect=..., which say how large images are")
    settings = {**chosen.shared(dataset.name), **check_settings(assignments)}
    return {key: settings[key] for key in SIZE}


def fetch_archives(dataset: Dataset, data_root: Path) -> None:
    """Download and unpack every archive; one that the user already had is not removed."""
    from harness.data.download import Archive, fetch, unpack

    for entry in dataset.archives:
        archive = Archive(entry["url"], entry.get("checksum", ""))
        users_own = (data_root / archive.name).exists()
        with bar(archive.name, None, size=True) as show:
            file = fetch(archive, data_root, show)
        unpack(file, data_root)
        if not users_own:
            file.unlink()


@cache.command("ls", epilog="Example: harness data cache ls")
def cache_ls() -> None:
    """List the image caches of this machine. The environment variable HARNESS_CACHE sets their folder."""
    from tabulate import tabulate

    from harness.data import cache

    rows = [
        [summary.name, summary.images, summary.bad, cache.gigabytes(summary.bytes)] for summary in cache.summaries()
    ]
    say(tabulate(rows, headers=["cache", "images", "unreadable", "size"], disable_numparse=True))
    say(f"in {cache.home()}")


@cache.command("rm", epilog="Example: harness data cache rm cub")
def cache_rm(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="A cache, or a dataset to remove all of its caches.")
    ],
) -> None:
    """Remove image caches. The next run that needs one builds it again."""
    from harness.data import cache

    for summary in cache.remove(names):
        say(f"removed {summary.name}, {cache.gigabytes(summary.bytes)}")
