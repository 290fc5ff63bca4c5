"""Tip-Adapter-F: Tip-Adapter whose keys, at first the labelled samples, are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, Labelled, checked_labelled
from zeroshift.methods._shared.gaussian_classifier import ClassGroups
from zeroshift.methods._shared.similarity import exponential_kernel
from zeroshift.methods._shared.training import Trained, TrainedMethod, accuracy_on, cosine_rate, label_loss, train
from zeroshift.methods._shared.tuning import AdamW
from zeroshift.methods.tip_adapter import TipAdapter
from zeroshift.parameters import Number, array_parameter, parameter
from zeroshift.state_checks import check_lengths

__all__ = ["TipAdapterF"]

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
    state_size = "2 N d for N support samples, and the loss of each step"
    complexity = "O(N d + K d) per sample; the training O(E N (N + K) d) for E epochs"
    check_exceptions: ClassVar[Mapping[str, str]] = {"axes_do_not_matter": "AdamW scales each coordinate by itself"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        dataset: {**preset, "epochs": 100 if dataset == "eurosat" else 20}
        for dataset, preset in TipAdapter.presets.items()
    }

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
        backend = Backend.of(self._keys)
        return self._keys[backend.index(np.argsort(self._groups.order))]

    @property
    def accuracies(self) -> np.ndarray:
        """The accuracy on `selection` after each epoch, before parameters are searched; empty without it."""
        return self._trained.accuracies.copy()

    @property
    def chosen(self) -> dict[str, float]:
        return {"beta": self._beta, "alpha": self._alpha, "epochs": self._trained.epoch}

    def _fit(self) -> None:
        self._groups = ClassGroups(self.support[1], self.n_classes)
        self._key_labels = Backend.of(self.prototypes).index(self.support[1][self._groups.order])

    def _train(self) -> Trained:
        features, labels = self.support
        steps = self.epochs * -(-len(labels) // self.batch_size)
        start = self._to_float64(features)[Backend.of(features).index(self._groups.order)]
        return train(
            self.support,
            [start],
            self._gradient,
            optimizers=[_BoundedAdamW(self._longest, self.rate, eps=EPS, weight_decay=self.weight_decay)],
            epochs=self.epochs,
            batch_size=self.batch_size,
            drop_last=False,
            rate=lambda epoch, step: cosine_rate(step, steps, self.rate),
            seed=self.seed,
            order=self.order,
            accuracy=accuracy_on(self.selection, self._initial_scores, max(len(labels), self.n_classes)),
        )

    @property
    def _longest(self) -> float:
        """Length up to which keys cannot overflow, whatever sharpness is used."""
        sharpest = max(self.beta, 0.0 if self.validation is None else self.search_scale[0])
        return 1 + LARGEST_EXPONENT / max(sharpest, 1e-6)

    def _gradient(self, parameters: Sequence[Array], x: Array, labels: Array) -> tuple[Array, list[Array]]:
        (keys,) = parameters
        backend = Backend.of(x)
        # Keys along the first axis, so that the votes of a class are sums of consecutive rows.
        kernel = exponential_kernel(backend.asarray(keys, x.dtype) @ x.T, self.beta)
        scores = self.alpha * self._groups.sums(kernel)
        scores += self.logit_scale * (backend.asarray(self.prototypes, x.dtype) @ x.T)
        loss, slope = label_loss(scores.T, labels)
        kernel *= slope.T[self._key_labels]
        kernel *= self.alpha * self.beta
        return loss, [backend.asarray(kernel @ x, keys.dtype)]

    def _initial_scores(self, parameters: Sequence[Array], x: Array) -> Array:
        """Scores with the parameters of the training."""
        return self._scores(x, parameters[0], self.beta, self.alpha)

    def _check_trained(self, trained: Trained) -> None:
        check_lengths("the keys", trained.parameters[0], longest=self._longest)

    def _derive(self) -> None:
        (keys,) = self._trained.parameters
        self._keys = Backend.of(keys).asarray(keys, self.support[0].dtype)
        self._choose()


class _BoundedAdamW(AdamW):
    """AdamW on rows that are shortened to a largest length after each step."""

    def __init__(self, longest: float, rate: float, **options: Any) -> None:
        super().__init__(rate, **options)
        self._longest = longest

    def step(self, parameter: Array, gradient: Array) -> Array:
        moved = super().step(parameter, gradient)
        backend = Backend.of(moved)
        lengths = backend.xp.linalg.vector_norm(moved, axis=1, keepdims=True)
        return moved / backend.xp.clip(lengths / self._longest, 1.0, None)
