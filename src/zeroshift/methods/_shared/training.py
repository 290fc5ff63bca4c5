"""Training on labelled samples: batches, learning rates, the loss with its gradient, and the loop over epochs."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, Labelled, as_array, to_numpy
from zeroshift.methods._shared.few_shot import FewShotMethod, correct, labelled_blocks
from zeroshift.methods._shared.tuning import SGD, AdamW
from zeroshift.parameters import Number, array_parameter, parameter, state
from zeroshift.serialization import restoring
from zeroshift.zero_shot import log_softmax

WARM_UP_RATE = 1e-5
"""Learning rate of the first epoch."""


def warm_cosine_rate(epoch: int, epochs: int, rate: float) -> float:
    """Learning rate of one epoch: the first has a constant one, and the cosine, of period `epochs`, starts after it.

    >>> [warm_cosine_rate(epoch, 4, 1.0) for epoch in range(3)]
    [1e-05, 1.0, 0.8535533905932737]
    """
    return WARM_UP_RATE if epoch == 0 else cosine_rate(epoch - 1, epochs, rate)


def cosine_rate(step: int, steps: int, rate: float) -> float:
    """Learning rate of one of `steps` steps, or epochs: from `rate` down to nearly 0, along half a cosine.

    >>> [round(cosine_rate(step, 4, 1.0), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    return rate * (1 + math.cos(math.pi * step / steps)) / 2


def steps_per_epoch(samples: int, size: int, *, drop_last: bool) -> int:
    """Number of batches of `size`. With `drop_last`, an incomplete last batch is left out, unless it is the only one.

    >>> [steps_per_epoch(samples, 2, drop_last=True) for samples in (1, 4, 5)]
    [1, 2, 2]
    """
    return max(1, samples // size) if drop_last else -(-samples // size)


def epoch_batches(
    samples: int, epochs: int, size: int, *, drop_last: bool, seed: int, order: np.ndarray | None = None
) -> Iterator[list[np.ndarray]]:
    """The batches of each epoch, in a random order of the samples, or in that of the rows of `order`."""
    steps = steps_per_epoch(samples, size, drop_last=drop_last)
    for epoch in range(epochs):
        # The first stream of random numbers, (seed, 0), is left for initial parameters.
        drawn = np.random.default_rng([seed, epoch + 1]).permutation(samples) if order is None else order[epoch]
        yield [drawn[step * size : (step + 1) * size] for step in range(steps)]


def checked_order(order: Any, epochs: int, samples: int) -> np.ndarray | None:
    """The argument `order`, one permutation of the samples per epoch, as a NumPy array."""
    if order is None:
        return None
    values = to_numpy(as_array("order", order))
    if values.shape != (epochs, samples):
        raise ValueError(
            f"order must have one row per epoch and one column per support sample, shape {(epochs, samples)}; "
            f"got {values.shape}. Fix: change order, or epochs."
        )
    if values.dtype.kind not in "iu":
        raise TypeError(
            f"order must hold integers (indices of support samples); got {values.dtype}. Fix: order.astype(int)."
        )
    wrong = (np.sort(values, axis=1) != np.arange(samples)).any(axis=1)
    if wrong.any():
        raise ValueError(
            f"order row {int(np.argmax(wrong))} must contain each index from 0 to {samples - 1} once; it does not. "
            "Fix: numpy.random.default_rng().permutation(n) for each row."
        )
    return values.astype(np.int64)


def label_loss(logits: Array, labels: Array) -> tuple[Array, Array]:
    """Mean cross-entropy of logits (n, K) at the labels (n,), and its gradient (n, K).

    >>> loss, gradient = label_loss(np.array([[2.0, 0.0], [0.0, 0.0]]), np.array([0, 1]))
    >>> round(float(loss), 4), gradient.round(4)
    (0.41, array([[-0.0596,  0.0596],
           [ 0.25  , -0.25  ]]))
    """
    backend = Backend.of(logits)
    rows = backend.index(np.arange(logits.shape[0]))
    log_y = log_softmax(logits)
    gradient = backend.xp.exp(log_y)
    gradient[rows, labels] -= 1
    return -log_y[rows, labels].mean(), gradient / len(rows)


class Adam(AdamW):
    """Adam with L2 regularisation, as in torch: `weight_decay` times the parameter is added to its gradient.

    >>> Adam(rate=0.1, weight_decay=0.5).step(np.array([4.0]), np.array([-1.0]))
    array([3.9])
    """

    def __init__(self, rate: float, *, weight_decay: float) -> None:
        super().__init__(rate, weight_decay=0.0)
        self._l2 = weight_decay

    def step(self, parameter: Array, gradient: Array) -> Array:
        return super().step(parameter, gradient + self._l2 * parameter)


class Trained(NamedTuple):
    """What training results in."""

    parameters: Array
    losses: np.ndarray
    """Mean loss of each batch before its step."""
    accuracies: np.ndarray
    """After each epoch, on the samples by which the epoch is chosen; empty without them."""
    epoch: int
    """Number of epochs after which the parameters are taken."""


class TrainedMethod(FewShotMethod):
    """A classifier whose parameters are trained once, on the support samples, when the method is made.

    A subclass defines where training starts (`_start`), the `_optimizer`, the loss (`_loss`), the scores during the
    training (`_scores`), and `_derive`, which computes what prediction needs from `_trained`.
    """

    drop_last: ClassVar[bool] = True
    """Whether an incomplete last batch of an epoch is left out."""

    epochs: int | None
    batch_size: int
    rate: float
    seed: int = parameter(Number(low=0, integer=True), "Seed of the order of the samples.", default=0)
    order: Array | None = array_parameter(
        "The order of the support samples in each epoch, (epochs, n), in place of a random one.", default=None
    )

    # A reset leaves what was trained: training again would give the same.
    _trained: Trained = state(
        lambda self: self.__dict__.get("_trained") or self._train(),
        saved_as="",
        merge=lambda mine, theirs: mine,  # the same, by the same parameters
    )

    def _validate(self) -> None:
        super()._validate()
        self.order = checked_order(self.order, self._epochs, len(self.support[1]))

    @abstractmethod
    def _start(self) -> Array:
        """The parameters before the first step, in float64."""

    @abstractmethod
    def _optimizer(self) -> AdamW | SGD: ...

    @abstractmethod
    def _loss(self, parameters: Array, x: Array, labels: Array) -> tuple[Array, Array]:
        """The mean loss of features (n, d) with labels (n,), and its gradient for the parameters."""

    @abstractmethod
    def _scores(self, parameters: Array, x: Array) -> Array:
        """Scores (n, K) of features (n, d) with such parameters."""

    @property
    def _epochs(self) -> int:
        assert self.epochs is not None
        return self.epochs

    @property
    def _steps(self) -> int:
        return self._epochs * steps_per_epoch(len(self.support[1]), self.batch_size, drop_last=self.drop_last)

    @property
    def _selection(self) -> Labelled | None:
        """The samples by which the epoch is chosen. Without them the last is taken."""
        return self.validation

    def _rate(self, epoch: int, step: int) -> float:
        return warm_cosine_rate(epoch, self._epochs, self.rate)

    def _fit(self) -> None:
        """Nothing: what is learned is a piece of state."""

    def _train(self) -> Trained:
        parameters, selection = self._start(), self._selection
        if restoring():  # what was learned is in the file
            none = np.zeros(0 if selection is None else self._epochs)
            return Trained(parameters, np.zeros(self._steps), none, self._epochs)
        features, (_, labels), optimizer = self._support64, self.support, self._optimizer()
        index = Backend.of(features).index
        best, best_epoch = parameters, 0
        losses: list[float] = []
        accuracies: list[float] = []
        planned = epoch_batches(
            len(labels), self._epochs, self.batch_size, drop_last=self.drop_last, seed=self.seed, order=self.order
        )
        for epoch, epoch_rows in enumerate(planned):
            for rows in epoch_rows:
                loss, gradient = self._loss(parameters, features[index(rows)], index(labels[rows]))
                optimizer.rate = self._rate(epoch, len(losses))
                parameters = optimizer.step(parameters, gradient)
                losses.append(float(loss))
            if selection is not None:
                accuracies.append(self._accuracy(parameters, selection))
            if selection is None or accuracies[-1] > max(accuracies[:-1], default=-1.0):
                best, best_epoch = parameters, epoch + 1
        return Trained(best, np.array(losses), np.array(accuracies), best_epoch)

    def _accuracy(self, parameters: Array, samples: Labelled) -> float:
        blocks = labelled_blocks(samples, max(len(self.support[1]), self.n_classes, self.dimension))
        return sum(correct(self._scores(parameters, x), labels) for x, labels in blocks) / len(samples[1])

    @property
    def losses(self) -> np.ndarray:
        """The mean loss of each batch of the training, before its step."""
        return self._trained.losses.copy()

    @property
    def chosen(self) -> dict[str, float]:
        return {**self._chosen, "epochs": self._trained.epoch}
