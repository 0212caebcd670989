"""Formats: escaping, LaTeX that compiles, unrounded JSON, the long CSV."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import reference
from harness.tables.build import KINDS, build
from harness.tables.layout import BASELINES, Cell, Column, Options, Row, Table, letters
from harness.tables.render.data import csv
from harness.tables.render.formats import render
from harness.tables.render.html import html, sort_value
from harness.tables.render.latex import latex
from harness.tables.render.markdown import markdown
from tests.factories import USUAL, cub, loss_row

HOSTILE = r"[50% of_{a} & #1 $x$ ~^\ <script>|`x`* λ漢"


def test_whatever_a_title_holds_is_text() -> None:
    table = build([loss_row("group", HOSTILE, 0.7)])[0]
    specials = r"{[}50\% of\_\{a\} \& \#1 \$x\$ \textasciitilde{}\textasciicircum{}\textbackslash{} "
    assert specials + r"\textless{}script\textgreater{}" in latex(table)
    assert r"\<script\>\|\`x\`\*" in markdown(table)
    assert "&lt;script&gt;" in html(table)
    assert "<script>" not in html(table)


def test_a_page_names_the_section_of_a_row_except_that_of_the_baselines() -> None:
    """They need no title; each says what it is."""
    baseline = Row("Raw pixels", (Cell("3.3"),), BASELINES, "")
    published = Row("BIER 6", (Cell("55.3"),), "Loss+Ensembles", "")
    text = html(Table("losses", "cpu", "net", (Column("CUB", "R@1"),), (baseline, published), ""))
    assert "Loss+Ensembles" in text
    assert BASELINES not in text


def compiled(folder: Path, name: str) -> str:
    """What pdflatex says in its last run; a failure fails the test."""
    for command in (["pdflatex"], ["bibtex"], ["pdflatex"], ["pdflatex"]):
        options = ["-halt-on-error", "-interaction=nonstopmode"] if command == ["pdflatex"] else []
        run = subprocess.run([*command, *options, name], cwd=folder, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout
    return run.stdout


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("published", ["beside", "rows"])
def test_every_table_compiles_with_its_bibliography_and_nothing_sticks_out(tmp_path: Path, published: Any) -> None:
    names = ("group", "triplet", "proxy_nca", "lifted_structure", "n_pairs", "angular")
    results = [
        cub(name, 0.5 + seed / 100, seed=seed, dataset=dataset)
        for name in names
        for seed in range(2)
        for dataset in ("cub", "cars", "sop")
    ]
    results += [replace(cub("margin", 0.5, epochs=50), title=HOSTILE), cub("group", 0.6, fold="val0")]
    pair = [
        one for one in results if one.trial.loss == "group" and one.trial.dataset == "cub" and one.trial.fold == "test"
    ]
    results.append(replace(pair[0], ensemble=2, members=tuple(one.id for one in pair)))
    built = [table for kind in KINDS for table in build(results, kind, Options(published))]
    assert [table.kind for table in built] == ["losses", "ensembles", "backbones", "search", "search", "search"]
    for name, text in render(built, "latex", standalone=True).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for table in built:
        cites = any(row.key for row in table.rows)
        if not cites:
            (tmp_path / f"{table.slug}.tex").write_text(
                (tmp_path / f"{table.slug}.tex")
                .read_text()
                .replace(
                    r"\end{document}", r"\nocite{*}\bibliographystyle{plain}\bibliography{references}\end{document}"
                )
            )
        said = compiled(tmp_path, table.slug)
        assert "Overfull" not in said, table.kind
        assert "undefined" not in said, table.kind


def test_latex_comes_with_the_entries_it_cites() -> None:
    texts = render(build([cub("group", 0.6), cub("triplet", 0.5)]), "latex")
    assert set(texts) == {"losses-paper-bn_inception.tex", "references.bib"}
    assert "@inproceedings{elezi2020group," in texts["references.bib"]
    assert "@inproceedings{schroff2015facenet," in texts["references.bib"]


def test_csv_is_the_long_frame_with_the_papers_numbers() -> None:
    text = csv(USUAL)
    assert len(text.splitlines()) == 1 + 4 * 4
    assert text.splitlines()[0].startswith("source,id,title,cite,dataset")
    assert len(csv(USUAL, ["NMI"]).splitlines()) == 1 + 4
    both = csv([cub("group", 0.6)], ["R@1"]).splitlines()
    printed = [
        one for one in reference.published() if (one.dataset, one.metric) == ("cub", "R@1") and one.table != "text"
    ]
    assert len(both) == 1 + 1 + len(printed)
    assert sum(line.startswith('"Elezi et al., ECCV 2020"') for line in both) == len(printed)


def test_json_has_unrounded_numbers() -> None:
    (found,) = json.loads(render(build([cub("group", 0.64321)]), "json")["tables.json"])
    first = found["rows"][0]["cells"][0]
    assert first["mean"] == 0.64321
    assert first["published"] == pytest.approx(0.655)
    assert (first["dataset"], first["column"], first["seeds"]) == ("cub", "R@1", 1)


def test_footnotes_are_lettered() -> None:
    assert [letters(place) for place in (0, 1, 25, 26, 27, 52)] == ["a", "b", "z", "aa", "ab", "ba"]


def test_a_column_of_html_is_sorted_by_its_numbers_in_one_unit() -> None:
    """The paper's rows are printed in percent, ours are stored as fractions; parameters and hours are text."""
    ours, printed = Cell("64.3", 0.64321), Cell("65.5")
    assert [sort_value(one) for one in (ours, printed)] == [pytest.approx(64.321), 65.5]
    texts = {"7,056,356": 7056356.0, "2.5 CPU-hours": 2.5, "under 0.01 GPU-hours": 0.01, "12": 12.0}
    assert {text: sort_value(Cell(text)) for text in texts} == texts
    for text in ("-", "n=1: 25.0 ± 11.2", "margin = 0.4"):
        assert sort_value(Cell(text)) is None
    text = html(build([cub("group", 0.64)], options=Options("rows"))[0])
    assert '<td data-value="65.5">65.5</td>' in text
    assert '<td data-value="64">64.0</td>' in text
    assert "<td>-</td>" in text


@pytest.mark.parametrize("form", [markdown, latex, html])
def test_rows_that_look_the_same_keep_their_own_marks(form: Any) -> None:
    """A footnote's mark is at its own row, not at the first one that looks the same."""
    row = Row("Mine", (Cell("50.0"),), notes=("A note.",))
    other = Row("Mine", (Cell("50.0"),))
    table = Table("losses", "quick", "net", (Column("Emoji", "R@1"),), (other, row, other), "A caption.")
    text = form(table).replace("{[}", "[").replace("{]}", "]").replace("\\", "")
    assert text.count("Mine") == 3
    assert text.count("[a]") == 2  # at the row in the middle, and at the note
