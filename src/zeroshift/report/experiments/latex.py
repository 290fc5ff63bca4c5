"""Tables of experiments as LaTeX, one file each, to be taken into a paper with \\input."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from zeroshift.experiments import Chapter
from zeroshift.experiments._shared.findings import Table
from zeroshift.files import atomic_path
from zeroshift.report.experiments.tables import Grid, GridCell, GridRow, folder_for, grid, harmless, named_findings

__all__ = ["latex_table", "write_latex"]

PREAMBLE = (
    "% These packages are needed before \\begin{document}:",
    "%   \\usepackage[T1]{fontenc}",
    "%   \\usepackage{booktabs}",
    "%   \\usepackage{adjustbox}",
    "% Names in other than Latin letters need lualatex or xelatex, and a font that has them.",
)

ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "#": r"\#",
    "$": r"\$",
    "%": r"\%",
    "&": r"\&",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    # At the beginning of a row these would belong to the end of the one before.
    "[": "{[}",
    "*": "{*}",
    # Two in a row would become one longer dash, or a quotation mark.
    "-": "-{}",
    "'": "'{}",
    ",": ",{}",
    "µ": r"\textmu{}",
    "\N{MINUS SIGN}": "$-$",
    "\N{REPLACEMENT CHARACTER}": "?",
}


def write_latex(folder: str | os.PathLike[str], chapters: Sequence[Chapter]) -> list[Path]:
    """One .tex file a table, EXPERIMENT-NAME.tex, each whole or not at all; files of these names are replaced."""
    made = [(name, table) for name, _, table in named_findings(chapters) if isinstance(table, Table)]
    where = folder_for(folder)
    paths = []
    for name, table in made:
        paths.append(where / f"{name}.tex")
        with atomic_path(paths[-1]) as temporary:
            temporary.write_text(latex_table(table, name), encoding="utf-8", newline="\n")
    return paths


def latex_table(table: Table, name: str) -> str:
    """A floating table labelled tab:NAME."""
    made = grid(table)
    alignment = "".join("r" if column.right else "l" for column in made.columns)
    lines = [
        f"% {name}: written by zeroshift.",
        *PREAMBLE,
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_text(table.title)}}}",
        rf"\label{{tab:{name}}}",
        r"\begin{adjustbox}{max width=\linewidth}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        _line(_text(column.title) for column in made.columns),
        r"\midrule",
        *_rows(made),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{adjustbox}",
    ]
    notes = " ".join(_text(text) for text in (*made.details, *table.notes))
    lines += [rf"\par\smallskip{{\footnotesize {notes}\par}}"] if notes else []
    return "\n".join([*lines, r"\end{table}", ""])


def _rows(made: Grid) -> Iterator[str]:
    for place, row in enumerate(made.rows):
        if row.begins:
            if place:
                yield r"\midrule"
            if row.group:
                yield rf"\multicolumn{{{len(made.columns)}}}{{l}}{{\textit{{{_text(row.group)}}}}} \\"
        yield _line(_fields(row))


def _fields(row: GridRow) -> Iterator[str]:
    label, *others = row.cells
    yield _field(label, strong=row.strong)
    for cell in others:
        yield _field(cell)


def _field(cell: GridCell, *, strong: bool = False) -> str:
    text = _number(cell.text) if cell.number else _text(cell.text)
    text = rf"\textbf{{{text}}}" if text and (cell.best or strong) else text
    return rf"{text} {{\scriptsize ({_number(cell.spread)})}}" if cell.spread else text


def _line(cells: Iterator[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def _number(text: str) -> str:
    return text.replace("-", "$-$").replace("µ", ESCAPES["µ"])


def _text(text: str) -> str:
    r"""Text as its letters, whatever TeX would take them for.

    >>> _text("50% of a_b & [c]")
    '50\\% of a\\_b \\& {[}c]'
    >>> _text("t-shirt"), _text("a--b")
    ('t-shirt', 'a-{}-b')
    """
    escaped = "".join(ESCAPES.get(letter, letter) for letter in harmless(text))
    return re.sub(r"([-',])\{\}(?!\1)", r"\1", escaped)
