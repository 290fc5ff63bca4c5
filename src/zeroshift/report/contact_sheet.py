"""The contact sheet of `zeroshift classify`: the images most worth checking, in one HTML file."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array
from zeroshift.data.images import ImageError, pillow
from zeroshift.evaluate import Comparison, Result
from zeroshift.parameters import Number
from zeroshift.report.formatting import method_label, points, prose, visible
from zeroshift.report.page import method_class, render_template, starts_with_generator, write_text
from zeroshift.report.predictions import checked_files, checked_reject
from zeroshift.report.timeline import Segment, Timeline

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "BYTES_PER_PIXEL",
    "HEADER_BYTES",
    "MAX_CLASSES",
    "Thumbnail",
    "check_contact_sheet_target",
    "class_counts",
    "contact_sheet",
    "is_contact_sheet",
    "least_certain",
    "least_like_any",
    "most_changed",
    "thumbnail",
    "write_contact_sheet",
]

GENERATOR = '<meta name="generator" content="contact sheet of zeroshift'
"""In the first lines of every contact sheet; a file without it is not replaced."""

PER_SECTION = 24
"""Images in each section: a few screens of a phone."""

THUMB = 160
"""Pixels of a thumbnail's longest side: sharp in a tile of 140 to 200 pixels, and at most 8.4 kB."""

THUMB_RANGE = Number(16, 1024, integer=True)
"""Pixels that a thumbnail may have."""

MAX_CLASSES = 30
"""Classes with a row of their own; the others share one."""

MAX_SEGMENTS = 200
"""Segments of a sequence that are listed."""

SHOWN_ENDING = 10
"""Letters at the end of a file name that are always shown: usually a number and the suffix."""

BYTES_PER_PIXEL = 0.3
"""Largest size of a thumbnail: 7.7 kB at 160 x 160 pixels, enough for a detailed photograph at quality 65."""

HEADER_BYTES = 700
"""Size of the tables of a JPEG, in addition to its pixels."""

QUALITIES = (80, 65, 50, 35, 20, 10, 5)
"""JPEG qualities, tried in turn until the file is small enough; the last ones are for noise."""

REDUCING_GAP = 3.0
"""Pillow may first reduce an image coarsely to this multiple of its final size; from 3 on, it hardly shows."""


