"""`--reject-above`, `--top-k` and `--per-class`: what `adapt` and `classify` write about each sample."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from zeroshift.cli._encoder_options import OUTPUT_PANEL
from zeroshift.cli._output_paths import check_space
from zeroshift.evaluate import Comparison
from zeroshift.method import Method
from zeroshift.reject import REJECT_ABOVE, Rejects, class_distances
from zeroshift.report.predictions import check_predictions_format, check_top_k, write_predictions

__all__ = ["PerClass", "PredictionOptions", "RejectAbove", "TopK"]

SUMMARY_NUMBERS, NUMBER_BYTES = 8, 8
"""Of a row without options, and of each of them: a rough estimate for the smallest format."""

NOTHING = 1.0
"""No score is above it."""

RejectAbove = Annotated[
    str | None,
    typer.Option(
        "--reject-above", metavar="NUMBER",
        help='Reject samples with a higher reject score, 0 to 1: their prediction is "none of these". none rejects '
        "nothing.",
        show_default="0.5, the cut found without labels", rich_help_panel=OUTPUT_PANEL,
    ),
]  # fmt: skip
TopK = Annotated[
    int | None,
    typer.Option(
        "--top-k", metavar="N", help="Also write the N most probable classes and their probabilities.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]  # fmt: skip
PerClass = Annotated[
    bool,
    typer.Option(
        "--per-class", help="Also write the probability of every class, in one column each.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]  # fmt: skip


@dataclass(frozen=True)
class PredictionOptions:
    """The options, checked."""

    out: Path
    reject_above: float
    top_k: int
    per_class: bool
    raw_csv: bool

    @classmethod
    def parse(
        cls, out: Path, *, reject_above: str | None, top_k: int | None, per_class: bool, raw_csv: bool
    ) -> PredictionOptions:
        check_predictions_format(out)
        for option, given in (("--top-k", top_k is not None), ("--per-class", per_class)):
            if given and out.suffix == ".npz":
                raise ValueError(
                    f"{option} is for .csv and .parquet; a .npz file always has the probabilities of all classes. "
                    "Fix: leave it out."
                )
        if top_k is not None and top_k < 1:
            raise ValueError(f"--top-k must be at least 1; got {top_k}. Fix: 1, or leave it out.")
        return cls(out, parse_reject_above(reject_above), top_k or 0, per_class, raw_csv)

    def check_size(self, n_classes: int, n_samples: int) -> None:
        """Refuse what these classes cannot give, and more than the disk has room for."""
        check_top_k(self.top_k, n_classes, "--top-k")
        numbers = SUMMARY_NUMBERS + 2 * self.top_k + (n_classes if self.per_class or self.out.suffix == ".npz" else 0)
        check_space(self.out, n_samples * numbers * NUMBER_BYTES)

    def rejects(self, method: Method, comparison: Comparison, *, in_sequence: bool = False) -> Rejects:
        """Which samples of the comparison are rejected, given the prototypes of the method; with `in_sequence`, the
        samples are frames in the order of time."""
        distances = class_distances(comparison.features.features, method.prototypes)
        sequence = comparison.results[-1].predictions if in_sequence else None
        return Rejects.of(distances, above=self.reject_above, sequence=sequence)

    def write(self, comparison: Comparison, rejects: Rejects, *, seconds: np.ndarray | None = None) -> None:
        write_predictions(
            self.out, comparison, rejects, top_k=self.top_k, per_class=self.per_class, raw_csv=self.raw_csv,
            seconds=seconds,
        )  # fmt: skip


def parse_reject_above(text: str | None) -> float:
    """
    >>> parse_reject_above(None), parse_reject_above("0.3"), parse_reject_above("none")
    (0.5, 0.3, 1.0)
    """
    if text is None:
        return REJECT_ABOVE
    if text.strip().lower() == "none":
        return NOTHING
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not 0 <= number <= 1:
        raise ValueError(
            f"--reject-above must be a number from 0 to 1, or none; got {text!r}. Fix: a smaller number than the "
            f"default, {REJECT_ABOVE:g}, rejects more."
        )
    return number
