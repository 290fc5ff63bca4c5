"""Methods that record their inputs, and a way to register them, to test what a comparison passes to methods."""

from __future__ import annotations

import os
import signal

import numpy as np

from zeroshift import ZeroShot
from zeroshift.methods import Method, MethodInfo, registry
from zeroshift.parameters import Number, array_parameter, parameter
from zeroshift.zero_shot import log_posterior

SEEN: list[Method] = []


class StandIn(Method):
    """Zero-shot under another name."""

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits.", default=100.0)

    def _prepare(self):
        SEEN.append(self)
        self._fed = []

    def _adapt_scores(self, rows):
        self._fed.append(np.array(rows[slice(0, len(rows))]))
        with self._learning(len(rows)):
            pass
        yield slice(0, len(rows)), self._predict_scores(rows[slice(0, len(rows))])

    def _predict_scores(self, features):
        return log_posterior(features, self.prototypes, self.logit_scale)

    @property
    def rows(self) -> np.ndarray:
        """All inputs it received, in order."""
        return np.concatenate(self._fed)


class Stream(StandIn):
    """An online method."""

    name, protocol = "stream", "online"


class TwoEncoders(StandIn):
    """An online method that takes a second encoder and records its features."""

    name, protocol, takes = "two_encoders", "online", ("second",)

    def _prepare(self):
        super()._prepare()
        self.seconds = []

    def adapt(self, features, second=None):
        self.seconds.append(second)
        return super().adapt(features)


class Whole(StandIn):
    """A transductive method that takes several prompts."""

    name, protocol, needs = "whole", "transductive", ("prototypes", "prompts")

    prompts: np.ndarray = array_parameter("Prompts.")


class Shots(StandIn):
    """A few-shot method: answers with the class of the nearest labelled sample."""

    name, protocol, needs = "shots", "few-shot", ("prototypes", "support")

    support: tuple = array_parameter("Labelled samples.")
    validation: tuple | None = array_parameter("Labelled samples to choose by.", default=None)

    def _predict_scores(self, features):
        known, labels = self.support
        return 100.0 * np.eye(self.n_classes)[labels[(features @ known.T.astype(features.dtype)).argmax(axis=1)]]


class Pool(StandIn):
    """An online method that learns from unlabelled samples first."""

    name, protocol, needs = "pool", "online", ("prototypes", "unlabelled")

    unlabelled: np.ndarray = array_parameter("Unlabelled samples.")


class Either(StandIn):
    """A transductive method that can be given labelled samples."""

    name, protocol = "either", "transductive"

    support: tuple | None = array_parameter("Labelled samples.", default=None)


class Tuned(Stream):
    """Needs a number without a default."""

    name = "tuned"
    scale: float = parameter(Number(low=0), "A scale without a default.")


class Tokens(Stream):
    """Needs an input that no set has."""

    name, needs = "tokens", ("prototypes", "tokens of a transformer")


class Fails(Stream):
    """Raises."""

    name = "fails"

    def _adapt_scores(self, rows):
        raise ZeroDivisionError("a bug")


class Dies(Stream):
    """Ends its process."""

    name = "dies"

    def _adapt_scores(self, rows):
        os.kill(os.getpid(), signal.SIGKILL)


ALL = (Stream, Whole, Shots, Pool, Either, Tuned, Tokens, Fails, Dies)


def register(monkeypatch, *classes: type[Method]) -> None:
    """Register only these and zero-shot."""
    chosen = [ZeroShot, *(classes or ALL)]
    methods = {method.name: MethodInfo.of(method) for method in chosen}
    monkeypatch.setattr(registry, "_registry", lambda: methods)
    SEEN.clear()