def contact_sheet(
    comparison: Comparison,
    reject: Array,
    open_image: Callable[[int], Image],
    *,
    title: str,
    command: str,
    timeline: Timeline | None = None,
    per_section: int = PER_SECTION,
    thumb: int = THUMB,
) -> str:
    """The sheet as HTML; the same bytes for the same input.

    Three sections: labels that differ from zero-shot's, labels with the smallest probability, and images with the
    highest reject score. An image may be in several of them; its picture is in the file once. With a timeline, its
    segments come first.

    Parameters
    ----------
    comparison : zero-shot first and the method last, on a set with `sample_names`.
    reject : (N,) scores, the higher the less an image is like any of the classes.
    open_image : from an image's index in the set to the picture, called once for each image shown. Where it raises
        `ImageError`, the tile says so in the picture's place.
    title : what the images are; the heading adds the result.
    command : what a reader types to get the same page.
    timeline : of the last method's answers, where the images are a sequence.
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
    per_section = int(Number(1, integer=True).check("per_section", per_section))
    thumb = int(THUMB_RANGE.check("thumb", thumb))
    context = page_context(
        comparison,
        checked_reject(comparison, reject),
        checked_files(comparison),
        title=title,
        command=command,
        timeline=timeline,
        per_section=per_section,
    )
    for i, tile in sorted(context["tiles"].items()):  # frames of a video are decoded fastest in their order
        tile["picture"], tile["missing"] = _picture(open_image, i, thumb)
    return render_template("contact_sheet.html.j2", context)


def _picture(open_image: Callable[[int], Image], i: int, thumb: int) -> tuple[Thumbnail | None, str]:
    """The thumbnail of an image, or the reason why there is none."""

    try:
        return thumbnail(open_image(i), thumb), ""
    except ImageError as error:
        return None, visible(error.problem)


def write_contact_sheet(
    path: str | os.PathLike[str],
    comparison: Comparison,
    reject: Array,
    open_image: Callable[[int], Image],
    *,
    title: str,
    command: str,
    timeline: Timeline | None = None,
    per_section: int = PER_SECTION,
    thumb: int = THUMB,
) -> None:
    """Write `contact_sheet` to a file, completely or not at all; only a contact sheet is replaced."""
    check_contact_sheet_target(path)
    text = contact_sheet(
        comparison,
        reject,
        open_image,
        title=title,
        command=command,
        timeline=timeline,
        per_section=per_section,
        thumb=thumb,
    )
    write_text(path, text)


def check_contact_sheet_target(path: str | os.PathLike[str]) -> None:
    """Refuse a file that `write_contact_sheet` would not replace, before anything is computed.

    >>> check_contact_sheet_target("not-there-yet.html")
    """
    if os.path.isfile(path) and not is_contact_sheet(path):
        raise FileExistsError(
            f"{path} exists and is not a contact sheet of zeroshift. Fix: write to another file, or move that one away."
        )


def is_contact_sheet(path: str | os.PathLike[str]) -> bool:
    """Whether the file was written by `write_contact_sheet`, and may be replaced by a newer one."""
    return starts_with_generator(path, GENERATOR)


def page_context(
    comparison: Comparison,
    reject: np.ndarray,
    files: tuple[str, ...],
    *,
    title: str,
    command: str,
    timeline: Timeline | None,
    per_section: int,
) -> dict[str, Any]:
    """Strings and numbers for the template, without the thumbnails."""
    adapted = comparison.results[-1]
    method = method_label(adapted.method)
    n_samples, changed = comparison.features.n_samples, comparison.changed(adapted)
    tiles: dict[int, dict[str, Any]] = {}

    def place(order: Iterable[int]) -> list[dict[str, Any]]:
        # A thumbnail is embedded where it is shown first; later sections refer to it.
        shown = [{"index": int(i), "again": int(i) in tiles} for i in order]
        tiles.update({item["index"]: _tile(comparison, reject, files, item["index"]) for item in shown})
        return shown

    def section(name: str, order: np.ndarray, note: str) -> dict[str, Any]:
        return {"name": name, "note": note, "shown": place(order[:per_section])}

    if changed:
        moved = (
            f"{_limited_count(changed, per_section, 'changed prediction')}: where most probability moved comes first."
        )
    else:
        moved = f"No prediction changed: {method} gives every image the label zero-shot gives it."
    of_all = _limited_count(n_samples, per_section, "image")
    return {
        "title": f"{visible(title)}: {_headline(comparison) if timeline is None else timeline.headline}",
        "timeline": None if timeline is None else _timeline(timeline, place, per_section),
        "counts_title": _counts_title(comparison),
        "summary": _summary(comparison, "image" if timeline is None else "frame"),
        "method": method,
        "method_class": method_class(adapted.method),
        "counts": class_counts(comparison),
        "sections": [
            section("Most changed", most_changed(comparison), moved),
            section(
                "Least certain",
                least_certain(comparison, reject),
                f"{of_all}: the smallest probability of the label given by {method} comes first.",
            ),
            section(
                "Least like any class",
                least_like_any(reject),
                f"{of_all}: the highest reject score comes first. Such an image may show none of the classes.",
            ),
        ],
        "tiles": tiles,
        "command": visible(command),
    }


def _timeline(
    timeline: Timeline, place: Callable[[Iterable[int]], list[dict[str, Any]]], per_section: int
) -> dict[str, Any]:
    """The drawing, the segments as text, and the first frames of the longest ones."""
    segments = timeline.segments
    longest = sorted(segments, key=lambda segment: segment.start - segment.end)[:per_section]
    pictured = sorted(longest)
    of_all = _limited_count(len(segments), per_section, "segment")
    return {
        "headline": timeline.headline,
        "unit": "minutes and seconds" if timeline.in_seconds else "numbers of frames, counted from 0",
        "drawing": timeline.drawing(),
        "rows": [
            {
                "start": timeline.moment(one.start),
                "end": timeline.moment(one.end),
                **_segment_text(timeline, one),
            }
            for one in segments[:MAX_SEGMENTS]
        ],
        "more": max(0, len(segments) - MAX_SEGMENTS),
        "pictures_note": f"{of_all}{', the longest,' if len(segments) > per_section else ''} with the first frame.",
        "pictures": [
            {**item, "span": timeline.span(one), **_segment_text(timeline, one)}
            for item, one in zip(place(one.first for one in pictured), pictured, strict=True)
        ],
    }


def _segment_text(timeline: Timeline, segment: Segment) -> dict[str, str]:
    return {
        "label": visible(timeline.names[segment.label]),
        "probability": f"{segment.probability:.2f}",
        "frames": f"{segment.frames:,}",
    }


def most_changed(comparison: Comparison) -> np.ndarray:
    """Images with another label than zero-shot's, sorted by the probability that moved to it, largest first."""
    after, before = comparison.results[-1], comparison.baseline
    changed = np.flatnonzero(after.predictions != before.predictions)
    new = after.predictions[changed]
    moved = after.run.probabilities[changed, new] - before.run.probabilities[changed, new]
    return np.asarray(changed[np.argsort(-moved, kind="stable")])


