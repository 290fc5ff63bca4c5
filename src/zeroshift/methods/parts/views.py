"""Methods that can learn from several views of an image: `adapt_views` beside `adapt`."""

from __future__ import annotations

from abc import abstractmethod

from zeroshift.arrays import Array, Home, is_double
from zeroshift.feature_checks import blocks
from zeroshift.low_entropy import as_images, check_unit_views
from zeroshift.method import Method

__all__ = ["ViewMethod"]


class ViewMethod(Method):
    """An online method that is given (V, d) views of an image, view 0 the image itself, as well as single features.

    A subclass fills in `_adapt_view`, and has the parameter `view_ratio`: the share of views kept.
    """

    takes = ("views",)

    view_ratio: float

    @abstractmethod
    def _adapt_view(self, views: Array) -> Array:
        """Learn from the views (V, d) of one image; scores (K,)."""

    def adapt_views(self, views: Array) -> Array:
        """Learn from each image's surest views and predict it: (N, K) for (N, V, d), (K,) for (V, d) of one image."""
        return self._answer_views(views, probabilities=True)

    def adapt_views_scores(self, views: Array) -> Array:
        """As `adapt_views`, but the raw scores."""
        return self._answer_views(views, probabilities=False)

    def _answer_views(self, views: Array, *, probabilities: bool) -> Array:
        images, single = as_images(views, self.dimension)
        # All of them before anything is learned: a bad view leaves the state as it was.
        for some in blocks(images.shape[0], images.shape[1] * images.shape[2]):
            check_unit_views(images[some], some.start)
        home, caller = Home.of(self.prototypes), Home.of(images)
        precision = "float64" if is_double(images) else "float32"
        wanted = getattr(home.xp, self.computes_in or precision)
        with home.computing():
            answer = home.zeros((images.shape[0], self.n_classes), getattr(home.xp, precision))
            for image in range(images.shape[0]):
                scores = self._adapt_view(home.bring(images[image], wanted))
                self.n_seen += 1
                answer[image] = self._probabilities(scores[None, :])[0] if probabilities else scores
            answer = caller.bring(answer, getattr(caller.xp, precision))
        return answer[0] if single else answer
