"""The transductive mixture over shards on a Ray cluster of this machine, with one node process per worker.

    python benchmarks/scale_ray.py                                     # 2 million rows: about 7 minutes on two cores
    python benchmarks/scale_ray.py --rows 200000 --part-rows 50000     # a quick look, without --write

It measures rows per second and core, the ratio to the bare products on the same cores, the speed-up from one to two
workers, the peak memory of a worker and the bytes sent; then it kills three workers and a driver, and compares. The
shards are generated in a temporary folder, and everything is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sections import machine, replace_section
from threadpoolctl import threadpool_limits

from zeroshift import TransductiveAnchoredMixture, normalize
from zeroshift.distributed import FeatureShards, RayExecutor, adapt, plan
from zeroshift.distributed import adaptation as adaptation_module
from zeroshift.distributed.adaptation import TASK_ROWS

CLASSES, DIMENSION, SHARD_ROWS, ROUNDS = 1000, 512, 100_000, 3
BLOCK = 1000
"""Rows of a bare product, as many as the mixture processes together."""
STORE = 300 * 2**20
"""Bytes of each node's object store."""


def make_prototypes() -> np.ndarray:
    return normalize(np.random.default_rng(0).normal(size=(CLASSES, DIMENSION)).astype(np.float32))


def write_shards(folder: Path, rows: int) -> None:
    """Noisy prototypes. The noise is that of one shard, in another order of columns and of signs for each."""
    prototypes = make_prototypes()
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((SHARD_ROWS, DIMENSION), dtype=np.float32) / DIMENSION**0.5
    for number, start in enumerate(range(0, rows, SHARD_ROWS)):
        count = min(SHARD_ROWS, rows - start)
        changed = noise[:count, rng.permutation(DIMENSION)] * rng.choice(np.float32([-1, 1]), DIMENSION)
        values = normalize(changed + 0.3 * prototypes[rng.integers(CLASSES, size=count)])
        np.save(folder / f"img_emb_{number}.npy", values.astype(np.float16))


@dataclass
class Timed:
    """A function's result, and the seconds of a core that it took in its process."""

    function: Callable[[Any], Any]

    def __call__(self, item: Any) -> tuple[Any, float]:
        began = time.process_time()
        result = self.function(item)
        return result, time.process_time() - began


class CountingExecutor(RayExecutor):
    """Counts the bytes of what is sent and returned and the time of cores, and limits the workers."""

    def __init__(self, workers: int) -> None:
        self.limit = workers
        super().__init__()
        self.sent: list[int] = []
        self.returned: list[int] = []
        self.core_seconds: list[float] = []
        """Of every call of `map`."""

    def _count_workers(self) -> int:
        return min(self.limit, super()._count_workers())

    def _share(self, function: Callable[[Any], Any]) -> Any:
        self.sent.append(len(pickle.dumps(function)))
        self.core_seconds.append(0.0)
        return super()._share(Timed(function))

    def _result(self, task: Any) -> Any:
        result, seconds = super()._result(task)
        self.core_seconds[-1] += seconds
        self.returned.append(len(pickle.dumps(result)))
        return result


