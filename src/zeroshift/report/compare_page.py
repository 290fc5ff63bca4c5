"""The comparison as one HTML file with everything inside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zeroshift import __version__
from zeroshift.evaluate import Standing, Standings, told
from zeroshift.files import atomic_path
from zeroshift.report.compare_costs import COST_COLUMNS, cost_legend, costs_shown
from zeroshift.report.compare_figure import COLOURS, gain_bars
from zeroshift.report.compare_tables import by_protocol, marked, megabytes, remarks, span
from zeroshift.report.html import is_report, template_environment
from zeroshift.report.svg import inline_svg
from zeroshift.report.words import counted, percent, points, sig

__all__ = ["check_page", "render_page", "write_page"]


def render_page(standings: Standings) -> str:
    """The page as text; the same bytes for the same records."""
    environment = template_environment()
    environment.filters["minus"] = lambda text: text.replace("-", "\N{MINUS SIGN}")
    return environment.get_template("compare.html.j2").render(_page(standings))


def write_page(path: str | os.PathLike[str], standings: Standings) -> None:
    """`render_page` to a file, whole or not at all."""
    text = render_page(standings)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def check_page(path: str | os.PathLike[str]) -> None:
    """Refuse a file that is someone else's."""
    # os.path takes a name too long for one that is not there; the folder is tried elsewhere.
    if os.path.exists(path) and (Path(path).is_dir() or not is_report(path)):
        raise FileExistsError(f"{path} exists and is not a page of zeroshift. Fix: --out another folder.")


def _page(standings: Standings) -> dict[str, Any]:
    plan = standings.plan
    sets = counted(len(plan.entries), "set")
    drawn = inline_svg(gain_bars(standings.overall), name="gains", label=_spoken(standings.overall))
    for protocol, colour in COLOURS.items():
        drawn = drawn.replace(colour, f"var(--{protocol})")
    return {
        "version": __version__,
        "title": f"{counted(len(standings.overall), 'method')} on {sets} of features",
        "remarks": remarks(standings),
        "encoders": list(dict.fromkeys(entry.encoder for entry in plan.entries if entry.encoder)),
        "bars": drawn,
        "costs": costs_shown(standings.overall),
        "costs_legend": cost_legend(costs_shown(standings.overall)),
        "groups": [
            {"protocol": protocol, "rows": [_row(standing, len(plan.entries)) for standing in group]}
            for protocol, group in by_protocol(standings.overall)
        ],
        "sets": [
            {
                "name": entry.name,
                "title": entry.title,
                "detail": f"{entry.n_samples} samples, {entry.n_classes} classes, d = {entry.dimension}, "
                f"prompts {entry.prompt}",
                "hints": list(entry.hints),
            }
            for entry in plan.entries
        ],
        "matrix": _matrix(standings),
        "left_out": told(plan.left_out),
        "failed": [f"{outcome.job}: {outcome.error}" for outcome in standings.failed],
        "machines": sorted({str(record["machine"]) for record in standings.records if "machine" in record}),
    }


def _row(standing: Standing, of: int) -> dict[str, Any]:
    sets = len(standing.sets)
    return {
        "label": marked(standing),
        "detail": "" if sets == of else f"{sets} of {of} sets",
        "accuracy": percent(standing.accuracy.mean),
        "gain": points(standing.gain.mean),
        "span": span(standing.gain),
        "calibration": percent(standing.calibration_error),
        "microseconds": sig(standing.microseconds),
        "setup": sig(1e3 * standing.setup_seconds),
        "megabytes": megabytes(standing.peak_bytes),
        "costs": {name: sig(standing.costs[cost]) for name, cost in COST_COLUMNS.items()},
    }


def _matrix(standings: Standings) -> list[dict[str, Any]]:
    """Sets down, methods across would not fit either; methods down, as in the first table."""
    rows = []
    for protocol, group in by_protocol(standings.overall):
        for mean in group:
            found = [standings.on(entry.name, mean.contestant) for entry in standings.plan.entries]
            cells = [None if s is None else _row(s, 1) for s in found]
            rows.append({"label": marked(mean), "protocol": protocol, "cells": cells})
    return rows


def _spoken(standings: Sequence[Standing]) -> str:
    """The bars in words, for whoever cannot see them."""
    said = ", ".join(f"{standing.contestant.label} {points(standing.gain.mean)}" for standing in standings)
    return f"Bar chart of mean gains over zero-shot in points: {said}."
