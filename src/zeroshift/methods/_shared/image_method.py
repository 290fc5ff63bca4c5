"""Base classes of methods that change what the image encoder computes: their input is images, not features."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from zeroshift.arrays import Array, Backend, Rows, as_array, check_matrix
from zeroshift.method import EpisodicMethod, Method
from zeroshift.methods._shared.towers import CoupledPrompts, DeepPrompts, PromptedVision, VisionOutput
from zeroshift.parameters import Model, Number, Optional, model_parameter, parameter

__all__ = ["VISION", "EpisodicImageMethod", "ImageInput", "ImageMethod"]

VISION = Model(PromptedVision, "zeroshift.encode.prompted_vision(encoder)")


class _RawImages(Rows):
    """Images as the caller passed them: the encoder converts them itself."""

    def __getitem__(self, rows: slice) -> Array:
        return self._features[rows]


class ImageInput(Method):
    """A method whose input is images (N, ...), in the form the encoder's preprocessing returns."""

    takes_images: ClassVar[bool] = True
    """Whether calls take images and not features."""
    not_frozen = "it encodes the images that it predicts, with prompts of its own"

    def adapt(self, images: Array) -> Array:
        """Learn from images (N, ...) and predict them: (N, K), or (K,) for one image without its axis."""
        return super().adapt(images)

    def adapt_scores(self, images: Array) -> Array:
        """Like `adapt`, but return the raw scores before they are normalised to probabilities."""
        return super().adapt_scores(images)

    def predict(self, images: Array) -> Array:
        """Probabilities (N, K) of images (N, ...). No state changes and no image is counted."""
        return super().predict(images)

    def predict_scores(self, images: Array) -> Array:
        """Like `predict`, but return the raw scores."""
        return super().predict_scores(images)

    def _rows(self, features: Array) -> Rows:
        return _RawImages(features, Backend.of(self.prototypes), None)

    def _answer_to(
        self, model: PromptedVision | DeepPrompts, images: Array, *, learn: bool, probabilities: bool
    ) -> Array:
        """Scores or probabilities of images (N, ...), or of one without its axis, that `model` encodes."""
        images = as_array("images", images)
        single = len(images.shape) == len(model.input_shape)
        images = images[None] if single else images
        if tuple(images.shape) == (0, *model.input_shape):
            return self._no_answers(images)
        # The whole input is checked before anything is learned: a bad image leaves the state as it was.
        model.check("images", images)
        run = self._adapt_scores if learn else self._predict_blocks
        answer = self._collect(self._rows(images), images, run, learn, probabilities)
        return answer[0] if single else answer


class ImageMethod(ImageInput):
    """An online method that encodes images with `vision`, one batch at a time.

    The images of each call are split into batches of `batch_size`; the last may be smaller. If `vision` is None, the
    images are given as features. A subclass defines `_adapt_batch` and `_predict_scores`.
    """

    protocol = "online"

    vision: PromptedVision | None = model_parameter(
        Optional(VISION),
        "Image side of the encoder. With None, no visual prompt is tuned, and images are given as their unit-length "
        "features (N, d).",
        default=None,
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Images learned from together. The images of each call are split into batches; the last may be smaller.",
        default=64,
    )

    def _validate(self) -> None:
        if self.vision is not None and self.vision.dimension != self.dimension:
            raise ValueError(
                f"vision gives features of d = {self.vision.dimension}, the prototypes have d = {self.dimension}. "
                "Fix: make both from the same encoder."
            )

    @abstractmethod
    def _adapt_batch(self, images: Array) -> Array:
        """Learn from one batch, in a section `self._learning(n)`; return its scores (n, K)."""

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        return ((block, self._adapt_batch(images)) for block, images in rows.blocks(self.batch_size))

    @property
    def _predict_rows(self) -> int:
        return self.batch_size

    def _answer(self, features: Array, *, learn: bool, probabilities: bool) -> Array:
        if self.vision is not None:
            return self._answer_to(self.vision, features, learn=learn, probabilities=probabilities)
        features = as_array("images", features)
        single = len(features.shape) == 1
        images = features[None] if single else features
        if tuple(images.shape) == (0, self.dimension):
            return self._no_answers(images)
        # The whole input is checked before anything is learned: a bad image leaves the state as it was.
        check_matrix("images", images, columns=self.dimension, empty=True)
        run = self._adapt_scores if learn else self._predict_blocks
        answer = self._collect(self._rows(images), images, run, learn, probabilities)
        return answer[0] if single else answer

    def _encode(self, images: Array, prompt: Array | None = None) -> VisionOutput:
        """Features and states of a batch with a visual prompt, in this method's library and in float64."""
        backend = Backend.of(self.prototypes)
        output = VisionOutput(images, images) if self.vision is None else self.vision.encode(images, prompt)
        return VisionOutput(*(backend.asarray(array, backend.xp.float64) for array in output))


class EpisodicImageMethod(ImageInput, EpisodicMethod):
    """An episodic method that encodes each image, or its views. A subclass defines `_image_side` and `_episode`."""

    @property
    @abstractmethod
    def _image_side(self) -> PromptedVision | CoupledPrompts:
        """The model that encodes the images."""

    @abstractmethod
    def _episode(self, views: Array) -> Array:
        """Scores (K,) of one image, view 0 of `views` (V, ...), which are as the caller passed them."""

    def _answer(self, features: Array, *, learn: bool, probabilities: bool) -> Array:
        features = as_array("images", features)
        single = len(features.shape) == len(self._image_side.input_shape)
        images = features[None] if single else features
        if tuple(images.shape) == (0, *self._image_side.input_shape):
            return self._no_answers(images)
        self._image_side.check("images", images)
        answer = self._answer_images(images[:, None], learn=learn, probabilities=probabilities)
        return answer[0] if single else answer

    def _answer_views(self, views: Array, *, learn: bool, probabilities: bool) -> Array:
        views = as_array("views", views)
        single = len(views.shape) == len(self._image_side.input_shape) + 1
        images = views[None] if single else views
        self._check_views(images)
        answer = self._answer_images(images, learn=learn, probabilities=probabilities)
        return answer[0] if single else answer

    def _answer_images(self, images: Array, *, learn: bool, probabilities: bool) -> Array:
        """Scores or probabilities (N, K) of checked views (N, V, ...)."""
        run = self._adapt_view_scores if learn else self._predict_view_scores
        return self._collect(self._rows(images), images, run, learn, probabilities)

    def _check_views(self, images: Any) -> None:
        shape = self._image_side.input_shape
        if len(images.shape) != len(shape) + 2 or not images.shape[0]:
            raise ValueError(
                f"views must have the shape (N, V, {', '.join(map(str, shape))}), or without the N for one image, as "
                f"the encoder's preprocessing returns them; got {tuple(images.shape)}. "
                "Fix: zeroshift.pipeline makes them."
            )
        for number in range(images.shape[0]):
            self._image_side.check(f"views[{number}]", images[number])

    def _images_per_block(self, n_views: int) -> int:
        return 1

    def _episodes(self, views: Array) -> Array:
        return Backend.of(self.prototypes).xp.stack([self._episode(image) for image in views])