def least_certain(comparison: Comparison, reject: np.ndarray) -> np.ndarray:
    """All images, sorted by the probability of their label, smallest first; ties by reject score, highest first."""
    return np.lexsort((-reject, comparison.results[-1].run.probabilities.max(axis=1)))


def least_like_any(reject: np.ndarray) -> np.ndarray:
    """All images, sorted by reject score, highest first."""
    return np.argsort(-reject, kind="stable")


def _tile(comparison: Comparison, reject: np.ndarray, files: tuple[str, ...], i: int) -> dict[str, Any]:
    """The text below one image."""
    after, before = comparison.results[-1], comparison.baseline
    names, labels = comparison.features.class_names, comparison.features.labels
    file = visible(files[i])
    text: dict[str, Any] = {
        "file": file,
        "file_start": file[:-SHOWN_ENDING],
        "file_end": file[-SHOWN_ENDING:],
        "old": {"label": visible(names[before.predictions[i]]), "probability": _probability(before, i)},
        "new": {"label": visible(names[after.predictions[i]]), "probability": _probability(after, i)},
        "reject": f"{reject[i]:.3g}",
        "truth": None,
    }
    if labels is not None:
        text["truth"] = {
            "label": visible(names[labels[i]]),
            "before": "right" if before.predictions[i] == labels[i] else "wrong",
            "after": "right" if after.predictions[i] == labels[i] else "wrong",
        }
    return text


def _probability(result: Result, i: int) -> str:
    return f"{result.run.probabilities[i].max():.2f}"


def _summary(comparison: Comparison, noun: str) -> str:
    """The run in one line: sizes, encoder, method, and how many predictions changed."""
    features, adapted = comparison.features, comparison.results[-1]
    changed = comparison.changed(adapted)
    parts = [_counted(features.n_samples, noun), _counted(features.n_classes, "class")]
    encoder = features.provenance.get("encoder")
    if isinstance(encoder, Mapping) and encoder.get("source"):
        parts.append(f"encoder {visible(str(encoder['source']))}")
    parts.append(f"method {method_label(adapted.method)}")
    share = f"{100 * changed / features.n_samples:.1f}%"
    return f"{', '.join(parts)}: {_counted(changed, 'prediction')} changed against zero-shot ({share})."


def _headline(comparison: Comparison) -> str:
    """How accuracy changes where labels are known, else how many predictions change."""
    adapted, n_samples = comparison.results[-1], comparison.features.n_samples
    changed = f"{comparison.changed(adapted):,} of {_counted(n_samples, 'prediction')} changed"
    gain = comparison.gain(adapted)
    return changed if gain is None else prose(f"{method_label(adapted.method)} {points(gain)} points, {changed}")


