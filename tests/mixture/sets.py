"""Sets the mixture is measured on against the transcription: made-up ones and rows of a bundled pack, in float64."""

from __future__ import annotations

import numpy as np

from streams import ADVERSARIAL, STREAMS, Stream
from zeroshift.data import packs
from zeroshift.testing import make_problem

MANY = 80
"""Rows after which the default staleness has skipped samples, and the spread has been estimated."""

ALL = {**STREAMS, **ADVERSARIAL}


def first_rows(name: str) -> Stream:
    stream = ALL[name]()
    return stream._replace(features=stream.features[:MANY])


def class_sorted() -> Stream:
    problem = make_problem(5, 12, MANY, seed=50, noise=0.5)
    order = np.argsort(problem.labels, kind="stable")
    return Stream(problem.features[order], problem.prototypes, 60.0)


def few_classes() -> Stream:
    """Three of nine, in a random order."""
    problem = make_problem(9, 12, 3 * MANY, seed=51, noise=0.5)
    return Stream(problem.features[problem.labels < 3][:MANY], problem.prototypes, 60.0)


def thrice() -> Stream:
    """Every sample three times in a row."""
    problem = make_problem(6, 12, MANY // 3, seed=52)
    return Stream(np.repeat(problem.features, 3, axis=0), problem.prototypes, 20.0)


def of_a_pack(rows: int, name: str = "cifar10") -> Stream:
    pack = packs.load(name)
    wide = pack.features[:rows].astype(np.float64)
    return Stream(wide, pack.prototypes_for().astype(np.float64), pack.logit_scale)


def support_of(stream: Stream, per_class: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Labelled samples near the prototypes; a class more often than the others."""
    draw = np.random.default_rng(53)
    labels = np.concatenate([np.repeat(np.arange(len(stream.prototypes)), per_class), [0]])
    near = stream.prototypes[labels] + 0.1 * draw.normal(size=(len(labels), stream.prototypes.shape[1]))
    return near / np.linalg.norm(near, axis=1, keepdims=True), labels


OWN = {
    "class after class": class_sorted,
    "a third of the classes": few_classes,
    "every sample thrice": thrice,
    "rows of a pack": lambda: of_a_pack(40),
}

QUICK = {
    **OWN,
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
"""A second or less each."""
