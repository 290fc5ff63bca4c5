"""Descriptions of methods, streams and arrays. They are small and printable, so that a failing case can be read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from zeroshift.method import Method
from zeroshift.methods import get, list_methods
from zeroshift.testing import Case

__all__ = ["METHODS", "ONLINE", "STREAM_KINDS", "Stream", "create", "method_names", "streams"]

FASTER: dict[str, dict[str, Any]] = {
    "frolic": {"proxy_iterations": 20},
    "swapprompt": {"epochs": 2},
    "dpcore": {"steps_new": 3, "batch_size": 4},
    "b2tpt": {"population": 4, "generations": 2, "batch_size": 4, "text_latent": 4, "vision_latent": 4},
    "ape": {"search_steps": (5, 3), "gamma_steps": 2},
    "tip_adapter": {"search_steps": (5, 3)},
    "selftpt": {"steps": 3},
    "tip_adapter_f": {"search_steps": (5, 3), "epochs": 3},
    "taskres": {"epochs": 5},
    "clip_adapter": {"epochs": 5},
    "tip_x": {"search_steps": (5, 3), "gamma_steps": 2},
}
"""Parameters with which a method takes milliseconds."""

FILTERED = ("zero_shot+filter", "tda+filter", "adapt_online+filter")

METHODS = {info.name: info.cls for info in (*list_methods(), *map(get, FILTERED))}
ONLINE = tuple(name for name, cls in METHODS.items() if cls.protocol == "online")

method_names = st.sampled_from(tuple(METHODS))


def create(name: str, prototypes: Any, **parameters: Any) -> Method:
    """The method with example values for the arrays and models it needs."""
    return Case(METHODS[name], FASTER.get(name, {})).create(prototypes, **parameters)


STREAM_KINDS = (
    "ordinary", "still", "duplicates", "sorted", "prototypes", "opposite", "lengths", "axes", "two points", "plane",
    "crowd",
)  # fmt: skip


@dataclass(frozen=True)
class Stream:
    """N samples of K classes in d dimensions."""

    kind: str = "ordinary"
    classes: int = 3
    dimension: int = 4
    samples: int = 12
    seed: int = 0
    distance: float = 1e-3
    """Between neighbours of a still scene; the deviation of lengths from 1 for `lengths`."""

    @property
    def prototypes(self) -> np.ndarray:
        return self._made[0]

    @property
    def features(self) -> np.ndarray:
        return self._made[1]

    @property
    def _made(self) -> tuple[np.ndarray, np.ndarray]:
        return _made(self)


@cache
def _made(stream: Stream) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(stream.seed)
    k, d, n = stream.classes, stream.dimension, stream.samples
    common = rng.normal(size=d)
    centres = rng.normal(size=(k, d)) + common
    prototypes = _unit(centres + 0.3 * rng.normal(size=d))
    labels = rng.integers(k, size=n)
    if stream.kind == "crowd":  # prototypes and samples around one point: the samples spread over the classes
        prototypes = _unit(common + max(stream.distance, 1e-6) * rng.normal(size=(k, d)))
        centres = np.repeat(_unit(common[None]), k, axis=0)
    if stream.kind == "sorted":
        labels = np.sort(labels)
    features = centres[labels] + rng.normal(size=(n, d))
    match stream.kind:
        case "still":
            features = _unit(features[:1]) + stream.distance * rng.normal(size=(n, d))
        case "crowd":
            features = centres[labels] + stream.distance * rng.normal(size=(n, d))
        case "duplicates":
            features = features[rng.integers(max(1, n // 4), size=n)]
        case "prototypes":
            features = prototypes[labels]
        case "opposite":
            features = -np.abs(stream.distance) * features - prototypes[labels]
        case "axes":
            features = np.eye(d)[rng.integers(d, size=n)]
        case "two points":
            features = features[np.arange(n) % 2]
        case "plane":
            features = rng.normal(size=(n, 2)) @ rng.normal(size=(2, d))
    features = _unit(features)
    if stream.kind == "lengths":
        features = features * (1 + min(stream.distance, 0.0099) * rng.choice([-1, 1], size=(n, 1)))
    features.flags.writeable = prototypes.flags.writeable = False
    return prototypes, features


def _unit(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.where(lengths > 0, rows, 1.0)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def streams(max_samples: int = 24, max_dimension: int = 8) -> st.SearchStrategy[Stream]:
    return st.builds(
        Stream,
        kind=st.sampled_from(STREAM_KINDS),
        classes=st.integers(1, 6),
        dimension=st.integers(1, max_dimension),
        samples=st.integers(1, max_samples),
        seed=st.integers(0, 1000),
        distance=st.sampled_from([1e-1, 1e-2, 1e-3, 1e-5, 1e-7, 1e-9, 1e-12, 1e-15, 0.0]),
    )
