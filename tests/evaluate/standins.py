"""Methods that remember what they were given, to see what a comparison gives; and how they come into the registry."""

from __future__ import annotations

import os
import signal
from typing import ClassVar

import numpy as np

from zeroshift.methods import Method, MethodInfo, registry
from zeroshift.parameters import Number
from zeroshift.zero_shot import log_posterior

SEEN: list[Method] = []


class StandIn(Method):
    """Zero-shot under another name."""

    constraints: ClassVar = {"logit_scale": Number(low=0, above=True)}

    def _begin(self):
        SEEN.append(self)
        self._fed = []

    def _adapt_scores(self, rows):
        self._fed.append(np.array(rows[slice(0, len(rows))]))
        self.n_seen += len(rows)
        yield slice(0, len(rows)), self._predict_scores(rows[slice(0, len(rows))])

    def _predict_scores(self, features):
        return log_posterior(features, self.prototypes, self.logit_scale)

    def _state(self):
        return {}, {}

    def _restore(self, arrays, values):
        pass

    @property
    def rows(self) -> np.ndarray:
        """All it was fed, in order."""
        return np.concatenate(self._fed)


class Stream(StandIn):
    """An online method."""

    name, protocol = "stream", "online"

    def __init__(self, prototypes, *, logit_scale=100.0):
        super().__init__(prototypes, logit_scale=logit_scale)


class Whole(StandIn):
    """A transductive method that takes several prompts."""

    name, protocol, needs = "whole", "transductive", ("prototypes", "prompts")
    array_parameters = ("prototypes", "prompts")

    def __init__(self, prototypes, *, prompts, logit_scale=100.0):
        super().__init__(prototypes, prompts=prompts, logit_scale=logit_scale)


class Shots(StandIn):
    """A few-shot method: answers with the class of the nearest labelled sample."""

    name, protocol, needs = "shots", "few-shot", ("prototypes", "support")
    array_parameters = ("prototypes", "support", "validation")

    def __init__(self, prototypes, *, support, validation=None, logit_scale=100.0):
        super().__init__(prototypes, support=support, validation=validation, logit_scale=logit_scale)

    def _predict_scores(self, features):
        known, labels = self.support
        return 100.0 * np.eye(self.n_classes)[labels[(features @ known.T.astype(features.dtype)).argmax(axis=1)]]


class Pool(StandIn):
    """An online method that learns from unlabelled samples first."""

    name, protocol, needs = "pool", "online", ("prototypes", "unlabelled")
    array_parameters = ("prototypes", "unlabelled")

    def __init__(self, prototypes, *, unlabelled, logit_scale=100.0):
        super().__init__(prototypes, unlabelled=unlabelled, logit_scale=logit_scale)


class Either(StandIn):
    """A transductive method that can be given labelled samples."""

    name, protocol = "either", "transductive"
    array_parameters = ("prototypes", "support")

    def __init__(self, prototypes, *, support=None, logit_scale=100.0):
        super().__init__(prototypes, support=support, logit_scale=logit_scale)


class Tuned(Stream):
    """Needs a number nobody can know."""

    name = "tuned"
    constraints: ClassVar = {**StandIn.constraints, "scale": Number(low=0)}

    def __init__(self, prototypes, *, scale, logit_scale=100.0):
        StandIn.__init__(self, prototypes, scale=scale, logit_scale=logit_scale)


class Tokens(Stream):
    """Needs what no set holds."""

    name, needs = "tokens", ("prototypes", "tokens of a transformer")


class Fails(Stream):
    """Raises."""

    name = "fails"

    def _adapt_scores(self, rows):
        raise ZeroDivisionError("a bug")


class Dies(Stream):
    """Takes its process with it."""

    name = "dies"

    def _adapt_scores(self, rows):
        os.kill(os.getpid(), signal.SIGKILL)


ALL = (Stream, Whole, Shots, Pool, Either, Tuned, Tokens, Fails, Dies)


def register(monkeypatch, *classes: type[Method]) -> None:
    """Only these, and zero-shot, from now on."""
    chosen = [registry.ZeroShot, *(classes or ALL)]
    methods = {method.name: MethodInfo.of(method) for method in chosen}
    monkeypatch.setattr(registry, "_registry", lambda: methods)
    SEEN.clear()
