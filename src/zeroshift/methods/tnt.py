"""TNT: noise on the pixels of an image, tuned so that its views agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.methods._shared.image_method import VISION, EpisodicImageMethod, check_vision
from zeroshift.methods._shared.similarity import normalize_rows
from zeroshift.methods._shared.towers import PromptedVision
from zeroshift.methods._shared.tuning import checked_start, entropy_of_mean
from zeroshift.methods.zero import break_ties
from zeroshift.parameters import Number, array_parameter, model_parameter, parameter
from zeroshift.views import marginal_entropy, select_lowest_entropy
from zeroshift.zero_shot import logits, softmax

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
    apart = distances > EQUAL
    n_pairs = max(int(apart.sum()), 1)
    inverse = 1 / xp.where(apart, distances, xp.inf)  # 0 for equal features
    return distances[apart].sum() / n_pairs, 2 / n_pairs * xp.sum(inverse[:, :, None] * differences, axis=1)


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
    complexity = "2 V + 2 S n passes of an image, S n of them with gradients, S = steps, n views kept"
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
        check_vision(self.vision, self.prototypes)
        if self.vision.noise_shape is None:
            raise ValueError(
                f"vision cannot add noise to images; got {self.vision!r}. "
                "Fix: vision=zeroshift.encode.prompted_vision(encoder)."
            )
        if self.noise is not None:
            noise = checked_start("noise", self.noise, self.vision.noise_shape, "noise of the shape of an image")
            if (largest := np.abs(noise).max()) > self.max_noise * (1 + 1e-6):  # 1e-6 for rounding to float32
                raise ValueError(
                    f"noise must be from -max_noise to max_noise = {self.max_noise:g}; its largest absolute value is "
                    f"{largest:g}. Fix: noise.clip(-max_noise, max_noise), or a larger max_noise."
                )
            self.noise = self.as_own(noise)

    def _prepare(self) -> None:
        drawn = np.random.default_rng(self.seed).normal(size=self.vision.noise_shape)
        drawn = self.as_own(drawn.clip(-self.max_noise, self.max_noise))
        self._initial_noise: Array = drawn if self.noise is None else self.noise

    @property
    def _image_side(self) -> PromptedVision:
        return self.vision

    def _tuned_noise(self, views: Array) -> Array:
        """The noise after the steps for the views (V, ...) of one image."""
        noise, xp = self._initial_noise, namespace(self._initial_noise)
        if self.steps:
            numbers = select_lowest_entropy(self._scores(self._encode(views, noise)), self.view_ratio)
            views = views[Backend.of(views).index(to_numpy(numbers))]
        for _ in range(self.steps):
            moved = noise - self.rate * xp.sign(self._gradient(views, noise))
            noise = xp.clip(moved, -self.max_noise, self.max_noise)
        return noise

    def _gradient(self, kept: Array, noise: Array) -> Array:
        """Gradient of the loss of the kept views (n, ...) for the noise."""
        features = self._encode(kept, noise)
        _, slope = entropy_of_mean(self._scores(features))
        _, to_features = mean_distance(features)
        upstream = self.entropy_weight * self.logit_scale * (slope @ self.prototypes64) + to_features
        return self.as_float64(self.vision.pull_back_noise(kept, noise, upstream))

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
        return self.as_float64(self.vision.encode_with_noise(views, noise))

    def _scores(self, features: Array) -> Array:
        return logits(features, self.prototypes64, self.logit_scale)
