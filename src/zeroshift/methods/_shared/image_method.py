"""Methods that prompt the image side of an encoder: they are given images, in batches, and no features."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

from zeroshift.arrays import Array, Home, Rows, check_matrix, is_array, is_double
from zeroshift.method import EpisodicMethod
from zeroshift.methods._shared.towers import CoupledPrompts, Glance, PromptedVision
from zeroshift.methods._shared.whole_steps import WholeSteps
from zeroshift.parameters import Model

__all__ = ["VISION", "ImageEpisodes", "ImageMethod"]

VISION = Model(PromptedVision, "zeroshift.encode.prompted_vision(encoder)")


class ImageMethod(WholeSteps):
    """A method that looks at images through `vision`, `batch_size` of them at a time.

    Each call's images are cut into batches, the last of which may be shorter. Where `vision` is None, an image is given
    as its feature. A subclass fills in `_learned` and `_predict_scores`.
    """

    protocol = "online"
    takes_images: ClassVar[bool] = True
    """Whether `adapt` and `predict` are given images, as the encoder's preprocessing makes them."""
    model_parameters: ClassVar[tuple[str, ...]] = ("vision",)

    vision: PromptedVision | None
    batch_size: int
    logit_scale: float

    def _validate(self) -> None:
        if self.vision is not None and self.vision.dimension != self.dimension:
            raise ValueError(
                f"vision gives features of d = {self.vision.dimension}, the prototypes have d = {self.dimension}. "
                "Fix: make both from the same encoder."
            )

    @abstractmethod
    def _learned(self, images: Array) -> tuple[Array, partial[None]]:
        """Scores (B, K) of a batch as it came from the caller, and what writes down the lesson (see `WholeSteps`)."""

    def adapt(self, images: Array) -> Array:
        """Learn from images (N, ...) and predict them, batch by batch: (N, K); (K,) for one without its axis."""
        return super().adapt(images)

    def adapt_scores(self, images: Array) -> Array:
        """As `adapt`, but the raw scores before they are normalised to probabilities."""
        return super().adapt_scores(images)

    def predict(self, images: Array) -> Array:
        """Probabilities with what has been learned so far. Nothing is learned and no state changes."""
        return super().predict(images)

    def predict_scores(self, images: Array) -> Array:
        """As `predict`, but the raw scores."""
        return super().predict_scores(images)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, images in rows.blocks(self.batch_size):
            scores, write = self._learned(images)
            self._commit(write, samples=block.stop - block.start)
            yield block, scores

    @property
    def _predict_rows(self) -> int:
        return self.batch_size

    def _answer(self, features: Array, *, learn: bool, probabilities: bool) -> Array:
        self._finish()
        shape = (self.dimension,) if self.vision is None else self.vision.input_shape
        single = is_array(features) and len(features.shape) == len(shape)
        images = features[None] if single else features
        # All of them before anything is learned: a bad image leaves the state as it was.
        if self.vision is None:
            check_matrix("images", images, columns=self.dimension)
        else:
            self.vision.check("images", images)
        home, caller = Home.of(self.prototypes), Home.of(images)
        precision = "float64" if is_double(images) else "float32"
        rows = _Images(images, home, None)
        with home.computing():
            answer = home.zeros((len(rows), self.n_classes), getattr(home.xp, precision))
            for block, scores in self._adapt_scores(rows) if learn else self._predict_blocks(rows):
                answer[block] = self._probabilities(scores) if probabilities else scores
            answer = caller.bring(answer, getattr(caller.xp, precision))
        return answer[0] if single else answer

    def _see(self, images: Array, prompt: Array | None = None) -> Glance:
        """Features and states of a batch under a prompt, at home in float64."""
        home = Home.of(self.prototypes)
        glance = Glance(images, images) if self.vision is None else self.vision.see(images, prompt)
        return Glance(*(home.bring(array, home.xp.float64) for array in glance))


class _Images(Rows):
    """Handed out as they came: what becomes of pixels is the encoder's business."""

    def __getitem__(self, rows: slice) -> Array:
        return self._features[rows]


# Episodic methods that tune an image side: they are given the pixels of views, and no features.


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
