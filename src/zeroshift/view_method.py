"""Methods that can learn from several views of an image, `adapt_views` beside `adapt`; and those that live by them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array, Home, Rows, is_double
from zeroshift.feature_checks import blocks
from zeroshift.low_entropy import as_images, check_unit_views
from zeroshift.method import Method

__all__ = ["EpisodicMethod", "ViewMethod"]

WORK_NUMBERS = 4_000_000
"""Features or logits of views held at once: 32 MB in float64."""


class ViewMethod(Method):
    """A method that is given (V, d) views of an image, view 0 the image itself, as well as single features.

    An online subclass fills in `_adapt_view`; one that learns from several images together `_adapt_view_scores`.
    """

    takes: ClassVar[tuple[str, ...]] = ("views",)

    def _adapt_view(self, views: Array) -> Array:
        """Learn from the views (V, d) of one image; scores (K,). The image is counted by the caller."""
        raise NotImplementedError(f"{type(self).__name__} fills in neither _adapt_view nor _adapt_view_scores.")

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        """Learn from the images, (N, V, d) in all; yield (which images, their scores (n, K)) in order."""
        for block, views in images.blocks(1):
            scores = self._adapt_view(views[0])
            self.n_seen += 1
            yield block, scores[None, :]

    def adapt_views(self, views: Array) -> Array:
        """Learn from each image's views and predict it: (N, K) for (N, V, d), (K,) for (V, d) of one image."""
        return self._answer_views(views, learn=True, probabilities=True)

    def adapt_views_scores(self, views: Array) -> Array:
        """As `adapt_views`, but the raw scores."""
        return self._answer_views(views, learn=True, probabilities=False)

    def _answer_views(self, views: Array, *, learn: bool, probabilities: bool) -> Array:
        images, single = as_images(views, self.dimension)
        # All of them before anything is learned: a bad view leaves the state as it was.
        for some in blocks(images.shape[0], images.shape[1] * images.shape[2]):
            check_unit_views(images[some], some.start)
        home, caller = Home.of(self.prototypes), Home.of(images)
        precision = "float64" if is_double(images) else "float32"
        rows = Rows(images, home, getattr(home.xp, self.computes_in or precision))
        with home.computing():
            answer = home.zeros((len(rows), self.n_classes), getattr(home.xp, precision))
            for block, scores in self._adapt_view_scores(rows) if learn else self._predict_view_scores(rows):
                answer[block] = self._probabilities(scores) if probabilities else scores
            answer = caller.bring(answer, getattr(caller.xp, precision))
        return answer[0] if single else answer

    def _predict_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        """Scores of images by their views with the present state, for methods that offer it."""
        raise NotImplementedError(f"{type(self).__name__} predicts from single features only.")


class EpisodicMethod(ViewMethod):
    """A method for which every image is an episode of its own: it adapts to the image's views, answers, and forgets.

    Nothing is learned from one image for the next, so `predict` answers as `adapt` does, which only counts. A single
    feature is an image with one view. A subclass fills in `_episodes`.
    """

    protocol = "episodic"
    needs: ClassVar[tuple[str, ...]] = ("prototypes", "views")
    takes: ClassVar[tuple[str, ...]] = ()
    state_size = "K d, the prototypes"

    @abstractmethod
    def _episodes(self, views: Array) -> Array:
        """Scores (B, K) of B images with V views each, (B, V, d): each image's from its own views alone."""

    def predict_views(self, views: Array) -> Array:
        """As `adapt_views`, uncounted."""
        return self._answer_views(views, learn=False, probabilities=True)

    def predict_views_scores(self, views: Array) -> Array:
        """As `predict_views`, but the raw scores."""
        return self._answer_views(views, learn=False, probabilities=False)

    def _images_at_once(self, n_views: int) -> int:
        """Images worked on together; a method that needs more space than views and logits themselves takes fewer."""
        return max(1, WORK_NUMBERS // (n_views * max(self.dimension, self.n_classes)))

    def _begin(self) -> None:
        pass

    def _predict_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        n_views = images[:1].shape[1]
        return ((block, self._episodes(views)) for block, views in images.blocks(self._images_at_once(n_views)))

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        for block, scores in self._predict_view_scores(images):
            self.n_seen += scores.shape[0]
            yield block, scores

    def _predict_scores(self, features: Array) -> Array:
        return self._episodes(features[:, None, :])

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, scores in self._predict_blocks(rows):
            self.n_seen += scores.shape[0]
            yield block, scores

    @property
    def _predict_rows(self) -> int:
        return min(super()._predict_rows, self._images_at_once(1))

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {}, {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        pass
