"""Templates: sentences with one `{}` for the class name; the published lists, and users' files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from zeroshift.encode.prompts.user_text import read_json, read_lines
from zeroshift.files import FileFormatError

__all__ = [
    "CLIP_TEMPLATE",
    "ENSEMBLE",
    "SLOT",
    "VANILLA",
    "check_template",
    "check_templates",
    "fill_template",
    "read_templates",
]


VANILLA = ("a photo of a {}.",)
"""The template of TPT and of most later methods."""

ENSEMBLE = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
"""The seven of CLIP's eighty templates that OpenAI found most effective on ImageNet, in Tip-Adapter's order."""

CLIP_TEMPLATE = (
    "a bad photo of a {}.",
    "a photo of many {}.",
    "a sculpture of a {}.",
    "a photo of the hard to see {}.",
    "a low resolution photo of the {}.",
    "a rendering of a {}.",
    "graffiti of a {}.",
    "a bad photo of the {}.",
    "a cropped photo of the {}.",
    "a tattoo of a {}.",
    "the embroidered {}.",
    "a photo of a hard to see {}.",
    "a bright photo of a {}.",
    "a photo of a clean {}.",
    "a photo of a dirty {}.",
    "a dark photo of the {}.",
    "a drawing of a {}.",
    "a photo of my {}.",
    "the plastic {}.",
    "a photo of the cool {}.",
    "a close-up photo of a {}.",
    "a black and white photo of the {}.",
    "a painting of the {}.",
    "a painting of a {}.",
    "a pixelated photo of the {}.",
    "a sculpture of the {}.",
    "a bright photo of the {}.",
    "a cropped photo of a {}.",
    "a plastic {}.",
    "a photo of the dirty {}.",
    "a jpeg corrupted photo of a {}.",
    "a blurry photo of the {}.",
    "a photo of the {}.",
    "a good photo of the {}.",
    "a rendering of the {}.",
    "a {} in a video game.",
    "a photo of one {}.",
    "a doodle of a {}.",
    "a close-up photo of the {}.",
    "a photo of a {}.",
    "the origami {}.",
    "the {} in a video game.",
    "a sketch of a {}.",
    "a doodle of the {}.",
    "a origami {}.",
    "a low resolution photo of a {}.",
    "the toy {}.",
    "a rendition of the {}.",
    "a photo of the clean {}.",
    "a photo of a large {}.",
    "a rendition of a {}.",
    "a photo of a nice {}.",
    "a photo of a weird {}.",
    "a blurry photo of a {}.",
    "a cartoon {}.",
    "art of a {}.",
    "a sketch of the {}.",
    "a embroidered {}.",
    "a pixelated photo of a {}.",
    "itap of the {}.",
    "a jpeg corrupted photo of the {}.",
    "a good photo of a {}.",
    "a plushie {}.",
    "a photo of the nice {}.",
    "a photo of the small {}.",
    "a photo of the weird {}.",
    "the cartoon {}.",
    "art of the {}.",
    "a drawing of the {}.",
    "a photo of the large {}.",
    "a black and white photo of a {}.",
    "the plushie {}.",
    "a dark photo of a {}.",
    "itap of a {}.",
    "graffiti of the {}.",
    "a toy {}.",
    "itap of my {}.",
    "a photo of a cool {}.",
    "a photo of a small {}.",
    "a tattoo of the {}.",
)
"""The eighty templates of CLIP's evaluation on ImageNet (OpenAI, MIT licence)."""

SLOT = "{}"

NAMED_SLOT = re.compile(r"\{[^{}]+\}")
"""Other spellings of the slot that users may write: {c}, {0}, {class}."""


def fill_template(template: str, text: str) -> str:
    """`template` with `text` in its slot.

    Other braces, in the template or in `text`, have no special meaning.

    >>> fill_template("a photo of a {}.", "set {1, 2}")
    'a photo of a set {1, 2}.'
    """
    before, after = template.split(SLOT)
    return f"{before}{text}{after}"


def check_template(template: str, name: str = "template") -> str:
    """Return the template if it has exactly one slot; `name` is its name in errors."""
    if not isinstance(template, str):
        raise TypeError(f"{name} must be a string; got {template!r}. Fix: 'a photo of a {SLOT}.'.")
    slots = template.count(SLOT)
    if slots == 1:
        return template
    if slots:
        fix = f"keep only one {SLOT}"
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
    """The templates in a file: a JSON list of strings if its name ends in `.json`, otherwise one per line.

    Lines are stripped of spaces; strings in JSON are not changed.
    """
    try:
        return _read_json(path) if Path(path).suffix.lower() == ".json" else _read_lines(path)
    except (TypeError, ValueError) as error:
        raise FileFormatError(str(error)) from error


def _read_json(path: str | os.PathLike[str]) -> tuple[str, ...]:
    templates = read_json(path, "templates")
    if not isinstance(templates, list):
        raise ValueError(f'{path} must contain a JSON list of templates. Fix: ["a photo of a {SLOT}."].')
    return check_templates(templates, f"{path}: templates")


def _read_lines(path: str | os.PathLike[str]) -> tuple[str, ...]:
    lines = read_lines(path, "templates")
    if lines[0] == "[" or lines[0].startswith('["'):
        raise ValueError(f"{path} looks like a JSON list. Fix: rename it to end in .json.")
    return tuple(check_template(line, f"{path}, template {number}") for number, line in enumerate(lines, start=1))
