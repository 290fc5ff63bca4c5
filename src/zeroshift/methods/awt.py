"""AWT: views and descriptions weighted by confidence, and matched by optimal transport."""

from __future__ import annotations

from zeroshift.arrays import Array, Backend, namespace
from zeroshift.method import WORK_NUMBERS, EpisodicMethod
from zeroshift.methods._shared.prompts import checked_prompts
from zeroshift.methods._shared.sinkhorn import REGULARISATION, mean_over_plan, small_change
from zeroshift.parameters import Number, array_parameter, parameter
from zeroshift.views import entropy
from zeroshift.zero_shot import softmax

NEVER = -1e300
"""A logit of probability 0. Products with it stay finite, unlike those with minus infinity."""


def replaced_entropy(base: Array, logits: Array) -> Array:
    """Entropies (..., K, P) of softmax(base), base (..., K), after its entry k is replaced by `logits[..., k, p]`.

    By the chain rule: the entropy between class k and all the others, plus that among the others times their
    probability. The entropy among the others is the same for all p. Arrays have K P numbers; a vector for each
    replacement would need K^2 P.

    >>> import numpy as np
    >>> from zeroshift.views import entropy
    >>> base, logits = np.array([1.0, 2.0, 0.5]), np.array([[1.5], [3.0], [0.0]])
    >>> replaced_entropy(base, logits)[1].round(6), entropy(np.array([1.0, 3.0, 0.5])).round(6)
    (array([0.587629]), np.float64(0.587629))
    """
    xp = namespace(base)
    likeliest = xp.argmax(base, axis=-1, keepdims=True) == xp.arange(base.shape[-1], device=Backend.of(base).device)
    rest = xp.where(likeliest, NEVER, base)
    highest, second = (xp.max(b, axis=-1, keepdims=True) for b in (base, rest))
    # Sums over the other classes: by subtraction, which loses little while the likeliest class remains in the sum. It
    # may have all but 1e-16 of the sum, so that the others are summed again without it.
    e, again = xp.exp(base - highest), xp.exp(rest - second)
    sums, weighted = (
        xp.where(likeliest, xp.sum(r, axis=-1, keepdims=True), xp.sum(b, axis=-1, keepdims=True) - b)
        for b, r in ((e, again), (e * (base - highest), again * (rest - second)))
    )
    log_sums = xp.log(sums)
    of_others = (log_sums + xp.where(likeliest, second, highest))[..., None]
    pairs = xp.stack([logits, xp.broadcast_to(of_others, logits.shape)], axis=-1)
    return entropy(pairs) + softmax(pairs)[..., 1] * (log_sums - weighted / sums)[..., None]


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
    that of the image's mean logits with the entry of its class replaced by the logit of the description: here with
    K P numbers per image rather than K^2 P. The K transports of an image stop together, by the mean over all
    classes, as in the authors' code.

    Everything is computed in float64; the authors' code uses float32, and its logits differ by 4e-5. A few arrays of
    K V P numbers are in memory: 20 MB each for K = 1000 with 51 views and 51 prompts.
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
        backend = Backend.of(self.prototypes)
        self._texts = backend.asarray(self.prompts, backend.xp.float64).reshape(-1, self.dimension)

    def _images_per_block(self, n_views: int) -> int:
        classes, n_prompts, dimension = self.prompts.shape
        return max(1, WORK_NUMBERS // (n_views * max(dimension, classes * n_prompts)))

    def _episodes(self, views: Array) -> Array:
        xp = namespace(views)
        images, n_views, _ = views.shape
        cosines = (self._texts @ xp.matrix_transpose(views)).reshape(images, self.n_classes, -1, n_views)
        cosines = xp.matrix_transpose(cosines)  # (B, K, V, P)
        means = self.logit_scale * xp.mean(cosines, axis=-1)
        view_entropies = entropy(xp.matrix_transpose(means))
        prompt_entropies = replaced_entropy(means[:, :, 0], self.logit_scale * cosines[:, :, 0, :])
        return self.logit_scale * mean_over_plan(
            cosines,
            xp.exp((cosines - 1) / self.regularisation),
            softmax(-view_entropies / self.image_temperature)[:, None, :],
            softmax(-prompt_entropies / self.text_temperature),
            iterations=self.iterations,
            done=small_change(self.tolerance, axes=(-2, -1)),  # all classes of an image together
        )
