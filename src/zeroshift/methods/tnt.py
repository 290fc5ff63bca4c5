"""TNT: noise on the pixels of an image, tuned so that its views agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, as_floats, namespace, to_numpy
from zeroshift.methods._shared.image_method import VISION, EpisodicImageMethod
from zeroshift.methods._shared.similarity import normalize_rows
from zeroshift.methods._shared.towers import PromptedVision
from zeroshift.methods._shared.tuning import entropy_of_mean
from zeroshift.methods.zero import break_ties
from zeroshift.parameters import Number, array_parameter, model_parameter, parameter
from zeroshift.views import marginal_entropy, select_lowest_entropy
from zeroshift.zero_shot import logits, softmax

__all__ = ["TNT", "mean_distance"]

MACHINE_EPSILON = 2.0**-23
"""Of float32."""

EQUAL = 1e-9
"""Features closer than this are equal: what is left of their difference is rounding."""


def mean_distance(features: Array) -> tuple[Array, Array]:
    """Mean distance of all pairs of different features (n, d), 0 if there is no such pair, and its gradient (n, d).

    >>> import numpy as np
    >>> loss, gradient = mean_distance(np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 4.0]]))
    >>> float(loss), gradient
    (5.0, array([[ 0.6, -0.8],
           [-0.3,  0.4],
           [-0.3,  0.4]]))
    """
    xp = namespace(features)
    differences = features[:, None, :] - features[None, :, :]
    distances = xp.linalg.vector_norm(differences, axis=-1)
    apart = xp.astype(distances > EQUAL, distances.dtype)
    n_pairs = xp.sum(apart)
    shares = apart / xp.where(n_pairs > 0, n_pairs, xp.ones_like(n_pairs))
    loss = xp.sum(shares * distances)
    directions = differences / xp.where(apart > 0, distances, xp.ones_like(distances))[:, :, None]
    return loss, 2 * xp.sum(shares[:, :, None] * directions, axis=1)


class TNT(EpisodicImageMethod):
    """Adds one noise map to all views of an image. A step against the sign of its gradient lowers the entropy of the
    mean prediction of the most confident views and the distances between their features. Then the most confident of the
    noisy views vote. Nothing is kept for the next image.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TNT
    >>> from zeroshift.testing.examples import ExampleVision
    >>> tnt = TNT(np.eye(2), vision=ExampleVision(np.eye(2)), logit_scale=5.0, vote_ratio=0.5)
    >>> tnt.adapt_views_scores(np.array([[0.8, 0.6], [1.0, 0.0], [0.0, 1.0], [0.96, 0.28]]))
    array([1., 2.])

    Notes
    -----
    Imam et al., *Noise is an Efficient Learner for Zero-Shot Vision-Language Models*, ICCV workshops 2025. The authors
    use 64 views without AugMix and one setting for all data; no labels are used. Their code does not start as it is
    published, but the two functions that define the method do.

    The noise starts as a standard normal cut off at `max_noise`, so nearly every number is plus or minus that. The
    authors draw it again for every image; here it is drawn once, from `seed`, so that an answer does not depend on the
    images before. As in their code, the temperature of the vote is the machine epsilon of float32, times 1 plus the
    entropy of the mean prediction of all views, and not the 7e-3 of their description: the vote is hard. Under their
    mixed precision on a GPU, the epsilon is 2^-10 and the vote soft.

    If classes tie, the first view whose class is among them decides. As in the authors' code, that is the first in the
    order given, not in that of confidence, and the search leaves out as many views at its beginning as vote. If none of
    the others' classes is tied, the largest cosine of the first of them decides, as in ZERO. Probabilities are shares
    of votes: if all views agree, the other classes have probability 0. With fewer than ten views the authors' code
    keeps none; here one is kept.

    The input is pixels; features are not enough. Gradients are computed only for the views kept, a few at a time.
    """

    name = "tnt"
    headline = "Tunes noise on the pixels of each image"
    needs = ("prototypes", "vision", "views")
    overconfident = True
    state_size = "K d + P: the prototypes, and the initial noise for the P numbers of an image"
    complexity = "2 V + (2 S - 1) n passes of an image, S n of them with gradients, S = steps, n views kept"
    example_parameters: ClassVar[Mapping[str, Any]] = {"max_noise": 0.5, "rate": 0.1, "steps": 2}

    vision: PromptedVision = model_parameter(VISION, "Image side of the encoder.")
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views that the noise is tuned on, those of lowest entropy with the initial noise; at least one.",
        default=0.1,
    )
    vote_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views that vote, those of lowest entropy with the tuned noise; at least one.",
        default=0.1,
    )
    max_noise: float = parameter(
        Number(0, 1), "Largest absolute value of the noise; the brightness of a pixel is from 0 to 1.", default=1 / 255
    )
    steps: int = parameter(Number(low=0, integer=True), "Steps per image; 0 leaves the initial noise.", default=1)
    rate: float = parameter(Number(low=0), "Step size: how far every number of the noise moves.", default=1e-3)
    entropy_weight: float = parameter(
        Number(low=0), "Weight of the entropy, relative to the mean distance of the features.", default=0.1
    )
    temperature: float = parameter(
        Number(low=0, above=True),
        "Temperature of the vote over cosines, multiplied by 1 plus the entropy of the mean prediction. The default is "
        "the machine epsilon of float32.",
        default=MACHINE_EPSILON,
    )
    seed: int = parameter(Number(low=0, integer=True), "Seed of the initial noise.", default=0)
    noise: Array | None = array_parameter(
        "Initial noise, of the shape of an image, in place of one drawn from `seed`.", default=None
    )

    def _validate(self) -> None:
        if self.vision.dimension != self.dimension:
            raise ValueError(
                f"vision gives features of d = {self.vision.dimension}, the prototypes have d = {self.dimension}. "
                "Fix: make both from the same encoder."
            )
        if self.vision.noise_shape is None:
            raise ValueError(
                f"vision cannot add noise to images; got {self.vision!r}. "
                "Fix: vision=zeroshift.encode.prompted_vision(encoder)."
            )
        if self.noise is not None:
            self.noise = self._checked_noise(self.noise, self.vision.noise_shape)

    def _checked_noise(self, noise: Array, shape: tuple[int, ...]) -> Array:
        """A copy in the library of the prototypes, in float64."""
        noise, backend = as_floats("noise", noise), Backend.of(self.prototypes)
        if tuple(noise.shape) != shape:
            raise ValueError(f"noise must have the shape {shape}, that of an image; got {tuple(noise.shape)}.")
        largest = float(np.abs(to_numpy(noise)).max())
        if not largest <= self.max_noise * (1 + 1e-6):  # 1e-6 for rounding to float32; NaN fails, too
            raise ValueError(
                f"noise must be from -max_noise to max_noise = {self.max_noise:g}; its largest absolute value is "
                f"{largest:g}. Fix: noise.clip(-max_noise, max_noise), or a larger max_noise."
            )
        with backend.computing():
            return backend.copy(backend.asarray(noise, backend.xp.float64))

    def _prepare(self) -> None:
        self._initial_noise: Array = self.noise
        if self.noise is None:
            drawn = np.random.default_rng(self.seed).normal(size=self.vision.noise_shape)
            self._initial_noise = Backend.of(self.prototypes).asarray(drawn.clip(-self.max_noise, self.max_noise))

    @property
    def _image_side(self) -> PromptedVision:
        return self.vision

    def _tuned_noise(self, views: Array) -> Array:
        """The noise after the steps for the views (V, ...) of one image."""
        xp = namespace(self._initial_noise)
        noise, kept, features = self._initial_noise, views, None
        for step in range(self.steps):
            if step == 0:
                features = self._encode(views, noise)
                numbers = select_lowest_entropy(self._scores(features), self.view_ratio)
                kept, features = views[Backend.of(views).index(to_numpy(numbers))], features[numbers]
            else:
                features = self._encode(kept, noise)
            moved = noise - self.rate * xp.sign(self._gradient(kept, features, noise))
            noise = xp.clip(moved, -self.max_noise, self.max_noise)
        return noise

    def _gradient(self, kept: Array, features: Array, noise: Array) -> Array:
        """Gradient of the loss of the kept views (n, ...), with features (n, d), with respect to the noise."""
        backend = Backend.of(self.prototypes)
        _, score_gradient = entropy_of_mean(self._scores(features))
        _, feature_gradient = mean_distance(features)
        upstream = self.entropy_weight * self.logit_scale * (score_gradient @ self.prototypes64) + feature_gradient
        return backend.asarray(self.vision.pull_back_noise(kept, noise, upstream), backend.xp.float64)

    def _episode(self, views: Array) -> Array:
        cosines = logits(self._encode(views, self._tuned_noise(views)), self.prototypes64, 1.0)
        scores = self.logit_scale * cosines
        voters = select_lowest_entropy(scores, self.vote_ratio)
        temperature = self.temperature * (1 + marginal_entropy(scores))
        votes = namespace(cosines).sum(softmax(cosines[voters] / temperature), axis=0)[None]
        return break_ties(votes, cosines[None, voters.shape[0] :])[0]

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)

    def _encode(self, views: Array, noise: Array) -> Array:
        backend = Backend.of(self.prototypes)
        return backend.asarray(self.vision.encode_with_noise(views, noise), backend.xp.float64)

    def _scores(self, features: Array) -> Array:
        return logits(features, self.prototypes64, self.logit_scale)
