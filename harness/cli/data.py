"""`harness data`: check, download and cache datasets."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from harness import config
from harness.cli.app import DATA_ROOT, Commands, DataRootOption, app, exit_on_problems
from harness.spec import UserError

data = typer.Typer(cls=Commands, rich_markup_mode=None, help="Check, download and cache datasets.")
cache = typer.Typer(cls=Commands, rich_markup_mode=None, help="The decoded images that trials share.")
app.add_typer(data, name="data", epilog="Example: harness data check cub")
data.add_typer(cache, name="cache", epilog="Example: harness data cache ls")

NameArgument = Annotated[str, typer.Argument(metavar="NAME|PATH", help="A dataset as --dataset of run takes it.")]


@contextmanager
def bar(what: str, total: int | None, *, size: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on standard error; nothing where that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn() if size else MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as shown:
        task = shown.add_task(what, total=total)
        yield lambda done, of: shown.update(task, completed=done, total=of)


@data.command(epilog="Example: harness data check cub --data-root ~/datasets")
def check(name: NameArgument, data_root: DataRootOption = DATA_ROOT) -> None:
    """Count classes and images, open every image, and list what is missing or damaged."""
    from harness.data import images, listing

    dataset = config.dataset(name)
    if dataset.layout == "embedded":
        from harness.data.loading import embedded

        embedded(dataset)
        print(f"{dataset.name}: it comes with the package and is whole")
        return
    found = listing.survey(dataset, data_root)
    with bar(f"opening {dataset.name}", len(found.paths)) as show:
        bad = dict(images.broken(found.folder, found.paths, show))
    counts = found.counts()
    print(f"{dataset.name}: {found.folder}, fingerprint {listing.fingerprint(found)}")
    print(f"training: {counts['train_classes']} classes, {counts['train_images']} images")
    apart = f", {counts['query_images']} of them queries" if counts["query_images"] else ""
    print(f"test: {counts['test_classes']} classes, {counts['test_images']} images{apart}")
    if not bad:
        print("every image can be read")
    again = f"unpack or download the dataset again ({dataset.manual})" if dataset.manual else "put good copies there"
    problems = [f"{found.folder / path}: {why}" for path, why in bad.items()]
    if bad:
        problems.append(
            f"{len(bad)} of {len(found.paths)} images cannot be read; {again}, or run with --skip-bad-images"
        )
    problems += [f"{problem}; {again}" for problem in listing.miscounts(dataset, found)]
    exit_on_problems(problems)


@data.command(epilog="Example: harness data download cub --data-root ~/datasets")
def download(
    name: Annotated[str, typer.Argument(metavar="NAME", help="See: harness ls datasets.")],
    data_root: DataRootOption = DATA_ROOT,
) -> None:
    """Fetch a dataset from its official address; after an interruption the same command goes on."""
    from harness.data import listing
    from harness.data.download import Archive, fetch, unpack

    dataset = config.dataset(name)
    if dataset.layout == "embedded":
        print(f"{dataset.name}: it comes with the package")
        return
    if listing.is_there(dataset, data_root):
        print(f"{dataset.name} is there already: {listing.locate(dataset, data_root)}")
        return
    if not dataset.archives or os.path.isabs(dataset.folder):
        raise UserError(f"{dataset.name} cannot be downloaded by a program. By hand: {dataset.manual}")
    try:
        data_root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to --data-root {data_root}: {error.strerror}") from None
    for entry in dataset.archives:
        archive = Archive(entry["url"], entry.get("checksum", ""))
        there = (data_root / archive.name).exists()  # the user's own, which stays
        with bar(archive.name, None, size=True) as show:
            file = fetch(archive, data_root, show)
        unpack(file, data_root)
        if not there:
            file.unlink()
    print(
        f"{dataset.name}: {listing.read(dataset, data_root).folder}; look into every image: harness data check {name}"
    )


@cache.command("ls", epilog="Example: harness data cache ls")
def cache_ls() -> None:
    """List the image caches of this machine; HARNESS_CACHE says where they lie."""
    from tabulate import tabulate

    from harness.data import cache

    rows = [[one.name, one.images, one.bad, cache.gigabytes(one.bytes)] for one in cache.entries()]
    print(tabulate(rows, headers=["cache", "images", "unreadable", "size"], disable_numparse=True))
    print(f"in {cache.home()}")


@cache.command("rm", epilog="Example: harness data cache rm cub")
def cache_rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="A cache, or a dataset's all.")],
) -> None:
    """Remove image caches; the next run that needs one builds it again."""
    from harness.data import cache

    for one in cache.remove(names):
        print(f"removed {one.name}, {cache.gigabytes(one.bytes)}")
