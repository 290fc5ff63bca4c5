"""Which sets are pictured where every set would be too many."""

from __future__ import annotations

from zeroshift.experiments.parts.suite import Member, Suite

__all__ = ["clean_and_corrupted"]

PICTURED_SETS = 2


def clean_and_corrupted(suite: Suite, most: int = PICTURED_SETS) -> list[Member]:
    """The first clean set and the first corrupted one, in the order of the suite; others where there is no such pair.

    >>> from zeroshift.data import packs
    >>> names = ("cifar10", "fmnist", "cifar10c_fog_5")
    >>> [member.name for member in clean_and_corrupted(Suite.of({name: packs.load(name) for name in names}))]
    ['cifar10', 'cifar10c_fog_5']
    """
    clean = [member for member in suite.members if member.corruption is None]
    corrupted = [member for member in suite.members if member.corruption is not None]
    chosen = [*clean[:1], *corrupted[:1], *clean[1:], *corrupted[1:]][:most]
    return [member for member in suite.members if member in chosen]
