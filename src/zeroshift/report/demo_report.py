"""The report of `zeroshift demo`: accuracy, figures, calibration, methods and data of a comparison in one HTML file."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np

from zeroshift import __version__, methods
from zeroshift.evaluate import Comparison, Result, mean_accuracy
from zeroshift.report import demo_figures as figures
from zeroshift.report.comparisons import losses, mean_calibration_error, verdict
from zeroshift.report.formatting import format_setting, join_words, method_label, percent, points
from zeroshift.report.page import drawing, render_template, write_text

__all__ = ["headline", "page_context", "render_report", "write_report"]

PACK_MAKER = "scripts/bundle_packs.py"
"""`made_by` in the provenance of a bundled pack."""


def write_report(
    path: str | os.PathLike[str], comparisons: Sequence[Comparison], *, command: str, hint_note: str = ""
) -> None:
    """Write `render_report` to a file, completely or not at all."""
    write_text(path, render_report(comparisons, command=command, hint_note=hint_note))


def render_report(comparisons: Sequence[Comparison], *, command: str, hint_note: str = "") -> str:
    """The page as text; the same bytes for the same comparisons.

    `command` is what a reader types to get the same page; `hint_note` follows each hint about a set.
    """
    return render_template("demo.html.j2", page_context(comparisons, command=command, hint_note=hint_note))


def page_context(comparisons: Sequence[Comparison], *, command: str, hint_note: str) -> dict[str, Any]:
    """Strings and numbers for the template, which arranges them and decides nothing."""
    if not comparisons:
        raise ValueError("comparisons is empty; a report needs at least one.")
    return {
        "headline": headline(comparisons),
        "lead": _lead(comparisons),
        "tiles": _tiles(comparisons),
        "method_names": [result.method for result in comparisons[0].results],
        "table": _table_rows(comparisons),
        "losses": losses(comparisons),
        "verdict": verdict(comparisons),
        "bars": drawing(figures.accuracy_bars(comparisons), name="bars", text=_bars_text(comparisons)),
        "sets": [_set_context(comparison) for comparison in comparisons],
        "calibration": _calibration(comparisons),
        "methods": [_method_context(comparisons, result) for result in comparisons[0].results],
        "provenance": _provenance(comparisons),
        "command": command,
        "hint_note": hint_note,
        "versions": {"zeroshift": __version__, "Python": platform.python_version(), "NumPy": np.__version__},
    }


def headline(comparisons: Sequence[Comparison]) -> str:
    """The range of the methods' mean gains; to name the best alone would be a choice made with labels."""
    means = mean_accuracy(comparisons)
    baseline, *others = means
    if not others:
        return f"{percent(means[baseline])}% accuracy"
    gains = sorted(100 * (means[name] - means[baseline]) for name in others)
    low, high = points(gains[0]), points(gains[-1])
    if gains[0] > 0:
        amount = low if low == high else f"{low} to {high}"
        return f"{amount} points of accuracy, not one label"
    if high.startswith("+"):
        return f"Between {low} and {high} points against {method_label(baseline).lower()}"
    return f"No gain over {method_label(baseline).lower()} here"


def _lead(comparisons: Sequence[Comparison]) -> str:
    means = mean_accuracy(comparisons)
    baseline, *others = means
    where = comparisons[0].title if len(comparisons) == 1 else f"{len(comparisons)} sets of image features"
    mean = "Accuracy" if len(comparisons) == 1 else "Mean accuracy"
    reached = join_words([f"{percent(means[name])}% with {method_label(name)}" for name in others])
    return (
        f"{mean} on {where}: {percent(means[baseline])}% {method_label(baseline).lower()}"
        f"{', ' + reached if others else ''}. The same features, prompts and logit scale for every method; the "
        "parameters are listed below. No method saw a label: they were used only to count what is right."
        f"{_scale_note(comparisons)}"
    )


def _scale_note(comparisons: Sequence[Comparison]) -> str:
    """The logit scale is the one number of a bundled pack that was chosen with labels."""
    bundled = [c.features for c in comparisons if c.features.provenance.get("made_by") == PACK_MAKER]
    if not bundled:
        return ""
    scales = " and ".join(dict.fromkeys(f"{features.logit_scale:g}" for features in bundled))
    return f" The logit scale of the bundled packs, {scales}, was calibrated by their makers on CIFAR-10 labels."


def _tiles(comparisons: Sequence[Comparison]) -> list[dict[str, str]]:
    means, errors = mean_accuracy(comparisons), mean_calibration_error(comparisons)
    baseline = next(iter(means))
    return [
        {
            "method": name,
            "accuracy": percent(mean),
            "error": percent(errors[name]),
            "gain": "" if name == baseline else points(100 * (mean - means[baseline])),
        }
        for name, mean in means.items()
    ]


