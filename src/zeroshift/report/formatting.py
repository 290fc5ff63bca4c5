"""How numbers, methods and names are written in tables, figures and pages: one place, so that they agree."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zeroshift.experiments._shared.findings import Unit
    from zeroshift.methods import MethodInfo

__all__ = [
    "DECIMALS",
    "counted",
    "describe_needs",
    "duration",
    "file_size",
    "format_number",
    "format_setting",
    "join_words",
    "method_label",
    "most_of",
    "one_line",
    "percent",
    "points",
    "prose",
    "significant",
    "visible",
    "without_backticks",
]

METHOD_LABELS = {
    "zero_shot": "Zero-shot",
    "adapt_online": "Online ADAPT",
    "adapt_transductive": "Transductive ADAPT",
    "anchored_mixture_online": "Online mixture",
    "anchored_mixture_transductive": "Transductive mixture",
}

DECIMALS = 1
"""Decimals of percentages and points."""

SIGNIFICANT_DIGITS = 3

NAMED_CLASSES = 3
"""Classes that a title names."""

UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
"""Control characters, marks that change the direction of writing, and lone surrogates, which no file can hold."""


def method_label(name: str) -> str:
    """A method's name for readers; a method without a label keeps its name.

    >>> method_label("adapt_online"), method_label("my_method")
    ('Online ADAPT', 'my_method')
    """
    return METHOD_LABELS.get(name, name)


def describe_needs(method: MethodInfo) -> str:
    """What a method needs in addition to prototypes and, in parentheses, what it can also use.

    >>> from zeroshift.methods import get
    >>> describe_needs(get("tpt")), describe_needs(get("tda")), describe_needs(get("zlap_inductive"))
    ('views, text', '(views)', 'unlabelled')
    """
    needed = ", ".join(need for need in method.needs if need != "prototypes")
    offered = (*method.takes, *(model for model in method.cls.model_parameters if model not in method.takes))
    optional = ", ".join(name for name in offered if name not in method.needs)
    return f"{needed} ({optional})".strip() if optional else needed


def format_setting(value: object) -> str:
    """A parameter's value as a person would type it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def percent(fraction: float | None) -> str:
    """
    >>> percent(0.7853), percent(None)
    ('78.5', '')
    """
    return "" if fraction is None else f"{100 * fraction:.1f}"


def points(gain: float | None) -> str:
    """A signed gain in percentage points; one that rounds to zero has no sign.

    >>> points(4.96), points(-0.31), points(-0.01)
    ('+5.0', '-0.3', '0.0')
    """
    if gain is None:
        return ""
    return "0.0" if abs(gain) < 0.05 else f"{gain:+.1f}"


def significant(value: float) -> str:
    """Two significant digits, and all digits before the decimal point.

    >>> significant(1234.5), significant(12.34), significant(0.123)
    ('1,234', '12', '0.12')
    """
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def counted(count: int, what: str, many: str | None = None) -> str:
    """
    >>> counted(1, "image"), counted(1200, "image"), counted(2, "class", "classes")
    ('1 image', '1,200 images', '2 classes')
    """
    return f"{count:,} {what if count == 1 else many or what + 's'}"


def duration(seconds: float) -> str:
    """
    >>> duration(0.4), duration(75), duration(5400), duration(200_000)
    ('0.4 s', '75 s', '1.5 hours', '2.3 days')
    """
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{significant(seconds)} s"


def file_size(count: float) -> str:
    """
    >>> file_size(512), file_size(1_024_000), file_size(2.05e12)
    ('512 bytes', '1.0 MB', '2.0 TB')
    """
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def join_words(items: Sequence[str]) -> str:
    """
    >>> join_words(["one"]), join_words(["one", "two"]), join_words(["one", "two", "three"])
    ('one', 'one and two', 'one, two and three')
    """
    *first, last = items or [""]
    return f"{', '.join(first)} and {last}" if first else last


