"""The pages in benchmarks/results: prose is written by hand; scripts write the tables, each between a pair of marks."""

from __future__ import annotations

import re
from pathlib import Path

from zeroshift.benchmarks.machine import machine
from zeroshift.files import atomic_path

__all__ = ["PAGES", "machine", "page_of", "replace_section", "section"]

PAGES = Path(__file__).parent / "results"


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(\n<!-- /{name} -->)", re.DOTALL)


def page_of(name: str) -> Path:
    """The page with the marks `<!-- name -->` and `<!-- /name -->`."""
    for page in sorted(PAGES.glob("*.md")):
        if _pattern(name).search(page.read_text()):
            return page
    raise LookupError(f"no page in {PAGES} has the marks <!-- {name} --> and <!-- /{name} -->")


def section(name: str) -> str:
    """The text between the marks of `name`."""
    found = _pattern(name).search(page_of(name).read_text())
    assert found is not None
    return found.group(2)


def replace_section(name: str, content: str) -> None:
    page = page_of(name)
    text = _pattern(name).sub(lambda found: found.group(1) + content + found.group(3), page.read_text())
    with atomic_path(page) as temporary:
        temporary.write_text(text)
    print(f"{page}: section {name} written")