def _table_rows(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """A row for each set, and the mean where there is more than one."""
    rows: list[dict[str, Any]] = [
        {
            "title": comparison.title,
            "detail": f"{comparison.features.n_samples} samples, {comparison.features.n_classes} classes",
            "cells": [_cell(comparison, result) for result in comparison.results],
            "total": False,
        }
        for comparison in comparisons
    ]
    if len(comparisons) > 1:
        rows.append({"title": "Mean", "detail": "", "cells": _tiles(comparisons), "total": True})
    return rows


def _cell(comparison: Comparison, result: Result) -> dict[str, str]:
    gain = "" if result is comparison.baseline else points(comparison.gain(result))
    return {"accuracy": percent(result.accuracy), "gain": gain}


def _bars_text(comparisons: Sequence[Comparison]) -> str:
    """The bars in words."""
    sets = (f"{comparison.title}: {_accuracies_text(comparison)}" for comparison in comparisons)
    return f"Bar chart of accuracy. {'; '.join(sets)}."


def _accuracies_text(comparison: Comparison) -> str:
    return ", ".join(f"{method_label(result.method)} {percent(result.accuracy)}%" for result in comparison.results)


def _set_context(comparison: Comparison) -> dict[str, Any]:
    """A card: the two figures of a set, its hints, and which classes gained and lost most."""
    running = drawing(
        figures.running_accuracy_of(comparison),
        name=f"running-{comparison.name}",
        text=f"Line chart of accuracy so far on {comparison.title}. At the end: {_accuracies_text(comparison)}.",
    )
    return {
        "title": comparison.title,
        "running": running,
        "first_drawn": figures.first_drawn(comparison.features.n_samples),
        "bank": _bank(comparison),
        "hints": comparison.features.hints(),
        "extremes": [line for line in (_extremes(comparison, r) for r in comparison.results[1:]) if line],
    }


def _bank(comparison: Comparison) -> dict[str, str] | None:
    result = figures.streamed(comparison)
    if result is None or result.run.bank_history is None:
        return None
    counts = result.run.bank_history[-1]
    names = comparison.features.class_names
    shown = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
    text = f"Bank entries of each class over the stream. At the end: {shown}."
    return {
        **drawing(figures.bank_fill_of(comparison), name=f"bank-{comparison.name}", text=text),
        "method": method_label(result.method),
        "size": format_setting(result.parameters.get("bank_size")),
    }


def _extremes(comparison: Comparison, result: Result) -> dict[str, Any] | None:
    """The classes with the largest gain and the largest loss, which a mean hides."""
    gains = comparison.class_gain(result)
    if gains is None:
        return None
    names = comparison.features.class_names
    most, least = int(np.nanargmax(gains)), int(np.nanargmin(gains))
    return {
        "method": result.method,
        "most": {"name": names[most], "gain": points(gains[most])},
        "least": {"name": names[least], "gain": points(gains[least])},
    }


def _calibration(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Mean calibration error and total time of each method, and whose probabilities are worse than the baseline's."""
    errors = mean_calibration_error(comparisons)
    baseline = next(iter(errors))
    rows = []
    for name, error in errors.items():
        seconds = sum(comparison.result(name).run.seconds for comparison in comparisons)
        rows.append({"method": name, "error": percent(error), "seconds": f"{seconds:.2f}"})
    worse = [f"{method_label(name)} ({percent(errors[name])}%)" for name in errors if errors[name] > errors[baseline]]
    return {"rows": rows, "worse": join_words(worse), "baseline": percent(errors[baseline])}


def _method_context(comparisons: Sequence[Comparison], result: Result) -> dict[str, Any]:
    """A method's summary and its parameters; where a parameter differs between sets, all its values."""
    used = {}
    for name in result.parameters:
        values = {format_setting(c.result(result.method).parameters[name]): None for c in comparisons}
        used[name] = ", ".join(values)
    return {"name": result.method, "summary": methods.get(result.method).summary, "parameters": used}


def _provenance(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Where the sets come from, each encoder once."""
    provenances = [comparison.features.provenance for comparison in comparisons]
    encoders = [p["encoder"]["statement"] for p in provenances if "statement" in p.get("encoder", {})]
    return {
        "encoders": list(dict.fromkeys(encoders)),
        "sets": [
            {
                "title": comparison.title,
                "description": str(comparison.features.provenance.get("description", "")),
                "licence": str(comparison.features.provenance.get("licence", "")),
                "prompt": comparison.features.default_prompt,
            }
            for comparison in comparisons
        ],
    }
