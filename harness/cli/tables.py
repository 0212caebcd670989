"""The commands that read and keep the store: tables, ls, show, rm, import, status."""

import json
import re
import time
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from harness import commands, config
from harness.cli.app import RESULTS, IdArgument, ResultsOption, StorageOption, app, read_result, report, storage_of
from harness.spec import UserError
from harness.store import Store


class Format(StrEnum):
    markdown = "markdown"
    latex = "latex"
    csv = "csv"
    json = "json"
    html = "html"


class Which(StrEnum):
    losses = "losses"
    ensembles = "ensembles"
    backbones = "backbones"
    search = "search"
    all = "all"


class Published(StrEnum):
    beside = "beside"
    rows = "rows"
    none = "none"


class Kind(StrEnum):
    losses = "losses"
    datasets = "datasets"
    protocols = "protocols"
    runs = "runs"


@app.command(epilog="Example: harness tables --table all --format latex --standalone --out results/tables")
def tables(
    table: Annotated[
        Which,
        typer.Option(
            help="losses (the paper's Table 1), ensembles (Table 2), backbones (its supplement's, with parameters), "
            "search (what each loss was given, and what random search found), or all."
        ),
    ] = Which.losses,
    published: Annotated[
        Published,
        typer.Option(help="The paper's numbers: beside ours with the difference, in rows of their own, or none."),
    ] = Published.beside,
    form: Annotated[
        Format, typer.Option("--format", help="markdown, latex (booktabs), html, json, or csv (long).")
    ] = Format.markdown,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="With --format latex: documents that compile by themselves.")
    ] = False,
    metrics: Annotated[
        str, typer.Option(metavar="NAMES", help="Columns, e.g. R@1,MAP@R,NMI. Default: Recall@K and NMI.")
    ] = "",
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="Only this dataset.")] = None,
    protocol: Annotated[str | None, typer.Option(metavar="NAME", help="Only this protocol.")] = None,
    backbone: Annotated[str | None, typer.Option(metavar="NAME", help="Only this backbone.")] = None,
    nmi_recipe: Annotated[
        str, typer.Option(metavar="NAME", help="Results that `harness eval` measured again with this recipe.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write files there instead of printing; with LaTeX also references.bib."),
    ] = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Print tables of the stored results in the paper's layout, one for each protocol and backbone."""
    from harness.tables import build as tables
    from harness.tables import render

    if standalone and form is not Format.latex:
        raise UserError(f"--standalone: allowed with --format latex, not with {form.value}")
    if metrics and table in (Which.backbones, Which.search):
        raise UserError(f"--metrics: allowed with --table losses or ensembles, not with {table.value}")
    if form is Format.csv and table in (Which.ensembles, Which.backbones, Which.search):
        raise UserError(f"--format csv is the long table of all numbers: not with --table {table.value}")
    found, problems = Store(results).results()
    asked = [name.strip() for name in metrics.split(",") if name.strip()]
    chosen = tables.select(found, nmi_recipe, dataset=dataset, protocol=protocol, backbone=backbone)
    if not chosen and nmi_recipe:
        raise UserError(f"no results with --nmi-recipe {nmi_recipe}; make some with: harness eval ID --nmi-recipe NAME")
    kinds = tables.KINDS if table is Which.all else (table.value,)
    built = [one for kind in kinds for one in tables.build(chosen, kind, published.value, asked)]
    if not built:
        report(problems)
        raise UserError(
            f"no {MISSING.get(table, 'final results')} in {results}; make some with: {MAKE.get(table, 'harness run')}"
        )
    if form is Format.csv:
        texts = {"results.csv": render.csv(tables.final(chosen), asked, published=published is not Published.none)}
    else:
        texts = render.render(built, form.value, standalone=standalone)
    if out is None:
        shown = [text for name, text in texts.items() if name != render.BIBLIOGRAPHY]
        print(*shown, sep="\n", end="")
    else:
        write_files(out, texts)
    report(problems)


MISSING = {Which.ensembles: "ensembles", Which.search: "results of losses", Which.backbones: "final results of losses"}
MAKE = {Which.ensembles: "harness run --seeds 2 --ensemble 2"}


def write_files(folder: Path, texts: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
            print(folder / name)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}") from None


