"""Compare the answers of every registered method between two versions of the code.

Run `save` with each version (PYTHONPATH selects it), then `compare` the two files:

    PYTHONPATH=/path/to/old/src python benchmarks/outputs.py save old.npz
    PYTHONPATH=src             python benchmarks/outputs.py save new.npz
    python benchmarks/outputs.py compare old.npz new.npz

Every method runs on a small synthetic problem and on two bundled packs, with NumPy arrays and torch tensors, in one
call and split into several, on several views per image where the method accepts them, and after save and load.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

PACKS = ("cifar10", "fmnist")
PACK_ROWS = 240
"""Samples used of each pack: enough for every cache and bank to fill and to replace entries."""
SPLITS = (0, 1, 2, 5, 37, 38, 200, 240)
"""Where the stream is cut when it is passed in several calls."""


def problems() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    from zeroshift.data import packs
    from zeroshift.testing import make_problem

    tiny = make_problem(classes=6, dimension=16, samples=80)
    yield "tiny", tiny.features, tiny.prototypes
    for name in PACKS:
        pack = packs.load(name)
        step = max(1, len(pack.features) // PACK_ROWS)
        yield name, pack.features[::step][:PACK_ROWS], np.asarray(pack.prototypes_for())


def outputs() -> Iterator[tuple[str, np.ndarray]]:
    import torch

    from zeroshift.methods import list_methods
    from zeroshift.testing import Case

    for info in list_methods():
        case = Case(info.cls)
        for problem, features, prototypes in problems():
            for library in ("numpy", "torch"):
                x, t = (features, prototypes) if library == "numpy" else map(torch.as_tensor, (features, prototypes))
                key = f"{info.name}/{problem}/{library}"
                method = case.create(t)
                yield f"{key}/adapt", np.asarray(method.adapt(x))
                yield f"{key}/predict", np.asarray(method.predict(x[:50]))
                with tempfile.TemporaryDirectory() as folder:
                    method.save(Path(folder, "state.safetensors"))
                    loaded = case.load(Path(folder, "state.safetensors"), method)
                yield f"{key}/loaded", np.asarray(loaded.predict(x[50:80]))
                if info.protocol == "online":
                    split = case.create(t)
                    ends = [min(end, len(x)) for end in SPLITS]
                    parts = [np.asarray(split.adapt(x[a:b])) for a, b in itertools.pairwise(ends) if b > a]
                    yield f"{key}/split", np.concatenate(parts)
                if "views" in info.takes and hasattr(method, "adapt_views"):
                    views = case.create(t)
                    images = x[: len(x) // 4 * 4].reshape(-1, 4, x.shape[1])[:20]
                    yield f"{key}/views", np.asarray(views.adapt_views(images))
        print(info.name, file=sys.stderr, flush=True)


def compare(old: Path, new: Path) -> int:
    before, after = np.load(old), np.load(new)
    missing = sorted(set(before.files) ^ set(after.files))
    worst: dict[str, float] = {}
    for key in sorted(set(before.files) & set(after.files)):
        difference = float(np.max(np.abs(before[key].astype(np.float64) - after[key].astype(np.float64)), initial=0.0))
        if before[key].shape != after[key].shape or not np.array_equal(before[key], after[key], equal_nan=True):
            worst[key] = difference
    print(f"{len(before.files)} arrays before, {len(after.files)} after, {len(missing)} in one of the two only.")
    for key in missing:
        print(f"  only in one: {key}")
    print(f"{len(set(before.files) & set(after.files)) - len(worst)} are equal to the last bit, {len(worst)} differ.")
    for key, difference in sorted(worst.items(), key=lambda item: -item[1]):
        print(f"  {key}: largest difference {difference:.3g}")
    return 1 if missing or any(not difference <= 1e-12 for difference in worst.values()) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("save", help="Run every method and write its answers.").add_argument("file", type=Path)
    both = commands.add_parser("compare", help="Report how far two files of answers differ.")
    both.add_argument("old", type=Path)
    both.add_argument("new", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        return compare(arguments.old, arguments.new)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.savez_compressed(arguments.file, **dict(outputs()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
