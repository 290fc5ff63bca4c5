"""Mint: image layer norms adapted so that the predicted classes differ from each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from zeroshift.arrays import Array, namespace, to_numpy
from zeroshift.methods._shared.image_method import images_together
from zeroshift.methods._shared.norm_tuned import NormTuned
from zeroshift.methods._shared.similarity import one_hot, unit_rows
from zeroshift.methods._shared.tuning import AdamW, through_unit_rows
from zeroshift.parameters import Number, parameter, state
from zeroshift.state_checks import check_lengths, check_range, check_seen
from zeroshift.zero_shot import logits, pseudo_class


class ClassSums(NamedTuple):
    """Sums of the unit features assigned to each class."""

    sums: Array
    """(K, d)."""
    counts: Array
    """(K,)."""

    def added(self, features: Array, members: Array) -> ClassSums:
        """With features (n, d) added; `members` (n, K) has a one at the class of each."""
        return ClassSums(self.sums + members.T @ features, self.counts + namespace(members).sum(members, axis=0))

    def means(self) -> Array:
        """Means (K, d); zero for a class without features."""
        return self.sums / namespace(self.counts).clip(self.counts, 1.0, None)[:, None]

    def check_seen(self, n_seen: int) -> None:
        """ValueError for what no sums of so many unit features are."""
        check_range("counts", self.counts, 0)
        check_seen("the sum of counts", float(to_numpy(self.counts).sum()), n_seen)
        check_lengths("sums, divided by the counts,", self.means())


def variance_gradient(members: Array, seen: ClassSums) -> Array:
    """Gradient (n, d), with respect to unit features, of minus the variance between classes; see `ClassSums.added`.

    The means of the classes and of all features, from `seen`, are constants. Every class in the batch has the same
    weight, shared by its features. So each feature is moved along the difference of its class from the mean of all:

    >>> import numpy as np
    >>> seen = ClassSums(np.array([[2.0, 0.0], [0.0, 2.0]]), np.array([2.0, 2.0]))
    >>> variance_gradient(np.eye(2)[[0, 0, 1]], seen)
    array([[-0.25,  0.25],
           [-0.25,  0.25],
           [ 0.5 , -0.5 ]])
    """
    xp = namespace(members)
    offsets = seen.means() - xp.sum(seen.sums, axis=0) / xp.sum(seen.counts)
    counts = xp.sum(members, axis=0)
    weights = 1 / (xp.sum(xp.astype(counts > 0, counts.dtype)) * xp.clip(counts, 1.0, None))
    return -2 * members @ (weights[:, None] * offsets)


class MintStep(NamedTuple):
    """What a batch leads to."""

    before: ClassSums
    after: ClassSums
    gradient_mean: Array
    """(P,)."""
    norms: Array
    """(P,)."""
    scores: Array
    """(B, K)."""


class Mint(NormTuned):
    """Adapts the weights and biases of the image encoder's layer norms for each batch by one step that increases the
    variance between the predicted classes. The step follows the mean gradient of all batches so far, and then the layer
    norms are restored: what lasts are that mean and the class means of the features. A batch is predicted after its
    step, with prototypes mixed from text and class means.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import Mint
    >>> from zeroshift.testing.examples import ExampleVision
    >>> mint = Mint(np.eye(2), vision=ExampleVision(np.eye(2)), logit_scale=5.0, rate=0.1, prior=10)
    >>> mint.adapt(np.array([[1.0, 0.0], [0.6, 0.8]])).round(3)
    array([[0.997, 0.003],
           [0.137, 0.863]])

    Notes
    -----
    Bao et al., *Mint: A Simple Test-Time Adaptation of Vision-Language Models against Common Corruptions*, NeurIPS
    2025. No labels are used. The authors take a rate of 7e-3 for CIFAR-10-C and CIFAR-100-C and 1.5e-2 for ImageNet-C,
    one per data set without a published procedure; prototypes are the mean of seven templates, and the scale of the
    logits is 100. `reset` clears everything; the authors do that before every new corruption.

    Each step is the first one of Adam: every number moves by nearly `rate`, against the sign of its mean gradient. As
    long as all features so far are of one class, the exact gradient is 0, and it is set to 0 here. In the authors'
    code, rounding in float32 can then cause noisy steps. Gradients are computed a few images at a time, so memory does
    not grow with the batch.

    `predict` uses the step along the mean gradient so far and the class means so far. Before the first batch that is
    zero-shot.
    """

    name = "mint"
    headline = "Spreads classes through the image layer norms"
    needs = ("prototypes", "vision")
    state_size = "2 K (d + 1) + P: two sets of class sums, and the mean gradient of P weights and biases"
    complexity = "up to 3 passes of each image, one of them with gradients"
    example_parameters: ClassVar[Mapping[str, Any]] = {"batch_size": 4}

    batch_size: int = images_together(20)
    rate: float = parameter(Number(low=0), "Step size.", default=7e-3)
    prior: float = parameter(
        Number(low=0),
        "Weight of the text prototypes, in features: after N features the class means have the weight N / (prior + N).",
        default=10000.0,
    )

    _before: ClassSums = state(lambda self: self._no_sums(), saved_as="before")
    _after: ClassSums = state(lambda self: self._no_sums(), saved_as="after")
    _gradient_mean: Array = state(lambda self: 0 * self._initial_norms)
    _n_batches: int = state(0, check=lambda self, count: check_seen("n_batches", count, self.n_seen))

    def _no_sums(self) -> ClassSums:
        return ClassSums(self.zeros(self.n_classes, self.dimension), self.zeros(self.n_classes))

    def _derive(self) -> None:
        self._norms = self._stepped(self._gradient_mean)

    def plan(self, images: Array) -> MintStep:
        raw, pull_back = self._linearize(images, self._initial_norms)
        features = unit_rows(raw)
        members = self._members(features)
        before = self._before.added(features, members)
        gradient = 0 * self._initial_norms
        if int((before.counts > 0).sum()) > 1:  # otherwise the mean of the class is that of all features
            gradient = pull_back(through_unit_rows(variance_gradient(members, before), raw))
        gradient_mean = self._gradient_mean + (gradient - self._gradient_mean) / (self._n_batches + 1)
        norms = self._stepped(gradient_mean)
        adapted = unit_rows(self._raw_features(images, norms))
        after = self._after.added(adapted, self._members(adapted))
        return MintStep(before, after, gradient_mean, norms, self._scores(adapted, after))

    def learn(self, step: MintStep) -> None:
        self._before, self._after, self._gradient_mean, self._norms, _ = step
        self._n_batches += 1

    def score(self, images: Array) -> Array:
        return self._scores(unit_rows(self._raw_features(images, self._norms)), self._after)

    def _stepped(self, gradient: Array) -> Array:
        return AdamW(self.rate, weight_decay=0.0).step(self._initial_norms, gradient)

    def _members(self, features: Array) -> Array:
        """The predicted class of each feature as a row (n, K) with a one."""
        return one_hot(pseudo_class(logits(features, self.prototypes64, self.logit_scale)), self.n_classes)

    def _scores(self, features: Array, seen: ClassSums) -> Array:
        n = namespace(seen.counts).sum(seen.counts)
        share = n / (self.prior + n) if float(n) else n
        return logits(features, unit_rows((1 - share) * self.prototypes64 + share * seen.means()), self.logit_scale)
