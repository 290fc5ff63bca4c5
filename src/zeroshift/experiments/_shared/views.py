"""Sets with several views of each image, and AWT without views."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from zeroshift.data import packs
from zeroshift.evaluate import Analysis
from zeroshift.evaluate.costs import EncoderCounts
from zeroshift.evaluate.metrics import score_run
from zeroshift.evaluate.resources import one_blas_thread
from zeroshift.evaluate.stream_loop import EVERY
from zeroshift.evaluate.trial import StreamInput, measure_run
from zeroshift.experiments._shared.suite import Member, Suite
from zeroshift.experiments._shared.trials import analysis
from zeroshift.features import FeatureSet
from zeroshift.methods.awt import AWT
from zeroshift.methods.zero_shot import ZeroShot

__all__ = ["awt_alone", "awt_without_views", "bundled_views", "with_views"]


def with_views(suite: Suite) -> list[Member]:
    """The sets that have views.

    >>> names = ("cifar10c_fog_5", "views_cifar10c_fog_5")
    >>> [member.name for member in with_views(Suite.of({name: packs.load(name) for name in names}))]
    ['views_cifar10c_fog_5']
    """
    return [member for member in suite.members if member.dataset.n_views]


def bundled_views(suite: Suite) -> list[Member]:
    """The bundled packs with views of the same images, if no set has views.

    A pack is added only if its bundled counterpart without views is in the suite.

    >>> [member.name for member in bundled_views(Suite.of({"fog": packs.load("cifar10c_fog_5")}))]
    ['views_cifar10c_fog_5']
    >>> bundled_views(Suite.of({"fog": packs.load("cifar10c_fog_5").subset(slice(0, 100))}))
    []
    """
    if with_views(suite):
        return []
    here = {member.dataset.digest for member in suite.members}
    known = {member.subject for member in _bundled(viewed=False) if member.dataset.digest in here}
    return [member for member in _bundled(viewed=True) if member.subject in known] if known else []


@cache
def _bundled(*, viewed: bool) -> list[Member]:
    names = [info.name for info in packs.list() if bool(info.n_views) is viewed]
    return [Member.of(name, packs.load(name), partial(packs.load, name)) for name in names]


def awt_alone(features: FeatureSet, *, prompt: str) -> dict[str, Any]:
    """A record like that of a run, for AWT with each image as its only view. AWT weights the prompts of each class, one
    per prompt mode.

    >>> from zeroshift.data import packs
    >>> detail = awt_alone(packs.load("cifar10").subset(slice(0, 100)), prompt="ensemble")
    >>> detail["scored"], detail["image_passes"]
    (100, 1.0)
    """
    if features.labels is None:
        raise ValueError("awt_alone needs labels, and the set has none. Fix: give labels.")
    prototypes, prompts = features.prototypes_for(prompt), features.prompts_of_each_class()
    stream = np.asarray(features.features)
    with one_blas_thread():
        found = measure_run(
            AWT.name,
            lambda: AWT(prototypes, prompts=prompts, logit_scale=features.logit_scale),
            StreamInput(stream),
            EncoderCounts(),
            every=EVERY,
        )
    zero_shot = ZeroShot(prototypes, logit_scale=features.logit_scale).predict(stream)
    sheet = score_run(found.pop("probabilities"), zero_shot, features.labels, None, ())
    return {"scored": features.n_samples, **found, **sheet}


def awt_without_views(member: Member, *, timed: bool = False) -> Analysis:
    """The job that runs AWT without views."""
    return analysis(member, awt_alone, timed=timed)
