"""The anchored mixture on every kind of stream, compared with zero-shot on the same rows, and without its caution.

    python benchmarks/mixture_streams.py                  the bundled packs, and ../shared/packs/eval and clip if there
    python benchmarks/mixture_streams.py --markdown FILE  writes the section to another file

Every set in every stream, three orders each. Streams across domains combine the sets of a family. Each run is recorded
in --runs, and the same command resumes where it was stopped. All recorded runs are written to mixture_streams.json next
to this file. A cell is one set in one stream and one order.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sections import machine, replace_section

import zeroshift
from zeroshift.evaluate import Ledger, Trial, run_jobs
from zeroshift.experiments import Suite
from zeroshift.experiments._shared.suite import Member
from zeroshift.experiments._shared.trials import runs
from zeroshift.experiments.streams import LONG_TAIL, STREAMS, Kind, stacked_members
from zeroshift.files import atomic_path

HERE = Path(__file__).parent
RECORDS = HERE / "mixture_streams.json"
PACKS = HERE.parent.parent / "shared" / "packs"
FOLDERS = (PACKS / "eval", PACKS / "clip")

ORDERS = 3
LIMIT = -1.0
"""In points. The safeguard is meant to keep every cell above it."""

CORRELATED = 0.1
"""Concentration of the stronger of the two Dirichlet streams: with ten classes, nearly one class after another."""

KINDS = (
    *(kind for kind in STREAMS if not kind.domains),
    Kind("strongly correlated", "dirichlet", {"concentration": CORRELATED}),
    Kind("easy to hard", "easy_to_hard"),
    Kind("hard to easy", "hard_to_easy"),
    *(kind for kind in STREAMS if kind.domains),
)

NO_CAUTION = {"occurring": (0.0, 0.0), "order": "none"}


@dataclass(frozen=True)
class ComparedMethod:
    """A column: a method and its parameters."""

    title: str
    method: str
    parameters: Mapping[str, Any]


MIXTURE = ComparedMethod("anchored mixture", "anchored_mixture_online", {})
METHODS = (
    MIXTURE,
    ComparedMethod("ADAPT", "adapt_online", {}),
    ComparedMethod("order none", "anchored_mixture_online", {"order": "none"}),
    ComparedMethod("without caution", "anchored_mixture_online", NO_CAUTION),
)


@dataclass(frozen=True)
class PlannedRun:
    """One run to do, and its place in the tables."""

    stream: str
    set: str
    seed: int
    method: str
    trial: Trial


def load(where: str) -> zeroshift.FeatureSet:
    return zeroshift.FeatureSet.load(where, check=False) if Path(where).exists() else zeroshift.data.packs.load(where)


def sources() -> dict[str, str]:
    """Name and source of every set without views: bundled packs, then files."""
    places = {info.name: info.name for info in zeroshift.data.packs.list()}
    places |= {path.stem: str(path) for folder in FOLDERS for path in sorted(folder.glob("*.npz"))}
    return {name: where for name, where in places.items() if load(where).views is None}


def planned_runs(places: Mapping[str, str], members: Sequence[Member]) -> Iterator[PlannedRun]:
    """All runs. `members` are the sets, then the combinations of several sets."""
    for kind in KINDS:
        for member in members:
            if kind.domains == (member.name in places) or (kind == LONG_TAIL and member.dataset.fewest < 2):
                continue
            for compared in METHODS:
                trials = runs(
                    member, compared.method, ORDERS, compared.parameters, stream_spec=kind.stream_spec(member)
                )
                for seed, trial in enumerate(trials):
                    yield PlannedRun(kind.label, member.name, seed, compared.title, trial)


def measure(
    folder: Path, processes: int, methods: Sequence[str], orders: int, sets: Sequence[str]
) -> list[dict[str, Any]]:
    """Run what is not recorded for these methods, orders and sets. Return all records as rows."""
    places = sources()
    suite = Suite.of({name: load(where) for name, where in places.items()})
    members = (*suite.members, *stacked_members(suite))
    everything = list(planned_runs(places, members))
    loaders = {member.dataset.digest: member.dataset.load for member in members}
    ledger = Ledger(folder)
    chosen = [
        run for run in everything if run.method in methods and run.seed < orders and (not sets or run.set in sets)
    ]
    chosen.sort(key=lambda run: (run.seed, methods.index(run.method)))
    for done, outcome in enumerate(run_jobs([run.trial for run in chosen], loaders, ledger, processes=processes), 1):
        if not outcome.recorded:
            print(f"{done} of {len(chosen)}: {outcome.job} {outcome.error or ''}", flush=True)
    rows = []
    for run in everything:
        record = ledger.read(run.trial)
        if record is not None:
            before, after = 100 * record["zero_shot_accuracy"], 100 * record["accuracy"]
            rows.append({
                "stream": run.stream, "set": run.set, "seed": run.seed, "method": run.method,
                "samples": record["scored"], "zero_shot": round(before, 3), "accuracy": round(after, 3),
                "gain": round(after - before, 3),
            })  # fmt: skip
    return rows


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table and its conclusions, from the rows alone."""
    streams = list(dict.fromkeys(row["stream"] for row in rows))
    titles = [compared.title for compared in METHODS if any(row["method"] == compared.title for row in rows)]
    lines = [
        "| stream | cells | " + " | ".join(f"{title}: mean | worst set and order" for title in titles) + " |",
        "|---|---|" + "---|" * 2 * len(titles),
    ]
    for stream in streams:
        those = [row for row in rows if row["stream"] == stream]
        found = [_mean_and_worst([row for row in those if row["method"] == title]) for title in titles]
        count = sum(row["method"] == MIXTURE.title for row in those)
        lines.append(f"| {stream} | {count} | " + " | ".join(found) + " |")
    ours = [row for row in rows if row["method"] == MIXTURE.title]
    missed = sorted((row for row in ours if row["gain"] < LIMIT), key=lambda row: row["gain"])
    worst = min(ours, key=lambda row: row["gain"])
    lines += [
        "",
        f"Gain over zero-shot on the rows of the stream, in points. The worst of all {len(ours)} cells is "
        f"{worst['gain']:+.1f} ({worst['set']}, {worst['stream']}, order {worst['seed']}).",
        f"More than {-LIMIT:g} point below zero-shot: {len(missed)} of {len(ours)} cells, in "
        f"{len({(row['stream'], row['set']) for row in missed})} of "
        f"{len({(row['stream'], row['set']) for row in ours})} pairs of set and stream.",
    ]
    by_place: dict[tuple[str, str], list[str]] = {}
    for row in missed:
        by_place.setdefault((row["stream"], row["set"]), []).append(f"{row['gain']:+.1f}")
    lines += [f"- {stream}, {name}: {', '.join(gains)}" for (stream, name), gains in sorted(by_place.items())]
    lines += ["", "Cells below the limit: " + "; ".join(
        f"{title} {sum(row['gain'] < LIMIT for row in rows if row['method'] == title)} of "
        f"{sum(row['method'] == title for row in rows)}" for title in titles) + "."]  # fmt: skip
    return "\n".join(lines)