@app.command(epilog="Example: harness ls losses")
def ls(
    kind: Annotated[Kind, typer.Argument(help="losses, datasets, protocols or runs.")],
    results: ResultsOption = RESULTS,
) -> None:
    """List what there is."""
    from tabulate import tabulate

    problems: list[str] = []
    headers: Sequence[str]
    rows: list[list[Any]]
    if kind is Kind.losses:
        headers, rows = ["name", "title", "paper", "year", "knobs"], list(loss_rows())
    elif kind is Kind.datasets:
        headers = ["name", "classes", "images", "protocol", "what"]
        rows = [
            [
                data.name,
                f"{data.train_classes} / {data.test_classes}",
                f"{data.train_images} / {data.test_images}",
                data.protocol,
                data.note or data.title,
            ]
            for data in map(config.dataset, config.names("datasets"))
        ]
    elif kind is Kind.protocols:
        headers = ["name", "title", "backbone", "crop", "epochs", "selects by", "source"]
        rows = [
            [
                one.name,
                one.title,
                *(one.settings[key] for key in ("backbone", "crop", "epochs")),
                one.select,
                one.source,
            ]
            for one in map(config.protocol, config.names("protocols"))
        ]
    else:
        found, problems = Store(results).results()
        headers = ["id", "loss", "dataset", "fold", "protocol", "backbone", "seed", "R@1", "seconds"]
        rows = [
            [
                *(
                    one.id,
                    one.trial.loss + (f" ({one.recipe})" if one.recipe else ""),
                    one.trial.dataset,
                    one.trial.fold,
                    one.trial.protocol,
                    one.trial.backbone,
                ),
                *(one.trial.seed, f"{100 * one.metrics['R@1']:.1f}", f"{one.seconds['total']:.0f}"),
            ]
            for one in found
        ]
    print(tabulate(rows, headers=headers, disable_numparse=True))
    report(problems)


def loss_rows() -> Iterable[list[str]]:
    import losses

    for spec in map(config.loss, losses.names()):
        knobs = " ".join(f"{name}={commands.written(knob.default)}" for name, knob in spec.knobs.items())
        year = re.search(r" ((?:19|20)\d\d)\b", spec.cite)
        paper = spec.cite.replace(year[0], "", 1) if year else spec.cite
        yield [spec.name, spec.title, paper, year[1] if year else "", knobs]


@app.command(epilog="Example: harness show 1f2e3d")
def show(id: IdArgument, results: ResultsOption = RESULTS) -> None:
    """Print one record, and the exact command that reproduces it."""
    result = read_result(Store(results), id)
    print(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
    print(f"\nReproduce with:\n  {commands.command(result, config.protocol(result.trial.protocol))}")


@app.command(epilog="Example: harness rm 1f2e3d")
def rm(ids: Annotated[list[str], typer.Argument(metavar="ID...")], results: ResultsOption = RESULTS) -> None:
    """Remove stored results; the next run makes them again."""
    where = Store(results)
    for file in [where.find(id) for id in ids]:
        where.remove(file)
        print(f"removed {file}")


@app.command("import", epilog="Example: harness import ../other-machine/results")
def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Another results folder.")],
    results: ResultsOption = RESULTS,
) -> None:
    """Merge another machine's results into this store; what is here already stays."""
    other, mine = Store(folder), Store(results)
    if not (folder / "runs").is_dir():
        raise UserError(f"{folder} is not a results folder: it has no runs/")
    found, problems = other.results()
    mine.prepare()
    new = sum(mine.put(result) for result in found)
    print(f"{new} imported, {len(found) - new} already here")
    report(problems)


@app.command(epilog="Example: harness status --watch")
def status(
    watch: Annotated[bool, typer.Option("--watch", help="Again every 2 seconds, until Ctrl-C.")] = False,
    storage: StorageOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Tell from another terminal what is done, running and failed; also when Ray is gone."""
    from harness.execution import status

    where = Store(results.absolute())
    files = storage_of(storage, where)
    try:
        while watch:
            print("\x1b[2J\x1b[H" + status.describe(where, files), flush=True)
            time.sleep(2)
    except KeyboardInterrupt:
        return
    print(status.describe(where, files))
