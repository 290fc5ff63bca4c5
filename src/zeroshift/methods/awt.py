"""AWT: views and descriptions weighted by certainty, and matched by optimal transport."""

from __future__ import annotations

from collections.abc import Iterator

from zeroshift.arrays import Array, Home, namespace
from zeroshift.method import EpisodicMethod
from zeroshift.methods._shared.prompts import checked_prompts
from zeroshift.methods._shared.sinkhorn import (
    REGULARISATION,
    Factors,
    Round,
    alternate,
    plan,
    scaling_round,
    small_change,
)
from zeroshift.parameters import Number, array_parameter, parameter
from zeroshift.views import entropy
from zeroshift.zero_shot import logits, softmax

__all__ = ["AWT", "ClassTransports", "certainty_weights", "replaced_entropy"]


# Weights by certainty, as AWT gives them to views and to descriptions: the lower an entropy, the larger the share.


def certainty_weights(entropies: Array, temperature: float) -> Array:
    """Weights over the last axis, summing to 1: softmax(-H / temperature).

    >>> import numpy as np
    >>> certainty_weights(np.array([0.0, 0.5]), 0.5).round(3)
    array([0.731, 0.269])
    """
    return softmax(-entropies / temperature)


def replaced_entropy(base: Array, logits: Array) -> Array:
    """The entropy (..., K, P) of softmax(base), base (..., K), once its entry k is replaced by `logits[..., k, p]`.

    In closed form: what the other classes have among themselves is the same for all p, and the chain rule of entropy
    adds the one that changed. No array has more than K P numbers an image, where one vector for each would be K^2 P.

    >>> import numpy as np
    >>> from zeroshift.views import entropy
    >>> base, logits = np.array([1.0, 2.0, 0.5]), np.array([[1.5], [3.0], [0.0]])
    >>> replaced_entropy(base, logits)[1].round(6), entropy(np.array([1.0, 3.0, 0.5])).round(6)
    (array([0.587629]), np.float64(0.587629))
    """
    xp = namespace(base)
    if base.shape[-1] == 1:
        return xp.zeros_like(logits)  # one class is certain
    total, inner = _others(base)
    odds = logits - total[..., None]
    tail = xp.exp(-xp.abs(odds))
    lesser = tail / (1 + tail)
    others = xp.where(odds > 0, lesser, 1 - lesser)
    return xp.log1p(tail) + xp.abs(odds) * lesser + others * inner[..., None]


def _others(base: Array) -> tuple[Array, Array]:
    """For each class, of all the others: the logarithm of their summed exponentials, and their own entropy (..., K)."""
    xp = namespace(base)
    classes = xp.arange(base.shape[-1], device=Home.of(base).device)
    likeliest = classes == xp.argmax(base, axis=-1, keepdims=True)
    # Of all classes but a less likely one, by subtraction: the likeliest stays, so little is lost to rounding.
    shift, weights, weighted = _sums(base, classes >= 0)
    sums, products = xp.sum(weights, axis=-1, keepdims=True), xp.sum(weighted, axis=-1, keepdims=True)
    sums, products = sums - weights, products - weighted
    # Without the likeliest, which may hold all but 1e-16 of the sum, they are summed afresh.
    second, weights, weighted = _sums(base, ~likeliest)
    sums = xp.where(likeliest, xp.sum(weights, axis=-1, keepdims=True), sums)
    products = xp.where(likeliest, xp.sum(weighted, axis=-1, keepdims=True), products)
    logs = xp.log(sums)
    return logs + xp.where(likeliest, second, shift), logs - products / sums


def _sums(base: Array, among: Array) -> tuple[Array, Array, Array]:
    """The largest logit `among` some classes, e^b and b e^b with b shifted by it; nothing of the classes left out."""
    xp = namespace(base)
    highest = xp.max(xp.where(among, base, -xp.inf), axis=-1, keepdims=True)
    shifted = xp.where(among, base - highest, xp.zeros_like(base))
    weights = xp.where(among, xp.exp(shifted), xp.zeros_like(base))
    return highest, weights, shifted * weights


