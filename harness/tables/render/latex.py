"""A table as LaTeX with booktabs, and as a document that compiles by itself."""

from harness.tables.layout import Cell, Row, Table

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "[": "{[}",  # behind \\\\ it would open an option
    "]": "{]}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
}
BELOW = r" \\ "
LABELS = r">{\raggedright\arraybackslash}p{8em}"
# the letters that pdflatex's fonts have: printable ASCII, and Latin letters without × and ÷
LETTERS = {chr(number) for number in (*range(0x20, 0x7F), *range(0xC0, 0x180)) if number not in (0xD7, 0xF7)}


def latex(table: Table) -> str:
    """A table as wide as the text; it needs booktabs and graphicx, one of a search tabularx."""
    if table.kind == "search":
        begin = [r"\footnotesize", rf"\begin{{tabularx}}{{\textwidth}}{{@{{}}{LABELS}{aligned(table)}@{{}}}}"]
        end = r"\end{tabularx}"
    else:
        begin = [
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{@{{}}l{'r' * len(table.columns)}@{{}}}}",
        ]
        end = r"\end{tabular}}"
    heads, rules, first = [], [], 2
    for group, count in table.column_groups:
        heads.append(rf"\multicolumn{{{count}}}{{c}}{{{escape(group)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        *begin,
        r"\toprule",
        line("", *heads),
        " ".join(rules),
        line(table.stub, *(head(table, column.name) for column in table.columns)),
        r"\midrule",
        *body(table),
        r"\bottomrule",
        end,
        rf"\caption{{{caption(table)}}}",
        rf"\label{{tab:{''.join(c if c.isalnum() else '-' for c in table.slug)}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def aligned(table: Table) -> str:
    """Of a search: numbers to the right, hours and lists in lines."""
    lists = r">{\raggedright\arraybackslash}"
    kinds = {"hours": rf"{lists}p{{4.6em}}", "values": rf"{lists}X", "expected": rf"{lists}X"}
    return "".join(kinds.get(column.name.partition(" ")[0], "r") for column in table.columns)


def head(table: Table, name: str) -> str:
    """The name of a column; of a search its words below each other."""
    words = [escape(word) for word in name.split(" ")]
    if table.kind != "search" or len(words) == 1:
        return " ".join(words)
    return rf"\shortstack[l]{{{BELOW.join(words)}}}"


def body(table: Table) -> list[str]:
    """The rows by section, a rule between sections; published numbers stand below ours: beside would be too wide."""
    lines = []
    for number, (title, rows) in enumerate(table.sections()):
        if number:
            lines.append(r"\midrule")
        if title:
            lines.append(rf"\multicolumn{{{len(table.columns) + 1}}}{{@{{}}l}}{{\textit{{{escape(title)}}}}} \\")
        for row, mark in rows:
            texts = [listed(cell_text(cell)) if table.kind == "search" else cell_text(cell) for cell in row.cells]
            lines.append(line(label(row, mark), *texts))
            if any(cell.published for cell in row.cells):
                lines.append(line(r"\quad{\scriptsize published, difference}", *map(published_text, row.cells)))
    return lines


def listed(text: str) -> str:
    """The parts of a list below each other."""
    return text.replace(", ", r",\newline ")


def line(*cells: str) -> str:
    return " & ".join(cells) + r" \\"


def label(row: Row, mark: str) -> str:
    citation = rf"~\cite{{{row.key}}}" if row.key else ""
    return escape(row.label) + citation + (f"$^{{{mark}}}$" if mark else "")


def cell_text(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.best:
        text = rf"\textbf{{{text}}}"
    elif cell.tied:
        text = rf"\underline{{{text}}}"
    return text + (rf"\,$\pm$\,{cell.interval}" if cell.interval else "")


def published_text(cell: Cell) -> str:
    return rf"{{\scriptsize {cell.comparison.replace('-', '$-$')}}}" if cell.comparison else ""


def caption(table: Table) -> str:
    title = f"{table.kind.capitalize()}, protocol {table.protocol}" + (f", {table.backbone}" if table.backbone else "")
    _, notes = table.footnotes()
    return " ".join(escape(part) for part in (f"{title}.", table.caption, *notes))


def document(body: str) -> str:
    """A LaTeX document of its own: pdflatex, bibtex, pdflatex twice."""
    cited = [r"\bibliographystyle{plain}", r"\bibliography{references}"] if r"\cite{" in body else []
    wide = body.count(r"\cmidrule") > 1 and body.count("\n") < 45  # a long table needs the height
    geometry = "[margin=2cm,landscape]{geometry}" if wide else "[margin=2cm]{geometry}"
    packages = ["[utf8]{inputenc}", "[T1]{fontenc}", "{booktabs}", "{graphicx}", "{tabularx}", geometry]
    lines = [
        r"\documentclass{article}",
        *(rf"\usepackage{package}" for package in packages),
        r"\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}  % outlines; T1's usual fonts are bitmaps",
        r"\sloppy",
        r"\begin{document}",
        body.rstrip(),
        *cited,
        r"\end{document}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """A character that pdflatex's fonts lack is written as its number: a name in another script still compiles."""
    characters = text.replace("\n", " ")
    return "".join(SPECIAL.get(c) or (c if c in LETTERS else rf"\texttt{{U+{ord(c):04X}}}") for c in characters)
