"""`harness tables`: tables of the stored results."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from harness.analysis.queries import Queries
from harness.analysis.results import on_test, with_nmi_by
from harness.cli.app import (
    LOOKING,
    RESULTS,
    BackboneOption,
    DatasetOption,
    ProtocolOption,
    ResultsOption,
    app,
    check_folder,
    exit_on_problems,
    given,
    require,
)
from harness.cli.filters import LossesFilter, NameFilter, SinceFilter, SortOption, WhereFilter, selection
from harness.cli.output import say
from harness.cli.screen import on_terminal, show
from harness.files import write_whole, writing
from harness.spec import UserError, unknown
from harness.spec.recipes import LLOYD, RECIPES, recipe_of
from harness.store import Store
from harness.tables.build import KINDS, build_all
from harness.tables.layout import Format, Kind, Options, Published
from harness.tables.render.data import csv
from harness.tables.render.formats import BIBLIOGRAPHY, render

Which = Literal[Kind, "all"]


@app.command(
    epilog="Example: harness tables --table all --format latex --standalone --out results/tables",
    rich_help_panel=LOOKING,
)
def tables(
    context: typer.Context,
    table: Annotated[
        Which,
        typer.Option(
            help=f"Which tables: {', '.join(f'{name} ({kind.meaning})' for name, kind in KINDS.items())} or all."
        ),
    ] = "losses",
    published: Annotated[
        Published,
        typer.Option(
            help="Where the paper's numbers stand: beside ours where the settings are the paper's (comparable) or "
            "everywhere (beside), with the difference; in rows; or nowhere."
        ),
    ] = "comparable",
    form: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Print Markdown, LaTeX (booktabs), HTML, JSON, or a long CSV. Default: on a terminal, tables that "
            "fit it, one dataset at a time; in files and pipes, Markdown.",
        ),
    ] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="With --format latex: make documents that compile by themselves.")
    ] = False,
    metrics: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="The columns, e.g. R@1,R@16,MAP@R. Any R@K up to K = 100 follows from the stored values of queries. "
            "Default: Recall@K and NMI.",
        ),
    ] = "",
    losses: LossesFilter = "",
    where: WhereFilter = None,
    since: SinceFilter = "",
    name: NameFilter = "",
    dataset: DatasetOption = None,
    protocol: ProtocolOption = None,
    backbone: BackboneOption = None,
    sort: SortOption = "",
    nmi_recipe: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Show NMI by this recipe where `harness eval` has measured it: {', '.join(RECIPES)}. Rows without it "
            "are footnoted.",
        ),
    ] = LLOYD.name,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write files to this folder instead of printing; with LaTeX also references.bib."
        ),
    ] = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Print tables of the stored results. They have the paper's layout, one per protocol and backbone."""
    check(table, form, metrics, standalone=standalone)
    if sort and table not in ("losses", "ensembles", "all"):
        raise UserError(f"--sort {sort}: allowed with --table losses, ensembles or all, not with {table}")
    if out is not None:
        check_folder(out)
    if nmi_recipe not in RECIPES:
        raise unknown("NMI recipe", nmi_recipe, RECIPES)
    store = Store(results)
    stored, experiments, problems = store.everything()
    columns = tuple(name.strip() for name in metrics.split(",") if name.strip())
    chosen = selection(losses, where, since, name, dataset, protocol, backbone)
    selected = chosen.shown(stored, experiments)
    if nmi_recipe != LLOYD.name and not any(recipe_of(result.conventions) == nmi_recipe for result in selected):
        raise UserError(f"no results by {nmi_recipe}; make some with: harness eval ID --nmi-recipe {nmi_recipe}")
    kinds = tuple(KINDS) if table == "all" else (table,)
    drawn = form is None and out is None and on_terminal()
    queries, options = Queries(store), Options(published, columns, nmi_recipe, drawn, sort)
    built = build_all(selected, kinds, options, experiments, queries)
    first = KINDS[kinds[0]]
    require(built, problems, f"no {first.needs} in {results}; make some with: {first.command}")
    if drawn:
        show(built, f"harness tables {given(context)}--format markdown")
        exit_on_problems(problems)
        return
    if form == "csv":
        listed = queries.with_recalls(on_test(with_nmi_by(nmi_recipe, selected)), columns)
        texts = {"results.csv": csv(listed, columns, published=published != "none")}
    else:
        texts = render(built, form or "markdown", standalone=standalone)
    if out is None:
        say("\n".join(text for name, text in texts.items() if name != BIBLIOGRAPHY), end="")
    else:
        write_files(out, texts)
    exit_on_problems(problems)


def check(table: Which, form: Format | None, metrics: str, *, standalone: bool) -> None:
    """A UserError if options do not go together."""
    if standalone and form != "latex":
        raise UserError(f"--standalone: allowed with --format latex, not with {form or 'markdown'}")
    if metrics and table != "all" and not KINDS[table].metrics:
        chooses = " or ".join(name for name, kind in KINDS.items() if kind.metrics)
        raise UserError(f"--metrics: allowed with --table {chooses}, not with {table}")
    if form == "csv" and table not in ("losses", "all"):
        raise UserError(f"--format csv: lists the numbers of every run, so it is not allowed with --table {table}")


def write_files(folder: Path, texts: dict[str, str]) -> None:
    with writing(f"to {folder}"):
        for name, text in texts.items():
            write_whole(folder / name, text.encode())
            say(folder / name)
