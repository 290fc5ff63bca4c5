"""TPS: prototypes shifted by a gradient step on the most confident views of each image."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from zeroshift.arrays import Array, Backend, namespace
from zeroshift.method import WORK_NUMBERS, EpisodicMethod
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.tuning import AdamW, entropy_of_mean, through_unit_rows, tune
from zeroshift.parameters import Choice, Number, parameter
from zeroshift.views import select_lowest_entropy

SHIFTED_ARRAYS = 10
"""Arrays of the size of one image's shifted prototypes in memory during a step: rows, gradients, moments and so on."""


class TPS(EpisodicMethod):
    """Shifts the class prototypes for each image: one step that lowers the entropy of the mean prediction over the
    image's most confident views. The shifted prototypes predict the image itself; then they are restored.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TPS
    >>> tps = TPS(np.eye(2), logit_scale=5.0, rate=0.1)
    >>> tps.adapt_views(np.array([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8]])).round(3)  # 0.731 without a shift
    array([0.804, 0.196])

    Notes
    -----
    Sui et al., *Just Shift It: Test-Time Prototype Shifting for Zero-Shot Generalization with Vision-Language Models*,
    WACV 2025. The authors' prototypes are means of 80 templates and of descriptions written by GPT-4; here they are the
    prototypes given. Their views are TPT's: 64, with AugMix on fine-grained data sets only. No text model is run: the
    shifts and their gradients are in the feature space.

    The first step of AdamW moves a coordinate by `rate` whether its gradient is 1 or 1e-6; only gradients near 1e-8 and
    below move it less. In the authors' mixed precision the gradients of unlikely classes vanish, and those classes do
    not move; here everything is float64. With fewer than ten views their code keeps none; here the most confident one
    is kept.
    """

    name = "tps"
    headline = "Shifts the prototypes for each image"
    overconfident = True
    complexity = "O(S (V + n) K d) per image, for S steps and V views, n of them kept"

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views kept, those of lowest entropy, selected again at every step; at least one.",
        default=0.1,
    )
    steps: int = parameter(Number(low=1, integer=True), "Steps of AdamW per image.", default=1)
    rate: float = parameter(Number(low=0), "Step size of AdamW.", default=5e-3)
    weight_decay: float = parameter(
        Number(low=0), "Weight decay of AdamW: each step shrinks the shift by this share, times `rate`.", default=0.01
    )
    shift: str = parameter(
        Choice(("class", "shared")),
        '"class" shifts every prototype by its own vector, "shared" shifts all of them by the same vector.',
        default="class",
    )

    check_exceptions: ClassVar[Mapping[str, str]] = {
        "axes_do_not_matter": "AdamW takes a step of the same size along every axis, so the axes are part of the method"
    }

    def _prepare(self) -> None:
        self._text = unit_rows(self.prototypes64)

    @property
    def gradient_steps(self) -> int:  # type: ignore[override]
        """Gradient steps per image."""
        return self.steps

    def _images_per_block(self, n_views: int) -> int:
        views = n_views * max(self.dimension, self.n_classes)
        return max(1, WORK_NUMBERS // (views + SHIFTED_ARRAYS * self.n_classes * self.dimension))

    def _episodes(self, views: Array) -> Array:
        start = self.zeros(views.shape[0], 1 if self.shift == "shared" else self.n_classes, self.dimension)
        optimizer = AdamW(self.rate, weight_decay=self.weight_decay)
        shifts, _ = tune(start, partial(self._gradient, views), optimizer, self.steps)
        return self._scores(views[:, :1, :], self._text + shifts)[:, 0, :]

    def _gradient(self, views: Array, shifts: Array) -> tuple[Array, Array]:
        """Entropies (B,) of the mean predictions of the views kept, and their gradient at the shifts (B, K or 1, d)."""
        xp = namespace(views)
        images = xp.arange(views.shape[0], device=Backend.of(views).device)[:, None]
        raw = self._text + shifts
        scores = self._scores(views, raw)
        kept = select_lowest_entropy(scores, self.view_ratio)
        loss, score_gradient = entropy_of_mean(scores[images, kept])
        text_gradient = self.logit_scale * (xp.matrix_transpose(score_gradient) @ views[images, kept])
        gradient = through_unit_rows(text_gradient, raw)
        return loss, xp.sum(gradient, axis=1, keepdims=True) if self.shift == "shared" else gradient

    def _scores(self, views: Array, text: Array) -> Array:
        """Logits (B, V, K) of views (B, V, d), with prototypes (B, K, d) per image, which are scaled to unit length."""
        return self.logit_scale * (views @ namespace(views).matrix_transpose(unit_rows(text)))
