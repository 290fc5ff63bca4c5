"""Methods with any number of labelled samples a class, scored on rows that are the same for every number."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from zeroshift.adapt.online import OnlineADAPT
from zeroshift.adapt.transductive import TransductiveADAPT
from zeroshift.evaluate.metrics import accuracy
from zeroshift.evaluate.split import split
from zeroshift.evaluate.threads import one_blas_thread
from zeroshift.features import FeatureSet
from zeroshift.method import Method
from zeroshift.methods.gda_clip import GDACLIP
from zeroshift.methods.timo import TIMO
from zeroshift.methods.tip_adapter import TipAdapter
from zeroshift.methods.zero_shot import ZeroShot

__all__ = ["SEVERAL_PROMPTS", "WITHOUT_LABELS", "few_shot"]

METHODS: dict[str, Callable[..., Method]] = {
    "adapt_online": OnlineADAPT,
    "adapt_transductive": TransductiveADAPT,
    "tip_adapter": TipAdapter,
    "gda_clip": GDACLIP,
    "timo": TIMO,
}

WITHOUT_LABELS = ("adapt_online", "adapt_transductive")
"""Those that can do without a labelled sample."""

SEVERAL_PROMPTS = ("timo",)
"""Those that weigh the prompts of a class: they are given the prototypes of all prompt modes."""


def few_shot(
    features: FeatureSet, *, prompt: str, method: str, shots: int, most: int, seed: int
) -> dict[str, float | int]:
    """Accuracy of a method given `shots` labelled samples a class, on the rows left over when `most` are drawn.

    Of a class at most half of its samples are drawn: `support` counts what was really given. Peers run at their default
    parameters, without a validation set.

    Draws of one seed are nested: those of fewer shots are among those of more. So no row that is scored was ever
    given, and what changes with `shots` is not the rows.

    >>> from zeroshift.data import packs
    >>> pack = packs.load("cifar10c_fog_5").subset(slice(0, 200))
    >>> told = [few_shot(pack, prompt="ensemble", method="adapt_transductive", shots=n, most=4, seed=0) for n in (0, 4)]
    >>> [(record["support"], record["scored"]) for record in told]
    [(0, 160), (40, 160)]
    """
    if features.labels is None:
        raise ValueError("few_shot draws labelled samples, and the set has no labels. Fix: give labels.")
    if not shots and method not in WITHOUT_LABELS:
        raise ValueError(f"{method} needs labelled samples; got shots=0. Fix: at least 1.")
    scored = split(features.labels, seed=seed, shuffled=method == "adapt_online", shots=most).scored
    drawn = split(features.labels, seed=seed, shuffled=False, shots=shots).support
    arguments: dict[str, Any] = {"logit_scale": features.logit_scale}
    if method in SEVERAL_PROMPTS:
        arguments = {"prompts": features.prompts_of_each_class()}
    if shots and drawn is not None:
        arguments["support"] = (np.asarray(features.features[drawn]), features.labels[drawn])
    prototypes = features.prototypes_for(prompt)
    stream, labels = np.asarray(features.features[scored]), features.labels[scored]
    with one_blas_thread():
        began = time.perf_counter()
        probabilities = METHODS[method](prototypes, **arguments).adapt(stream)
        seconds = time.perf_counter() - began
    zero_shot = ZeroShot(prototypes, logit_scale=features.logit_scale).predict(stream)
    return {
        "accuracy": accuracy(probabilities, labels),
        "zero_shot_accuracy": accuracy(zero_shot, labels),
        "scored": len(labels),
        "support": 0 if not shots or drawn is None else len(drawn),
        "seconds": seconds,
    }
