"""The leaderboard as a table, as Markdown, as JSON, as a figure of accuracy and time, and as an HTML page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING, Any

from zeroshift import __version__
from zeroshift.evaluate.leaderboard import GROUPS, NEEDS, Entry, Leaderboard
from zeroshift.methods.registry import describe_caveats
from zeroshift.report.compare_page import GROUP_COLOURS
from zeroshift.report.compare_tables import difference_text, margin_text, megabytes
from zeroshift.report.compare_tables import interval_text as points_text
from zeroshift.report.formatting import counted, join_words, percent, points, significant
from zeroshift.report.page import drawing, page_script, render_template, write_text
from zeroshift.report.style import label_points, new_figure, style_axes
from zeroshift.report.tables import ReportColumn, ReportTable, escape_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "LEADERBOARD_MARKS",
    "leaderboard_markdown",
    "leaderboard_record",
    "leaderboard_table",
    "rank_text",
    "remarks",
    "render_leaderboard_page",
    "time_figure",
    "write_leaderboard_page",
]

LEADERBOARD_MARKS = "<!-- leaderboard -->", "<!-- /leaderboard -->"
"""Lines between which the Markdown is written."""

DROPPED_FIRST = ("needs", "MB", "worst stream", "us", "ECE")
"""Columns of the table that are hidden first where the terminal is too narrow."""

WIDTH, HEIGHT = 4.8, 4.2
"""Inches of the figure."""

NAMED = 4
"""The fastest methods on the upper edge of the figure that are named, and the most accurate of each group."""


def rank_text(entry: Entry) -> str:
    """The rank within the group; a range where methods are tied.

    >>> from types import SimpleNamespace as Made
    >>> rank_text(Made(rank=(2, 4), tied=("a", "b"))), rank_text(Made(rank=(1, 1), tied=()))
    ('2-4 tied', '1')
    """
    low, high = entry.rank
    place = str(low) if low == high else f"{low}-{high}"
    return f"{place} tied" if entry.tied else place


def starred(entry: Entry) -> str:
    """The label, with a star where `remarks` has more to say about the method."""
    return entry.label + ("*" if entry.caveat else "")


def interval_text(entry: Entry) -> str:
    return f"{percent(entry.interval[0])} to {percent(entry.interval[1])}"


def worst_text(entry: Entry) -> str:
    """The accuracy on the worst stream, and which that is; without its name where all streams are the same."""
    name, accuracy = entry.worst_stream
    return f"{percent(accuracy)} {name}" if len(set(entry.by_stream.values())) > 1 else percent(accuracy)


def needs_text(entry: Entry) -> str:
    return ", ".join(entry.needs)


def leaderboard_table(board: Leaderboard) -> ReportTable:
    """One row per method, grouped by what the methods may see."""

    def column(title: str, *, is_right: bool = True, name: str = "") -> ReportColumn:
        order = DROPPED_FIRST.index(title) + 1 if title in DROPPED_FIRST else 0
        return ReportColumn(title, name=name, is_right=is_right, is_whole=is_right, drop_order=order)

    streams = board.streams if len(board.streams) > 1 else ()
    columns = (
        ReportColumn("method", is_code=True, preferred_width=40),
        column("rank"),
        column("acc"),
        column("±", name="interval"),
        column("gain"),
        *((column(f"over {board.baseline}"),) if board.baseline else ()),
        *(ReportColumn(name, is_right=True, is_whole=True, drop_order=len(DROPPED_FIRST) + 1) for name in streams),
        *((column("worst stream"),) if streams else ()),
        column("ECE"),
        column("us"),
        column("MB"),
        column("needs", is_right=False),
    )
    rows = [
        (
            starred(entry),
            rank_text(entry),
            percent(entry.accuracy),
            margin_text((100 * entry.interval[0], 100 * entry.interval[1])),
            points(entry.gain),
            *((difference_text(entry.to_baseline),) if board.baseline else ()),
            *(percent(entry.by_stream[name]) for name in streams),
            *((worst_text(entry),) if streams else ()),
            percent(entry.calibration_error),
            significant(entry.microseconds),
            megabytes(entry.peak_bytes),
            needs_text(entry),
        )
        for entry in board.entries
    ]
    return ReportTable.from_values(columns, rows, groups=[entry.group for entry in board.entries])


def remarks(board: Leaderboard) -> list[str]:
    """What a reader must know to interpret the numbers."""
    over = f"{counted(len(board.sets), 'set')}"
    several = len(board.streams) > 1
    averaged = f" and the streams {join_words(board.averaged)}" if len(board.averaged) > 1 else ""
    orders = "one order (seed 0)" if board.orders == 1 else counted(board.orders, "order")
    lines = [
        f"Accuracy (acc) in percent: mean over {over}{averaged}, {orders} each, with half the width of its "
        f"{100 * board.level:.0f} percent interval (±) from {board.draws} paired bootstrap draws of the samples; gain "
        "over zero-shot in points.",
        "Ranks are those within a group. Methods are tied if the interval of their difference contains zero; the range "
        "is that of the ranks which the intervals allow. Intervals are of one pair at a time, and not of other sets.",
        "ECE: calibration error in percent; us: microseconds per sample on one thread; MB: peak memory beyond what was "
        "in use before, of the largest set.",
    ]
    if several:
        lines.append("Methods that do not depend on the order have the same accuracy on every stream.")
    if board.baseline:
        lines.append(f"Over {board.baseline}: the difference to it, also across groups, and its interval.")
    used = [name for name in NEEDS if any(name in entry.needs for entry in board.entries)]
    if used:
        lines.append(f"Needs: {'; '.join(f'{name}, {NEEDS[name]}' for name in used)}.")
    lines += describe_caveats({entry.method: entry.caveat for entry in board.entries})
    lines += board.notes
    if board.incomplete:
        lines.append(
            "Not ranked: " + "; ".join(f"{label} ({reason})" for label, reason in board.incomplete.items()) + "."
        )
    return lines


def leaderboard_markdown(board: Leaderboard) -> str:
    """The table and the remarks."""
    machines = "; ".join(map(escape_markdown, board.machines))
    about = f"zeroshift {__version__}{', ' + machines if machines else ''}. Sets: {', '.join(board.sets)}."
    return "\n\n".join(
        [about, " ".join(escape_markdown(line) for line in remarks(board)), leaderboard_table(board).markdown()]
    )


def leaderboard_record(board: Leaderboard) -> dict[str, Any]:
    """For JSON: numbers at full precision, accuracies as fractions, gains in points."""
    return {
        "zeroshift": __version__,
        "sets": dict(board.sets),
        "streams": list(board.streams),
        "averaged": list(board.averaged),
        "orders": board.orders,
        "level": board.level,
        "draws": board.draws,
        "methods": [
            {
                **asdict(entry),
                "by_stream": dict(entry.by_stream),
                "by_set": dict(entry.by_set),
                "worst_stream": entry.worst_stream[0],
                "worst_accuracy": entry.worst_stream[1],
            }
            for entry in board.entries
        ],
        "not_ranked": dict(board.incomplete),
        "remarks": remarks(board),
        "machines": list(board.machines),
    }


def time_figure(board: Leaderboard) -> Figure:
    """Accuracy and time per sample of every method; a line connects those that no faster method exceeds."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = new_figure(WIDTH, HEIGHT)
    axes = figure.add_subplot()
    for group, is_hollow in product(GROUPS, (False, True)):
        entries = [entry for entry in board.group(group) if bool(entry.caveat) == is_hollow]
        if not entries:
            continue
        times = [entry.microseconds for entry in entries]
        accuracies = [100 * entry.accuracy for entry in entries]
        errors = [
            [100 * (entry.accuracy - entry.interval[0]) for entry in entries],
            [100 * (entry.interval[1] - entry.accuracy) for entry in entries],
        ]
        colour = GROUP_COLOURS[group]
        axes.errorbar(
            times, accuracies, yerr=[[max(0.0, one) for one in side] for side in errors], fmt="o", markersize=4,
            color=colour, markerfacecolor="none" if is_hollow else colour, elinewidth=0.7, alpha=0.85,
        )  # fmt: skip
    edge = upper_edge(board.entries)
    axes.plot(
        [entry.microseconds for entry in edge],
        [100 * entry.accuracy for entry in edge],
        color=GROUP_COLOURS["online"],
        linewidth=0.8,
        alpha=0.4,
        drawstyle="steps-post",
    )
    best = [max(found, key=lambda entry: entry.accuracy) for group in GROUPS if (found := board.group(group))]
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.18, y=0.12)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.15 * (high - low))  # room for labels
    style_axes(axes, "microseconds per sample", "accuracy, percent", grid="y")
    named = {one.label: one for one in [*best, *edge[:NAMED], *edge[-1:]]}.values()
    label_points(
        figure,
        axes,
        {starred(entry): (entry.microseconds, 100 * entry.accuracy) for entry in named},
        [(entry.microseconds, 100 * entry.accuracy) for entry in board.entries],
    )
    return figure


