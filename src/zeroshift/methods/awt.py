"""AWT: views and descriptions weighted by confidence, and matched by optimal transport."""

from __future__ import annotations

from collections.abc import Iterator

from zeroshift.arrays import Array, Backend, namespace
from zeroshift.method import EpisodicMethod
from zeroshift.methods._shared.prompts import checked_prompts
from zeroshift.methods._shared.sinkhorn import (
    REGULARISATION,
    Factors,
    Round,
    alternate,
    scaling_round,
    small_change,
    transport_plan,
)
from zeroshift.parameters import Number, array_parameter, parameter
from zeroshift.views import entropy
from zeroshift.zero_shot import logits, softmax

__all__ = ["AWT", "ClassTransports", "confidence_weights", "replaced_entropy"]


def confidence_weights(entropies: Array, temperature: float) -> Array:
    """Weights over the last axis, with sum 1, larger for lower entropies H: softmax(-H / temperature).

    >>> import numpy as np
    >>> confidence_weights(np.array([0.0, 0.5]), 0.5).round(3)
    array([0.731, 0.269])
    """
    return softmax(-entropies / temperature)


def replaced_entropy(base: Array, logits: Array) -> Array:
    """Entropies (..., K, P) of softmax(base), base (..., K), after its entry k is replaced by `logits[..., k, p]`.

    In closed form: the entropy among the other classes is the same for all p, and the chain rule of entropy adds the
    class that changed. Arrays have at most K P numbers per image; a vector for each replacement would need K^2 P.

    >>> import numpy as np
    >>> from zeroshift.views import entropy
    >>> base, logits = np.array([1.0, 2.0, 0.5]), np.array([[1.5], [3.0], [0.0]])
    >>> replaced_entropy(base, logits)[1].round(6), entropy(np.array([1.0, 3.0, 0.5])).round(6)
    (array([0.587629]), np.float64(0.587629))
    """
    xp = namespace(base)
    if base.shape[-1] == 1:
        return xp.zeros_like(logits)  # a single class is certain
    total, inner = _others_entropy(base)
    odds = logits - total[..., None]
    tail = xp.exp(-xp.abs(odds))
    smaller = tail / (1 + tail)
    others = xp.where(odds > 0, smaller, 1 - smaller)
    return xp.log1p(tail) + xp.abs(odds) * smaller + others * inner[..., None]


def _others_entropy(base: Array) -> tuple[Array, Array]:
    """Log-sum-exp and entropy of all the other classes, for each class, (..., K) each."""
    xp = namespace(base)
    classes = xp.arange(base.shape[-1], device=Backend.of(base).device)
    most_likely = classes == xp.argmax(base, axis=-1, keepdims=True)
    # Leave a less likely class out by subtraction: the most likely one remains, so little is lost to rounding.
    shift, weights, weighted = _sums(base, classes >= 0)
    sums, products = xp.sum(weights, axis=-1, keepdims=True), xp.sum(weighted, axis=-1, keepdims=True)
    sums, products = sums - weights, products - weighted
    # Without the most likely class, which may hold all but 1e-16 of the sum, sum the others again.
    second, weights, weighted = _sums(base, ~most_likely)
    sums = xp.where(most_likely, xp.sum(weights, axis=-1, keepdims=True), sums)
    products = xp.where(most_likely, xp.sum(weighted, axis=-1, keepdims=True), products)
    logs = xp.log(sums)
    return logs + xp.where(most_likely, second, shift), logs - products / sums


def _sums(base: Array, included: Array) -> tuple[Array, Array, Array]:
    """The largest logit of the `included` classes, and e^b and b e^b with b shifted by it; 0 for the other classes."""
    xp = namespace(base)
    highest = xp.max(xp.where(included, base, -xp.inf), axis=-1, keepdims=True)
    shifted = xp.where(included, base - highest, xp.zeros_like(base))
    weights = xp.where(included, xp.exp(shifted), xp.zeros_like(base))
    return highest, weights, shifted * weights


WORK_NUMBERS = 4_000_000
"""Kernel entries in memory at one time: 32 MB, and three more arrays of that size while they are computed and used."""


