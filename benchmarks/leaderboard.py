"""The leaderboard of all methods that work on features: in random order, in bursts and sorted by class, without and
with the order filter.

    python benchmarks/leaderboard.py              bundled packs, PACS and CLIP features: results/leaderboard.md
    python benchmarks/leaderboard.py --bundled    bundled packs only: docs/leaderboard.md and its picture

Runs are recorded in benchmarks/leaderboard-runs: a second call runs only what is missing, such as new methods. One
process with one thread (`--jobs N`: so many), two orders of each stream (`--orders N`); about an hour for everything.
Nothing is tuned on these sets.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sections import machine, replace_section

from zeroshift import FeatureSet
from zeroshift.cli.compare import choose_methods
from zeroshift.data import packs
from zeroshift.evaluate import DatasetRef, Ledger, Plan, describe_skipped, plan_comparison, run_plan
from zeroshift.evaluate.differences import DRAWS, paired_intervals, resampled_accuracies
from zeroshift.evaluate.leaderboard import Leaderboard, build_leaderboard
from zeroshift.evaluate.outcomes import Outcomes, read_outcomes
from zeroshift.evaluate.protocols import find_protocol
from zeroshift.evaluate.results import OUTCOMES, flatten
from zeroshift.methods.inputs import SECOND
from zeroshift.report.compare_tables import write_section
from zeroshift.report.leaderboard import (
    LEADERBOARD_MARKS,
    leaderboard_markdown,
    leaderboard_table,
    time_figure,
    write_leaderboard_page,
)
from zeroshift.report.style import save_figure

HERE = Path(__file__).parent
RECORDS = HERE / "leaderboard-runs"
DOCS = HERE.parent / "docs"
SHARED = HERE.parent.parent / "shared" / "packs"
if not SHARED.is_dir():  # a working tree one folder deeper
    SHARED = HERE.parent.parent.parent / "shared" / "packs"
METHODS = "all,online+filter"
PROTOCOL = find_protocol("three-orders")


def bundled() -> list[DatasetRef]:
    return [DatasetRef.of(pack.name, packs.load(pack.name)) for pack in packs.list() if not pack.n_views]


def shared() -> list[DatasetRef]:
    paths = [*sorted((SHARED / "eval").glob("pacs_*.npz")), *sorted((SHARED / "clip").glob("*.npz"))]
    return [DatasetRef.of(path.stem, FeatureSet.load(path)) for path in paths]


def run(datasets: Sequence[DatasetRef], orders: int, shots: int, jobs: int) -> list[dict[str, Any]]:
    """The records of all runs; those that are missing are made."""
    specs = [spec for spec in choose_methods(METHODS, []) if spec.missing_input(SECOND) is None]
    plan = plan_comparison(datasets, specs, orders=orders, shots=shots, protocol=PROTOCOL)
    for line in describe_skipped(plan.skipped):
        print(f"left out: {line}", flush=True)
    ledger = Ledger(RECORDS / "runs")
    notes = {"machine": machine()}
    rows = []
    # Methods one after the other on all sets: if this is interrupted, the methods that are done are complete.
    for number, outcome in enumerate(run_plan(by_method(plan), ledger, jobs=jobs, notes=notes), 1):
        if outcome.record is None:
            print(f"failed: {outcome.job}: {outcome.error}", flush=True)
            continue
        rows.append({**flatten(outcome.record), OUTCOMES: outcome.record[OUTCOMES]})
        if number % 100 == 0:
            print(f"{number} of {len(plan.trials)} runs", flush=True)
    return rows


def by_method(plan: Plan) -> Plan:
    """The same plan with the runs of a method next to each other."""
    places = {spec.label: place for place, spec in enumerate(plan.specs)}
    return replace(plan, trials=tuple(sorted(plan.trials, key=lambda trial: places[trial.spec.label])))


CLAIMS = (
    ("adapt_online", ("zero_shot", "tda", "dmn", "dpe", "bca", "oga", "tca", "dota"), "ADAPT, Table 4"),
    ("adapt_transductive", ("zlap", "transclip", "frolic", "stata"), "ADAPT, Table 4"),
    ("tda", ("zero_shot",), "TDA"),
    ("dmn", ("tda",), "ADAPT, Table 4"),
    ("dpe", ("tda",), "DPE"),
    ("bca", ("tda",), "BCA"),
    ("dota", ("tda",), "DOTA"),
    ("ecalp", ("tda", "dmn"), "ECALP"),
    ("oga", ("tda", "dmn"), "OGA"),
    ("transclip", ("zero_shot",), "TransCLIP"),
    ("gda_clip", ("tip_adapter",), "GDA-CLIP"),
    ("timo", ("gda_clip",), "TIMO"),
    ("timo_s", ("timo",), "TIMO"),
    ("onzeta", ("zero_shot",), "OnZeta"),
    ("freetta", ("tda",), "FreeTTA"),
    ("ape", ("tip_adapter",), "APE"),
    ("tip_x", ("tip_adapter",), "SuS-X"),
    ("tip_adapter_f", ("tip_adapter",), "Tip-Adapter"),
)
"""Published: the first method is more accurate than each of the others, in random order; and where it is published."""


def claims_table(rows: Sequence[dict[str, Any]], groups: dict[str, Sequence[DatasetRef]]) -> str:
    """The difference of each pair in random order, in points, with its interval from the paired bootstrap."""
    lines = [f"| published by | claim | {' | '.join(groups)} |", "| --- | --- |" + " ---: |" * len(groups)]
    labels = {row["contestant"] for row in rows}
    for first, others, source in CLAIMS:
        for second in others:
            if {first, second} <= labels:
                cells = [difference(rows, first, second, some) for some in groups.values()]
                lines.append(f"| {source} | `{first}` above `{second}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def difference(rows: Sequence[dict[str, Any]], first: str, second: str, datasets: Sequence[DatasetRef]) -> str:
    cells = [[[outcomes(rows, label, one)] for label in (first, second)] for one in datasets]
    accuracies, _ = resampled_accuracies(cells, draws=DRAWS, seed=0)
    low, high = paired_intervals(accuracies[0], accuracies[1])
    means = [np.mean([[np.mean([run.right.sum() / run.scored.sum() for run in one[place][0]])] for one in cells])
             for place in (0, 1)]  # fmt: skip
    verdict = "holds" if low > 0 else "does not hold" if high < 0 else "tied"
    return f"{100 * (means[0] - means[1]):+.1f} ({low:+.1f} to {high:+.1f}) {verdict}"


def outcomes(rows: Sequence[dict[str, Any]], label: str, dataset: DatasetRef) -> list[Outcomes]:
    found = [
        read_outcomes(row[OUTCOMES], row["n_samples"])
        for row in rows
        if row["contestant"] == label and row["features"] == dataset.name and row["stream.kind"] in ("random", "stored")
    ]
    return [one for one in found if one is not None]


def board_of(rows: Sequence[dict[str, Any]], datasets: Sequence[DatasetRef]) -> Leaderboard:
    return build_leaderboard(rows, protocol=PROTOCOL, sets=[dataset.name for dataset in datasets])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundled", action="store_true", help="only the bundled packs, for docs/leaderboard.md")
    parser.add_argument("--orders", type=int, default=2)
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=1, help="processes; with one per core, times are slightly longer")
    given = parser.parse_args()
    own = bundled()
    datasets = own if given.bundled else [*own, *shared()]
    rows = run(datasets, given.orders, given.shots, given.jobs)
    if given.bundled:
        board = board_of(rows, own)
        write_section(DOCS / "leaderboard.md", leaderboard_markdown(board), LEADERBOARD_MARKS)
        save_figure(time_figure(board), DOCS / "images", "leaderboard", (".svg",))
        return
    write_leaderboard_page(RECORDS / "leaderboard.html", board_of(rows, datasets), command="make leaderboard")
    groups = {
        "all": datasets,
        "bundled": own,
        "pacs": [one for one in datasets if one.name.startswith("pacs_")],
        "clip": [one for one in datasets if "_clip_" in one.name],
    }
    for name, some in groups.items():
        board = board_of(rows, some)
        text = leaderboard_markdown(board) if name == "all" else leaderboard_table(board).markdown()
        replace_section(f"leaderboard-{name}", text)
    replace_section("leaderboard-claims", claims_table(rows, groups))


if __name__ == "__main__":
    main()