def upper_edge(entries: Sequence[Entry]) -> list[Entry]:
    """The methods that are more accurate than every faster one, from the fastest on."""
    found: list[Entry] = []
    for entry in sorted(entries, key=lambda one: (one.microseconds, -one.accuracy)):
        if not found or entry.accuracy > found[-1].accuracy:
            found.append(entry)
    return found


def write_leaderboard_page(path: str | os.PathLike[str], board: Leaderboard, *, command: str) -> None:
    """Write `render_leaderboard_page` to a file, completely or not at all."""
    write_text(path, render_leaderboard_page(board, command=command))


def render_leaderboard_page(board: Leaderboard, *, command: str) -> str:
    """The page as text; the same bytes for the same records."""
    streams = list(board.streams) if len(board.streams) > 1 else []
    groups = [
        {"name": group, "rows": [_page_row(entry, streams) for entry in board.group(group)]}
        for group in GROUPS
        if board.group(group)
    ]
    used = [need for need in NEEDS if any(need in entry.needs for entry in board.entries)]
    context = {
        "title": _title(board),
        "command": command,
        "figure": drawing(time_figure(board), name="time", text=_figure_text(board)),
        "figure_title": _figure_title(board),
        "groups": groups,
        "needs": [{"name": name, "text": NEEDS[name]} for name in used],
        "streams": streams,
        "baseline": board.baseline,
        "remarks": remarks(board),
        "sets": [{"name": name, "samples": count} for name, count in board.sets.items()],
        "machines": list(board.machines),
        "count": counted(len(board.entries), "method"),
        **page_script("leaderboard.js"),
    }
    return render_template("leaderboard.html.j2", context)


