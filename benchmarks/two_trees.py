"""Speed of one source tree divided by that of another, in one run: what a change costs.

    git worktree add /tmp/before COMMIT
    python benchmarks/two_trees.py /tmp/before/src src [--repeats 12] [--only streaming]

Each case runs in two processes per tree, one started before and one after those of the other tree, because a process
that starts later can be a few percent slower. The processes wait for their turn, so only one computes at a time, and
repeats alternate between the trees. Reported: processor time of the second tree divided by that of the first, the
median over pairs of repeats and the middle half of the ratios. `compare` is the whole command in a new folder.
"""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

METHODS = "zero_shot,adapt_online,anchored_mixture_online,tda,dmn,t3a,adapt_transductive,transclip"


def streaming(classes: int, dimension: int, samples: int = 1500) -> Callable[[], None]:
    """One sample per call, from an empty bank."""
    from zeroshift import OnlineADAPT
    from zeroshift.benchmarks.problems import clip_like

    problem = clip_like(classes=classes, dimension=dimension, samples=samples)

    def run() -> None:
        method = OnlineADAPT(problem.prototypes, engine="streaming")
        for row in problem.features:
            method.adapt(row)

    return run


def replay(classes: int, dimension: int, samples: int = 4096) -> Callable[[], None]:
    """All samples in one call."""
    from zeroshift import OnlineADAPT
    from zeroshift.benchmarks.problems import clip_like

    problem = clip_like(classes=classes, dimension=dimension, samples=samples)

    def run() -> None:
        OnlineADAPT(problem.prototypes, engine="replay").adapt(problem.features)

    return run


def peer(name: str, classes: int, samples: int, learned: int = 0) -> Callable[[], None]:
    """A method given one sample per call, after it has learned `learned` samples."""
    from zeroshift.benchmarks.problems import clip_like
    from zeroshift.methods import create

    problem = clip_like(classes=classes, dimension=512, samples=learned + samples)
    start = create(name, problem.prototypes, logit_scale=problem.logit_scale)
    if learned:
        start.adapt(problem.features[:learned])

    def run() -> None:
        method = copy.deepcopy(start)
        for row in problem.features[learned:]:
            method.adapt(row)

    return run


def frolic(classes: int, samples: int) -> Callable[[], None]:
    """Frolic on a whole set, with four prompts per class."""
    from zeroshift.benchmarks.problems import clip_like
    from zeroshift.methods import create

    problem = clip_like(classes=classes, dimension=512, samples=samples)
    noise = np.random.default_rng(0).normal(size=(classes, 4, 512))
    prompts = problem.prototypes[:, None] + 0.3 * noise / np.sqrt(512)
    prompts = (prompts / np.linalg.norm(prompts, axis=2, keepdims=True)).astype(np.float32)

    def run() -> None:
        create("frolic", problem.prototypes, logit_scale=problem.logit_scale, prompts=prompts).adapt(problem.features)

    return run


def compare() -> Callable[[], None]:
    """The whole command, in a process of its own."""
    command = [sys.executable, "-m", "zeroshift", "compare", "--packs", "cifar10", "--methods", METHODS]

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([*command, "--orders", "1", "--quiet", "--out", folder], check=True, capture_output=True)

    return run


CASES: dict[str, Callable[[], Callable[[], None]]] = {
    "streaming, K = 10, d = 512": lambda: streaming(10, 512),
    "streaming, K = 100, d = 256": lambda: streaming(100, 256),
    "streaming, K = 100, d = 512": lambda: streaming(100, 512),
    "replay, K = 100, d = 256": lambda: replay(100, 256),
    "replay, K = 100, d = 512": lambda: replay(100, 512),
    "replay, K = 10, d = 512": lambda: replay(10, 512),
    "compare, 8 methods on one pack": compare,
    "peer oga, K = 100": lambda: peer("oga", 100, 100, 600),
    "peer oga, K = 397": lambda: peer("oga", 397, 60, 1500),
    "peer ecalp, K = 100": lambda: peer("ecalp", 100, 200, 1000),
    "peer ecalp, K = 397": lambda: peer("ecalp", 397, 100, 1000),
    "peer dota, K = 100": lambda: peer("dota", 100, 64, 64),
    "peer dota, K = 397": lambda: peer("dota", 397, 32, 64),
    "peer dpe, K = 100": lambda: peer("dpe", 100, 200, 500),
    "peer dpe, K = 397": lambda: peer("dpe", 397, 100, 500),
    "peer frolic, K = 100": lambda: frolic(100, 300),
}


class Worker:
    """A process that runs one case of one tree, once per request."""

    def __init__(self, source: str, case: str) -> None:
        environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--work", case],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.seconds()  # warms up

    def seconds(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def work(case: str) -> None:
    run = CASES[case]()
    for _ in sys.stdin:
        start = processor_seconds()
        run()
        print(processor_seconds() - start, flush=True)


def processor_seconds() -> float:
    """Of this process and of the processes it has started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def ratios(case: str, first: str, second: str, repeats: int) -> list[float]:
    """The second tree's time divided by the first's, per pair of repeats."""
    found = []
    workers = [Worker(tree, case) for tree in (first, second, second, first)]
    for repeat in range(repeats):
        pair = workers[:2] if repeat % 2 else (workers[3], workers[2])
        if repeat % 4 < 2:
            before, after = pair[0].seconds(), pair[1].seconds()
        else:
            after, before = pair[1].seconds(), pair[0].seconds()
        found.append(after / before)
    for worker in workers:
        worker.end()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", nargs="?")
    parser.add_argument("second", nargs="?")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--only", default="", help="Cases whose name contains this.")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(options.work)
    if not options.first or not options.second:
        parser.error("name two folders that contain the package zeroshift, such as /tmp/before/src and src.")
    for tree in (options.first, options.second):
        if not (Path(tree) / "zeroshift").is_dir():
            parser.error(f"{tree} does not contain the package zeroshift.")
    print("| case | ratio | middle half |\n|---|---|---|")
    for case in CASES:
        if options.only in case:
            found = ratios(case, os.path.abspath(options.first), os.path.abspath(options.second), options.repeats)
            low, middle, high = np.percentile(found, [25, 50, 75])
            print(f"| {case} | {middle:.3f} | {low:.3f} to {high:.3f} |", flush=True)


if __name__ == "__main__":
    main()
