"""The contact sheet of `zeroshift classify`: the images by predicted class, in one HTML file."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zeroshift.data.images import ImageError, pillow
from zeroshift.evaluate import Comparison, Result
from zeroshift.parameters import Number
from zeroshift.reject import Rejects
from zeroshift.report.formatting import method_label, most_of, percent, points, prose, visible
from zeroshift.report.page import method_class, page_script, render_template, starts_with_generator, write_text
from zeroshift.report.predictions import ClassColumn, checked_files, checked_rejects, final_classes
from zeroshift.report.timeline import Segment, Timeline

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "BYTES_PER_PIXEL",
    "HEADER_BYTES",
    "MAX_CLASSES",
    "MAX_IMAGES",
    "THUMBS",
    "Thumbnail",
    "check_contact_sheet_target",
    "class_counts",
    "contact_sheet",
    "is_contact_sheet",
    "shown_per_class",
    "thumbnail",
    "thumbnail_size",
    "write_contact_sheet",
]

GENERATOR = '<meta name="generator" content="contact sheet of zeroshift'
"""In the first lines of every contact sheet; a file without it is not replaced."""

MAX_IMAGES = 1000
"""Images on a page, if there are more: a browser shows so many at once, and they are read in seconds."""

THUMBS = (320, 240, 160)
"""Pixels of a thumbnail's longest side: the largest that keeps the page small enough. 160 is sharp in a tile of 140 to
200 pixels, 320 also when it is enlarged."""

PAGE_BYTES = 12_000_000
"""Largest size of all pictures of a page together."""

MAX_IMAGES_RANGE = Number(1, 10_000, integer=True)
THUMB_RANGE = Number(16, 1024, integer=True)
"""Pixels that a thumbnail may have."""

MAX_CLASSES = 30
"""Classes with a row of their own; the others share one."""

MAX_SEGMENTS = 200
"""Segments of a sequence that are listed."""

SEGMENT_PICTURES = 24
"""Segments of a sequence of which the first frame is shown: a few screens of a phone."""

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
    rejects: Rejects,
    open_image: Callable[[int], Image],
    *,
    title: str,
    command: str,
    timeline: Timeline | None = None,
    max_images: int = MAX_IMAGES,
    thumb: int | None = None,
) -> str:
    """The sheet as HTML; the same bytes for the same input.

    A section for rejected images, and one for each predicted class, the least certain images first. A script on the
    page filters, sorts and enlarges; without it, all sections are shown. With a timeline, its segments come first.

    Parameters
    ----------
    comparison : zero-shot first and the method last, on a set with `sample_names`.
    rejects : which images are rejected.
    open_image : from an image's index in the set to the picture, called once for each image shown, in ascending order.
        Where it raises `ImageError`, the tile says so in the picture's place.
    title : what the images are; the heading adds the result.
    command : what a reader types to get the same page.
    timeline : of the last method's answers, where the images are a sequence.
    max_images : how many images are shown. If there are more, classes with many images show the least certain of them.
    thumb : pixels of a thumbnail's longest side; by default as many as keep the page below 12 MB.

    Examples
    --------
    >>> import numpy as np
    >>> from PIL import Image
    >>> from zeroshift import FeatureSet, OnlineADAPT, ZeroShot
    >>> from zeroshift.evaluate import compare
    >>> from zeroshift.reject import Rejects, class_distances
    >>> pets = FeatureSet(np.eye(2), prototypes=np.eye(2), class_names=["cat", "dog"], sample_names=["a.jpg", "b.jpg"])
    >>> comparison = compare(pets, [ZeroShot(np.eye(2)), OnlineADAPT(np.eye(2))])
    >>> page = contact_sheet(
    ...     comparison,
    ...     Rejects.of(class_distances(pets.features, pets.prototypes_for())),
    ...     lambda i: Image.new("RGB", (64, 48)),
    ...     title="Pets",
    ...     command="zeroshift classify pets",
    ... )
    >>> "Pets: cat 1, dog 1" in page, page.count("data:image/jpeg")
    (True, 2)
    """
    max_images = int(MAX_IMAGES_RANGE.check("max_images", max_images))
    context = page_context(
        comparison,
        checked_rejects(comparison, rejects),
        checked_files(comparison),
        title=title,
        command=command,
        timeline=timeline,
        max_images=max_images,
    )
    size = thumbnail_size(len(context["tiles"])) if thumb is None else int(THUMB_RANGE.check("thumb", thumb))
    for i, tile in sorted(context["tiles"].items()):  # frames of a video are decoded fastest in their order
        tile["picture"], tile["missing"] = _picture(open_image, i, size)
    return render_template("contact_sheet.html.j2", context | page_script("contact_sheet.js"))


def thumbnail_size(count: int) -> int:
    """Pixels of the longest side of each of `count` thumbnails.

    >>> thumbnail_size(100), thumbnail_size(400), thumbnail_size(1000)
    (320, 240, 160)
    """
    fitting = (size for size in THUMBS if count * _most_bytes(size, size) * 4 / 3 <= PAGE_BYTES)
    return next(fitting, THUMBS[-1])


def _picture(open_image: Callable[[int], Image], i: int, thumb: int) -> tuple[Thumbnail | None, str]:
    """The thumbnail of an image, or the reason why there is none."""
    try:
        return thumbnail(open_image(i), thumb), ""
    except ImageError as error:
        return None, visible(error.problem)


def write_contact_sheet(
    path: str | os.PathLike[str],
    comparison: Comparison,
    rejects: Rejects,
    open_image: Callable[[int], Image],
    *,
    title: str,
    command: str,
    timeline: Timeline | None = None,
    max_images: int = MAX_IMAGES,
    thumb: int | None = None,
) -> None:
    """Write `contact_sheet` to a file, completely or not at all; only a contact sheet is replaced."""
    check_contact_sheet_target(path)
    text = contact_sheet(
        comparison,
        rejects,
        open_image,
        title=title,
        command=command,
        timeline=timeline,
        max_images=max_images,
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
    rejects: Rejects,
    files: tuple[str, ...],
    *,
    title: str,
    command: str,
    timeline: Timeline | None,
    max_images: int,
) -> dict[str, Any]:
    """Strings and numbers for the template, without the thumbnails."""
    adapted = comparison.results[-1]
    final = final_classes(comparison, rejects)
    tiles: dict[int, dict[str, Any]] = {}

    def place(order: Iterable[int]) -> list[dict[str, Any]]:
        # A thumbnail is embedded where it is shown first; later sections refer to it.
        shown = [{"index": int(i), "again": int(i) in tiles} for i in order]
        tiles.update({item["index"]: _tile(comparison, rejects, final, files, item["index"]) for item in shown})
        return shown

    drawn = None if timeline is None else _timeline(timeline, place)
    noun = "image" if timeline is None else "frame"
    sections = _class_sections(comparison, rejects, final, place, max_images, noun)
    n_samples, shown = comparison.features.n_samples, sum(len(section["shown"]) for section in sections)
    headline = _headline(comparison, final) if timeline is None else timeline.found
    return {
        "title": f"{visible(title)}: {headline}",
        "timeline": drawn,
        "counts_title": _counts_title(comparison, rejects, final),
        "summary": _summary(comparison, rejects, final, noun),
        "method": method_label(adapted.method),
        "method_class": method_class(adapted.method),
        "counts": class_counts(comparison, final),
        "sections": sections,
        "noun": noun,
        "shown": shown,
        "images_note": _images_note(n_samples, shown, noun),
        "rejected_label": visible(final.names[-1]),
        "reject_above": f"{rejects.above:g}" if rejects.above < 1 else None,
        "cut": None if rejects.too_few else _cut_slider(rejects, final),
        "has_labels": comparison.features.labels is not None,
        "tiles": tiles,
        "command": visible(command),
    }


def _images_note(total: int, shown: int, noun: str) -> str:
    if shown == total:
        return f"All {_counted(total, noun)}, in each class the least certain first."
    return (
        f"{shown:,} of {_counted(total, noun)}: a page shows no more. Of classes with many {noun}s it shows those that "
        f"the method is least certain of. The file of predictions lists all {total:,}."
    )


def _cut_slider(rejects: Rejects, final: ClassColumn) -> dict[str, Any]:
    """Where the slider stands, and how many images of the whole set are above each of its 101 positions."""
    above = (np.count_nonzero(rejects.scores > hundredths / 100) for hundredths in range(101))
    return {
        "value": f"{rejects.above:.2f}",
        "number": len(final.names) - 1,
        "count": rejects.count,
        "total": len(rejects.scores),
        "above": " ".join(map(str, above)),
    }


def _class_sections(
    comparison: Comparison,
    rejects: Rejects,
    final: ClassColumn,
    place: Callable[[Iterable[int]], list[dict[str, Any]]],
    max_images: int,
    noun: str,
) -> list[dict[str, Any]]:
    """Rejected images first, those least like any class before the others; then the classes in their order, each with
    its least certain image first. Of equal ones, that with the higher reject score is first."""
    probabilities = comparison.results[-1].run.probabilities.max(axis=1)
    none = len(final.names) - 1
    certain = np.where(rejects.rejected, 0.0, probabilities)
    order = np.lexsort((-rejects.scores, certain))
    members = {k: order[final.indices[order] == k] for k in (none, *range(none))}
    limits = shown_per_class([len(found) for found in members.values()], max_images)
    return [
        {
            "number": k,
            "name": visible(final.names[k]),
            "rejected": k == none,
            "count": len(found),
            "note": _limited_count(len(found), limit, noun),
            "shown": place(found[:limit]),
        }
        for (k, found), limit in zip(members.items(), limits, strict=True)
        if len(found)
    ]


def shown_per_class(counts: Sequence[int], most: int) -> list[int]:
    """How many images of each class are shown: all of small classes, equally many of large ones, `most` together.

    >>> shown_per_class([5, 100, 200], 65), shown_per_class([5, 10], 65)
    ([5, 30, 30], [5, 10])
    """
    limits, left = [0] * len(counts), most
    by_size = sorted(range(len(counts)), key=lambda place: counts[place])
    for done, place in enumerate(by_size):
        limits[place] = min(counts[place], left // (len(counts) - done))
        left -= limits[place]
    return limits


def _timeline(timeline: Timeline, place: Callable[[Iterable[int]], list[dict[str, Any]]]) -> dict[str, Any]:
    """The drawing, the segments as text, and the first frames of the longest ones."""
    segments = timeline.segments
    longest = sorted(segments, key=lambda segment: segment.start - segment.end)[:SEGMENT_PICTURES]
    pictured = sorted(longest)
    of_all = _limited_count(len(segments), SEGMENT_PICTURES, "segment")
    which = ", the longest," if len(segments) > SEGMENT_PICTURES else ""
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
        "pictures_note": f"{of_all}{which} with the first frame.",
        "pictures": [
            {**item, "span": timeline.span(one), **_segment_text(timeline, one)}
            for item, one in zip(place(one.first for one in pictured), pictured, strict=True)
        ],
    }


def _segment_text(timeline: Timeline, segment: Segment) -> dict[str, str]:
    return {
        "label": visible(timeline.names[segment.label]),
        "probability": "" if segment.probability is None else f"{segment.probability:.2f}",
        "frames": f"{segment.frames:,}",
    }


def _tile(
    comparison: Comparison, rejects: Rejects, final: ClassColumn, files: tuple[str, ...], i: int
) -> dict[str, Any]:
    """The text below one image, and numbers to filter and sort by."""
    after, before = comparison.results[-1], comparison.baseline
    names, labels = comparison.features.class_names, comparison.features.labels
    best, rejected = int(after.predictions[i]), bool(rejects.rejected[i])
    probabilities = [float(result.run.probabilities[i, best]) for result in (after, before)]
    text: dict[str, Any] = {
        "file": visible(files[i]),
        "old": {"label": visible(names[before.predictions[i]]), "probability": _probability(before, i)},
        "new": {
            "label": visible(final.names[final.indices[i]]),
            "probability": "" if rejected else _probability(after, i),
        },
        "best": {"label": visible(names[best]), "probability": _probability(after, i)} if rejected else None,
        "number": int(final.indices[i]),
        "best_number": best if rejected else None,
        "rejected": rejected,
        "changed": bool(best != before.predictions[i]),
        "certain": f"{probabilities[0]:.4f}",
        "moved": f"{probabilities[0] - probabilities[1]:.4f}",
        "reject": f"{rejects.scores[i]:.2f}",
        "reject_exact": f"{rejects.scores[i]:.6g}",
        "truth": None,
    }
    if labels is not None:
        text["truth"] = {
            "label": visible(names[labels[i]]),
            "before": "right" if before.predictions[i] == labels[i] else "wrong",
            "after": "rejected" if rejected else "right" if best == labels[i] else "wrong",
        }
    return text


def _probability(result: Result, i: int) -> str:
    return f"{result.run.probabilities[i].max():.2f}"


def _summary(comparison: Comparison, rejects: Rejects, final: ClassColumn, noun: str) -> str:
    """The run in one line: sizes, encoder, method, and how many predictions changed."""
    features, adapted = comparison.features, comparison.results[-1]
    changed = comparison.changed(adapted)
    parts = [_counted(features.n_samples, noun), _counted(features.n_classes, "class")]
    encoder = features.provenance.get("encoder")
    if isinstance(encoder, Mapping) and encoder.get("source"):
        parts.append(f"encoder {visible(str(encoder['source']))}")
    parts.append(f"method {method_label(adapted.method)}")
    share = f"{100 * changed / features.n_samples:.1f}%"
    result = f"{', '.join(parts)}: {_counted(changed, 'prediction')} changed against zero-shot ({share})."
    if rejects.above >= 1:
        return result
    rejected = f"{100 * rejects.count / features.n_samples:.1f}%"
    return f"{result} {_counted(rejects.count, noun)} rejected as {visible(final.names[-1])} ({rejected})."


def _headline(comparison: Comparison, final: ClassColumn) -> str:
    """The largest classes that were found, and how many images are rejected; the accuracy where labels are known."""
    counts = np.bincount(final.indices, minlength=len(final.names)).tolist()
    found, adapted = most_of(final.names, counts, "{:,}".format), comparison.results[-1]
    if adapted.accuracy is None:
        return found
    return f"{found}; {percent(adapted.accuracy)}% right, {prose(points(comparison.gain(adapted)))} points"


def _counts_title(comparison: Comparison, rejects: Rejects, final: ClassColumn) -> str:
    """The class whose number of images changes most."""
    n_classes = len(final.names)
    before = np.bincount(comparison.baseline.predictions, minlength=n_classes)
    change = np.bincount(final.indices, minlength=n_classes) - before
    most = int(np.argmax(np.abs(change)))
    if not change[most]:
        return "Every class is given as many images as by zero-shot"
    if abs(change[-1]) == abs(change[most]):
        return f"{_counted(rejects.count, 'image')} {'shows' if rejects.count == 1 else 'show'} none of the classes"
    name = visible(final.names[most])
    return f"{name} is given {_counted(abs(int(change[most])), 'image')} {'more' if change[most] > 0 else 'fewer'}"


def class_counts(comparison: Comparison, final: ClassColumn) -> list[dict[str, Any]]:
    """How many images each class is given before and after, the largest after first, and how many are rejected;
    `width`s in percent of the longest bar. `number` is the class, where its images have a section."""
    n_classes = comparison.features.n_classes
    before = np.bincount(comparison.baseline.predictions, minlength=n_classes + 1)
    after = np.bincount(final.indices, minlength=n_classes + 1)
    order = np.lexsort((-before[:-1], -after[:-1]))
    shown, rest = order[:MAX_CLASSES], order[MAX_CLASSES:]
    if after[-1]:
        shown = np.append(shown, n_classes)
    longest = max(int(before[shown].max()), int(after[shown].max()))
    rows: list[dict[str, Any]] = [
        {
            "name": visible(final.names[k]),
            "number": int(k) if after[k] else None,
            "old": "" if k == n_classes else int(before[k]),
            "new": int(after[k]),
            "widths": [f"{100 * n / longest:.1f}" for n in (int(before[k]), int(after[k]))],
        }
        for k in shown
    ]
    if len(rest):
        # Without bars: a sum over many classes would be much longer than every other bar.
        other = _counted(len(rest), "other class")
        counts = {"old": int(before[rest].sum()), "new": int(after[rest].sum())}
        rows.append({"name": other, "number": None, **counts, "widths": []})
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
    data = _jpeg(small, limit=_most_bytes(width, height))
    return Thumbnail(f"data:image/jpeg;base64,{base64.b64encode(data).decode('ascii')}", width, height)


def _most_bytes(width: int, height: int) -> int:
    return HEADER_BYTES + int(BYTES_PER_PIXEL * width * height)


def _jpeg(image: Image, *, limit: int) -> bytes:
    """The best of `QUALITIES` that takes at most `limit` bytes."""
    for quality in QUALITIES:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality, optimize=True)
        if buffer.tell() <= limit:
            break
    return buffer.getvalue()
