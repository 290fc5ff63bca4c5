"""Optimal transport between an image's views and the prompts of every class, all classes of an image together."""

from __future__ import annotations

from collections.abc import Iterator

from zeroshift.arrays import Array, Home, namespace
from zeroshift.methods.parts.sinkhorn import Factors, Round, alternate, plan, scaling_round, small_change

__all__ = ["ClassTransports"]

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