# Optimal transport between an image's views and the prompts of every class, all classes of an image together.


WORK_NUMBERS = 4_000_000
"""Entries of kernels held at once: 32 MB, and three arrays as large while they are made and read."""


class ClassTransports:
    """B K problems: the views (B, V, d) of B images against the prompts (K, P, d) of K classes, cost 1 - cosine.

    Kernels (B, K, V, P) that fit `work_numbers` are made once. Of larger ones a few classes' are made at a time, from
    views and prompts, again in every round: the factors of all classes are held, so the rule by which an image's
    classes stop together stays exact.
    """

    def __init__(
        self, views: Array, prompts: Array, regularisation: float, *, work_numbers: int = WORK_NUMBERS
    ) -> None:
        self._views = views
        self._prompts = prompts
        self._regularisation = regularisation
        images, n_views = views.shape[:2]
        classes, n_prompts = prompts.shape[:2]
        size = max(1, work_numbers // (images * n_views * n_prompts))
        self._parts = [slice(start, start + size) for start in range(0, classes, size)]
        self._held = self._made(self._parts[0]) if len(self._parts) == 1 else None

    def first_cosines(self) -> Array:
        """Of each image's first view with all prompts, (B, K, P)."""
        return namespace(self._views).concat([cosines[:, :, 0, :] for _, cosines, _ in self._kernels()], axis=1)

    def mean_cosines(self, view_weights: Array, prompt_weights: Array, *, iterations: int, tolerance: float) -> Array:
        """(B, K), over each class's plan, from weights (B, V) and (B, K, P).

        The rounds of an image end when its views' factors, over all classes, move by less than `tolerance` on average.
        """
        images, classes, _ = prompt_weights.shape
        xp = namespace(prompt_weights)
        views = xp.broadcast_to(view_weights[:, None, :], (images, classes, view_weights.shape[1]))
        views, prompts = alternate(
            self._round(view_weights[:, None, :], prompt_weights),
            (xp.ones_like(views), xp.ones_like(prompt_weights)),
            iterations=iterations,
            done=small_change(tolerance, axes=(-2, -1)),
        )
        return xp.concat(
            [
                xp.sum(plan(kernel, views[:, part], prompts[:, part]) * cosines, axis=(-2, -1))
                for part, cosines, kernel in self._kernels()
            ],
            axis=1,
        )

    def _round(self, view_weights: Array, prompt_weights: Array) -> Round:
        if self._held is not None:
            return scaling_round(self._held[1], view_weights, prompt_weights)

        def one_round(prompts: Array) -> Factors:
            xp = namespace(prompts)
            factors = [
                scaling_round(kernel, view_weights, prompt_weights[:, part])(prompts[:, part])
                for part, _, kernel in self._kernels()
            ]
            return xp.concat([views for views, _ in factors], axis=1), xp.concat([some for _, some in factors], axis=1)

        return one_round

    def _kernels(self) -> Iterator[tuple[slice, Array, Array]]:
        for part in self._parts:
            cosines, kernel = self._held or self._made(part)
            yield part, cosines, kernel

    def _made(self, part: slice) -> tuple[Array, Array]:
        """Cosines and kernel (B, k, V, P) of some classes."""
        xp = namespace(self._views)
        home, prompts = Home.of(self._views), self._prompts[part]
        classes, n_prompts, dimension = prompts.shape
        images, n_views, _ = self._views.shape
        views = xp.matrix_transpose(self._views)
        # Prompts first: the product then lies in memory as one matrix a class.
        cosines = home.zeros((images, classes, n_prompts, n_views), views.dtype)
        size = max(1, WORK_NUMBERS // (n_prompts * dimension))  # prompts in another precision are not widened whole
        for start in range(0, classes, size):
            some = home.bring(prompts[start : start + size], views.dtype)
            product = some.reshape(1, -1, dimension) @ views
            cosines[:, start : start + size] = product.reshape(images, -1, n_prompts, n_views)
        cosines = xp.matrix_transpose(cosines)
        kernel = cosines - 1
        kernel /= self._regularisation
        return cosines, xp.exp(kernel)


class AWT(EpisodicMethod):
    """Weighs an image's views and each class's descriptions by how sure they make the classifier, and scores a class by
    the cosine of views and descriptions, averaged over the optimal transport between the two sets of weights.

    With a single view it is what the ADAPT paper's appendix calls AWT*: descriptions are weighted, views are not.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import AWT
    >>> prompts = np.array([[[1.0, 0.0], [0.8, 0.6]], [[0.0, 1.0], [0.6, 0.8]]])
    >>> awt = AWT(np.eye(2), prompts=prompts, logit_scale=5.0)
    >>> awt.adapt_views(np.array([[0.96, 0.28], [1.0, 0.0], [0.6, 0.8]])).round(3)
    array([0.94, 0.06])

    Notes
    -----
    Zhu et al., *AWT: Transferring Vision-Language Models via Augmentation, Weighting, and Transportation*, NeurIPS
    2024; the part that is not trained. The authors take the image and 50 random crops of it, and 50 descriptions a
    class from a language model, in a wording of their own: not the prompts ADAPT averages.

    A view's entropy is that of its mean logits over each class's prompts. A description's is that of the image's own
    such logits with its class's entry replaced by the description's: here in closed form, in K P numbers an image
    rather than K^2 P. The K transports of an image stop together, by the mean over all classes, as in the code.

    Everything is computed in float64; the authors' code is float32, 4e-5 away in logits. Kernels of K V P numbers are
    held up to 32 MB, which K = 1000 with 51 views and 51 prompts fits; larger ones are made again, a few classes at a
    time, in every round.
    """

    name = "awt"
    needs = ("prototypes", "views", "prompts")
    state_size = "K P d, the prompts"
    complexity = "O(K V P (d + I)) for an image, I rounds of Sinkhorn's scaling"

    prompts: Array = array_parameter(
        "P unit-length text embeddings a class: the class name and its descriptions. The authors take 51."
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    image_temperature: float = parameter(
        Number(low=0, above=True),
        "Of the softmax over minus the entropies of views, and of descriptions; the lower, the more the surest count.",
        default=0.5,
    )
    text_temperature: float = parameter(
        Number(low=0, above=True),
        "Of the softmax over minus the entropies of views, and of descriptions; the lower, the more the surest count.",
        default=0.5,
    )
    regularisation: float = parameter(
        REGULARISATION, "How far the transport is smoothed by entropy, in units of 1 - cosine.", default=0.1
    )
    iterations: int = parameter(
        Number(low=1, integer=True),
        "Sinkhorn's scaling of an image ends after so many rounds, or when the factors of its views change by less than the other on average.",
        default=100,
    )
    tolerance: float = parameter(
        Number(low=0),
        "Sinkhorn's scaling of an image ends after so many rounds, or when the factors of its views change by less than the other on average.",
        default=1e-2,
    )

    def _validate(self) -> None:
        self.prompts = checked_prompts(self.prompts, self.prototypes)

    def _begin(self) -> None:
        xp = Home.of(self.prototypes).xp
        self._mean_prompts = xp.sum(self.prompts, axis=1, dtype=xp.float64) / self.prompts.shape[1]

    def _images_at_once(self, n_views: int) -> int:
        return max(1, WORK_NUMBERS // (n_views * max(self.dimension, self.n_classes * self.prompts.shape[1])))

    def _episodes(self, views: Array) -> Array:
        transports = ClassTransports(views, self.prompts, self.regularisation)
        view_weights, prompt_weights = self._weights(views, transports.first_cosines())
        return self.logit_scale * transports.mean_cosines(
            view_weights, prompt_weights, iterations=self.iterations, tolerance=self.tolerance
        )

    def _weights(self, views: Array, first_cosines: Array) -> tuple[Array, Array]:
        """Of the views (B, V), and of each class's prompts by the image itself (B, K, P)."""
        means = logits(views, self._mean_prompts, self.logit_scale)
        replaced = replaced_entropy(means[:, 0, :], self.logit_scale * first_cosines)
        by_view = certainty_weights(entropy(means), self.image_temperature)
        return by_view, certainty_weights(replaced, self.text_temperature)
