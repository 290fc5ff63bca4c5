"""AWT without views: what the paper's appendix calls AWT*."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.evaluate.costs import Counts
from zeroshift.evaluate.follow import EVERY
from zeroshift.evaluate.measure import Fed, measured
from zeroshift.evaluate.tallies import score_sheet
from zeroshift.evaluate.threads import one_blas_thread
from zeroshift.features import FeatureSet
from zeroshift.methods.awt import AWT
from zeroshift.methods.zero_shot import ZeroShot

__all__ = ["awt_alone"]


def awt_alone(features: FeatureSet, *, prompt: str) -> dict[str, Any]:
    """A record like that of a run, of AWT given each image as its only view. It weighs the set's prompts of each class,
    one a prompt mode.

    >>> from zeroshift.data import packs
    >>> told = awt_alone(packs.load("cifar10").subset(slice(0, 100)), prompt="ensemble")
    >>> told["scored"], told["image_passes"]
    (100, 1.0)
    """
    if features.labels is None:
        raise ValueError("awt_alone counts what is right, and the set has no labels. Fix: give labels.")
    prototypes, prompts = features.prototypes_for(prompt), features.prompts_of_each_class()
    stream = np.asarray(features.features)
    with one_blas_thread():
        found = measured(
            lambda: AWT(prototypes, prompts=prompts, logit_scale=features.logit_scale),
            Fed(stream),
            Counts(),
            every=EVERY,
        )
    zero_shot = ZeroShot(prototypes, logit_scale=features.logit_scale).predict(stream)
    sheet = score_sheet(found.pop("probabilities"), zero_shot, features.labels, None, ())
    return {"scored": features.n_samples, **found, **sheet}