def time_products(kind: str) -> float:
    """Seconds of a core per row for the products of a round, in float32 and one thread; runs in a worker.

    The first round has the zero-shot scores, the sums weighted by labels, and the scatter; one in the middle the
    scores, the distances with a triangular factor, and the weighted sums; the last one zero-shot scores too.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BLOCK, DIMENSION), dtype=np.float32)
    vectors = rng.standard_normal((CLASSES, DIMENSION), dtype=np.float32)
    factor = np.tril(rng.standard_normal((DIMENSION, DIMENSION), dtype=np.float32))
    scores, half = np.empty((BLOCK, CLASSES), np.float32), DIMENSION // 2
    times = []
    with threadpool_limits(1, user_api="blas"):
        for _ in range(60):
            began = time.process_time()
            np.matmul(x, vectors.T, out=scores)
            scores.T @ x
            if kind == "first":
                x.T @ x
            else:  # the triangle in two parts, as the method computes it
                x @ factor[:, :half]
                x[:, half:] @ factor[half:, half:]
            if kind == "last":
                np.matmul(x, vectors.T, out=scores)
            times.append(time.process_time() - began)
    return float(np.median(times)) / BLOCK


def peak_memory(_: int) -> tuple[int, int]:
    time.sleep(0.3)  # so that every worker gets one
    return os.getpid(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_memories(executor: RayExecutor) -> list[int]:
    return sorted(dict(executor.map(peak_memory, list(range(4 * executor.workers)))).values())


def measure(folder: Path, workers: int, rows: int) -> dict[str, Any]:
    """Rows per second of every round, over the first shards."""
    shards = FeatureShards.open(folder)
    shards = FeatureShards(shards.shards[: max(1, rows // SHARD_ROWS)])
    with CountingExecutor(workers) as executor:
        before = peak_memories(executor)  # processes are started before the clock
        bare = {kind: list(executor.map(time_products, [kind] * workers)) for kind in ("first", "middle", "last")}
        executor.sent.clear()
        executor.returned.clear()
        executor.core_seconds.clear()
        method = TransductiveAnchoredMixture(make_prototypes(), rounds=ROUNDS)
        steps: dict[str, float] = {}
        began = time.perf_counter()
        task_rows = min(TASK_ROWS, -(-shards.rows // (4 * workers)))
        adapt(
            method, shards, on=executor, exact=True, task_rows=task_rows,
            progress=lambda what, *_: steps.update({what: time.perf_counter()}),
        )  # fmt: skip
        seconds = np.diff([began, *steps.values()])
        sent, returned, cores = list(executor.sent), list(executor.returned), np.array(executor.core_seconds)
        after = peak_memories(executor)
    stated = plan(method, shards, on="local:0", task_rows=task_rows).memory_per_worker
    return {
        "rows": shards.rows,
        "seconds": seconds,
        "rates": shards.rows / seconds / workers,
        "core_rates": shards.rows / cores,
        "ratios": cores / shards.rows / [np.mean(bare[kind]) for kind in ("first", "middle", "last")],
        "memory": (max(before), max(after), stated),
        "sent": max(sent),
        "returned": max(returned),
        "tasks": -(-shards.rows // task_rows),
    }


def run_driver(folder: Path, out: Path, rows: int) -> None:
    """`--driver`: a run that the other process kills."""
    adaptation_module.SAVE_SECONDS = 0.5
    shards = FeatureShards.open(folder)
    shards = FeatureShards(shards.shards[: max(1, rows // SHARD_ROWS)])
    method = TransductiveAnchoredMixture(make_prototypes(), rounds=ROUNDS)
    began = time.perf_counter()

    def progress(what: str, done: int, total: int) -> None:
        print(f"{what}\t{done}", flush=True)

    adapt(method, shards, on="ray", exact=True, out=out, task_rows=10_000, progress=progress)
    np.save(out / "answers.npy", method.predict(shards.first_rows(2000)))
    print(f"seconds\t{time.perf_counter() - began}", flush=True)


def start_driver(folder: Path, out: Path, rows: int, address: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--driver", str(folder), str(out), "--part-rows", str(rows)]
    environment = os.environ | {"RAY_ADDRESS": address}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def worker_pids(address: str) -> list[int]:
    """Processes of this cluster that run a task: their parent has its address."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and b"ray::_call_stored" in (folder / "cmdline").read_bytes():
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if address.encode() in Path("/proc", parent, "cmdline").read_bytes():
                    found.append(int(folder.name))
        except OSError:
            continue
    return found


def progress_of(driver: subprocess.Popen[str]) -> Iterator[tuple[str, float]]:
    """What the driver prints; Ray may print lines of its own."""
    assert driver.stdout is not None
    for line in driver.stdout:
        what, tab, value = line.strip().partition("\t")
        if tab:
            yield what, float(value)


