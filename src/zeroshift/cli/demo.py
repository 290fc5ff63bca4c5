"""`zeroshift demo`: a zero-shot classifier that improves without labels, on features that come with the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zeroshift import __version__, methods
from zeroshift.cli._inputs import pack_names
from zeroshift.cli._output_paths import check_outputs
from zeroshift.cli.console import console, print_json
from zeroshift.cli.progress import progress_bar
from zeroshift.data import packs as bundled_packs
from zeroshift.evaluate import Comparison, StreamStep, compare
from zeroshift.features import FeatureSet
from zeroshift.method import Method
from zeroshift.report.comparisons import comparison_record, comparison_table, losses, mean_record, verdict
from zeroshift.report.demo_figures import figure_paths, write_figures
from zeroshift.report.demo_report import write_report

__all__ = ["demo"]

METHODS = (
    "zero_shot", "adapt_online", "anchored_mixture_online", "adapt_transductive", "anchored_mixture_transductive",
)  # fmt: skip
"""Grouped by protocol: online and transductive methods answer different questions."""

COUNTED = ("adapt_online", "anchored_mixture_online")
"""The methods whose samples the progress bar counts; the others finish instantly."""

EVERY = 20
"""Samples between two records of the bank, close enough for a figure of how it fills."""


def compare_methods(loaded: Mapping[str, FeatureSet]) -> list[Comparison]:
    """Every method on every set, with the library's defaults and the set's own logit scale and prompts."""
    with progress_bar("adapting", len(COUNTED) * sum(pack.n_samples for pack in loaded.values())) as advance:

        def on_step(running: Method, step: StreamStep) -> None:
            if running.name in COUNTED:
                advance(step.stop - step.start, name)

        comparisons = []
        for name, pack in loaded.items():
            chosen = [methods.create(m, pack.prototypes_for(), logit_scale=pack.logit_scale) for m in METHODS]
            comparisons.append(compare(pack, chosen, name=name, every=EVERY, progress=on_step))
    return comparisons


REPORT = "report.html"

HINT_NOTE = "The labels of the bundled packs were checked when they were made: this one is simply hard."


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the report.")] = Path(
        "zeroshift-demo"
    ),
    packs: Annotated[
        str | None, typer.Option(metavar="PACK,...|all", help="Bundled packs to use.", show_default="all without views")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write the figures here, as PNG and SVG.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace figures that exist.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    open_report: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Compare zero-shot, ADAPT and the anchored mixture on the bundled packs; write an HTML report.

    For example: zeroshift demo --packs cifar10 --open
    """
    names, report = pack_names(packs), out / REPORT
    drawings = [] if figures is None else figure_paths(figures)
    # A report says that zeroshift wrote it; a figure cannot, and may be someone's work.
    check_outputs(pages=[report], folders=[] if figures is None else [figures], files=drawings, force=force)
    loaded = {name: bundled_packs.load(name) for name in names}
    human = console(stderr=json)
    comparisons = compare_methods(loaded)
    command = "zeroshift demo" if packs is None else f"zeroshift demo --packs {','.join(loaded)}"
    with human.status("drawing the report"):
        write_report(report, comparisons, command=command, hint_note=HINT_NOTE)
        drawn = write_figures(figures, comparisons) if figures is not None else []

    human.print(comparison_table(comparisons))
    _print_remarks(comparisons, human)
    human.print(f"report: {report}", soft_wrap=True)
    for path in drawn:
        human.print(f"figure: {path}", soft_wrap=True)
    if json:
        record = {
            "zeroshift": __version__,
            "packs": [comparison_record(comparison) for comparison in comparisons],
            "mean": mean_record(comparisons),
            "report": str(report),
            "figures": [str(path) for path in drawn],
        }
        print_json(record)
    if open_report:
        typer.launch(report.resolve().as_uri())


def _print_remarks(comparisons: Sequence[Comparison], human: Console) -> None:
    """Hints, losses and where the data comes from: what a demo tends to leave out."""
    for comparison in comparisons:
        for hint in comparison.features.hints():
            human.print(f"note: {comparison.name}: {hint}. {HINT_NOTE}", style="yellow", soft_wrap=True)
    human.print(verdict(comparisons), style="red" if losses(comparisons) else None, soft_wrap=True)
    human.print(
        "Accuracy in percent, gain in points, calibration error (0 is best) in percent. "
        "The features come from a composed dual encoder, not CLIP.",
        soft_wrap=True,
    )
