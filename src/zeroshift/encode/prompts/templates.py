"""A template is a sentence with one `{}`, where the class name goes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from zeroshift.encode.prompts.user_files import read_json, read_lines
from zeroshift.files import FileFormatError

__all__ = ["SLOT", "check_template", "check_templates", "fill", "read_templates"]

SLOT = "{}"

NAMED_SLOT = re.compile(r"\{[^{}]+\}")
"""What people write for the slot who think of other formats: {c}, {0}, {class}."""


def fill(template: str, text: str) -> str:
    """`template` with `text` in its slot.

    Split there and not formatted: braces in a class name, a description or elsewhere in the template are just
    characters.

    >>> fill("a photo of a {}.", "set {1, 2}")
    'a photo of a set {1, 2}.'
    """
    before, after = template.split(SLOT)
    return f"{before}{text}{after}"


def check_template(template: str, name: str = "template") -> str:
    """The template itself if it has exactly one slot; `name` is what errors call it."""
    if not isinstance(template, str):
        raise TypeError(f"{name} must be a string; got {template!r}. Fix: 'a photo of a {SLOT}.'.")
    slots = template.count(SLOT)
    if slots == 1:
        return template
    if slots:
        fix = f"keep one {SLOT}, and write the others out"
    elif other := NAMED_SLOT.search(template):
        fix = f"write {SLOT} for {other.group()}: {template.replace(other.group(), SLOT, 1)!r}"
    else:
        fix = f"put {SLOT} where the class name goes, as in 'a photo of a {SLOT}.'"
    raise ValueError(f"{name} must have {SLOT} exactly once; {template!r} has it {slots} times. Fix: {fix}.")


def check_templates(templates: Iterable[str], name: str = "templates") -> tuple[str, ...]:
    """One or more templates, each with exactly one slot."""
    if isinstance(templates, str):
        raise TypeError(f"{name} must be a list of strings; got the string {templates!r}. Fix: [{templates!r}].")
    checked = tuple(check_template(template, f"{name}[{i}]") for i, template in enumerate(templates))
    if not checked:
        raise ValueError(f"{name} is empty; at least one template is needed. Fix: ['a photo of a {SLOT}.'].")
    return checked


def read_templates(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The templates in a file: a JSON list of strings where its name ends in `.json`, else one a line.

    Lines lose the spaces around them; strings in JSON are kept as they are.
    """
    try:
        return _read_json(path) if Path(path).suffix.lower() == ".json" else _read_lines(path)
    except (TypeError, ValueError) as error:
        raise FileFormatError(str(error)) from error


def _read_json(path: str | os.PathLike[str]) -> tuple[str, ...]:
    templates = read_json(path, "templates")
    if not isinstance(templates, list):
        raise ValueError(f'{path} must hold a JSON list of templates. Fix: ["a photo of a {SLOT}."].')
    return check_templates(templates, f"{path}: templates")


def _read_lines(path: str | os.PathLike[str]) -> tuple[str, ...]:
    lines = read_lines(path, "templates")
    if lines[0] == "[" or lines[0].startswith('["'):
        raise ValueError(f"{path} looks like a JSON list. Fix: give it a name that ends in .json.")
    return tuple(check_template(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1))
