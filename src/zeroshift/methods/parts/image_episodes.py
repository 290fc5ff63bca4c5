"""Episodic methods that tune an image side: they are given the pixels of views, and no features."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from zeroshift.arrays import Array, Home, is_array, is_double
from zeroshift.methods.parts.maple_towers import CoupledPrompts
from zeroshift.view_method import EpisodicMethod

__all__ = ["ImageEpisodes"]


class ImageEpisodes(EpisodicMethod):
    """Every image, or its views, is looked at through `maple`, one image at a time. A subclass fills in `_episode`."""

    takes_images: ClassVar[bool] = True
    """Whether calls are given images, as the encoder's preprocessing makes them."""
    model_parameters: ClassVar[tuple[str, ...]] = ("maple",)

    maple: CoupledPrompts

    @abstractmethod
    def _episode(self, views: Array) -> Array:
        """Scores (K,) of one image, view 0 of `views` (V, ...), which are as they came from the caller."""

    def adapt(self, images: Array) -> Array:
        """Tune to each image, its only view, and predict it: (N, K) for (N, ...); (K,) for one without its axis."""
        return super().adapt(images)

    def adapt_scores(self, images: Array) -> Array:
        """As `adapt`, but the raw scores before they are normalised to probabilities."""
        return super().adapt_scores(images)

    def predict(self, images: Array) -> Array:
        """As `adapt`, uncounted."""
        return super().predict(images)

    def predict_scores(self, images: Array) -> Array:
        """As `predict`, but the raw scores."""
        return super().predict_scores(images)

    def _answer(self, features: Array, *, learn: bool, probabilities: bool) -> Array:
        single = is_array(features) and len(features.shape) == len(self.maple.input_shape)
        images = features[None] if single else features
        self.maple.check("images", images)
        answer = self._answered(images[:, None], learn=learn, probabilities=probabilities)
        return answer[0] if single else answer

    def _answer_views(self, views: Array, *, learn: bool, probabilities: bool) -> Array:
        single = is_array(views) and len(views.shape) == len(self.maple.input_shape) + 1
        images = self._checked_views(views[None] if single else views)
        answer = self._answered(images, learn=learn, probabilities=probabilities)
        return answer[0] if single else answer

    def _checked_views(self, images: Any) -> Array:
        """All of them before anything is counted: a bad view leaves the method as it was."""
        shape = self.maple.input_shape
        if not is_array(images) or len(images.shape) != len(shape) + 2 or not images.shape[0]:
            got = tuple(images.shape) if is_array(images) else type(images).__name__
            raise ValueError(
                f"views must have the shape (N, V, {', '.join(map(str, shape))}), or without the N for one image, as "
                f"the encoder's preprocessing makes them; got {got}. Fix: zeroshift.encode.adapt_images makes them."
            )
        for number in range(images.shape[0]):
            self.maple.check(f"views[{number}]", images[number])
        return images

    def _answered(self, images: Array, *, learn: bool, probabilities: bool) -> Array:
        home, caller = Home.of(self.prototypes), Home.of(images)
        precision = "float64" if is_double(images) else "float32"
        with home.computing():
            answer = home.zeros((int(images.shape[0]), self.n_classes), getattr(home.xp, precision))
            for number in range(images.shape[0]):
                scores = self._episode(images[number])[None, :]
                self.n_seen += learn
                answer[number] = (self._probabilities(scores) if probabilities else scores)[0]
            return caller.bring(answer, getattr(caller.xp, precision))

    def _episodes(self, views: Array) -> Array:
        return Home.of(self.prototypes).xp.stack([self._episode(image) for image in views])