def _page_row(entry: Entry, streams: Sequence[str]) -> dict[str, Any]:
    return {
        "label": entry.label,
        "shown": starred(entry),
        "caveat": entry.caveat,
        "needs": list(entry.needs),
        "rank": rank_text(entry),
        "tied": ", ".join(entry.tied),
        "accuracy": percent(entry.accuracy),
        "interval": interval_text(entry),
        "gain": points(entry.gain),
        "gain_interval": points_text(entry.gain_interval),
        "to_baseline": "" if entry.to_baseline is None else points(entry.to_baseline.points),
        "baseline_interval": _baseline_interval(entry),
        "streams": [percent(entry.by_stream[name]) for name in streams],
        "worst": percent(entry.worst_stream[1]),
        "worst_name": entry.worst_stream[0] if len(set(entry.by_stream.values())) > 1 else "",
        "calibration": percent(entry.calibration_error),
        "microseconds": significant(entry.microseconds),
        "time": f"{entry.microseconds:.3f}",
        "megabytes": megabytes(entry.peak_bytes),
    }


def _baseline_interval(entry: Entry) -> str:
    """Of the difference to another method."""
    difference = entry.to_baseline
    if difference is None or difference.to == entry.label:
        return ""
    return points_text((difference.low, difference.high))


def _title(board: Leaderboard) -> str:
    """The most accurate method of the largest group, and how many are tied with it."""
    group = max(GROUPS, key=lambda name: len(board.group(name)))
    best = board.group(group)[0]
    of = f"of {len(board.group(group))} {group} methods on {counted(len(board.sets), 'set')}"
    if not best.tied:
        return f"{starred(best)} is first {of}"
    return f"{starred(best)} and {counted(len(best.tied), 'other')} are tied for first {of}"


def _figure_title(board: Leaderboard) -> str:
    edge = upper_edge(board.entries)
    return f"{counted(len(edge), 'method')} more accurate than every faster one"


def _figure_text(board: Leaderboard) -> str:
    shown = ", ".join(
        f"{starred(entry)} {percent(entry.accuracy)} percent in {significant(entry.microseconds)} microseconds"
        for entry in upper_edge(board.entries)
    )
    return f"Accuracy and time per sample. More accurate than every faster method: {shown}."
