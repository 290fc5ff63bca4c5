"""Methods that record their views, sets with views, and a fake encoder."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from fresh_memory import touch_memory
from zeroshift import FeatureSet, normalize
from zeroshift.method import EpisodicMethod, ViewMethod
from zeroshift.parameters import Number, parameter
from zeroshift.testing.examples import ExampleText
from zeroshift.zero_shot import logits

FED: list[np.ndarray] = []
"""Every array of views that a fake method received."""

N_VIEWS = 5


class Remembering(ViewMethod):
    """The mean of an image's views, zero-shot."""

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits.", default=100.0)

    def adapt_views(self, views):
        FED.append(views)
        return super().adapt_views(views)

    def _adapt_view(self, views):
        with self._learning():
            pass
        return logits(views.mean(axis=0)[None, :], self.prototypes, self.logit_scale)[0]

    def _adapt_scores(self, rows):
        with self._learning(len(rows)):
            pass
        yield slice(0, len(rows)), self._predict_scores(rows[slice(0, len(rows))])

    def _predict_scores(self, features):
        return logits(features, self.prototypes, self.logit_scale)


class Takes(Remembering):
    """An online method that takes views."""

    name, protocol = "takes", "online"


class TakesAll(Remembering):
    """A transductive method that takes views."""

    name, protocol = "takes_all", "transductive"


class Needs(Remembering, EpisodicMethod):
    """An episodic method: it needs views."""

    name, protocol = "needs", "episodic"
    needs, takes = ("prototypes", "views"), ()

    def _episodes(self, views):
        return logits(views.mean(axis=1), self.prototypes, self.logit_scale)

    _adapt_view_scores = EpisodicMethod._adapt_view_scores


class Greedy(Takes):
    """Takes a known amount of memory, and three steps, per image."""

    name, gradient_steps = "greedy", 3
    taken = 300_000_000
    """So much that what else a process of tests gives back in the meantime, tens of megabytes, does not hide it."""

    def _adapt_view(self, views):
        touch_memory(self.taken)
        return super()._adapt_view(views)


def with_views(features: FeatureSet, **changes) -> FeatureSet:
    """The same images, each with a few noisy views."""
    rng = np.random.default_rng(3)
    noise = 0.2 * rng.normal(size=(features.n_samples, N_VIEWS, features.dimension))
    noise[:, 0] = 0
    views = normalize((features.features[:, None] + noise).reshape(-1, features.dimension)).reshape(noise.shape)
    given = {"class_names": [f"kind {letter}" for letter in "abcdefgh"[: features.n_classes]], **changes}
    return FeatureSet(
        views=views, prototypes=features.prototypes, labels=features.labels, logit_scale=features.logit_scale, **given
    )


class NoEncoder:
    """What `zeroshift.encode.load_encoder` would have loaded."""

    source, revision = "no-encoder", "1234"
    device = SimpleNamespace(type="cpu")

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def key(self):
        return {"family": "none", "revision": self.revision, "dtype": "float32"}


def stand_in_encoder(monkeypatch, prototypes: np.ndarray) -> list[tuple]:
    """Replace every encoder by one whose words give these prototypes; return the requested text sides."""
    from zeroshift import encode
    from zeroshift.evaluate import encoder_ref

    asked: list[tuple] = []

    def prompted_text(encoder, class_names, *, words, position=("end",)):
        asked.append((tuple(class_names), words))
        return ExampleText(prototypes)

    monkeypatch.setattr(encode, "load_encoder", lambda source, **options: NoEncoder(prototypes.shape[1]))
    monkeypatch.setattr(encode, "prompted_text", prompted_text)
    encoder_ref._loaded.cache_clear()
    return asked
