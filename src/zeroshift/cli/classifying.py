"""The work of `zeroshift classify` once everything has been checked: encode, adapt, write, sum up."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeroshift import methods
from zeroshift.cli.encoding import EncodingOptions, run_extraction
from zeroshift.cli.starting import Start
from zeroshift.data.image_set import ImageSet
from zeroshift.encode.extraction import Extraction
from zeroshift.encode.prompts import Prompts
from zeroshift.evaluate import Comparison, compare, zero_shot_beside
from zeroshift.evaluate.reject import reject_scores
from zeroshift.parameters import Model
from zeroshift.report.classifications import write_classifications
from zeroshift.report.contact_sheet import write_contact_sheet
from zeroshift.report.tables import summary_table
from zeroshift.report.words import counted, method_label, percent, points

if TYPE_CHECKING:
    from PIL.Image import Image
    from rich.table import Table

__all__ = ["Classified", "classify_images", "method_name", "sheet_path", "typed"]

DEFAULT_METHODS = {"online": "anchored_mixture_online", "transductive": "anchored_mixture_transductive"}
"""Ahead of ADAPT on average, better calibrated, and losing less on a few images or a few of the classes: README."""

LABELLED_BY = {"folder": "the names of the sub-folders", "table": "the table's labels", "catalogue": "its labels"}
"""Where the true labels are from, by the source of the images, for readers who never gave any."""


def method_name(name: str | None, *, online: bool, transductive: bool) -> str:
    """The method asked for by `--method`, `--online` and `--transductive`, or the default; refused where they disagree.

    >>> method_name(None, online=False, transductive=False), method_name(None, online=True, transductive=False)
    ('anchored_mixture_transductive', 'anchored_mixture_online')
    """
    if online and transductive:
        raise ValueError("--online and --transductive are two ways of learning. Fix: give one.")
    way = "online" if online else "transductive"
    if name is None:
        return DEFAULT_METHODS[way]
    info = methods.get(name)
    if (online or transductive) and info.protocol != way:
        raise ValueError(
            f"--{way} and --method {name} contradict each other: {name} is {info.protocol}. Fix: leave out --{way}."
        )
    # What is a number can be said with --set; what is left are arrays, models and views.
    numbers = {known for known, allowed in info.cls.constraints.items() if not isinstance(allowed, Model)}
    missing = [need for need in info.needs if need != "prototypes" and need not in numbers]
    if missing:
        raise ValueError(
            f"--method {name} needs {' and '.join(missing)}, and classify has the images and the names of the classes "
            "alone. Fix: `zeroshift extract` and then `zeroshift adapt`, which take what it needs; or another method."
        )
    return name


def check_complete(start: Start) -> None:
    """Refuse, before anything is encoded, a method whose numbers without defaults were not set."""
    for parameter in start.info.parameters:
        if parameter.required and parameter.name not in {"prototypes", *start.parameters}:
            raise ValueError(
                f"--method {start.info.name} needs {parameter.name} ({parameter.allowed}), which has no default. "
                f"Fix: --set {parameter.name}=VALUE."
            )


def typed(source: str, *, switches: Sequence[str], options: Sequence[tuple[str, object]]) -> str:
    """What to type to get the same labels again; `options` that were not given have None as value."""
    parts = ["zeroshift", "classify", source, *switches]
    for option, value in options:
        if value is not None:
            parts += [option, str(value)]
    return shlex.join(parts)


def sheet_path(out: Path, sheet: Path | None) -> Path:
    return out.with_suffix(".html") if sheet is None else sheet


@dataclass(frozen=True)
class Classified:
    """What `zeroshift classify` says at the end."""

    comparison: Comparison
    extraction: Extraction
    out: Path
    page: Path | None

    def counts(self) -> dict[str, int]:
        names = self.comparison.features.class_names
        found = Counter(self.comparison.results[-1].predictions.tolist())
        return {name: found[k] for k, name in enumerate(names)}

    def record(self) -> dict[str, Any]:
        features, result = self.comparison.features, self.comparison.results[-1]
        return {
            "images": features.n_samples,
            "classes": list(features.class_names),
            "encoder": features.provenance["encoder"],
            "method": result.method,
            "changed": self.comparison.changed(result),
            "counts": self.counts(),
            "accuracy": result.accuracy,
            "zero_shot_accuracy": self.comparison.baseline.accuracy,
            "computed": self.extraction.computed,
            "skipped": [{"image": error.name, "why": error.what} for error in self.extraction.skipped],
            "notes": [{"image": name, "note": note} for name, note in self.extraction.notes],
            "out": str(self.out),
            "sheet": None if self.page is None else str(self.page),
        }

    def table(self) -> Table:
        features, result = self.comparison.features, self.comparison.results[-1]
        changed = self.comparison.changed(result)
        entries = {
            "images": str(features.n_samples),
            "found": ", ".join(f"{count} {name}" for name, count in self.counts().items()),
            "method": f"{method_label(result.method)} ({result.method})",
            "changed": f"{changed} of {features.n_samples} labels differ from zero-shot",
        }
        if result.accuracy is not None:
            gain = points(self.comparison.gain(result))
            entries["accuracy"] = (
                f"{percent(result.accuracy)}%, zero-shot {percent(self.comparison.baseline.accuracy)}% ({gain}), "
                f"by {LABELLED_BY[features.provenance['images']['source']]}"
            )
        if self.extraction.skipped:
            entries["left out"] = counted(len(self.extraction.skipped), "image") + " that cannot be read"
        entries["predictions"] = str(self.out)
        if self.page is not None:
            entries["to look at"] = str(self.page)
        return summary_table(entries)


def classify_images(
    images: ImageSet,
    prompts: Sequence[Prompts],
    options: EncodingOptions,
    start: Start,
    *,
    out: Path,
    page: Path | None,
    command: str,
    quiet: bool,
) -> Classified:
    """Encode the images, run zero-shot and the method, write the predictions and the page, which cites `command`."""
    extraction = run_extraction(images, prompts, options, storage="float16", quiet=quiet)
    features = extraction.features
    method = start.method(features, None)
    comparison = compare(features, [zero_shot_beside(method, features), method], name=images.name)
    rejected = reject_scores(features)
    write_classifications(out, comparison, rejected)
    if page is not None:
        # By name, because images that could not be read are not among the features.
        places = {images.images.name(i): i for i in range(len(images))}

        def open_image(row: int) -> Image:
            assert features.sample_names is not None
            return images.images.open(places[features.sample_names[row]]).image

        write_contact_sheet(page, comparison, rejected, open_image, title=images.name, command=command)
    return Classified(comparison, extraction, out, page)
