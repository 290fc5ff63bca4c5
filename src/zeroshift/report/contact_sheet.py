"""The contact sheet: the images most worth a look after a classification, in one HTML file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from zeroshift.arrays import Array
from zeroshift.data.images import ImageError
from zeroshift.evaluate import Comparison
from zeroshift.files import atomic_path
from zeroshift.parameters import Number
from zeroshift.report.classifications import checked_files, checked_reject

if TYPE_CHECKING:
    from PIL.Image import Image

    from zeroshift.report.thumbnails import Thumbnail

__all__ = ["check_contact_sheet_target", "contact_sheet", "is_contact_sheet", "write_contact_sheet"]

GENERATOR = '<meta name="generator" content="contact sheet of zeroshift'
"""How a sheet of ours is told from someone else's file, and from a report of ours."""

HEAD_CHARACTERS = 2000
"""How far into a file `GENERATOR` is looked for."""

PER_SECTION = 24
"""Images in each section: a few screens of a phone."""

THUMB = 160
"""Pixels of a thumbnail's longest side: sharp enough in a tile of 140 to 200 pixels, and at most 8.4 kB."""

THUMB_RANGE = Number(16, 1024, integer=True)
"""From what can just be made out to what is no longer small."""


def contact_sheet(
    comparison: Comparison,
    reject: Array,
    open_image: Callable[[int], Image],
    *,
    title: str,
    command: str,
    per_section: int = PER_SECTION,
    thumb: int = THUMB,
) -> str:
    """The sheet as HTML; the same bytes for the same input.

    Three sections: labels that differ from zero-shot's, labels with the smallest probability, and images with the
    highest reject score. An image may be in several of them; its picture is in the file once.

    Parameters
    ----------
    comparison : zero-shot first and the method last, on a set with `sample_names`.
    reject : (N,) scores, the higher the less an image is like any of the classes.
    open_image : from an image's index in the set to the picture, called once for each image shown. Where it raises
        `ImageError`, the tile says so in the picture's place.
    title : the page's heading.
    command : what a reader types to get the same page.
    per_section : how many images a section shows.
    thumb : pixels of a thumbnail's longest side.

    Examples
    --------
    >>> import numpy as np
    >>> from PIL import Image
    >>> from zeroshift import FeatureSet, OnlineADAPT, ZeroShot
    >>> from zeroshift.evaluate import compare
    >>> pets = FeatureSet(np.eye(2), prototypes=np.eye(2), class_names=["cat", "dog"], sample_names=["a.jpg", "b.jpg"])
    >>> comparison = compare(pets, [ZeroShot(np.eye(2)), OnlineADAPT(np.eye(2))])
    >>> page = contact_sheet(
    ...     comparison,
    ...     np.zeros(2),
    ...     lambda i: Image.new("RGB", (64, 48)),
    ...     title="Pets",
    ...     command="zeroshift classify pets",
    ... )
    >>> "No prediction changed" in page, page.count("data:image/jpeg")
    (True, 2)
    """
    from zeroshift.report.contact_page import contact_page
    from zeroshift.report.html import template_environment

    per_section = int(Number(1, integer=True).check("per_section", per_section))
    thumb = int(THUMB_RANGE.check("thumb", thumb))
    page = contact_page(
        comparison,
        checked_reject(comparison, reject),
        checked_files(comparison),
        title=title,
        command=command,
        per_section=per_section,
    )
    for i, tile in page["tiles"].items():
        tile["picture"], tile["missing"] = _picture(open_image, i, thumb)
    return template_environment().get_template("contact_sheet.html.j2").render(page)


def _picture(open_image: Callable[[int], Image], i: int, thumb: int) -> tuple[Thumbnail | None, str]:
    """The thumbnail of an image, or the reason why there is none."""
    from zeroshift.report.contact_page import written
    from zeroshift.report.thumbnails import thumbnail

    try:
        return thumbnail(open_image(i), thumb), ""
    except ImageError as error:
        return None, written(error.what)


def write_contact_sheet(
    path: str | os.PathLike[str],
    comparison: Comparison,
    reject: Array,
    open_image: Callable[[int], Image],
    *,
    title: str,
    command: str,
    per_section: int = PER_SECTION,
    thumb: int = THUMB,
) -> None:
    """`contact_sheet` to a file, whole or not at all; a file that is no contact sheet of ours is not replaced."""
    check_contact_sheet_target(path)
    text = contact_sheet(
        comparison, reject, open_image, title=title, command=command, per_section=per_section, thumb=thumb
    )
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def check_contact_sheet_target(path: str | os.PathLike[str]) -> None:
    """Refuse a file `write_contact_sheet` would not replace, before anything has been computed.

    >>> check_contact_sheet_target("not-there-yet.html")
    """
    if os.path.isfile(path) and not is_contact_sheet(path):
        raise FileExistsError(
            f"{path} exists and is not a contact sheet of zeroshift. Fix: write to another file, or move that one away."
        )


def is_contact_sheet(path: str | os.PathLike[str]) -> bool:
    """Whether the file is one that `write_contact_sheet` made, and may hence be replaced by a newer one."""
    with open(path, encoding="utf-8", errors="replace") as handle:
        return GENERATOR in handle.read(HEAD_CHARACTERS)
