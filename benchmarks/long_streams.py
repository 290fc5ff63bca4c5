"""Do the fast engines stay with the definition over a long stream? Errors, memory and diagnostics at ten points.

    python benchmarks/long_streams.py [--samples 200000] [--classes 100] [--dimensions 256 512]
                                      [--engines streaming replay] [--json FILE]

The stream never settles: its samples come ever closer to their classes, so that they keep replacing bank entries and
the maintained inverse keeps being updated. `direct` would take hours for it. At every point the state is saved and
loaded with engine "direct", which recomputes everything from the bank. Both then score the same unseen samples
(`predict`), and the next samples of the stream (`adapt`, on copies). The largest differences of a score and of a
probability are reported. One thread; run it with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import gc
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from zeroshift import OnlineADAPT

POINTS = 10
QUERIES, NEXT = 256, 16
"""Samples to predict and samples to learn from at every point."""

CHUNK = 2048
"""Samples per call of `adapt`; they are generated one chunk at a time."""

CONE = 0.6
"""Length of the direction that all samples share, compared with that of their class."""

WIDEST, NARROWEST = 3.0, 0.9
"""Length of a sample's own deviation, at the first and at the last sample of the stream."""


class SharpeningStream:
    """Classes in a cone, prototypes at some distance from them, and samples that come ever closer to their class."""

    def __init__(self, classes: int, dimension: int, samples: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._seed, self._samples = seed, samples
        cone = _unit(rng.normal(size=dimension))
        own = _unit(rng.normal(size=(classes, dimension)))
        self._centres = CONE * cone + own
        self.prototypes = _unit(own + 0.8 * _unit(rng.normal(size=(classes, dimension))))

    def samples(self, start: int, count: int, tag: int = 0) -> np.ndarray:
        """Samples `start` to `start + count`; other samples of the same kind for another `tag`."""
        rng = np.random.default_rng([self._seed, tag, start])
        classes, dimension = self._centres.shape
        labels = rng.integers(classes, size=count)
        position = np.arange(start, start + count) / self._samples
        width = WIDEST + (NARROWEST - WIDEST) * position[:, None]
        own = _unit(rng.normal(size=(count, dimension)))
        # The prototypes do not see all of the deviation, so confidence grows only slowly and unevenly.
        width = width * rng.uniform(0.9, 1.1, size=(count, 1))
        return _unit(self._centres[labels] + width * own)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@dataclasses.dataclass
class Point:
    """What was found after `seen` samples."""

    dimension: int
    engine: str
    seen: int
    predict_error: float
    adapt_error: float
    probability_error: float
    labels_differ: int
    memory_mb: float
    seconds: float
    diagnostics: dict[str, float]


def memory_mb() -> float:
    """Memory of this process, after what is free was returned to the system (Linux with glibc)."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def run(stream: SharpeningStream, samples: int, dimension: int, engine: str) -> Iterator[Point]:
    """Adapt to the whole stream; stop at ten points to compare."""
    method = OnlineADAPT(stream.prototypes, logit_scale=20.0, engine=engine)
    seconds = 0.0
    for point in range(1, POINTS + 1):
        stop = samples * point // POINTS
        while method.n_seen < stop:
            chunk = stream.samples(method.n_seen, min(CHUNK, stop - method.n_seen))
            start = time.perf_counter()
            method.adapt(chunk)
            seconds += time.perf_counter() - start
        memory = memory_mb()
        queries = stream.samples(stop, QUERIES, tag=1)
        following = stream.samples(stop, NEXT, tag=2)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.safetensors"
            method.save(path)
            direct = OnlineADAPT.load(path, engine="direct")
            copy = OnlineADAPT.load(path)
        scores, exact = method.predict_scores(queries), direct.predict_scores(queries)
        probabilities, exact_probabilities = method.predict(queries), direct.predict(queries)
        yield Point(
            dimension=dimension,
            engine=engine,
            seen=stop,
            predict_error=float(abs(scores - exact).max()),
            adapt_error=float(abs(copy.adapt_scores(following) - direct.adapt_scores(following)).max()),
            probability_error=float(abs(probabilities - exact_probabilities).max()),
            labels_differ=int((scores.argmax(axis=1) != exact.argmax(axis=1)).sum()),
            memory_mb=memory,
            seconds=seconds,
            diagnostics=dataclasses.asdict(method.diagnostics),
        )


COUNTERS = {
    "updates": "updates",
    "factorisations": "inverses",
    "ridge_factorisations": "ridge",
    "scheduled_factorisations": "scheduled",
    "drift_factorisations": "drift",
    "scatter_rebuilds": "direct",
    "bounded_precisions": "bounded",
}


def header() -> str:
    columns = ["d", "engine", "samples", "predict", "adapt", "probability", "labels", "MB", "s", *COUNTERS.values()]
    return "\n".join(["| " + " | ".join([*columns, "largest drift"]) + " |", "|---" * (len(columns) + 1) + "|"])


def row(point: Point) -> str:
    errors = (f"{value:.1e}" for value in (point.predict_error, point.adapt_error, point.probability_error))
    counters = (str(point.diagnostics[name]) for name in COUNTERS)
    cells = [point.dimension, point.engine, point.seen, *errors, point.labels_differ, f"{point.memory_mb:.0f}"]
    cells += [f"{point.seconds:.0f}", *counters, f"{point.diagnostics['largest_drift']:.0e}"]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--engines", nargs="+", default=["streaming", "replay"])
    parser.add_argument("--json", type=Path, help="also write every point to this file")
    options = parser.parse_args()
    points = []
    print(header(), flush=True)
    with threadpool_limits(1):
        for dimension in options.dimensions:
            stream = SharpeningStream(options.classes, dimension, options.samples)
            for engine in options.engines:
                for point in run(stream, options.samples, dimension, engine):
                    points.append(point)
                    print(row(point), flush=True)
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(point) for point in points], indent=1) + "\n")


if __name__ == "__main__":
    main()
