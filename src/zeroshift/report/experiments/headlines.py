"""Titles that state the result: of tables, figures and chapters, and of the page. All are computed from the numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import singledispatch

import numpy as np

from zeroshift.experiments import Chapter
from zeroshift.experiments._shared.findings import (
    Bars,
    Confusion,
    Finding,
    HeatMaps,
    Lines,
    Regions,
    Reliability,
    Remark,
    Table,
    Value,
)
from zeroshift.report.formatting import counted, format_number, join_words, one_line

__all__ = ["chapter_heading", "chapter_title", "count_claims", "finding_title", "page_title"]

MAX_NAMED = 4
"""Lines, bars or panels that a title names one by one; of more, it states the range."""

MAX_BEST = 2
"""Best rows of a group that a title names."""

BASELINES = ("zero-shot", "")
"""Labels of rows whose gain is zero by definition."""


def finding_title(finding: Finding) -> str:
    """What a table or figure shows, and its result.

    >>> from zeroshift.experiments._shared.findings import Bar
    >>> bars = Bars("gains", "Gain over zero-shot", "points", (Bar("cifar10", 4.9), Bar("fmnist", -0.5)))
    >>> finding_title(bars)
    'Gain over zero-shot: cifar10 +4.9, fmnist -0.5'
    """
    title = one_line(getattr(finding, "title", ""))
    result = one_line(_result(finding))
    if not result or not title:
        return title or result
    return f"{title} {result}" if title.endswith("?") else f"{title.replace(': ', ', ')}: {result}"


def chapter_title(chapter: Chapter) -> str:
    """The experiment, and how many claims of the paper it confirms; without claims, its first result."""
    title = one_line(chapter.experiment.title)
    # Calibration is what a reliability diagram is about; its table starts with accuracy.
    findings = sorted(chapter.findings, key=lambda finding: not isinstance(finding, Reliability))
    result = "" if _claims_text([chapter]) else next(filter(None, map(_result, findings)), "")
    heading = chapter_heading(chapter)
    return f"{heading}{' ' if title.endswith('?') else ': '}{one_line(result)}" if result else heading


def chapter_heading(chapter: Chapter) -> str:
    """The experiment, and how many claims of the paper it confirms; for text, where the titles of its tables follow
    with their results."""
    title = one_line(chapter.experiment.title)
    claims = _claims_text([chapter])
    return f"{title}{' ' if title.endswith('?') else ': '}{claims}" if claims else title


def page_title(chapters: Sequence[Chapter], n_sets: int) -> str:
    """How many claims of the paper are confirmed; without claims, the result of the only chapter."""
    if len(chapters) == 1:
        return chapter_title(chapters[0])
    where = f"{counted(len(chapters), 'experiment')} on {counted(n_sets, 'set')}"
    claims = _claims_text(chapters)
    return f"{where}: {claims}" if claims else where


def count_claims(chapters: Sequence[Chapter]) -> Counter[str]:
    """How many claims of the paper are confirmed, not confirmed, or undecided."""
    remarks = (f for chapter in chapters for f in chapter.findings if isinstance(f, Remark))
    return Counter(remark.claim for remark in remarks if remark.claim)


def _claims_text(chapters: Sequence[Chapter]) -> str:
    found = count_claims(chapters)
    if not found:
        return ""
    others = [f"{found['not confirmed']} not"] if found["not confirmed"] else []
    others += [f"{found['undecided']} undecided"] if found["undecided"] else []
    claims = counted(found.total(), "claim")
    return ", ".join([f"{found['confirmed']} of {claims} of the paper confirmed", *others])


@singledispatch
def _result(finding: Finding) -> str:
    """The result in a few words; empty for remarks, and where nothing was measured."""
    return ""


@_result.register
def _(finding: Table) -> str:
    if finding.reference:
        return ""
    for place, column in enumerate(finding.columns):
        if column.unit == "points":
            rows = (row for row in finding.rows if str(row.cells[0]).lower() not in BASELINES)
            values = [row.cells[place] for row in rows]
            return _range([c.value for c in values if isinstance(c, Value)], "points", f"{column.title} ", " points")
    return _best_rows(finding) or _first_percentages(finding)


def _first_percentages(table: Table) -> str:
    """The first column in percent that has a word of the title, or the first: highlighted rows, or the range."""
    places = [place for place, column in enumerate(table.columns) if column.unit == "percent"]
    if not places:
        return ""
    topic = set(table.title.lower().split())
    place = max(places, key=lambda place: bool(topic & set(table.columns[place].title.lower().split())))
    values = [(row, cell.value) for row in table.rows if isinstance(cell := row.cells[place], Value)]
    strong = [(row, value) for row, value in values if row.strong]
    column = f" ({table.columns[place].title.replace(': ', ', ')})"
    if not 0 < len(strong) <= MAX_BEST:
        return _range([value for _, value in values], "percent", after=f"%{column}")
    labels = [str(row.cells[0]) for row, _ in strong]
    if len(set(labels)) < len(labels):
        labels = [f"{row.cells[0]}, {row.group}" for row, _ in strong]
    return _named([(label, value) for label, (_, value) in zip(labels, strong, strict=True)], "percent", "%") + column


def _best_rows(table: Table) -> str:
    """In each group, the row that is best in most columns."""
    parts = []
    groups = list(dict.fromkeys(row.group for row in table.rows))
    for group in groups:
        wins = Counter({
            str(row.cells[0]): sum(isinstance(cell, Value) and cell.best for cell in row.cells)
            for row in table.rows if row.group == group
        })  # fmt: skip
        most = max(wins.values())
        names = [name for name, count in wins.items() if count == most]
        if most and len(names) <= MAX_BEST:
            parts.append(f"best {group + ' ' if group else ''}is {join_words(names)}".replace("  ", " "))
    return ", ".join(parts) if len(parts) == len(groups) <= MAX_BEST else ""


@_result.register
def _(finding: Lines) -> str:
    lines = [series for series in finding.series if any(map(math.isfinite, series.y))]
    if not finding.steps:
        if len(lines) > MAX_NAMED:
            return _range([series.y[-1] for series in lines], "number")
        return ", ".join(f"{series.label} {_on_axis(series.y[-1], finding.y_label)}" for series in lines)
    if not lines or len(lines) > MAX_NAMED:
        return ""
    tops = [(series.label, series.x[int(np.nanargmax(series.y))], float(np.nanmax(series.y))) for series in lines]
    return ", ".join(f"{label} highest at {x:g} ({_on_axis(y, finding.y_label)})" for label, x, y in tops)


def _on_axis(value: float, label: str) -> str:
    return f"{value:.1f}" if "percent" in label or "%" in label else format_number(value)


@_result.register
def _(finding: Bars) -> str:
    unit = "points" if "points" in finding.x_label else "number"
    is_unique = len({bar.label for bar in finding.bars}) == len(finding.bars)
    bars = [(bar.label if is_unique else "", bar.value) for bar in finding.bars]
    after = " points" if unit == "points" else "%" if "percent" in finding.x_label else ""
    return _named(bars, unit) if is_unique else _range([value for _, value in bars], unit, after=after)


@_result.register
def _(finding: Reliability) -> str:
    errors = [(panel.label, panel.error) for panel in finding.panels]
    text = _named(errors, "percent", "%")
    return f"calibration error {text}" if text else ""


@_result.register
def _(finding: Confusion) -> str:
    change = 100 * (np.diagonal(finding.after) - np.diagonal(finding.before))
    if not np.isfinite(change).any():
        return ""
    most, least = int(np.nanargmax(change)), int(np.nanargmin(change))
    ends = [f"{finding.class_names[k]} {format_number(change[k], 'points')}" for k in dict.fromkeys((most, least))]
    return f"{', '.join(ends)} points"


@_result.register
def _(finding: Regions) -> str:
    return _named([(region.label, region.accuracy) for region in finding.regions], "percent", "%")


@_result.register
def _(finding: HeatMaps) -> str:
    if len(finding.maps) != 1 or not finding.maps[0].row_labels or finding.maps[0].values.size == 0:
        return ""
    (only,) = finding.maps
    if not np.isfinite(only.values).any():
        return ""
    if finding.unit == "points":
        return _range(only.values.ravel().tolist(), "points", after=" points")
    row, column = np.unravel_index(int(np.nanargmax(only.values)), only.values.shape)
    labels = (only.row_labels[row], (only.column_labels or only.row_labels)[column])
    return f"highest for {' and '.join(labels)} ({format_number(only.values[row, column])})"


def _named(values: Sequence[tuple[str, float]], unit: str, after: str = "") -> str:
    known = [(label, value) for label, value in values if math.isfinite(value)]
    if len(known) > MAX_NAMED:
        return _range([value for _, value in known], unit, after=after)
    separator = "; " if any("," in label for label, _ in known) else ", "
    return separator.join(f"{label} {format_number(value, unit)}{after}".strip() for label, value in known)  # type: ignore[arg-type]


def _range(values: Sequence[float], unit: str, before: str = "", after: str = "") -> str:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    low, high = (format_number(end, unit) for end in (min(known), max(known)))  # type: ignore[arg-type]
    return f"{before}{low if low == high else f'{low} to {high}'}{after}"
