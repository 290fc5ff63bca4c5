"""Damage saved files at random and load them: does any load as something else?

    python benchmarks/corruption.py [CASES] [SEED]

Files: the state of every method, a feature set as .safetensors and as .npz, and the record of a run. Damage: one bit,
up to eight bits, a file cut short, a block of zeros, bytes at the end. A damaged file must be refused with
`FileFormatError` (a record: reported as damaged), or load with the same content. Anything else is printed, and the exit
status is 1.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift import FeatureSet, methods
from zeroshift.evaluate import DatasetRef, Ledger, MethodSpec, plan_comparison, run_plan
from zeroshift.evaluate.keys import features_digest
from zeroshift.evaluate.results import collect
from zeroshift.files import FileFormatError
from zeroshift.testing import Case, make_problem
from zeroshift.testing.case import fingerprint

CASES = 10_000


@dataclass(frozen=True)
class SavedFile:
    """A file, and how to read what it contains in a form that can be compared."""

    kind: str
    path: Path
    read: Callable[[Path], Any]


def state_files(folder: Path) -> list[SavedFile]:
    """The state of every method after a few samples."""
    problem = make_problem(classes=4, dimension=8, samples=30, seed=21)
    support = (problem.features[:4], np.array([0, 1, 1, 3]))
    files = []
    for info in methods.list_methods():
        parameters: dict[str, Any] = {"support": support} if "support" in info.cls.parameter_names() else {}
        if info.name == "frolic":
            parameters["proxy_iterations"] = 10
        case = Case(info.cls, parameters)
        method = case.create(problem.prototypes)
        method.adapt(problem.features)
        path = folder / f"{info.name}.safetensors"
        method.save(path)

        def read(path: Path, case: Case = case, method: Any = method) -> Any:
            loaded = case.load(path, method)
            return fingerprint(loaded.get_params()), loaded.n_seen, fingerprint(loaded._state())

        files.append(SavedFile("state", path, read))
    return files


def feature_files(folder: Path) -> list[SavedFile]:
    problem = make_problem(classes=4, dimension=8, samples=30, seed=22)
    names = [f"{number}.png" for number in range(30)]
    made = FeatureSet(
        problem.features,
        prototypes=problem.prototypes,
        labels=np.arange(30) % 4,
        sample_names=names,
        provenance={"n": 1},
    )
    made.save(folder / "set.safetensors")
    np.savez_compressed(
        folder / "set.npz", features=made.features, prototypes=problem.prototypes, labels=made.labels, meta='{"n": 1}'
    )

    def read(path: Path) -> Any:
        loaded = FeatureSet.load(path, check=False)
        return features_digest(loaded), loaded.class_names, loaded.sample_names, loaded.provenance

    return [SavedFile("features", folder / name, read) for name in ("set.safetensors", "set.npz")]


def record_files(folder: Path) -> list[SavedFile]:
    """The record of a run. `read` raises FileFormatError where commands report the file as damaged."""
    problem = make_problem(classes=4, dimension=8, samples=30, seed=23)
    features = FeatureSet(problem.features, prototypes=problem.prototypes, labels=np.arange(30) % 4)
    planned = plan_comparison([DatasetRef.of("set", features)], [MethodSpec("zero_shot")], orders=1)
    ledger = Ledger(folder / "runs")
    list(run_plan(planned, ledger))

    def read(path: Path) -> Any:
        shown = collect([path.parent])
        used = ledger.read(planned.trials[0])
        if (used is None) != (not shown.rows):
            raise AssertionError("`zeroshift results` and the runner disagree")
        if used is None:
            raise FileFormatError(str(path))
        return json.dumps([used, shown.rows], sort_keys=True)

    return [SavedFile("record", ledger.path(planned.trials[0]), read)]


def damage(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    """A kind of damage, and the content with it."""
    damaged, kind = bytearray(content), chance.choices(("bit", "bits", "cut", "zeros", "more"), (60, 15, 15, 5, 5))[0]
    if kind == "cut":
        return kind, content[: chance.randrange(len(content))]
    if kind == "more":
        return kind, content + chance.randbytes(chance.randrange(1, 20))
    if kind == "zeros":
        start = chance.randrange(len(content))
        return kind, content[:start] + bytes(len(content[start : start + 64])) + content[start + 64 :]
    for _ in range(1 if kind == "bit" else chance.randrange(2, 9)):
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return kind, bytes(damaged)


def run(cases: int, seed: int, folder: Path) -> tuple[Counter[tuple[str, str, str]], list[str]]:
    """How often each (file, damage, outcome) occurred, and a line for every case that must not occur.

    Half of the cases are states, a quarter each feature files and records.
    """
    groups = (state_files(folder), feature_files(folder), record_files(folder))
    chance = random.Random(seed)
    counted: Counter[tuple[str, str, str]] = Counter()
    wrong: list[str] = []
    intact = {file.path: (file.path.read_bytes(), file.read(file.path)) for group in groups for file in group}
    for number in range(cases):
        group = groups[(0, 1, 0, 2)[number % 4]]
        file = group[number // 4 % len(group)]
        content, expected = intact[file.path]
        kind, damaged = damage(content, chance)
        # Never write into a file that may still be mapped into memory.
        file.path.unlink()
        file.path.write_bytes(damaged)
        try:
            outcome = "same content" if file.read(file.path) == expected else "OTHER CONTENT"
        except FileFormatError as error:
            outcome = "refused" if str(file.path) in str(error) else "ERROR WITHOUT THE FILE"
        except Exception as error:
            outcome = f"{type(error).__name__.upper()}"
        counted[f"{file.kind} {file.path.suffix}", kind, outcome] += 1
        if outcome not in ("same content", "refused"):
            wrong.append(f"case {number}: {file.path.name}, {kind}: {outcome}")
        file.path.write_bytes(content)
    return counted, wrong


def main() -> None:
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else CASES
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        counted, wrong = run(cases, seed, Path(folder))
    print("| file | damage | outcome | cases |\n|---|---|---|---|")
    for (file, kind, outcome), count in sorted(counted.items()):
        print(f"| {file} | {kind} | {outcome} | {count} |")
    print(f"\n{cases} cases in {time.perf_counter() - start:.0f} s, {len(wrong)} wrong.")
    print("\n".join(wrong[:20]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
