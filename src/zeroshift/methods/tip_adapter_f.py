"""Tip-Adapter-F: Tip-Adapter whose keys, at first the labelled samples, are trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, Labelled, checked_labelled, namespace
from zeroshift.methods._shared.similarity import exponential_kernel
from zeroshift.methods._shared.training import TrainedMethod, cosine_rate, label_loss
from zeroshift.methods._shared.tuning import AdamW
from zeroshift.methods.tip_adapter import TipAdapter
from zeroshift.parameters import Number, array_parameter, parameter

EPS = 1e-4
"""Of AdamW: the authors compute in half precision. With the usual 1e-8, steps of small gradients would be larger."""

LARGEST_EXPONENT = 40.0
"""Keys do not become longer than a kernel of this exponent allows, so that votes stay within float32."""


class TipAdapterF(TrainedMethod, TipAdapter):
    """Tip-Adapter with its keys trained on the labelled samples, from which they start. With a validation set, the
    sharpness and the weight of the votes are searched there after the training.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TipAdapterF
    >>> support = np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([0, 1])
    >>> method = TipAdapterF(np.eye(2), support=support, logit_scale=5.0, alpha=1.0)
    >>> method.losses[[0, -1]].round(4)
    array([0.3029, 0.3018])
    >>> method.predict_scores(np.array([0.96, 0.28])).round(3)
    array([5.745, 2.213])

    Notes
    -----
    Zhang et al., *Tip-Adapter: Training-free Adaption of CLIP for Few-shot Classification*, ECCV 2022. AdamW with an
    eps of 1e-4, and half a cosine over all steps. `beta` and `alpha` have their given values during the training. The
    authors' code keeps the epoch that is best on the test set, searches with its keys, and reports the better of the
    test accuracies before and after the search; for ImageNet it searches on the test set, too. Here the last epoch is
    kept, and no label of the test set has a part. To repeat what the authors publish, give the test set as `selection`.
    Differences: the authors train on new random crops in each epoch, here on the given features; those of `TipAdapter`
    apply as well. Only absurd parameters let keys grow so long that they are shortened, to avoid overflow.
    """

    name = "tip_adapter_f"
    headline = "Tip-Adapter with trained keys"
    state_size = "N (2 d + K) for N support samples, and the loss of each step"
    complexity = "O(N (d + K)) per sample; the training O(E N (N + K) d) for E epochs"
    check_exceptions: ClassVar[Mapping[str, str]] = {"axes_do_not_matter": "AdamW scales each coordinate by itself"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        dataset: {**preset, "epochs": 100 if dataset == "eurosat" else 20}
        for dataset, preset in TipAdapter.presets.items()
    }

    drop_last = False

    rate: float = parameter(Number(low=0, high=1), "Learning rate of the first step.", default=1e-3)
    weight_decay: float = parameter(
        Number(low=0, high=1), "Each step shrinks the keys by this share, times the learning rate.", default=0.01
    )
    epochs: int = parameter(
        Number(low=0, integer=True), "Passes over the support samples.", default=20, sizes_state=True
    )
    batch_size: int = parameter(Number(low=1, integer=True), "Support samples per step.", default=256)
    selection: Labelled | None = array_parameter(
        "Labelled samples to choose the epoch with, the first of equally good ones, before `validation` is used. The "
        "authors choose it with the test set. Without them the last epoch is kept.",
        default=None,
    )

    def _validate(self) -> None:
        super()._validate()
        if self.selection is not None:
            self.selection = checked_labelled("selection", self.selection, self.prototypes)

    @property
    def keys(self) -> Array:
        """The trained keys (n, d), in the order of the support samples."""
        return Backend.of(self._keys).copy(self._keys)

    @property
    def accuracies(self) -> np.ndarray:
        """The accuracy on `selection` after each epoch, before parameters are searched; empty without it."""
        return self._trained.accuracies.copy()

    @property
    def _selection(self) -> Labelled | None:
        return self.selection

    def _derive(self) -> None:
        self._use_keys(self._shortened(self._trained.parameters))

    def _start(self) -> Array:
        return self._support64

    def _optimizer(self) -> AdamW:
        return AdamW(self.rate, eps=EPS, weight_decay=self.weight_decay)

    def _rate(self, epoch: int, step: int) -> float:
        return cosine_rate(step, self._steps, self.rate)

    def _shortened(self, keys: Array) -> Array:
        """The keys, none of them longer than the kernel allows, whatever sharpness is used."""
        sharpest = max(self.beta, 0.0 if self.validation is None else self.search_scale[0])
        longest = 1 + LARGEST_EXPONENT / max(sharpest, 1e-6)
        xp = namespace(keys)
        return keys / xp.clip(xp.linalg.vector_norm(keys, axis=1, keepdims=True) / longest, 1.0, None)

    def _kernel(self, keys: Array, x: Array) -> Array:
        return exponential_kernel(x @ self._shortened(keys).T, self.beta)

    def _scores(self, keys: Array, x: Array) -> Array:
        return self._zero_shot(x) + self.alpha * self._kernel(keys, x) @ self._values

    def _loss(self, keys: Array, x: Array, labels: Array) -> tuple[Array, Array]:
        kernel = self._kernel(keys, x)
        loss, slope = label_loss(self._zero_shot(x) + self.alpha * kernel @ self._values, labels)
        kernel *= slope[:, Backend.of(slope).index(self.support[1])]
        return loss, self.alpha * self.beta * kernel.T @ x
