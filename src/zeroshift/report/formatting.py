"""How numbers and methods are written in tables, figures and pages: one place, so that they agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zeroshift.evaluate import Comparison
from zeroshift.methods import MethodInfo

__all__ = [
    "class_losses",
    "counted",
    "listed",
    "losses",
    "method_label",
    "needs",
    "percent",
    "points",
    "setting",
    "sig",
    "verdict",
]

METHOD_LABELS = {
    "zero_shot": "Zero-shot",
    "adapt_online": "Online ADAPT",
    "adapt_transductive": "Transductive ADAPT",
    "anchored_mixture_online": "Online mixture",
    "anchored_mixture_transductive": "Transductive mixture",
}


def method_label(name: str) -> str:
    """A method's name for readers; one we have no better name for keeps its own.

    >>> method_label("adapt_online"), method_label("my_method")
    ('Online ADAPT', 'my_method')
    """
    return METHOD_LABELS.get(name, name)


def needs(method: MethodInfo) -> str:
    """What a method needs beyond the prototypes every method needs and, in brackets, what it may be given.

    >>> from zeroshift.methods import get
    >>> needs(get("tpt")), needs(get("tda")), needs(get("zlap_inductive"))
    ('views, text', '(views)', 'unlabelled')
    """
    needed = ", ".join(need for need in method.needs if need != "prototypes")
    offered = (*method.takes, *(model for model in method.cls.model_parameters if model not in method.takes))
    optional = ", ".join(name for name in offered if name not in method.needs)
    return f"{needed} ({optional})".strip() if optional else needed


def percent(fraction: float | None) -> str:
    """
    >>> percent(0.7853), percent(None)
    ('78.5', '')
    """
    return "" if fraction is None else f"{100 * fraction:.1f}"


def points(gain: float | None) -> str:
    """A gain in percentage points, signed; one that rounds to nothing has no sign.

    >>> points(4.96), points(-0.31), points(-0.01)
    ('+5.0', '-0.3', '0.0')
    """
    if gain is None:
        return ""
    return "0.0" if abs(gain) < 0.05 else f"{gain:+.1f}"


def sig(value: float) -> str:
    """
    >>> sig(1234.5), sig(12.34), sig(0.123)
    ('1,234', '12', '0.12')
    """
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def setting(value: object) -> str:
    """A parameter's value as a person would type it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def losses(comparisons: Sequence[Comparison]) -> list[tuple[str, str, str]]:
    """(method, set, gain) wherever a method lost to the baseline; a report that hides these is an advertisement."""
    return [
        (method_label(result.method), comparison.title, points(gain))
        for comparison in comparisons
        for result in comparison.results[1:]
        if (gain := comparison.gain(result)) is not None and gain < 0
    ]


def class_losses(comparisons: Sequence[Comparison]) -> tuple[int, int]:
    """How many classes, over all sets and methods, are recognised less often than by the baseline; and of how many."""
    gains = [comparison.class_gain(result) for comparison in comparisons for result in comparison.results[1:]]
    known = [gain[~np.isnan(gain)] for gain in gains if gain is not None]
    return sum(int(np.count_nonzero(gain < 0)) for gain in known), sum(len(gain) for gain in known)


def verdict(comparisons: Sequence[Comparison]) -> str:
    """What a mean hides, in a sentence or two: sets and classes on which adaptation did harm."""
    lost = [f"{method} on {title} ({gain})" for method, title, gain in losses(comparisons)]
    sets = f"Adaptation lost to zero-shot: {'; '.join(lost)}." if lost else "No method lost to zero-shot on any set."
    fewer, total = class_losses(comparisons)
    return f"{sets} Class by class, {fewer} of {total} results are below zero-shot's."


def counted(count: int, what: str, many: str | None = None) -> str:
    """
    >>> counted(1, "image"), counted(1200, "image"), counted(2, "class", "classes")
    ('1 image', '1,200 images', '2 classes')
    """
    return f"{count:,} {what if count == 1 else many or what + 's'}"


def listed(items: Sequence[str]) -> str:
    """
    >>> listed(["one"]), listed(["one", "two"]), listed(["one", "two", "three"])
    ('one', 'one and two', 'one, two and three')
    """
    *first, last = items or [""]
    return f"{', '.join(first)} and {last}" if first else last
