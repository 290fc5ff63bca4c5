"""What the contact sheet says and shows, as plain strings and numbers: the template arranges them, decides nothing."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift import __version__
from zeroshift.evaluate import Comparison, Result
from zeroshift.report.palette import METHOD_COLOURS
from zeroshift.report.words import method_label

__all__ = ["MAX_CLASSES", "class_counts", "contact_page", "least_certain", "least_like_any", "most_changed"]

MAX_CLASSES = 30
"""Classes with a bar of their own; the rest share a row, or a thousand of them would hide the pictures."""

TAIL = 10
"""Letters at the end of a file name that are always shown: the number and the suffix, which tell files apart."""

UNWRITTEN = ("Cc", "Cs", "Zl", "Zp")
"""Unicode's categories of control characters, lone surrogates, and separators of lines and of paragraphs."""


def contact_page(
    comparison: Comparison, reject: np.ndarray, files: tuple[str, ...], *, title: str, command: str, per_section: int
) -> dict[str, Any]:
    """Everything the template needs but the pictures; see `zeroshift.report.contact_sheet.contact_sheet`."""
    adapted = comparison.results[-1]
    method = method_label(adapted.method)
    n_samples, changed = comparison.features.n_samples, comparison.changed(adapted)
    tiles: dict[int, dict[str, Any]] = {}

    def section(name: str, order: np.ndarray, note: str) -> dict[str, Any]:
        # A picture is embedded where it is first shown; where it is shown again, it is referred to.
        shown = [{"index": int(i), "again": int(i) in tiles} for i in order[:per_section]]
        tiles.update({item["index"]: tile(comparison, reject, files, item["index"]) for item in shown})
        return {"name": name, "note": note, "shown": shown}

    if changed:
        moved = f"{_shown(changed, per_section, 'changed prediction')}: where most probability moved comes first."
    else:
        moved = f"No prediction changed: {method} gives every image the label zero-shot gives it."
    of_all = _shown(n_samples, per_section, "image")
    return {
        "version": __version__,
        "title": written(title),
        "summary": summary(comparison),
        "method": method,
        "swatch": adapted.method.replace("_", "-") if adapted.method in METHOD_COLOURS else "other",
        "counts": class_counts(comparison),
        "sections": [
            section("Most changed", most_changed(comparison), moved),
            section(
                "Least certain",
                least_certain(comparison, reject),
                f"{of_all}: the smallest probability of the label given by {method} comes first.",
            ),
            section(
                "Least like any class",
                least_like_any(reject),
                f"{of_all}: the highest reject score comes first. Such an image may show none of the classes.",
            ),
        ],
        "tiles": tiles,
        "command": written(command),
    }


def most_changed(comparison: Comparison) -> np.ndarray:
    """Images with another label than zero-shot's, by how much probability moved to it, the most first."""
    after, before = comparison.results[-1], comparison.baseline
    changed = np.flatnonzero(after.predictions != before.predictions)
    new = after.predictions[changed]
    moved = after.run.probabilities[changed, new] - before.run.probabilities[changed, new]
    return np.asarray(changed[np.argsort(-moved, kind="stable")])


def least_certain(comparison: Comparison, reject: np.ndarray) -> np.ndarray:
    """All images, by the probability of their label, the smallest first; of equals the least like any class first."""
    return np.lexsort((-reject, comparison.results[-1].run.probabilities.max(axis=1)))


def least_like_any(reject: np.ndarray) -> np.ndarray:
    """All images, by reject score, the highest first."""
    return np.argsort(-reject, kind="stable")


def tile(comparison: Comparison, reject: np.ndarray, files: tuple[str, ...], i: int) -> dict[str, Any]:
    """What is said below one picture."""
    after, before = comparison.results[-1], comparison.baseline
    names, labels = comparison.features.class_names, comparison.features.labels
    file = written(files[i])
    said: dict[str, Any] = {
        "file": file,
        "file_start": file[:-TAIL],
        "file_end": file[-TAIL:],
        "old": {"label": written(names[before.predictions[i]]), "probability": _probability(before, i)},
        "new": {"label": written(names[after.predictions[i]]), "probability": _probability(after, i)},
        "reject": f"{reject[i]:.3g}",
        "truth": None,
    }
    if labels is not None:
        said["truth"] = {
            "label": written(names[labels[i]]),
            "before": "right" if before.predictions[i] == labels[i] else "wrong",
            "after": "right" if after.predictions[i] == labels[i] else "wrong",
        }
    return said


def _probability(result: Result, i: int) -> str:
    return f"{result.run.probabilities[i].max():.2f}"


def summary(comparison: Comparison) -> str:
    """The run in a line: how much of what, by which encoder and method, and how much it changed."""
    features, adapted = comparison.features, comparison.results[-1]
    changed = comparison.changed(adapted)
    parts = [_counted(features.n_samples, "image"), _counted(features.n_classes, "class")]
    encoder = features.provenance.get("encoder")
    if isinstance(encoder, Mapping) and encoder.get("source"):
        parts.append(f"encoder {written(str(encoder['source']))}")
    parts.append(f"method {method_label(adapted.method)}")
    share = f"{100 * changed / features.n_samples:.1f}%"
    return f"{', '.join(parts)}: {_counted(changed, 'prediction')} changed against zero-shot ({share})."


def class_counts(comparison: Comparison) -> list[dict[str, Any]]:
    """How many images each class is given before and after, the largest after first; `width`s in percent of the
    longest bar."""
    n_classes = comparison.features.n_classes
    before = np.bincount(comparison.baseline.predictions, minlength=n_classes)
    after = np.bincount(comparison.results[-1].predictions, minlength=n_classes)
    order = np.lexsort((-before, -after))
    shown, rest = order[:MAX_CLASSES], order[MAX_CLASSES:]
    named = [(written(comparison.features.class_names[k]), int(before[k]), int(after[k])) for k in shown]
    longest = max(max(old, new) for _, old, new in named)
    rows: list[dict[str, Any]] = [
        {"name": name, "old": old, "new": new, "widths": [f"{100 * n / longest:.1f}" for n in (old, new)]}
        for name, old, new in named
    ]
    if len(rest):
        # Without bars: a sum over many classes would dwarf every class of its own.
        other = _counted(len(rest), "other class")
        rows.append({"name": other, "old": int(before[rest].sum()), "new": int(after[rest].sum()), "widths": []})
    return rows


def written(text: str) -> str:
    r"""Text a page can hold: what has no shape, such as a line break in a file name, becomes a mark.

    >>> written("one\ntwo.jpg")
    'one�two.jpg'
    """
    mark = "\N{REPLACEMENT CHARACTER}"
    return "".join(mark if unicodedata.category(letter) in UNWRITTEN else letter for letter in text)


def _counted(number: int, noun: str) -> str:
    """
    >>> _counted(1, "class"), _counted(1200, "class"), _counted(0, "image")
    ('1 class', '1,200 classes', '0 images')
    """
    plural = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{plural}"


def _shown(total: int, limit: int, noun: str) -> str:
    """
    >>> _shown(57, 24, "image"), _shown(3, 24, "image")
    ('24 of 57 images', '3 images')
    """
    return _counted(total, noun) if total <= limit else f"{limit:,} of {_counted(total, noun)}"
