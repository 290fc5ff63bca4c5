"""Streams for comparing the mixture with its transcription: generated ones and rows of a bundled pack, in float64."""

from __future__ import annotations

import numpy as np

from streams import ADVERSARIAL, STREAMS, Stream
from zeroshift.data import packs
from zeroshift.testing import make_problem

N_ROWS = 80
"""Rows after which the default staleness has skipped samples, and the spread has been estimated."""

ALL_STREAMS = {**STREAMS, **ADVERSARIAL}


def first_rows(name: str) -> Stream:
    stream = ALL_STREAMS[name]()
    return stream._replace(features=stream.features[:N_ROWS])


def class_sorted() -> Stream:
    problem = make_problem(5, 12, N_ROWS, seed=50, noise=0.5)
    order = np.argsort(problem.labels, kind="stable")
    return Stream(problem.features[order], problem.prototypes, 60.0)


def few_classes() -> Stream:
    """Three of nine, in a random order."""
    problem = make_problem(9, 12, 3 * N_ROWS, seed=51, noise=0.5)
    return Stream(problem.features[problem.labels < 3][:N_ROWS], problem.prototypes, 60.0)


def repeated_samples() -> Stream:
    """Every sample three times in a row."""
    problem = make_problem(6, 12, N_ROWS // 3, seed=52)
    return Stream(np.repeat(problem.features, 3, axis=0), problem.prototypes, 20.0)


def pack_stream(rows: int, name: str = "cifar10") -> Stream:
    pack = packs.load(name)
    wide = pack.features[:rows].astype(np.float64)
    return Stream(wide, pack.prototypes_for().astype(np.float64), pack.logit_scale)


def make_support(stream: Stream, per_class: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Labelled samples near the prototypes; class 0 has one more than the others."""
    draw = np.random.default_rng(53)
    labels = np.concatenate([np.repeat(np.arange(len(stream.prototypes)), per_class), [0]])
    near = stream.prototypes[labels] + 0.1 * draw.normal(size=(len(labels), stream.prototypes.shape[1]))
    return near / np.linalg.norm(near, axis=1, keepdims=True), labels


OWN_STREAMS = {
    "sorted by class": class_sorted,
    "a third of the classes": few_classes,
    "every sample three times": repeated_samples,
    "rows of a pack": lambda: pack_stream(40),
}

QUICK_STREAMS = {
    **OWN_STREAMS,
    **{
        name: (lambda name=name: first_rows(name))
        for name in (
            "small",
            "more dimensions than samples",
            "classes that stay empty",
            "negative cosines",
            "one class only",
            "equal prototypes",
            "on the prototypes",
            "two classes",
            "one class in all",
            "one dimension",
            "logits of great weight",
        )
    },
}
"""Those that take at most a second each."""
