"""`harness tables`: tables of the stored results."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.app import RESULTS, ResultsOption, app, report
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
