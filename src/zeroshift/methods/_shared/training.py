"""Training on labelled samples: batches, learning rates, the loss with its gradient, and the loop over epochs."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Backend, Labelled, as_array, to_numpy
from zeroshift.methods._shared.few_shot import FewShotMethod, row_blocks
from zeroshift.methods._shared.tuning import SGD, AdamW
from zeroshift.parameters import Number, array_parameter, parameter, state
from zeroshift.serialization import restoring

__all__ = [
    "WARM_UP_RATE",
    "Adam",
    "Trained",
    "TrainedMethod",
    "accuracy_on",
    "batches",
    "checked_order",
    "cosine_rate",
    "epoch_batches",
    "label_loss",
    "train",
    "warm_cosine_rate",
]

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


def batches(order: np.ndarray, size: int, *, drop_last: bool) -> list[np.ndarray]:
    """The samples of one epoch in batches of `size`. With `drop_last`, an incomplete last batch is left out, unless it
    is the only one.

    >>> [batch.tolist() for batch in batches(np.array([3, 0, 2, 4, 1]), 2, drop_last=True)]
    [[3, 0], [2, 4]]
    """
    end = len(order) // size * size if drop_last and len(order) >= size else len(order)
    return [order[start : start + size] for start in range(0, end, size)]


def epoch_batches(
    samples: int, epochs: int, size: int, *, drop_last: bool, seed: int, order: np.ndarray | None = None
) -> Iterator[list[np.ndarray]]:
    """The batches of each epoch, in a random order of the samples, or in that of the rows of `order`."""
    for epoch in range(epochs):
        # The first stream of random numbers, (seed, 0), is left for initial parameters.
        drawn = np.random.default_rng([seed, epoch + 1]).permutation(samples) if order is None else order[epoch]
        yield batches(drawn, size, drop_last=drop_last)


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
        row = int(np.argmax(wrong))
        raise ValueError(
            f"order row {row} must contain each index from 0 to {samples - 1} once; it does not. "
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
    xp, n = backend.xp, logits.shape[0]
    rows = xp.arange(n, device=backend.device)
    shifted = logits - xp.max(logits, axis=1, keepdims=True)
    own = shifted[rows, labels]
    gradient = xp.exp(shifted)
    total = xp.sum(gradient, axis=1, keepdims=True)
    loss = xp.mean(xp.log(total[:, 0]) - own)
    gradient /= n * total
    gradient[rows, labels] -= 1 / n
    return loss, gradient


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


def accuracy_on(
    samples: Labelled | None, scores: Callable[[Sequence[Array], Array], Array], width: int
) -> Callable[[Sequence[Array]], float] | None:
    """A function of parameters: how accurate the scores are on labelled samples; None without samples.

    `scores` is a function of parameters and features in float64, and needs `width` numbers per sample.
    """
    if samples is None:
        return None
    features, labels = samples
    backend = Backend.of(features)

    def accuracy(parameters: Sequence[Array]) -> float:
        right = 0
        for block in row_blocks(len(labels), width, backend):
            found = to_numpy(scores(parameters, backend.asarray(features[block], backend.xp.float64)))
            right += int((found.argmax(axis=1) == labels[block]).sum())
        return right / len(labels)

    return accuracy


@dataclass
class Trained:
    """What training results in, as a piece of state."""

    parameters: tuple[Array, ...]
    """In float64."""
    losses: np.ndarray
    """Mean loss of each batch before its step."""
    accuracies: np.ndarray
    """After each epoch, on the samples by which the epoch is chosen; empty without them."""
    epoch: int
    """Number of epochs after which the parameters are taken."""

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays = {f"parameters_{i}": parameter for i, parameter in enumerate(self.parameters)}
        return {**arrays, "losses": self.losses, "accuracies": self.accuracies}, {"epoch": self.epoch}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> Trained:
        """What `state` returned; ValueError if its shapes are others."""
        for name, own in self.state()[0].items():
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} has the shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}")
        if type(values["epoch"]) is not int or values["epoch"] < 0:
            raise ValueError(f"epoch must be an integer of at least 0; it is {values['epoch']!r}.")
        parameters = tuple(arrays[f"parameters_{i}"] for i in range(len(self.parameters)))
        losses, accuracies = (to_numpy(arrays[name]) for name in ("losses", "accuracies"))
        return replace(self, parameters=parameters, losses=losses, accuracies=accuracies, epoch=values["epoch"])


def train(
    support: Labelled,
    start: Sequence[Array],
    gradients: Callable[[Sequence[Array], Array, Array], tuple[Array, Sequence[Array]]],
    *,
    optimizers: Sequence[AdamW | SGD],
    epochs: int,
    batch_size: int,
    drop_last: bool,
    rate: Callable[[int, int], float],
    seed: int,
    order: np.ndarray | None = None,
    accuracy: Callable[[Sequence[Array]], float] | None = None,
) -> Trained:
    """Gradient steps from the parameters `start`, float64 arrays with one optimizer each.

    While a state file is loaded, nothing is trained: what was learned is in the file.

    Parameters
    ----------
    gradients : of parameters, features (n, d) and labels (n,): the mean loss and its gradient for each parameter.
    rate : the learning rate, of the number of the epoch and the number of the step.
    seed, order : see `epoch_batches`.
    accuracy : of parameters: by this the epoch is chosen, the first of equally good ones. Without it the last is taken.
    """
    features, labels = support
    backend = Backend.of(features)
    samples = len(labels)
    steps = epochs * len(batches(np.arange(samples), batch_size, drop_last=drop_last))
    parameters = tuple(start)
    if restoring():
        return Trained(parameters, np.zeros(steps), np.zeros(0 if accuracy is None else epochs), epochs)
    on_device = backend.index(labels)
    losses: list[Array] = []
    accuracies: list[float] = []
    best, best_epoch = parameters, epochs if accuracy is None else 0
    planned = epoch_batches(samples, epochs, batch_size, drop_last=drop_last, seed=seed, order=order)
    for epoch, planned_batches in enumerate(planned):
        for rows in planned_batches:
            batch, batch_labels = features, on_device
            if len(rows) < samples:
                index = backend.index(rows)
                batch, batch_labels = features[index], on_device[index]
            loss, slopes = gradients(parameters, batch, batch_labels)
            now = rate(epoch, len(losses))
            for optimizer in optimizers:
                optimizer.rate = now
            parameters = tuple(
                optimizer.step(parameter, slope)
                for optimizer, parameter, slope in zip(optimizers, parameters, slopes, strict=True)
            )
            losses.append(loss)
        if accuracy is not None:
            accuracies.append(accuracy(parameters))
            if accuracies[-1] > max(accuracies[:-1], default=-1.0):
                best, best_epoch = parameters, epoch + 1
    values = np.array([float(loss) for loss in losses], dtype=np.float64)
    return Trained(parameters if accuracy is None else best, values, np.array(accuracies), best_epoch)


class TrainedMethod(FewShotMethod):
    """A classifier whose parameters are trained once, on the support samples, when the method is made.

    A subclass defines `_train`, and `_derive`, which computes what prediction needs from `_trained`.
    """

    epochs: int | None
    seed: int = parameter(Number(low=0, integer=True), "Seed of the order of the samples.", default=0)
    order: Array | None = array_parameter(
        "The order of the support samples in each epoch, (epochs, n), in place of a random one.", default=None
    )

    # A reset leaves what was trained: training again would give the same.
    _trained: Trained = state(
        lambda self: self.__dict__.get("_trained") or self._train(),
        saved_as="",
        merge=lambda mine, theirs: mine,  # the same, by the same parameters
        check=lambda self, trained: self._check_trained(trained),
    )

    def _validate(self) -> None:
        super()._validate()
        self.order = checked_order(self.order, self._epochs, len(self.support[1]))

    @property
    def _epochs(self) -> int:
        """The number of epochs."""
        assert self.epochs is not None
        return self.epochs

    def _fit(self) -> None:
        """Nothing: what is learned is a piece of state."""

    @abstractmethod
    def _train(self) -> Trained:
        """The parameters learned from `support`."""

    def _check_trained(self, trained: Trained) -> None:
        """ValueError for what no training leads to."""

    @property
    def losses(self) -> np.ndarray:
        """The mean loss of each batch of the training, before its step."""
        return self._trained.losses.copy()