class ClassTransports:
    """Optimal transport from the views (B, V, d) of B images to the prompts (K, P, d) of K classes; cost 1 - cosine.

    Kernels (B, K, V, P) of at most `work_numbers` entries are computed once. Larger ones are computed for a few classes
    at a time, again in every round. The factors of all classes are kept in memory, so the rule that stops all classes
    of an image together remains exact.
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
        self._cached = self._compute_kernel(self._parts[0]) if len(self._parts) == 1 else None

    def first_cosines(self) -> Array:
        """Cosines (B, K, P) of each image's first view with all prompts."""
        return namespace(self._views).concat([cosines[:, :, 0, :] for _, cosines, _ in self._kernels()], axis=1)

    def mean_cosines(self, view_weights: Array, prompt_weights: Array, *, iterations: int, tolerance: float) -> Array:
        """Mean cosines (B, K) over the transport plan of each class, from weights (B, V) and (B, K, P).

        The iterations for an image end when the factors of its views, over all classes, change by less than `tolerance`
        on average.
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
                xp.sum(transport_plan(kernel, views[:, part], prompts[:, part]) * cosines, axis=(-2, -1))
                for part, cosines, kernel in self._kernels()
            ],
            axis=1,
        )

    def _round(self, view_weights: Array, prompt_weights: Array) -> Round:
        if self._cached is not None:
            return scaling_round(self._cached[1], view_weights, prompt_weights)

        def one_round(prompts: Array) -> Factors:
            xp = namespace(prompts)
            factors = [
                scaling_round(kernel, view_weights, prompt_weights[:, part])(prompts[:, part])
                for part, _, kernel in self._kernels()
            ]
            new_views, new_prompts = (xp.concat(parts, axis=1) for parts in zip(*factors, strict=True))
            return new_views, new_prompts

        return one_round

    def _kernels(self) -> Iterator[tuple[slice, Array, Array]]:
        for part in self._parts:
            cosines, kernel = self._cached or self._compute_kernel(part)
            yield part, cosines, kernel

    def _compute_kernel(self, part: slice) -> tuple[Array, Array]:
        """Cosines and kernel (B, k, V, P) of some classes."""
        xp = namespace(self._views)
        backend, prompts = Backend.of(self._views), self._prompts[part]
        classes, n_prompts, dimension = prompts.shape
        images, n_views, _ = self._views.shape
        views = xp.matrix_transpose(self._views)
        # Prompts first: the product is then contiguous per class.
        cosines = backend.zeros((images, classes, n_prompts, n_views), views.dtype)
        size = max(
            1, WORK_NUMBERS // (n_prompts * dimension)
        )  # convert only some prompts to another precision at a time
        for start in range(0, classes, size):
            some = backend.asarray(prompts[start : start + size], views.dtype)
            product = some.reshape(1, -1, dimension) @ views
            cosines[:, start : start + size] = product.reshape(images, -1, n_prompts, n_views)
        cosines = xp.matrix_transpose(cosines)
        kernel = cosines - 1
        kernel /= self._regularisation
        return cosines, xp.exp(kernel)


class AWT(EpisodicMethod):
    """Weights an image's views and each class's descriptions by the confidence of their predictions, and scores a class
    by the cosine between views and descriptions, averaged over the optimal transport between the two sets of weights.

    With a single view this is what the appendix of the ADAPT paper calls AWT*: only descriptions are weighted.

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
    2024; the training-free part. The authors use the image and 50 random crops of it, and 50 descriptions per class
    from a language model with prompts of their own, not the prompts ADAPT averages.

    The entropy of a view is that of its mean logits over the prompts of each class. The entropy of a description is
    that of the image's mean logits with the entry of its class replaced by the logit of the description: here in closed
    form, with K P numbers per image rather than K^2 P. The K transports of an image stop together, by the mean over all
    classes, as in the authors' code.

    Everything is computed in float64; the authors' code uses float32, and its logits differ by 4e-5. Kernels of K V P
    numbers are kept in memory up to 32 MB, enough for K = 1000 with 51 views and 51 prompts; larger ones are computed
    again in every round, a few classes at a time.
    """

    name = "awt"
    headline = "Optimal transport of views and descriptions"
    needs = ("prototypes", "views", "prompts")
    state_size = "K P d, the prompts"
    complexity = "O(K V P (d + I)) per image, for I Sinkhorn iterations"

    prompts: Array = array_parameter(
        "P unit-length text embeddings per class, (K, P, d): the class name and its descriptions. The authors use 51."
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    image_temperature: float = parameter(
        Number(low=0, above=True),
        "Temperature of the softmax over negative entropies that weights the views; lower favours confident views.",
        default=0.5,
    )
    text_temperature: float = parameter(
        Number(low=0, above=True),
        "Temperature of the softmax over negative entropies that weights the descriptions of a class.",
        default=0.5,
    )
    regularisation: float = parameter(
        REGULARISATION, "Entropic regularisation of the transport, in units of 1 - cosine.", default=0.1
    )
    iterations: int = parameter(Number(low=1, integer=True), "Largest number of Sinkhorn iterations.", default=100)
    tolerance: float = parameter(
        Number(low=0),
        "The iterations for an image end when the factors of its views change by less than this on average.",
        default=1e-2,
    )

    def _validate(self) -> None:
        self.prompts = checked_prompts(self.prompts, self.prototypes)

    def _prepare(self) -> None:
        xp = Backend.of(self.prototypes).xp
        self._mean_prompts = xp.sum(self.prompts, axis=1, dtype=xp.float64) / self.prompts.shape[1]

    def _images_per_block(self, n_views: int) -> int:
        return max(1, WORK_NUMBERS // (n_views * max(self.dimension, self.n_classes * self.prompts.shape[1])))

    def _episodes(self, views: Array) -> Array:
        transports = ClassTransports(views, self.prompts, self.regularisation)
        view_weights, prompt_weights = self._weights(views, transports.first_cosines())
        return self.logit_scale * transports.mean_cosines(
            view_weights, prompt_weights, iterations=self.iterations, tolerance=self.tolerance
        )

    def _weights(self, views: Array, first_cosines: Array) -> tuple[Array, Array]:
        """Weights of the views (B, V), and of each class's prompts for the image itself (B, K, P)."""
        means = logits(views, self._mean_prompts, self.logit_scale)
        replaced = replaced_entropy(means[:, 0, :], self.logit_scale * first_cosines)
        view_weights = confidence_weights(entropy(means), self.image_temperature)
        return view_weights, confidence_weights(replaced, self.text_temperature)
