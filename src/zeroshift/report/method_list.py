"""Every method in a Markdown table: the one in docs/methods.md, which a test holds to the registry."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.methods import MethodInfo
from zeroshift.report.words import needs

__all__ = ["methods_markdown"]

HEADER = ("name", "class", "protocol", "needs", "state", "cost", "")


def methods_markdown(methods: Sequence[MethodInfo]) -> str:
    """A row for each method; the last column says of an online method that it is scored before it learns, and marks
    reconstructions.

    >>> from zeroshift.methods import get
    >>> print(methods_markdown([get("zero_shot")]).splitlines()[-1])
    | zero_shot | `ZeroShot` | online | | K d, the prototypes | O(K d) a sample | |
    """
    rows = [HEADER, ("---",) * len(HEADER), *(_cells(method) for method in methods)]
    return "\n".join(_line(row) for row in rows)


def _cells(method: MethodInfo) -> tuple[str, ...]:
    remarks = ["scored before it learns"] if method.protocol == "online" and method.scored == "before" else []
    remarks += ["reconstructed"] if method.reconstructed else []
    return (
        method.name,
        f"`{method.cls.__name__}`",
        method.protocol,
        needs(method),
        method.state_size,
        method.complexity,
        ", ".join(remarks),
    )


def _line(cells: Sequence[str]) -> str:
    written = "|".join(f" {cell} " if cell else " " for cell in (cell.replace("|", "\\|") for cell in cells))
    return f"|{written}|"
