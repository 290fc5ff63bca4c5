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
from zeroshift.report.comparisons import gain_range, losses, mean_calibration_error, titled_with_gains, verdict
from zeroshift.report.feature_cloud import cloud_after, cloud_before, cloud_of
from zeroshift.report.formatting import counted, format_setting, join_words, method_label, percent, points, prose
from zeroshift.report.page import drawing, render_template, write_text

__all__ = ["headline", "page_context", "render_report", "write_report"]

PACK_MAKER = "scripts/bundle_packs.py"
"""`made_by` in the provenance of a bundled pack."""

MAX_NAMED = 2
"""Methods that the title names one by one."""

CLOUD_METHOD = "adapt_transductive"
"""The method of the drawing: it sees all samples first, so its final Gaussians are those that predict each of them."""


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
        "headline": prose(headline(comparisons)),
        "lead": _lead(comparisons),
        "sets_title": _sets_title(comparisons),
        "stream_title": _stream_title(comparisons),
        "calibration_title": _calibration_title(comparisons),
        "cloud": _cloud(comparisons),
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
    """The mean gain of up to two methods by name, of more their range: to name the best alone would be a choice made
    with labels."""
    means = mean_accuracy(comparisons)
    baseline, *others = means
    where = comparisons[0].title if len(comparisons) == 1 else f"{len(comparisons)} sets"
    if not others:
        return f"{method_label(baseline)} {percent(means[baseline])}% on {where}"
    gains = {name: 100 * (means[name] - means[baseline]) for name in others}
    if len(gains) <= MAX_NAMED:
        text = ", ".join(f"{method_label(name)} {points(gain)}" for name, gain in gains.items())
    else:
        text = gain_range(list(gains.values()))
    return f"{text} points on {where}, without labels"


def _sets_title(comparisons: Sequence[Comparison]) -> str:
    """On how many sets some method is worse than the baseline."""
    lost = len({title for _, title, _ in losses(comparisons)})
    if len(comparisons[0].results) < 2:
        return "Accuracy on each set"
    if lost:
        return f"On {lost} of {counted(len(comparisons), 'set')}, some method loses to zero-shot"
    return (
        f"Every method gains on {'this set' if len(comparisons) == 1 else f'all {len(comparisons)} sets'}"
        if all((comparison.gain(result) or 0) > 0 for comparison in comparisons for result in comparison.results[1:])
        else "No method loses to zero-shot"
    )


def _stream_title(comparisons: Sequence[Comparison]) -> str:
    """In how many streams the online methods are ahead at the end of the first quarter."""
    ahead = total = 0
    for comparison in comparisons:
        for result in comparison.results[1:]:
            if methods.get(result.method).protocol != "online" or result.correct is None:
                continue
            early = max(1, len(result.correct) // 4)
            total += 1
            ahead += int(np.sum(result.correct[:early]) > np.sum(np.asarray(comparison.baseline.correct)[:early]))
    if not total:
        return "Accuracy over the stream"
    return f"After a quarter of the stream, online methods are ahead of zero-shot in {ahead} of {total} runs"


def _calibration_title(comparisons: Sequence[Comparison]) -> str:
    errors = mean_calibration_error(comparisons)
    baseline, *others = errors
    if not others:
        return f"Calibration error: {percent(errors[baseline])}%"
    worst = max(others, key=lambda name: errors[name])
    if errors[worst] <= errors[baseline]:
        return f"No method's probabilities are worse than zero-shot's (calibration error {percent(errors[baseline])}%)"
    return (
        f"Calibration error rises from {percent(errors[baseline])}% (zero-shot) to {percent(errors[worst])}% "
        f"({method_label(worst)})"
    )


def _lead(comparisons: Sequence[Comparison]) -> str:
    means = mean_accuracy(comparisons)
    baseline, *others = means
    where = comparisons[0].title if len(comparisons) == 1 else f"{len(comparisons)} sets of image features"
    mean = "Accuracy" if len(comparisons) == 1 else "Mean accuracy"
    reached = join_words([f"{percent(means[name])}% with {method_label(name)}" for name in others])
    return (
        f"{mean} on {where}: {percent(means[baseline])}% {method_label(baseline).lower()}"
        f"{', ' + reached if others else ''}. The same features, prompts and logit scale for every method; the "
        "parameters are listed below. No method saw a label: labels were used only to compute accuracy."
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
        "title": prose(titled_with_gains(comparison)),
        "running": running,
        "first_drawn": figures.first_drawn(comparison.features.n_samples),
        "bank": _bank(comparison),
        "hints": comparison.features.hints(),
        "extremes": [line for line in (_extremes(comparison, r) for r in comparison.results[1:]) if line],
    }


def _cloud(comparisons: Sequence[Comparison]) -> dict[str, Any] | None:
    """Three classes of the first set, before and after adaptation."""
    if CLOUD_METHOD not in [result.method for result in comparisons[0].results]:
        return None
    cloud = cloud_of(comparisons[0], CLOUD_METHOD)
    if cloud is None:
        return None
    before, after = (percent(accuracy) for accuracy in cloud.accuracies)
    names = join_words(cloud.class_names)
    panels = (
        (f"Zero-shot: {before}% right", cloud_before(cloud), "cloud-before"),
        (f"{method_label(cloud.method)}: {after}% right", cloud_after(cloud), "cloud-after"),
    )
    return {
        "title": prose(f"Three classes of {cloud.title}: {cloud.headline}"),
        "caption": cloud.caption,
        "panels": [
            {"title": title, **drawing(figure, name=name, text=f"Features of {names} in a plane. {title}.")}
            for title, figure, name in panels
        ],
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
