"""The work of `zeroshift adapt` once everything has been checked: run, write, sum up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeroshift.cli.progress import progress_bar
from zeroshift.evaluate import Comparison, Step, compare, zero_shot_beside
from zeroshift.features import FeatureSet
from zeroshift.method import Method
from zeroshift.report.predictions import write_predictions
from zeroshift.report.words import percent, points

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Summary", "run_and_write"]


@dataclass(frozen=True)
class Summary:
    """What `zeroshift adapt` says at the end."""

    comparison: Comparison
    out: Path
    saved_state: Path | None

    def record(self) -> dict[str, Any]:
        from zeroshift.report.records import comparison_record

        record = comparison_record(self.comparison)
        zero_shot, adapted = record.pop("methods")
        return {
            "features": record.pop("name"),
            **record,
            **adapted,
            "zero_shot_accuracy": zero_shot["accuracy"],
            "out": str(self.out),
            "saved_state": None if self.saved_state is None else str(self.saved_state),
        }

    def table(self) -> Table:
        from zeroshift.report.tables import summary_table

        result = self.comparison.results[-1]
        n_samples = self.comparison.features.n_samples
        entries = {
            "features": f"{self.comparison.name}: {n_samples} samples, {self.comparison.features.n_classes} classes",
            "method": result.method,
        }
        if result.accuracy is not None:
            entries["accuracy"] = f"{percent(result.accuracy)}%"
            entries["zero-shot"] = f"{percent(self.comparison.baseline.accuracy)}%"
            entries["gain"] = f"{points(self.comparison.gain(result))} points"
        changed = self.comparison.changed(result)
        entries["changed"] = f"{changed} of {n_samples} predictions differ from zero-shot"
        entries["seconds"] = f"{result.run.seconds:.2f} ({n_samples / max(result.run.seconds, 1e-9):,.0f} samples/s)"
        entries["predictions"] = str(self.out)
        if self.saved_state is not None:
            entries["state"] = str(self.saved_state)
        return summary_table(entries)


def run_and_write(
    features: FeatureSet, method: Method, *, name: str, out: Path, save_state: Path | None, quiet: bool
) -> Summary:
    """Run zero-shot and `method`, then write, where wanted, the state and last the predictions."""
    counted = method.protocol != "transductive"
    with progress_bar(method.name, features.n_samples, quiet=quiet, counted=counted) as advance:

        def on_step(running: Method, step: Step) -> None:
            if running is method:
                advance(step.stop - step.start, method.name)

        comparison = compare(features, [zero_shot_beside(method, features), method], name=name, progress=on_step)
    # The state first: predictions can be made again from it, but predictions without it would look like a whole run.
    if save_state is not None:
        method.save(save_state)
    write_predictions(out, comparison)
    return Summary(comparison, out, save_state)
