"""Sets of one suite that are the same classes in several domains, stacked into one set for streams across them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from zeroshift.evaluate.streams import stackable, stacked
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.features import FeatureSet

__all__ = ["DOMAIN_ROWS", "StackedMember", "stacked_members"]

DOMAIN_ROWS = 5000
"""At most so many rows of a domain, drawn at random: streams across fifteen corruptions of ImageNet would else be of
750,000."""


@dataclass(frozen=True)
class StackedMember(Member):
    """A set made of others."""

    domains: tuple[int, ...] = ()
    """Rows of each domain, in the order stacked."""
    domain_names: tuple[str, ...] = ()


def stacked_members(suite: Suite) -> list[StackedMember]:
    """One set for each group of two or more of the same classes, prototypes and logit scale; of the same data seen
    twice, only the larger counts.

    >>> from zeroshift.data import packs
    >>> names = ("cifar10", "cifar10c_fog_5", "fmnist")
    >>> (both,) = stacked_members(Suite.of({name: packs.load(name).subset(slice(0, 50)) for name in names}))
    >>> both.domain_names, both.domains
    (('cifar10', 'cifar10c_fog_5'), (50, 50))
    """
    groups: list[list[Member]] = []
    firsts: list[FeatureSet] = []
    for member in _distinct(suite):
        features = member.entry.load()
        place = next((i for i, first in enumerate(firsts) if stackable(first, features)), None)
        if place is None:
            groups.append([member])
            firsts.append(features)
        else:
            groups[place].append(member)
    return [_stacked(group) for group in groups if len(group) > 1]


def _distinct(suite: Suite) -> list[Member]:
    largest: dict[tuple[object, ...], Member] = {}
    for member in suite.members:
        what = (member.encoder, *member.subject)
        if what not in largest or member.entry.n_samples > largest[what].entry.n_samples:
            largest[what] = member
    return [member for member in suite.members if member in largest.values()]


def _stacked(group: Sequence[Member]) -> StackedMember:
    parts = tuple((member.name, member.entry.load) for member in group)
    features = _load(parts)
    name = f"{group[0].data_set} and its shifts" if group[0].corruption is None else " and ".join(n for n, _ in parts)
    base = Member.of(name, features, partial(_load, parts), group[0].entry.prompt)
    sizes = tuple(min(member.entry.n_samples, DOMAIN_ROWS) for member in group)
    # Of provenances only what all agree on is kept; they share their prototypes, and hence their encoder.
    said = {**vars(base), "encoder": group[0].encoder}
    return StackedMember(**said, domains=sizes, domain_names=tuple(name for name, _ in parts))


def _load(parts: Sequence[tuple[str, Callable[[], FeatureSet]]]) -> FeatureSet:
    return stacked({name: _some(load()) for name, load in parts})


def _some(features: FeatureSet) -> FeatureSet:
    if features.n_samples <= DOMAIN_ROWS:
        return features
    return features.subset(np.random.default_rng(0).permutation(features.n_samples)[:DOMAIN_ROWS])