def kill_things(folder: Path, rows: int, address: str, scratch: Path) -> list[str]:
    """The same run undisturbed, and with three kills of workers and one of the driver."""
    driver = start_driver(folder, scratch / "undisturbed", rows, address)
    seconds = dict(progress_of(driver))["seconds"]
    driver.wait()
    began = time.perf_counter()
    driver = start_driver(folder, scratch / "killed", rows, address)
    kills: list[str] = []
    for what, done in progress_of(driver):
        if what == f"pass {len(kills) + 1}" and done >= 0.2 * rows and (pids := worker_pids(address)):
            os.kill(pids[0], signal.SIGKILL)
            kills.append(f"{what} after {done:,.0f} rows")
        elif what == "pass 3" and done >= 0.6 * rows:
            driver.kill()
            break
    driver.wait()
    if len(kills) != 3 or what != "pass 3":
        raise SystemExit(f"not everything was killed: {kills}, the driver in {what}")
    second = start_driver(folder, scratch / "killed", rows, address)
    steps = progress_of(second)
    first = next(steps)
    for _ in steps:
        pass
    second.wait()
    total = time.perf_counter() - began
    answers = [np.load(scratch / name / "answers.npy") for name in ("undisturbed", "killed")]
    files = [sorted((scratch / name / "predictions").iterdir()) for name in ("undisturbed", "killed")]
    if not np.array_equal(*answers) or [f.read_bytes() for f in files[0]] != [f.read_bytes() for f in files[1]]:
        raise SystemExit("the answers differ")
    return [
        f"workers killed (SIGKILL) in {'; in '.join(kills)}",
        f"driver killed in {what} after {done:,.0f} rows; the next continued at row {first[1]:,.0f} of {first[0]}",
        f"{rows:,} rows, {ROUNDS} rounds and answers: {seconds:.0f} s undisturbed, {total:.0f} s with the kills, of "
        "which two starts of a driver",
        f"the probabilities and the {len(files[0])} files of predictions have the same bits",
    ]


def start_cluster() -> Any:
    """A cluster with a node that does no work, and two with one core each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
    )
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
    cluster.wait_for_nodes()
    return cluster


def table(results: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    lines = [
        "| run | rows | rows/s and core, by the clock | by the time of the cores | times the bare products | "
        "memory of a worker |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in results:
        rates, core_rates = (", ".join(f"{rate:,.0f}" for rate in one[key]) for key in ("rates", "core_rates"))
        ratios = ", ".join(f"{ratio:.2f}" for ratio in one["ratios"])
        before, after, stated = (f"{value / 1e6:,.0f}" for value in one["memory"])
        memory = f"{after} MB, {before} at the start; stated {stated} more"
        lines.append(f"| {name} | {one['rows']:,} | {rates} | {core_rates} | {ratios} | {memory} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--part-rows", type=int, default=300_000, help="rows of the other parts")
    parser.add_argument("--write", action="store_true", help="change the page, also with fewer rows")
    parser.add_argument("--driver", nargs=2, type=Path, metavar=("SHARDS", "OUT"))
    options = parser.parse_args()
    if options.driver:
        run_driver(*options.driver, options.part_rows)
        return
    import ray

    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="zeroshift-scale-") as name:
        folder = Path(name, "shards")
        folder.mkdir()
        write_shards(folder, options.rows)
        print(f"written: {options.rows:,} rows in {time.perf_counter() - began:.0f} s", flush=True)
        cluster = start_cluster()
        try:
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            results = []
            for label, workers, rows in (
                ("one worker", 1, options.part_rows),
                ("two workers", 2, options.part_rows),
                ("two workers", 2, options.rows),
            ):
                results.append((label, measure(folder, workers, rows)))
                print(table(results)[-1], f"{time.perf_counter() - began:.0f} s", flush=True)
            ray.shutdown()
            kills = kill_things(folder, options.part_rows, cluster.address, Path(name))
        finally:
            ray.shutdown()
            cluster.shutdown()
    one, two, full = (result for _, result in results)
    speed_up = one["seconds"].sum() / two["seconds"].sum()
    content = [
        *table(results),
        "",
        f"First, second and last round. Two workers are {speed_up:.2f} times as fast as one, on {one['rows']:,} rows. "
        f"{full['rows']:,} rows take {full['seconds'].sum():.0f} s. In a round, each worker is sent at most "
        f"{full['sent'] / 1e6:.1f} MB, and each of {full['tasks']} tasks returns at most {full['returned'] / 1e6:.1f} "
        "MB.",
        "",
        *(f"- {line[0].upper()}{line[1:]}." for line in kills),
        "",
        f"{machine()}, {ROUNDS} rounds, d = {DIMENSION}, K = {CLASSES}; {time.perf_counter() - began:.0f} s in all.",
    ]
    print("\n".join(content))
    if options.write or options.rows >= 2_000_000:
        replace_section("scale_ray", "\n".join(content))


if __name__ == "__main__":
    main()
