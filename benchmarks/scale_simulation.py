"""A round on 1,000 workers, simulated: makespan and wasted work for several sizes of a task.

    python benchmarks/scale_simulation.py

This is no measurement of a cluster. Tasks start in order on free workers, as the executor does.
Workers die at random, and what they did of their task is lost; some workers are slow; a task that takes three times
as long as the median is started a second time on an idle worker. Each task also costs a fixed time, and the driver
adds the results one after the other.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import numpy as np
from sections import replace_section

ROWS, WORKERS = 1_000_000_000, 1000
RATE = 11_000.0
"""Rows per second of a worker."""
TASK_SECONDS = 0.15
"""Fixed time of a task: to send it, and to send 4 MB back at 100 MB/s with a margin."""
ADD_SECONDS = 0.004
"""Time of the driver per result: to receive 4.2 MB at 10 Gbit/s, and to add them."""
LIFETIME = 6 * 3600.0
"""Mean time until a worker dies (spot machines); another one is there after `RESTART`."""
RESTART = 120.0
SLOW_SHARE, SLOW_FACTOR = 0.02, 5.0
"""Share of the workers that are slow, and how much."""
TWICE_AFTER = 3.0
SIZES = (8_192, 32_768, 131_072, 524_288, 2_097_152)


@dataclass
class Round:
    tasks: int
    makespan: float
    wasted: float
    """Share of the work that counts for nothing: of workers that died, and second copies."""
    ideal: float


def simulate(task_rows: int, seed: int, *, rows: int = ROWS, workers: int = WORKERS) -> Round:
    """One round, event by event."""
    rng = np.random.default_rng(seed)
    tasks = -(-rows // task_rows)
    usual = task_rows / RATE + TASK_SECONDS
    slow = rng.random(workers) < SLOW_SHARE
    death = rng.exponential(LIFETIME, workers)
    waiting = list(range(tasks))[::-1]
    began: dict[int, float] = {}
    copies = [0] * tasks
    done = bytearray(tasks)
    events: list[tuple[float, int, str, int, int]] = []
    order = itertools.count()
    idle = list(range(workers))[::-1]
    finished, busy, useful, driver, now = 0, 0.0, 0.0, 0.0, 0.0
    running: dict[int, tuple[int, float]] = {}

    def start(task: int, worker: int) -> None:
        duration = usual * (SLOW_FACTOR if slow[worker] else 1.0) * rng.lognormal(0.0, 0.05)
        began.setdefault(task, now)
        copies[task] += 1
        running[worker] = (task, now)
        if death[worker] < now:  # it died while it was idle, and was replaced
            death[worker] = now + rng.exponential(LIFETIME)
        dies = death[worker] < now + duration
        moment = death[worker] if dies else now + duration
        heapq.heappush(events, (moment, next(order), "dies" if dies else "ends", task, worker))
        if copies[task] == 1:
            heapq.heappush(events, (now + TWICE_AFTER * usual, next(order), "late", task, worker))

    while finished < tasks:
        while waiting and idle:
            start(waiting.pop(), idle.pop())
        now, _, what, task, worker = heapq.heappop(events)
        if what == "back":
            idle.append(worker)
        elif what == "late":
            if not done[task] and copies[task] == 1:
                if idle:
                    start(task, idle.pop())
                else:
                    heapq.heappush(events, (now + 0.5, next(order), "late", task, worker))
        else:
            spent = now - running.pop(worker)[1]
            busy += spent
            copies[task] -= 1
            if what == "dies":
                death[worker] = now + RESTART + rng.exponential(LIFETIME)
                heapq.heappush(events, (now + RESTART, next(order), "back", task, worker))
                if not done[task] and not copies[task]:
                    waiting.append(task)
                    began.pop(task)
            else:
                idle.append(worker)
                if not done[task]:
                    done[task] = 1
                    finished += 1
                    useful += usual * (SLOW_FACTOR if slow[worker] else 1.0)
                    driver = max(driver, now) + ADD_SECONDS
    busy += sum(now - since for _, since in running.values())
    rows_alone = rows / RATE
    return Round(tasks, max(now, driver), max(0.0, 1.0 - useful / busy), rows_alone / workers)


def main() -> None:
    lines = [
        "| rows per task | tasks | makespan | longer than without losses | work lost or done twice | sums returned |",
        "|---|---|---|---|---|---|",
    ]
    for size in SIZES:
        rounds = [simulate(size, seed) for seed in range(5)]
        makespan, ideal = float(np.mean([one.makespan for one in rounds])), rounds[0].ideal
        wasted = float(np.mean([one.wasted for one in rounds]))
        lines.append(
            f"| {size:,} | {rounds[0].tasks:,} | {makespan:.0f} s | {100 * (makespan / ideal - 1):.0f} % | "
            f"{100 * wasted:.1f} % | {rounds[0].tasks * 4.2 / 1000:,.0f} GB |"
        )
        print(lines[-1], flush=True)
    lines += [
        "",
        f"{ROWS:,} rows, {WORKERS:,} workers at {RATE:,.0f} rows/s, d = 512, K = 1000; {100 * SLOW_SHARE:.0f} % of the "
        f"workers are {SLOW_FACTOR:.0f} times slower; a worker dies every {LIFETIME / 3600:.0f} hours on average, and "
        f"is replaced after {RESTART:.0f} s; {TASK_SECONDS} s per task, {1000 * ADD_SECONDS:.0f} ms of the driver per "
        f"result (4.2 MB at 10 Gbit/s). Without any of that the round takes {ideal:.0f} s. Means of five seeds.",
    ]
    replace_section("scale_simulation", "\n".join(lines))


if __name__ == "__main__":
    main()
