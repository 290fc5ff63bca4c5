"""The report: one HTML file with everything inside it, to be opened, mailed or archived as it is."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift import __version__, methods
from zeroshift.evaluate import Comparison, Result, mean_accuracy
from zeroshift.files import atomic_path
from zeroshift.report import demo_figures as figures
from zeroshift.report.comparisons import losses, mean_calibration_error, verdict
from zeroshift.report.demo_figures import first_drawn, streamed
from zeroshift.report.formatting import listed, method_label, percent, points, setting
from zeroshift.report.palette import METHOD_COLOURS, inline_svg

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

__all__ = ["GENERATOR", "is_report", "page", "render", "write_report"]


# What the report says, as plain strings and numbers: the template arranges them and decides nothing.


PACK_MAKER = "scripts/bundle_packs.py"
"""What the provenance of a bundled pack says it was made by."""


def page(comparisons: Sequence[Comparison], *, command: str, hint_note: str) -> dict[str, Any]:
    """Everything the template needs; see `zeroshift.report.html.render`."""
    if not comparisons:
        raise ValueError("comparisons is empty; a report needs at least one.")
    return {
        "version": __version__,
        "headline": headline(comparisons),
        "lead": lead(comparisons),
        "tiles": tiles(comparisons),
        "method_names": [result.method for result in comparisons[0].results],
        "table": table(comparisons),
        "losses": losses(comparisons),
        "verdict": verdict(comparisons),
        "bars": inline_svg(figures.accuracy_bars(comparisons), name="bars", label=bars_label(comparisons)),
        "sets": [one_set(comparison) for comparison in comparisons],
        "calibration": calibration(comparisons),
        "methods": [method(comparisons, result) for result in comparisons[0].results],
        "statements": statements(comparisons),
        "command": command,
        "hint_note": hint_note,
        "versions": {"zeroshift": __version__, "Python": platform.python_version(), "NumPy": np.__version__},
    }


def headline(comparisons: Sequence[Comparison]) -> str:
    """The range of the methods' mean gains: naming the best alone would be a choice made with labels."""
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


def lead(comparisons: Sequence[Comparison]) -> str:
    means = mean_accuracy(comparisons)
    baseline, *others = means
    where = comparisons[0].title if len(comparisons) == 1 else f"{len(comparisons)} sets of image features"
    mean = "Accuracy" if len(comparisons) == 1 else "Mean accuracy"
    reached = listed([f"{percent(means[name])}% with {method_label(name)}" for name in others])
    return (
        f"{mean} on {where}: {percent(means[baseline])}% {method_label(baseline).lower()}"
        f"{', ' + reached if others else ''}. The same features, prompts and logit scale for every method; the "
        "parameters are listed below. No method saw a label: they were used only to count what is right."
        f"{scale_note(comparisons)}"
    )


def scale_note(comparisons: Sequence[Comparison]) -> str:
    """The one number of a bundled pack that labels had a part in, before any method ran: its logit scale."""
    bundled = [c.features for c in comparisons if c.features.provenance.get("made_by") == PACK_MAKER]
    if not bundled:
        return ""
    scales = " and ".join(dict.fromkeys(f"{features.logit_scale:g}" for features in bundled))
    return f" The logit scale of the bundled packs, {scales}, was calibrated by their makers on CIFAR-10 labels."


def tiles(comparisons: Sequence[Comparison]) -> list[dict[str, str]]:
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


