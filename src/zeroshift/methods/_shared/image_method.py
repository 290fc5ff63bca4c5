"""Base classes of methods that change what the image encoder computes: their input is images, not features."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from zeroshift.arrays import Array, Backend, Rows, as_array
from zeroshift.method import EpisodicMethod, Method, OnlineMethod
from zeroshift.methods._shared.towers import PromptedVision, VisionOutput
from zeroshift.parameters import Model, Number, model_parameter, parameter

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

    @property
    @abstractmethod
    def _image_side(self) -> Any:
        """The model that encodes the images, `PromptedVision` or `DeepPrompts`: it has `input_shape` and `check`."""

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

    def _answer(self, features: Array, *, learn: bool, probabilities: bool) -> Array:
        images, side = as_array("images", features), self._image_side
        single = len(images.shape) == len(side.input_shape)
        images = images[None] if single else images
        if tuple(images.shape) == (0, *side.input_shape):
            return self._no_answers(images)
        # The whole input is checked before anything is learned: a bad image leaves the state as it was.
        side.check("images", images)
        run = self._adapt_scores if learn else self._predict_blocks
        answer = self._collect(self._rows(images), images, run, learn, probabilities)
        return answer[0] if single else answer


def images_together(default: int) -> Any:
    """The parameter `batch_size` of an online method."""
    return parameter(
        Number(low=1, integer=True),
        "Images learned from together. The images of each call are split into batches; the last may be smaller.",
        default=default,
    )


class ImageMethod(ImageInput, OnlineMethod):
    """An online method that encodes batches of images with `vision`. `plan` returns a tuple with their `scores`."""

    vision: PromptedVision = model_parameter(VISION, "Image side of the encoder.")
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    batch_size: int = images_together(64)

    def _validate(self) -> None:
        check_vision(self.vision, self.prototypes)

    @property
    def _image_side(self) -> Any:
        return self.vision

    def answer(self, images: Array, step: Any) -> Array:
        return step.scores

    def _encode(self, images: Array, prompt: Array | None = None) -> VisionOutput:
        """Features and states of images with a visual prompt, in this method's library and in float64."""
        return VisionOutput(*map(self.as_float64, self.vision.encode(images, prompt)))


class EpisodicImageMethod(ImageInput, EpisodicMethod):
    """An episodic method that encodes each image, or its views. A subclass defines `_image_side` and `_episode`."""

    @abstractmethod
    def _episode(self, views: Array) -> Array:
        """Scores (K,) of one image, view 0 of `views` (V, ...), which are as the caller passed them."""

    def _answer_views(self, views: Array, *, learn: bool, probabilities: bool) -> Array:
        images, shape = as_array("views", views), self._image_side.input_shape
        single = len(images.shape) == len(shape) + 1
        images = images[None] if single else images
        if len(images.shape) != len(shape) + 2 or not images.shape[0]:
            raise ValueError(
                f"views must have the shape (N, V, {', '.join(map(str, shape))}), or without the N for one image, as "
                f"the encoder's preprocessing returns them; got {tuple(images.shape)}. "
                "Fix: zeroshift.pipeline makes them."
            )
        for number in range(images.shape[0]):
            self._image_side.check(f"views[{number}]", images[number])
        run = self._adapt_view_scores if learn else self._predict_view_scores
        answer = self._collect(self._rows(images), images, run, learn, probabilities)
        return answer[0] if single else answer

    def _images_per_block(self, n_views: int) -> int:
        return 1

    def _episodes(self, views: Array) -> Array:
        return Backend.of(self.prototypes).xp.stack([self._episode(image) for image in views])


def check_vision(vision: PromptedVision, prototypes: Array) -> None:
    """ValueError if the image side gives features of another dimension than the prototypes have."""
    if vision.dimension != int(prototypes.shape[1]):
        raise ValueError(
            f"vision gives features of d = {vision.dimension}, the prototypes have d = {prototypes.shape[1]}. "
            "Fix: make both from the same encoder."
        )