def most_of(names: Sequence[str], amounts: Sequence[float], write: Callable[[float], str]) -> str:
    """The classes with the largest amounts, and how many others have any; the last name is that of what is rejected.

    >>> most_of(["cat", "dog", "ant", "owl", "fox", "unknown"], [2, 7, 0, 3, 1, 4], str)
    'dog 7, owl 3, cat 2 and 1 other class, 4 unknown'
    """
    *classes, rejected = [(visible(name), amount) for name, amount in zip(names, amounts, strict=True)]
    found = sorted((one for one in classes if one[1] > 0), key=lambda one: -one[1])
    rest = len(found) - NAMED_CLASSES
    others = f" and {counted(rest, 'other class', 'other classes')}" if rest > 0 else ""
    text = ", ".join(f"{name} {write(amount)}" for name, amount in found[:NAMED_CLASSES]) + others
    return ", ".join(filter(None, [text, f"{write(rejected[1])} {rejected[0]}" if rejected[1] > 0 else ""]))


def visible(text: str, *, keep: str = "") -> str:
    """Text in which characters without a shape are spelled out: names must not control a terminal or break a line.

    These are control characters, line ends, marks that change the direction of writing, and lone surrogates. Those in
    `keep` stay.

    >>> print(visible("a\\x1b[31m red\\ncat"))
    a\\x1b[31m red\\ncat
    """
    return UNSAFE.sub(lambda found: found[0] if found[0] in keep else repr(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """`visible`, with spaces in a row as one and none at the ends."""
    return visible(re.sub(" +", " ", text)).strip()


def without_backticks(text: str) -> str:
    """Text for a terminal, where backticks around commands are only in the way.

    >>> without_backticks("Fix: `zeroshift extract ... --views 64`.")
    'Fix: zeroshift extract ... --views 64.'
    """
    return re.sub(r"`([^`]*)`", r"\1", text)


def prose(text: str) -> str:
    """Text for a page; a hyphen before a number, after a space or a bracket, becomes a minus sign.

    >>> prose("It lost on t-shirts (-1.2 points).")
    'It lost on t-shirts (−1.2 points).'
    """
    return re.sub(r"(?<![^\s(\[])-(?=\d)", "\N{MINUS SIGN}", one_line(text))


def format_number(value: float, unit: Unit = "number", decimals: int = DECIMALS) -> str:
    """A number in its unit. A number that rounds to zero has no sign; other points always have one.

    >>> [format_number(value, "points") for value in (4.96, -0.31, -0.01)], format_number(0.7853, "percent")
    (['+5.0', '-0.3', '0.0'], '78.5')
    >>> [format_number(value) for value in (0.01234, 1234.5, 0.00001234, float("nan"))], format_number(1234.0, "count")
    (['0.0123', '1,234', '1.23e-5', 'n/a'], '1,234')
    >>> [format_number(value, "seconds") for value in (0.0000123, 0.0123, 75.0, 5400.0)]
    ['12.3 µs', '12.3 ms', '75.0 s', '1.5 h']
    >>> [format_number(value, "bytes") for value in (3_450_000, 123_456_789, 12_345)]
    ['3.5 MB', '123 MB', '0.012 MB']
    """
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    value = float(value) or 0.0  # no negative zero
    if unit == "percent":
        return _fixed(100 * value, decimals)
    if unit == "points":
        fixed = _fixed(value, decimals)
        return f"+{fixed}" if value > 0 and fixed.strip("0.") else fixed
    if unit == "count":
        return _fixed(value, 0 if float(value).is_integer() else 1)
    if unit == "seconds":
        return _seconds(value)
    if unit == "bytes":
        return f"{_megabytes(value / 1e6 or 0.0)} MB"
    return _significant(value)


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:,.{decimals}f}"
    return text.lstrip("-") if not text.strip("-0.") else text


def _significant(value: float) -> str:
    if value and not 1e-4 <= abs(value) < 1e9:
        return re.sub(r"e([+-])0*", lambda e: "e-" if e[1] == "-" else "e", f"{value:.{SIGNIFICANT_DIGITS}g}")
    if abs(value) >= 10 ** (SIGNIFICANT_DIGITS - 1):
        return _fixed(value, 0)
    return f"{value:.{SIGNIFICANT_DIGITS}g}"


def _seconds(value: float) -> str:
    size = abs(value)
    if size >= 3600:
        return f"{value / 3600:,.1f} h"
    if size >= 120:
        return f"{value / 60:.1f} min"
    if size >= 1:
        return f"{value:.1f} s"
    if size >= 1e-3:
        return f"{_significant(1e3 * value)} ms"
    return f"{_significant(1e6 * value)} µs" if value else "0 s"


def _megabytes(value: float) -> str:
    if abs(value) >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 0.1 or not value else f"{value:.2g}"