def _counts_title(comparison: Comparison) -> str:
    """The class whose number of images changes most."""
    counts = [np.bincount(r.predictions, minlength=comparison.features.n_classes) for r in comparison.results]
    change = counts[-1] - counts[0]
    most = int(np.argmax(np.abs(change)))
    if not change[most]:
        return "Every class is given as many images as by zero-shot"
    name = visible(comparison.features.class_names[most])
    return f"{name} is given {_counted(abs(int(change[most])), 'image')} {'more' if change[most] > 0 else 'fewer'}"


def class_counts(comparison: Comparison) -> list[dict[str, Any]]:
    """How many images each class is given before and after, the largest after first; `width`s in percent of the
    longest bar."""
    n_classes = comparison.features.n_classes
    before = np.bincount(comparison.baseline.predictions, minlength=n_classes)
    after = np.bincount(comparison.results[-1].predictions, minlength=n_classes)
    order = np.lexsort((-before, -after))
    shown, rest = order[:MAX_CLASSES], order[MAX_CLASSES:]
    named = [(visible(comparison.features.class_names[k]), int(before[k]), int(after[k])) for k in shown]
    longest = max(max(old, new) for _, old, new in named)
    rows: list[dict[str, Any]] = [
        {"name": name, "old": old, "new": new, "widths": [f"{100 * n / longest:.1f}" for n in (old, new)]}
        for name, old, new in named
    ]
    if len(rest):
        # Without bars: a sum over many classes would be much longer than every other bar.
        other = _counted(len(rest), "other class")
        rows.append({"name": other, "old": int(before[rest].sum()), "new": int(after[rest].sum()), "widths": []})
    return rows


def _counted(number: int, noun: str) -> str:
    """
    >>> _counted(1, "class"), _counted(1200, "class"), _counted(0, "image")
    ('1 class', '1,200 classes', '0 images')
    """
    plural = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{plural}"


def _limited_count(total: int, limit: int, noun: str) -> str:
    """
    >>> _limited_count(57, 24, "image"), _limited_count(3, 24, "image")
    ('24 of 57 images', '3 images')
    """
    return _counted(total, noun) if total <= limit else f"{limit:,} of {_counted(total, noun)}"


class Thumbnail(NamedTuple):
    """A small image for a page."""

    uri: str
    """`data:image/jpeg;base64,...`"""
    width: int
    height: int


def thumbnail(image: Image, longest: int) -> Thumbnail:
    """`image` with its longest side brought down to `longest` pixels, in its own proportions; never enlarged.

    Metadata (EXIF with place and time, comments, profiles) is not copied.

    >>> from PIL import Image
    >>> small = thumbnail(Image.new("RGB", (640, 480), "red"), 160)
    >>> small.width, small.height, small.uri[:23]
    (160, 120, 'data:image/jpeg;base64,')
    """
    resampling = pillow().Resampling.LANCZOS
    shrink = min(1.0, longest / max(image.size))
    width, height = (max(1, round(side * shrink)) for side in image.size)
    # RGB first: of palettes and bitmaps Pillow would drop rows instead of averaging them.
    small = image.convert("RGB").resize((width, height), resampling, reducing_gap=REDUCING_GAP)
    # Pillow would write a comment that it has read.
    small.info = {}
    data = _jpeg(small, limit=HEADER_BYTES + int(BYTES_PER_PIXEL * width * height))
    return Thumbnail(f"data:image/jpeg;base64,{base64.b64encode(data).decode('ascii')}", width, height)


def _jpeg(image: Image, *, limit: int) -> bytes:
    """The best of `QUALITIES` that takes at most `limit` bytes."""
    for quality in QUALITIES:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality, optimize=True)
        if buffer.tell() <= limit:
            break
    return buffer.getvalue()
