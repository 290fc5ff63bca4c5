"""A few phrases that readers stumbled over do not come back, in prose, messages or names of tests.

This is not a style check: the list is short on purpose. Write a sentence differently, or remove a phrase from the list
if a good sentence needs it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

INSTEAD = {
    r"told": "reported, stated",
    r"beside": "next to, in addition to",
    r"anew|afresh": "again, from scratch",
    r"gone on with|goes on where|go on from": "resumes",
    r"broken off": "interrupted",
    r"(?:lies|lie) at|lies there": "is at, is in",
    r"heard": "received",
    r"a blink": "instantly",
    r"(?:one|an?) (?:line|row|sample|image|column) an? (?:class|sample|image|line|row|call|set)": "one ... per ...",
    r"(?:ms|us|µs|seconds|MB|samples|prompts) an? (?:class|sample|image|call|prompt)(?! (?:has|had|is|was))": "per ...",
    r"issue #?\d+": "(nothing: describe the change itself)",
}
PATTERN = re.compile("|".join(rf"\b(?:{phrase.replace(' ', ' +')})\b" for phrase in INSTEAD), re.IGNORECASE)

FOLDERS = ("src", "docs", "tests", "benchmarks", "scripts", "examples")
FILES = sorted(
    path
    for path in (*ROOT.glob("*.md"), ROOT / "Makefile", *(p for name in FOLDERS for p in (ROOT / name).rglob("*")))
    if (path.suffix in {".py", ".md", ".html", ".css", ".js"} and path != Path(__file__)) or path.name == "Makefile"
)


def find_phrases(text: str) -> list[str]:
    """The phrases with their line numbers; names are read as words, and line breaks as spaces."""
    words = re.sub(r"\n[ #]*", lambda found: " " * len(found.group()), text.replace("_", " "))
    return [f"{text[: found.start()].count(chr(10)) + 1}: {found.group()}" for found in PATTERN.finditer(words)]


@pytest.mark.parametrize("folder", ["", *FOLDERS])
def test_phrases_do_not_come_back(folder):
    paths = [path for path in FILES if (path.parent == ROOT if not folder else path.is_relative_to(ROOT / folder))]
    assert paths
    found = [f"{path.relative_to(ROOT)}:{each}" for path in paths for each in find_phrases(path.read_text("utf-8"))]
    assert not found, "\n".join(["write differently:", *found])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It is told apart.", 1),
        ("def test_one_line_a_class(): ...", 1),
        ("12 ms\n# a sample", 1),
        ("the fewer samples a class has; a folder; besides; Issue tracker", 0),
    ],
)
def test_phrases_are_found(text, count):
    assert len(find_phrases(text)) == count
