"""Streams of bundled features that feed themselves, for `zeroshift serve demo`.

The packs have features and labels of real images, not the images. Each has 1500 samples, which come again in another
order when all were sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zeroshift.data import packs
from zeroshift.features import FeatureSet
from zeroshift.serve.client import Client, ServiceError

__all__ = ["STREAMS", "DemoStream", "Feeder"]

LABELS_EVERY, MOST_LABELS = 20, 200
"""Every so many samples, the label of one is confirmed, as a person would who checks some of the answers."""

SETTINGS = {"snapshot_every": 512, "retain": 20_000}

Order = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""From labels and a source of chance to the indices of the samples to send."""


def shuffled(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(len(labels))


def in_bursts(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Between 8 and 30 samples of a class, then of another one.

    >>> sent = in_bursts(np.repeat([0, 1], 40), np.random.default_rng(0)) // 40
    >>> np.flatnonzero(np.diff(sent)) + 1
    array([21, 38, 57])
    """
    left = {k: rng.permutation(np.flatnonzero(labels == k)).tolist() for k in np.unique(labels).tolist()}
    order: list[int] = []
    last = None
    while left:
        last = rng.choice([k for k in left if k != last] or list(left))
        length = int(rng.integers(8, 31))
        order += left[last][:length]
        left[last] = left[last][length:]
        if not left[last]:
            del left[last]
    return np.array(order)


@dataclass(frozen=True)
class DemoStream:
    name: str
    about: str
    phases: tuple[tuple[str, int], ...]
    """Names of packs and numbers of samples, sent one after the other, again and again."""
    order: Order
    batch: int
    """Samples per request."""
    per_second: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    def batches(self) -> Iterator[tuple[int, np.ndarray, list[str]]]:
        """Number of the first sample, features and labels of all requests, the same each time."""
        loaded = {name: packs.load(name) for name, _ in self.phases}
        position = turn = 0
        while True:
            name, count = self.phases[turn % len(self.phases)]
            pack = loaded[name]
            labels = np.asarray(pack.labels)
            chosen = self.order(labels, np.random.default_rng([turn, len(self.name)]))[:count]
            for start in range(0, len(chosen), self.batch):
                rows = chosen[start : start + self.batch]
                yield position, pack.features[rows], [pack.class_names[k] for k in labels[rows]]
                position += len(rows)
            turn += 1

    @property
    def pack(self) -> FeatureSet:
        """The pack whose classes and prototypes the stream has."""
        return packs.load(self.phases[0][0])


STREAMS = (
    DemoStream(
        "cifar10/random-order", "CIFAR-10 in random order", (("cifar10", 1500),), shuffled, batch=16, per_second=64.0
    ),
    DemoStream(
        # The test for drift assumes independent samples: classes that come one after the other would raise alarms.
        "cifar10/bursts", "8 to 30 images of a class, then of another one: the order helps", (("cifar10", 1500),),
        in_bursts, batch=8, per_second=48.0, settings={"on_drift": "ignore"},
    ),
    DemoStream(
        "cifar10/fog", "CIFAR-10; fog comes after five seconds: a drift alarm",
        (("cifar10", 500), ("cifar10c_fog_5", 1500)), shuffled, batch=16, per_second=96.0,
    ),
    DemoStream("fmnist/camera", "a slow camera: Fashion-MNIST, one image at a time", (("fmnist", 1500),), in_bursts,
               batch=1, per_second=4.0, settings={"snapshot_every": 64, "on_drift": "ignore"}),
)  # fmt: skip


class Feeder:
    """Creates a stream and sends its samples, in a thread, until `is_ending`."""

    def __init__(self, stream: DemoStream, url: str, is_ending: Callable[[], bool]) -> None:
        self.name = stream.name
        self._stream, self._url, self._is_ending = stream, url, is_ending
        self.error: Exception | None = None
        """Why it stopped before the end, such as that the stream was deleted."""
        self._thread = threading.Thread(target=self._run, name=f"feeds {stream.name}", daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(30)

    def _run(self) -> None:
        try:
            with Client(self._url, retry=5.0) as client:
                self._feed(client)
        except (ServiceError, ConnectionError) as error:
            if not self._is_ending():
                self.error = error

    def _feed(self, client: Client) -> None:
        stream, pack = client.stream(self._stream.name), self._stream.pack
        settings = {**SETTINGS, **self._stream.settings}
        stream.create(pack.class_names, pack.prototypes_for(), logit_scale=pack.logit_scale, **settings)
        seen = stream.describe()["n_seen"]  # with a store that is kept, it continues
        due = time.monotonic()
        for position, features, labels in self._stream.batches():
            if position < seen:
                continue
            results = stream.samples(features, keys=[f"image-{position + i + 1}" for i in range(len(features))], top=1)
            checked = {
                result["seq"]: label
                for result, label in zip(results, labels, strict=True)
                if result["seq"] % LABELS_EVERY == 0 and result["seq"] <= LABELS_EVERY * MOST_LABELS
            }
            if checked:
                stream.label(checked)
            due = max(due + len(features) / self._stream.per_second, time.monotonic() - 1.0)
            while time.monotonic() < due:
                if self._is_ending():
                    return
                time.sleep(min(0.1, max(0.0, due - time.monotonic())))
            if self._is_ending():
                return
