"""The work of `zeroshift adapt` once everything has been checked: run, write, sum up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeroshift.cli.progress import progress_bar
from zeroshift.evaluate import Comparison, Step, compare, zero_shot_beside
from zeroshift.features import FeatureSet
from zeroshift.method import Method
from zeroshift.report.predictions import write_predictions
from zeroshift.report.words import counted, percent, points, setting

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Summary", "run_and_write"]

SHOWN_SETUP = 0.01
"""Seconds of set-up worth a line: what a few-shot method needs to fit and to search."""


@dataclass(frozen=True)
class Summary:
    """What `zeroshift adapt` says at the end."""

    comparison: Comparison
    method: Method
    given: Mapping[str, Path | str | None]
    """The files it was given beside the features, the preset and the encoder; None where there was none."""
    setup_seconds: float
    out: Path
    saved_state: Path | None
    n_views: int = 0
    """Views of each image it was given; 0 where it saw the images alone."""
    words: str | None = None
    """Those it tunes, which zero-shot beside it has too, whatever the prompts of the set; None where it tunes none."""

    @property
    def chosen(self) -> dict[str, Any] | None:
        """Parameters the method found itself; None for one that does not say."""
        found = getattr(self.method, "chosen", None)
        return found if isinstance(found, dict) else None

    def record(self) -> dict[str, Any]:
        from zeroshift.report.records import comparison_record

        record = comparison_record(self.comparison)
        zero_shot, adapted = record.pop("methods")
        return {
            "features": record.pop("name"),
            **record,
            **adapted,
            "setup_seconds": self.setup_seconds,
            "chosen": self.chosen,
            **{name: None if value is None else str(value) for name, value in self.given.items()},
            "n_views": self.n_views,
            "words": self.words,
            "zero_shot_accuracy": zero_shot["accuracy"],
            "out": str(self.out),
            "saved_state": None if self.saved_state is None else str(self.saved_state),
        }

    def table(self) -> Table:
        from zeroshift.report.tables import summary_table

        result = self.comparison.results[-1]
        n_samples = self.comparison.features.n_samples
        sizes = f"{counted(n_samples, 'sample')}, {counted(self.comparison.features.n_classes, 'class', 'classes')}"
        entries = {"features": f"{self.comparison.name}: {sizes}", "method": result.method}
        if self.n_views:
            entries["views"] = f"{self.n_views} of each image"
        if self.chosen:
            entries["chosen"] = ", ".join(f"{name}={setting(value)}" for name, value in self.chosen.items())
        if result.accuracy is not None:
            entries["accuracy"] = f"{percent(result.accuracy)}%"
            own = "" if self.words is None else f', of its own words "{self.words}"'
            entries["zero-shot"] = f"{percent(self.comparison.baseline.accuracy)}%{own}"
            entries["gain"] = f"{points(self.comparison.gain(result))} points"
        changed = self.comparison.changed(result)
        entries["changed"] = f"{changed} of {n_samples} predictions differ from zero-shot"
        entries["seconds"] = f"{result.run.seconds:.2f} ({n_samples / max(result.run.seconds, 1e-9):,.0f} samples/s)"
        if self.setup_seconds > SHOWN_SETUP:
            entries["set-up"] = f"{self.setup_seconds:.2f} seconds before"
        entries["predictions"] = str(self.out)
        if self.saved_state is not None:
            entries["state"] = str(self.saved_state)
        return summary_table(entries)


def run_and_write(
    features: FeatureSet,
    method: Method,
    *,
    name: str,
    out: Path,
    save_state: Path | None,
    quiet: bool,
    views: bool = False,
) -> Comparison:
    """Run zero-shot and `method`, then write, where wanted, the state and last the predictions."""
    counted = method.protocol != "transductive"
    with progress_bar(method.name, features.n_samples, quiet=quiet, counted=counted) as advance:

        def on_step(running: Method, step: Step) -> None:
            if running is method:
                advance(step.stop - step.start, method.name)

        both = [zero_shot_beside(method, features), method]
        comparison = compare(features, both, name=name, progress=on_step, views=views)
    # The state first: predictions can be made again from it, but predictions without it would look like a whole run.
    if save_state is not None:
        method.save(save_state)
    write_predictions(out, comparison)
    return comparison
