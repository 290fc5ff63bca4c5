"""Time of the bare matrix products that every implementation of the method needs."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Backend
from zeroshift.benchmarks.timing import Clock, latency_percentiles, time_spread

__all__ = ["time_baseline_products"]

CHUNK_ROWS = 4096
"""Rows of one product: as many as the engines process at a time, too many for the cache."""

LEAST_SECONDS, MOST_REPEATS = 0.1, 50
"""How long, and how often at most, a product is repeated."""

SINGLE_PRODUCTS = 3
"""Products of one sample with K vectors: zero-shot posterior, discriminant, bank term."""

SINGLE_SAMPLES = 300
"""Samples whose products are timed one by one."""


def time_baseline_products(features: Array, prototypes: Array, array_backend: Backend, repeats: int) -> dict[str, Any]:
    """Seconds of the one product (N, d) (d, K) in float64 and in float32, and of the products of a single sample.

    Only the products are timed: not the conversion of the features, and not the memory for the answer.
    """
    return {
        "float64": time_spread(_repeated(features, prototypes, array_backend, array_backend.xp.float64, repeats)),
        "float32": time_spread(_repeated(features, prototypes, array_backend, array_backend.xp.float32, repeats)),
        "single_sample_float64": _single(features, prototypes, array_backend),
    }


def _repeated(features: Array, prototypes: Array, array_backend: Backend, dtype: object, repeats: int) -> list[float]:
    """At least `repeats` times; small products more often, to average over disturbances."""
    seconds: list[float] = []
    while len(seconds) < repeats or (sum(seconds) < LEAST_SECONDS and len(seconds) < MOST_REPEATS):
        seconds.append(_seconds(features, prototypes, array_backend, dtype))
    return seconds


def _seconds(features: Array, prototypes: Array, array_backend: Backend, dtype: object) -> float:
    clock, seconds = Clock(array_backend), 0.0
    texts = array_backend.asarray(prototypes, dtype).T
    for start in range(0, features.shape[0], CHUNK_ROWS):
        rows = array_backend.asarray(features[start : start + CHUNK_ROWS], dtype)
        if start == 0:
            rows @ texts  # the first product of a size also pays for threads and memory
        seconds += clock.time(operator.matmul, rows, texts)[0]
    return seconds


def _single(features: Array, prototypes: Array, array_backend: Backend) -> dict[str, float] | None:
    """Latency of the three K d products of one sample."""
    clock = Clock(array_backend)
    texts = array_backend.asarray(prototypes, array_backend.xp.float64)
    rows = array_backend.asarray(features[:SINGLE_SAMPLES], array_backend.xp.float64)

    def products(x: Array) -> None:
        for _ in range(SINGLE_PRODUCTS):
            texts @ x

    products(rows[0])
    return latency_percentiles(np.array([clock.time(products, rows[i])[0] for i in range(rows.shape[0])]))
