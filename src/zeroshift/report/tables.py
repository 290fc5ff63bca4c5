"""One table for every output: terminal, Markdown, LaTeX, CSV and JSON.

A `ReportTable` has columns, rows and notes. Cells hold both the text that people read and the value that CSV and JSON
hold. `console.print(table)` prints it in the width of the terminal (see `zeroshift.report.terminal`); the other formats
are methods.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Any, TextIO

from zeroshift.files import atomic_path
from zeroshift.report.formatting import one_line, visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = [
    "ReportCell",
    "ReportColumn",
    "ReportRow",
    "ReportTable",
    "csv_text",
    "encodable",
    "escape_latex",
    "escape_markdown",
    "summary_table",
    "write_csv_lines",
    "write_csv_rows",
]

LATEX_PACKAGES = (
    "% These packages are needed before \\begin{document}:",
    "%   \\usepackage[T1]{fontenc}",
    "%   \\usepackage{booktabs}",
    "%   \\usepackage{adjustbox}",
    "% Names in other than Latin letters need lualatex or xelatex, and a font that has them.",
)

LATEX_ESCAPES = {
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
    # At the beginning of a row these would belong to the end of the previous one.
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

MARKDOWN_SPECIAL = re.compile(r"[\\`*>|\[\]{}#~$&!]|<(?=[A-Za-z/!?])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def _make_visible(part: object, *fields: str) -> None:
    """Names are data: what would control a terminal or break a line is spelled out in every format."""
    for field_name in fields:
        object.__setattr__(part, field_name, visible(getattr(part, field_name)))


@dataclass(frozen=True)
class ReportCell:
    """One field of a table; `text` is empty where there is nothing."""

    text: str = ""
    value: Any = None
    """What CSV and JSON hold."""
    low: float | None = None
    high: float | None = None
    """The range over several runs, for CSV."""
    range_text: str = ""
    """The range as it is read: "77.9 to 79.0"."""
    change: str = ""
    """A signed difference that follows the text in parentheses: "78.5 (+5.0)"."""
    is_number: bool = False
    """Numbers are never broken over two lines."""
    is_best: bool = False
    style: str = ""
    """A style of rich, for the terminal."""

    def __post_init__(self) -> None:
        _make_visible(self, "text", "range_text", "change")

    def __str__(self) -> str:
        return " ".join([self.text, *(f"({part})" for part in (self.change, self.range_text) if part)])


@dataclass(frozen=True)
class ReportColumn:
    title: str
    name: str = ""
    """Column name in CSV and key in JSON; the title where empty."""
    format: Callable[[Any], str] = field(default=lambda value: one_line(str(value)))
    """How `ReportTable.from_values` writes a value."""
    detail: str = ""
    """A second, smaller line of the heading: "15 samples, 10 classes"."""
    unit: str = "text"
    is_right: bool = False
    is_code: bool = False
    """In a fixed-width font in Markdown."""
    is_signed: bool = False
    """On a terminal, gains are green and losses are red."""
    is_reference: bool = False
    """Published numbers, next to the column they belong to."""
    is_whole: bool = False
    """Never broken over two lines, not even its title."""
    is_kept: bool = False
    """Shown even if every cell is empty, because the user asked for it."""
    drop_order: int = 0
    """Where the terminal is too narrow, columns with an order above zero are hidden, the lowest first."""
    preferred_width: int = 0
    """Characters that text keeps before other columns are hidden; below, it wraps at spaces."""
    style: str = ""

    def __post_init__(self) -> None:
        _make_visible(self, "title", "detail")

    @property
    def key(self) -> str:
        return self.name or self.title

    def cell(self, value: Any) -> ReportCell:
        if isinstance(value, ReportCell):
            return value
        if value is None:
            return ReportCell()
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return ReportCell(self.format(value), value, is_number=is_number)


@dataclass(frozen=True)
class ReportRow:
    cells: tuple[ReportCell, ...]
    group: str = ""
    """Rows of a group are printed below its name."""
    starts_group: bool = False
    """Whether the name of the group, or a rule where it has none, goes before this row."""
    is_strong: bool = False
    """The row the table is about."""
    style: str = ""

    def __post_init__(self) -> None:
        _make_visible(self, "group")


@dataclass(frozen=True)
class ReportTable:
    """
    >>> columns = (ReportColumn("method"), ReportColumn("accuracy", format=lambda x: f"{100 * x:.1f}", is_right=True))
    >>> table = ReportTable.from_values(columns, [("zero_shot", 0.785), ("tda", 0.8)])
    >>> print(table.markdown())
    | method | accuracy |
    | --- | ---: |
    | zero_shot | 78.5 |
    | tda | 80.0 |
    >>> table.records()[0]
    {'method': 'zero_shot', 'accuracy': 0.785}
    """

    columns: tuple[ReportColumn, ...]
    rows: tuple[ReportRow, ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    """Sentences below the table."""
    legend: Callable[[Sequence[str]], str] | None = None
    """On a terminal: what the columns mean, given the keys of those shown."""
    n_repeated: int = 1
    """Where the terminal is too narrow and no column may be hidden, the columns are spread over several tables, each of
    which starts with this many of the first columns."""
    has_header: bool = True

    def __post_init__(self) -> None:
        _make_visible(self, "title")
        object.__setattr__(self, "notes", tuple(map(visible, self.notes)))

    @classmethod
    def from_values(
        cls,
        columns: Sequence[ReportColumn],
        values: Iterable[Sequence[Any]],
        *,
        groups: Sequence[str] | None = None,
        **fields: Any,
    ) -> ReportTable:
        """Each value is written by its column's format; None is an empty cell, a `ReportCell` is used as it is."""
        lines = [tuple(column.cell(v) for column, v in zip(columns, row, strict=True)) for row in values]
        names = [""] * len(lines) if groups is None else list(groups)
        rows = (
            ReportRow(cells, group, group != before)
            for cells, group, before in zip(lines, names, ["", *names], strict=False)
        )
        return cls(tuple(columns), tuple(rows), **fields)

    @property
    def has_ranges(self) -> bool:
        return any(cell.range_text for row in self.rows for cell in row.cells)

    @property
    def details(self) -> list[str]:
        """Second lines of headings as sentences, for formats without room in the heading."""
        return [f"{column.title} ({column.detail})." for column in self.columns if column.detail]

    def select(self, places: Sequence[int]) -> ReportTable:
        """Only the columns at these places."""
        rows = (replace(row, cells=tuple(row.cells[place] for place in places)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[place] for place in places), rows=tuple(rows))

    @property
    def filled(self) -> ReportTable:
        """Without columns in which every cell is empty, except the first; a table without rows keeps all of them."""
        places = [
            place
            for place, column in enumerate(self.columns)
            if place == 0 or column.is_kept or not self.rows or any(str(row.cells[place]) for row in self.rows)
        ]
        return self if len(places) == len(self.columns) else self.select(places)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from zeroshift.report.terminal import terminal_parts

        yield from terminal_parts(self.filled, options.max_width)

    def records(self) -> list[dict[str, Any]]:
        """One dictionary per row, values at full precision, for JSON."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, (cell.value for cell in row.cells), strict=True)) for row in self.rows]

    def csv_lines(self, *, with_group: bool = False) -> list[list[Any]]:
        """A heading and a line per row: values at full precision, and the ends of ranges where there are any."""
        columns: list[tuple[str, list[Any]]] = [("group", [row.group for row in self.rows])] if with_group else []
        for place, column in enumerate(self.columns):
            cells = [row.cells[place] for row in self.rows]
            columns.append((column.key, [cell.value for cell in cells]))
            for end in ("low", "high"):
                ends = [getattr(cell, end) for cell in cells]
                if any(value is not None for value in ends):
                    columns.append((f"{column.key} {end}", ends))
        heading: list[str] = []
        for title, _ in columns:
            # A program needs different names.
            numbered = (f"{title} {number}" for number in count(2))
            heading.append(next(name for name in chain([title], numbered) if name not in heading))
        return [heading, *(list(line) for line in zip(*(values for _, values in columns), strict=True))]

    def markdown(self) -> str:
        """The table alone, names of groups in rows of their own; see `details` and `notes` for what goes below it."""
        if self.filled is not self:
            return self.filled.markdown()
        lines = [
            _markdown_line(escape_markdown(column.title) for column in self.columns),
            _markdown_line("---:" if column.is_right else "---" for column in self.columns),
        ]
        for row in self.rows:
            if row.starts_group and row.group:
                lines.append(_markdown_line([f"*{escape_markdown(row.group)}*", *("" for _ in row.cells[1:])]))
            lines.append(_markdown_line(self._markdown_cells(row)))
        return "\n".join(lines)

    def _markdown_cells(self, row: ReportRow) -> Iterator[str]:
        for place, (cell, column) in enumerate(zip(row.cells, self.columns, strict=True)):
            text = one_line(str(replace(cell, range_text="")))
            if column.is_code and "`" not in text:
                text = f"`{text.replace('|', chr(92) + '|')}`" if text else ""
            elif not cell.is_number:
                text = escape_markdown(text)
            if text and (cell.is_best or (row.is_strong and place == 0)):
                text = f"**{text}**"
            yield f"{text} ({cell.range_text})" if cell.range_text else text

    def latex(self, name: str) -> str:
        """A floating table with the label tab:NAME."""
        if self.filled is not self:
            return self.filled.latex(name)
        alignment = "".join("r" if column.is_right else "l" for column in self.columns)
        lines = [
            f"% {name}: written by zeroshift.",
            *LATEX_PACKAGES,
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape_latex(self.title)}}}",
            rf"\label{{tab:{name}}}",
            r"\begin{adjustbox}{max width=\linewidth}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            _latex_line(escape_latex(column.title) for column in self.columns),
            r"\midrule",
            *self._latex_rows(),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{adjustbox}",
        ]
        notes = " ".join(escape_latex(text) for text in (*self.details, *self.notes))
        lines += [rf"\par\smallskip{{\footnotesize {notes}\par}}"] if notes else []
        return "\n".join([*lines, r"\end{table}", ""])

    def _latex_rows(self) -> Iterator[str]:
        for number, row in enumerate(self.rows):
            if row.starts_group:
                if number:
                    yield r"\midrule"
                if row.group:
                    yield rf"\multicolumn{{{len(self.columns)}}}{{l}}{{\textit{{{escape_latex(row.group)}}}}} \\"
            yield _latex_line(
                _latex_cell(cell, is_bold=cell.is_best or (row.is_strong and place == 0))
                for place, cell in enumerate(row.cells)
            )


def _markdown_line(cells: Iterable[str]) -> str:
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"


def escape_markdown(text: str) -> str:
    r"""Text on one line in which nothing is taken for Markdown, or for HTML within it.

    >>> print(escape_markdown("a *b* <c> zero_shot _d_"))
    a \*b\* \<c\> zero_shot \_d\_
    """
    return MARKDOWN_SPECIAL.sub(r"\\\g<0>", one_line(text))


def _latex_line(cells: Iterable[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def _latex_cell(cell: ReportCell, *, is_bold: bool) -> str:
    text = str(replace(cell, range_text=""))
    text = _latex_number(text) if cell.is_number else escape_latex(text)
    text = rf"\textbf{{{text}}}" if text and is_bold else text
    return rf"{text} {{\scriptsize ({_latex_number(cell.range_text)})}}" if cell.range_text else text


def _latex_number(text: str) -> str:
    return text.replace("-", "$-$").replace("µ", LATEX_ESCAPES["µ"])


def escape_latex(text: str) -> str:
    r"""Text on one line in which nothing is taken for a command of TeX.

    >>> escape_latex("50% of a_b & [c]")
    '50\\% of a\\_b \\& {[}c]'
    >>> escape_latex("t-shirt"), escape_latex("a--b")
    ('t-shirt', 'a-{}-b')
    """
    escaped = "".join(LATEX_ESCAPES.get(letter, letter) for letter in one_line(text))
    return re.sub(r"([-',])\{\}(?!\1)", r"\1", escaped)


FORMULA_STARTS = tuple(
    "=+-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
"""A cell that starts with one of these is computed by a spreadsheet."""

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def csv_text(text: str) -> str:
    """Text for a CSV file, which a spreadsheet shows and does not compute: a formula gets an apostrophe before it.

    Control characters are spelled out. Numbers stay numbers.

    >>> csv_text("=HYPERLINK(A1)"), csv_text("-2.5"), csv_text("t-shirt")
    ("'=HYPERLINK(A1)", '-2.5', 't-shirt')
    """
    shown = visible(text)
    return f"'{shown}" if shown.lstrip().startswith(FORMULA_STARTS) and not NUMBER.fullmatch(shown) else shown


def write_csv_lines(path: str | os.PathLike[str], lines: Iterable[Sequence[Any]], *, raw: bool = False) -> None:
    """UTF-8, lines end with a line feed; the file is written completely or not at all.

    Texts are written as `csv_text` does; with `raw`, as they are, except for what UTF-8 cannot encode.
    """
    write = encodable if raw else csv_text
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as handle:
        write_csv_rows(handle, ([_csv_field(value, write) for value in line] for line in lines))


def write_csv_rows(handle: TextIO, rows: Iterable[Sequence[Any]]) -> None:
    """Quoted as in RFC 4180; rows end with a line feed."""
    plain = csv.writer(handle, lineterminator="\n")
    quoted = csv.writer(handle, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        # Before Python 3.13 a carriage return is not quoted, and readers would start a new row at it.
        (quoted if any(isinstance(cell, str) and "\r" in cell for cell in row) else plain).writerow(row)


def encodable(text: str) -> str:
    r"""The text, with bytes that are not UTF-8 spelled out; names of old files may have some.

    >>> print(encodable("caf\udce9.jpg"))
    caf\udce9.jpg
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _csv_field(value: Any, write: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        value = ",".join(map(str, value))
    return write(value) if isinstance(value, str) else value


def summary_table(facts: Mapping[str, str]) -> ReportTable:
    """Names and values, one pair per line."""
    columns = (ReportColumn("", is_whole=True, style="dim"), ReportColumn(""))
    return ReportTable.from_values(columns, facts.items(), has_header=False)