def table(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """A row for each set, and the mean where there is more than one."""
    rows: list[dict[str, Any]] = [
        {
            "title": comparison.title,
            "detail": f"{comparison.features.n_samples} samples, {comparison.features.n_classes} classes",
            "cells": [cell(comparison, result) for result in comparison.results],
            "total": False,
        }
        for comparison in comparisons
    ]
    if len(comparisons) > 1:
        rows.append({"title": "Mean", "detail": "", "cells": tiles(comparisons), "total": True})
    return rows


def cell(comparison: Comparison, result: Result) -> dict[str, str]:
    gain = "" if result is comparison.baseline else points(comparison.gain(result))
    return {"accuracy": percent(result.accuracy), "gain": gain}


def bars_label(comparisons: Sequence[Comparison]) -> str:
    """The bars in words, for whoever cannot see them."""
    sets = (f"{comparison.title}: {spoken(comparison)}" for comparison in comparisons)
    return f"Bar chart of accuracy. {'; '.join(sets)}."


def spoken(comparison: Comparison) -> str:
    return ", ".join(f"{method_label(result.method)} {percent(result.accuracy)}%" for result in comparison.results)


def one_set(comparison: Comparison) -> dict[str, Any]:
    """A card: the two figures of a set, its hints, and which classes gained and lost most."""
    running = inline_svg(
        figures.running_accuracy_of(comparison),
        name=f"running-{comparison.name}",
        label=f"Line chart of accuracy so far on {comparison.title}. At the end: {spoken(comparison)}.",
    )
    return {
        "title": comparison.title,
        "running": running,
        "first_drawn": first_drawn(comparison.features.n_samples),
        "bank": bank(comparison),
        "hints": comparison.features.hints(),
        "extremes": [line for line in (extremes(comparison, r) for r in comparison.results[1:]) if line],
    }


def bank(comparison: Comparison) -> dict[str, str] | None:
    result = streamed(comparison)
    if result is None or result.run.bank_history is None:
        return None
    counts = result.run.bank_history[-1]
    names = comparison.features.class_names
    shown = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
    label = f"Bank entries of each class over the stream. At the end: {shown}."
    drawn = inline_svg(figures.bank_fill_of(comparison), name=f"bank-{comparison.name}", label=label)
    return {"svg": drawn, "method": method_label(result.method), "size": setting(result.parameters.get("bank_size"))}


def extremes(comparison: Comparison, result: Result) -> dict[str, Any] | None:
    """The classes on which a method gained and lost most; a mean can rise while one class pays for it."""
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


def calibration(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Mean calibration error and total time of each method, and whose probabilities are worse than the baseline's."""
    errors = mean_calibration_error(comparisons)
    baseline = next(iter(errors))
    rows = []
    for name, error in errors.items():
        seconds = sum(comparison.result(name).run.seconds for comparison in comparisons)
        rows.append({"method": name, "error": percent(error), "seconds": f"{seconds:.2f}"})
    worse = [f"{method_label(name)} ({percent(errors[name])}%)" for name in errors if errors[name] > errors[baseline]]
    return {"rows": rows, "worse": listed(worse), "baseline": percent(errors[baseline])}


def method(comparisons: Sequence[Comparison], result: Result) -> dict[str, Any]:
    """A method in the registry's own words, with the parameters it ran with; those that differ by set are listed."""
    used = {}
    for name in result.parameters:
        values = {setting(c.result(result.method).parameters[name]): None for c in comparisons}
        used[name] = ", ".join(values)
    return {"name": result.method, "summary": methods.get(result.method).summary, "parameters": used}


def statements(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """What the sets say about where they come from, each thing once."""
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


GENERATOR = '<meta name="generator" content="zeroshift'
"""How a report of ours is told from someone else's file."""


def render(comparisons: Sequence[Comparison], *, command: str, hint_note: str = "") -> str:
    """The page as text; the same bytes for the same comparisons.

    `command` is what a reader types to get the same page; `hint_note` is said after each hint a set gives about itself.
    """
    # Needed for the page alone, and slower to import than the rest of zeroshift.

    environment = template_environment()
    environment.filters["label"] = method_label
    environment.filters["swatch"] = lambda name: name.replace("_", "-") if name in METHOD_COLOURS else "other"
    environment.filters["prose"] = _prose
    environment.filters["minus"] = lambda text: text.replace("-", "\N{MINUS SIGN}")
    return environment.get_template("report.html.j2").render(page(comparisons, command=command, hint_note=hint_note))


def template_environment() -> Environment:
    """Templates of this room: everything escaped, and what is not defined is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("zeroshift.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _prose(text: str) -> Markup:
    """Docstring prose as HTML: `code` in backticks becomes an element."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def write_report(
    path: str | os.PathLike[str], comparisons: Sequence[Comparison], *, command: str, hint_note: str = ""
) -> None:
    """`render` to a file, whole or not at all."""
    text = render(comparisons, command=command, hint_note=hint_note)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def is_report(path: str | os.PathLike[str]) -> bool:
    """Whether the file is one that `write_report` made, and may hence be replaced by a newer one."""
    with open(Path(path), encoding="utf-8", errors="replace") as handle:
        return GENERATOR in handle.read(2000)
