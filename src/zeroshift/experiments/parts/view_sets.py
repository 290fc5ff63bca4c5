"""Sets that hold several views of each image: those given, and those bundled beside the packs that are."""

from __future__ import annotations

from functools import cache, partial

from zeroshift.data import packs
from zeroshift.experiments.parts.suite import Member, Suite

__all__ = ["NO_VIEWS", "bundled_views", "seen_often"]

NO_VIEWS = (
    "None of the sets holds several views of each image. Fix: a file that `zeroshift extract ... --views 64` made, or "
    "--packs views_cifar10c_fog_5."
)


def seen_often(suite: Suite) -> list[Member]:
    """The sets that hold views.

    >>> names = ("cifar10c_fog_5", "views_cifar10c_fog_5")
    >>> [member.name for member in seen_often(Suite.of({name: packs.load(name) for name in names}))]
    ['views_cifar10c_fog_5']
    """
    return [member for member in suite.members if member.entry.n_views]


def bundled_views(suite: Suite) -> list[Member]:
    """Where no set holds views, the bundled packs of the same pictures that do, as further sets of an experiment.

    A pack joins only beside the bundled pack it shows the same pictures as: whoever gives sets of their own is asked
    for views of their own.

    >>> [member.name for member in bundled_views(Suite.of({"fog": packs.load("cifar10c_fog_5")}))]
    ['views_cifar10c_fog_5']
    >>> bundled_views(Suite.of({"fog": packs.load("cifar10c_fog_5").subset(slice(0, 100))}))
    []
    """
    if seen_often(suite):
        return []
    here = {member.entry.digest for member in suite.members}
    known = {member.subject for member in _bundled(viewed=False) if member.entry.digest in here}
    return [member for member in _bundled(viewed=True) if member.subject in known] if known else []


@cache
def _bundled(*, viewed: bool) -> list[Member]:
    names = [info.name for info in packs.list() if bool(info.n_views) is viewed]
    return [Member.of(name, packs.load(name), partial(packs.load, name)) for name in names]
