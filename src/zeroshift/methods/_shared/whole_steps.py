"""Methods that write into large arrays in place and can still be interrupted anywhere: a step is learned whole or not.

A step decides everything first, then names what is to be written, counts its samples, and writes. Counting is the turn:
what is counted but not wholly written is written before anything else is done, and what was never counted is forgotten.
"""

from __future__ import annotations

import os
from functools import partial

from zeroshift.arrays import Array, Home
from zeroshift.method import Method, ViewMethod

__all__ = ["WholeSteps", "WholeViews"]


class WholeSteps(Method):
    """`_commit` is how a subclass learns, and `_finish` what comes first wherever it is asked for what it learned."""

    _decided: tuple[int, partial[None]] | None
    """What to write once so many samples are counted."""

    def reset(self) -> None:
        """Forget everything learned."""
        self._decided = None
        super().reset()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and state as one safetensors file; the file at `path` is replaced whole or not at all."""
        self._finish()
        super().save(path)

    def _decide(self, write: partial[None], samples: int = 1) -> None:
        """`write` is due once the samples are counted. Done again, also after half of it, it must come to the same, and
        it must not hold on to the caller's arrays. A partial and no closure: it is copied with the method."""
        self._decided = (self.n_seen + samples, write)

    def _commit(self, write: partial[None], samples: int = 1) -> None:
        self._decide(write, samples)
        self.n_seen += samples
        self._finish()

    def _finish(self) -> None:
        if self._decided is None:
            return
        n_seen, write = self._decided
        if n_seen == self.n_seen:
            with Home.of(self.prototypes).computing():
                write()
        self._decided = None

    def _answer(self, features: Array, *, learn: bool, probabilities: bool) -> Array:
        self._finish()
        return super()._answer(features, learn=learn, probabilities=probabilities)


class WholeViews(WholeSteps, ViewMethod):
    """The same with views. `ViewMethod` counts the images: `_adapt_view` finishes the one before, and only decides."""

    view_ratio: float

    def _answer_views(self, views: Array, *, learn: bool, probabilities: bool) -> Array:
        answer = super()._answer_views(views, learn=learn, probabilities=probabilities)
        self._finish()
        return answer
