"""For the documentation site: examples in docstrings (`>>>`) become blocks of code, also outside a section Examples."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\n(?!>>>)|\Z)", re.DOTALL | re.MULTILINE)


def fence_examples(text: str) -> str:
    """The text of a docstring, with its examples as fenced blocks."""
    if re.search(r"^Examples\n---", text, re.MULTILINE):
        return text  # the docstring's parser does it
    return EXAMPLE.sub(lambda found: f"```pycon\n{found.group()}\n```", text)


class DoctestBlocks(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fence_examples(obj.docstring.value)
