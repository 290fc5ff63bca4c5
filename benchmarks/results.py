"""RESULTS.md: prose by hand, tables by the scripts, each between its own pair of marks."""

from __future__ import annotations

import re
from pathlib import Path

from zeroshift.benchmarks.machine import machine
from zeroshift.files import atomic_path

__all__ = ["RESULTS", "machine", "replace_section", "section"]

RESULTS = Path(__file__).parent / "RESULTS.md"


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(\n<!-- /{name} -->)", re.DOTALL)


def section(name: str) -> str:
    """What stands between the marks of `name`."""
    found = _pattern(name).search(RESULTS.read_text())
    if found is None:
        raise LookupError(f"{RESULTS} has no section <!-- {name} -->")
    return found.group(2)


def replace_section(name: str, content: str) -> None:
    section(name)
    text = _pattern(name).sub(lambda found: found.group(1) + content + found.group(3), RESULTS.read_text())
    with atomic_path(RESULTS) as temporary:
        temporary.write_text(text)
