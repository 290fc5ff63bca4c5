"""Every kind of stream by name: which clues of a set each goes by, and its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zeroshift.evaluate.streams import correlated, orders
from zeroshift.evaluate.streams import domains as over_domains
from zeroshift.evaluate.streams.clues import Clues
from zeroshift.evaluate.streams.few_confident import CONSTRAINTS as OF_CONFIDENT
from zeroshift.evaluate.streams.few_confident import few_confident
from zeroshift.evaluate.streams.long_tail import CONSTRAINTS as OF_TAIL
from zeroshift.evaluate.streams.long_tail import IMBALANCE, long_tail
from zeroshift.evaluate.streams.stream import Stream
from zeroshift.parameters import Constraint

__all__ = ["KINDS", "Maker", "checked", "parameters_of"]

Maker = Callable[..., Stream]
"""`maker(clues, seed, **parameters)`."""


def _random(clues: Clues, seed: int) -> Stream:
    return orders.random_order(clues.n_rows, seed)


def _easy_to_hard(clues: Clues, seed: int) -> Stream:
    return orders.easy_to_hard(clues.confidences, seed)


def _hard_to_easy(clues: Clues, seed: int) -> Stream:
    return orders.hard_to_easy(clues.confidences, seed)


def _class_sorted(clues: Clues, seed: int) -> Stream:
    return orders.class_sorted(clues.labels, seed)


def _dirichlet(
    clues: Clues, seed: int, concentration: float = correlated.CONCENTRATION, slots: int | None = None
) -> Stream:
    return correlated.dirichlet(clues.labels, seed, concentration=concentration, slots=slots)


def _few_classes(clues: Clues, seed: int, classes_per_batch: int = 2, batch_size: int = 64) -> Stream:
    return correlated.few_classes(clues.labels, seed, classes_per_batch=classes_per_batch, batch_size=batch_size)


def _continual(clues: Clues, seed: int, domains: Sequence[int], names: Sequence[str] | None = None) -> Stream:
    return _whole(clues, over_domains.continual(domains, seed, names=names))


def _gradual(
    clues: Clues, seed: int, domains: Sequence[int], names: Sequence[str] | None = None, overlap: float = 0.5
) -> Stream:
    return _whole(clues, over_domains.gradual(domains, seed, overlap=overlap, names=names))


def _mixed(clues: Clues, seed: int, domains: Sequence[int], names: Sequence[str] | None = None) -> Stream:
    return _whole(clues, over_domains.mixed(domains, seed, names=names))


def _long_tail(clues: Clues, seed: int, imbalance: float = IMBALANCE, most: int | None = None) -> Stream:
    return long_tail(clues.labels, seed, imbalance=imbalance, most=most)


def _few_confident(clues: Clues, seed: int, per_class: int = 2, share: float = 0.5) -> Stream:
    return few_confident(clues.confidences, clues.pseudo_classes, seed, per_class=per_class, share=share)


def _whole(clues: Clues, stream: Stream) -> Stream:
    if len(stream) != clues.n_rows:
        raise ValueError(
            f"domains add up to {len(stream)} rows, but the set has {clues.n_rows}. Fix: the sizes as stacked."
        )
    return stream


KINDS: dict[str, Maker] = {
    "random": _random,
    "easy_to_hard": _easy_to_hard,
    "hard_to_easy": _hard_to_easy,
    "class_sorted": _class_sorted,
    "dirichlet": _dirichlet,
    "few_classes": _few_classes,
    "continual": _continual,
    "gradual": _gradual,
    "mixed": _mixed,
    "long_tail": _long_tail,
    "few_confident": _few_confident,
}
"""Every kind of stream, by name."""

CONSTRAINTS: Mapping[str, Constraint] = {
    **correlated.CONSTRAINTS,
    **over_domains.CONSTRAINTS,
    **OF_TAIL,
    **OF_CONFIDENT,
}
"""Of the parameters that can be checked alone; a name means the same in every kind."""


def parameters_of(kind: str) -> dict[str, inspect.Parameter]:
    """What a kind takes beside the clues and the seed."""
    return dict(list(inspect.signature(KINDS[kind]).parameters.items())[2:])


def checked(kind: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with the defaults filled in, each checked as far as can be without a set, numbers in one form.

    >>> checked("few_classes", {"batch_size": 32.0})
    {'classes_per_batch': 2, 'batch_size': 32}
    """
    found = {name: parameters.get(name, taken.default) for name, taken in parameters_of(kind).items()}
    found = {name: CONSTRAINTS[name].check(name, value) if name in CONSTRAINTS else value
             for name, value in found.items()}  # fmt: skip
    if "domains" in found:
        sizes, names = over_domains.checked_domains(found["domains"], found["names"])
        found |= {"domains": sizes, "names": None if found["names"] is None else list(names)}
    return found
