"""Methods that can learn from several views of an image: `adapt_views` beside `adapt`."""

from __future__ import annotations

from abc import abstractmethod

from zeroshift.arrays import Array, Home, check_matrix, is_array, is_double
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
        if not is_array(views):
            raise TypeError(f"views must be a NumPy array or a torch tensor; got {type(views).__name__}.")
        single = len(views.shape) == 2
        images = views[None, ...] if single else views
        if len(images.shape) != 3 or 0 in images.shape:
            raise ValueError(
                f"views must have the shape (N, V, d), or (V, d) for one image; got {tuple(views.shape)}. "
                "Fix: adapt(features) takes single features."
            )
        for image in range(images.shape[0]):
            check_matrix(f"views[{image}]", images[image], columns=self.dimension)
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