def _mean_and_worst(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "- | -"
    worst = min(rows, key=lambda row: row["gain"])
    return f"{_mean_of_sets(rows):+.1f} | {worst['gain']:+.1f} ({worst['set']}, {worst['seed']})"


def _mean_of_sets(rows: Sequence[Mapping[str, Any]]) -> float:
    """Each set counts the same, however many of its orders there are."""
    by_set: dict[str, list[float]] = {}
    for row in rows:
        by_set.setdefault(row["set"], []).append(row["gain"])
    return float(np.mean([np.mean(gains) for gains in by_set.values()]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("zeroshift-experiments") / "runs", help="folder of records")
    parser.add_argument("--jobs", type=int, default=2, help="processes, one BLAS thread each")
    parser.add_argument(
        "--ways", nargs="*", default=[compared.title for compared in METHODS], help="columns to run; default all"
    )
    parser.add_argument("--orders", type=int, default=ORDERS, help="orders to run")
    parser.add_argument("--sets", nargs="*", default=[], help="sets to run; default all")
    parser.add_argument("--markdown", type=Path, help="file for the section, instead of results/mixture.md")
    arguments = parser.parse_args()
    rows = measure(arguments.runs, arguments.jobs, arguments.ways, arguments.orders, arguments.sets)
    with atomic_path(RECORDS) as temporary:
        lines = ",\n".join(json.dumps(row) for row in rows)
        temporary.write_text(f'{{"machine": {json.dumps(machine())}, "rows": [\n{lines}\n]}}\n')
    text = summary(rows)
    if arguments.markdown is None:
        replace_section("mixture_streams", text)
    else:
        with atomic_path(arguments.markdown) as temporary:
            temporary.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
