"""Base class of methods that learn prompts from labelled samples with SGD, as CoOp does."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, checked_labelled, to_numpy
from zeroshift.method import Method
from zeroshift.methods._shared.training import checked_order, epoch_batches, warm_cosine_rate
from zeroshift.methods._shared.tuning import SGD, checked_start, tune
from zeroshift.parameters import Number, Optional, array_parameter, parameter, state
from zeroshift.serialization import restoring

MOMENTUM = 0.9

EPOCHS = ((1, 50), (4, 100), (np.inf, 200))
"""Most samples per class, and CoOp's number of epochs."""


def planned_epochs(
    samples: int, epochs: int, batch_size: int, rate: float, seed: int, order: np.ndarray | None
) -> Iterator[tuple[float, list[np.ndarray]]]:
    """CoOp's step size of each epoch, and the numbers of the samples in each of its steps."""
    planned = epoch_batches(samples, epochs, batch_size, drop_last=True, seed=seed, order=order)
    return ((warm_cosine_rate(epoch, epochs, rate), steps) for epoch, steps in enumerate(planned))


def descend(
    value: Array,
    gradient: Callable[[np.ndarray, Array], tuple[Any, Array]],
    planned: Iterable[tuple[float, list[np.ndarray]]],
    weight_decay: float,
    weights: np.ndarray | None = None,
) -> tuple[Array, np.ndarray]:
    """The value after epochs of SGD, or with `weights` (epochs,) the sum of those after each epoch, times these; and
    the loss of each step. `gradient` of the numbers of some samples and a value is the loss and its gradient."""
    optimizer, losses, mean = SGD(0.0, momentum=MOMENTUM, weight_decay=weight_decay), [], 0 * value
    for epoch, (rate, steps) in enumerate(planned):
        optimizer.rate = rate
        for rows in steps:
            value, found = tune(value, partial(gradient, rows), optimizer)
            losses += found
        if weights is not None:
            mean = mean + float(weights[epoch]) * value
    return (value if weights is None else mean), np.array([float(loss) for loss in losses], dtype=np.float64)


class Trained(NamedTuple):
    """What was trained, and the loss of each step."""

    values: Array
    losses: Array


class TrainedPrompts(Method):
    """A method whose prompts are trained on labelled samples when it is created: SGD with momentum and weight decay, a
    first epoch of small steps, then half a cosine.

    What was trained is the state: loading a file does not train again, and `reset` keeps it. A subclass defines
    `_default_start` and `_gradient`.
    """

    protocol = "few-shot"
    initial: Array | None

    support: tuple[Array, np.ndarray] = array_parameter(
        "Labelled samples: unit-length features (n, d) and class indices (n,)."
    )
    epochs: int | None = parameter(
        Optional(Number(low=0, integer=True)),
        "Passes over the support samples; 0 trains nothing. None means 50 for one sample per class, 100 for up to "
        "four, 200 for more.",
        default=None,
    )
    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Support samples per step. An incomplete last batch is left out, unless it is the only one.",
        default=32,
    )
    rate: float = parameter(
        Number(low=0),
        "Step size of SGD, with a momentum of 0.9, in the second epoch. In the first it is 1e-5; later ones follow a "
        "cosine.",
        default=2e-3,
    )
    weight_decay: float = parameter(
        Number(low=0), "Weight decay: this share of what is trained is added to its gradient.", default=5e-4
    )
    seed: int = parameter(
        Number(low=0, integer=True), "Seed of the order of the samples, and of random initial values.", default=0
    )
    order: np.ndarray | None = array_parameter(
        "The order of the support samples in each epoch, (epochs, n), in place of a random one.", default=None
    )

    # A reset leaves what was trained: training again would give the same.
    _trained: Trained = state(
        lambda self: self.__dict__.get("_trained") or self._train(),
        saved_as="",
        merge=lambda mine, theirs: mine,  # the same, by the same parameters
    )

    @property
    def _adapted_together(self) -> int:
        return 1  # a batch size is that of the training

    def _validate(self) -> None:
        super()._validate()
        self._check_support()
        self._labels: np.ndarray = to_numpy(self.support[1])
        self.order = checked_order(self.order, self._n_epochs, len(self._labels))
        self._start = self._default_start()
        if self.initial is not None:
            shape = tuple(self._start.shape)
            self._start = self.initial = checked_start("initial", self.initial, shape, f"an array of shape {shape}")

    def _check_support(self) -> None:
        self.support = checked_labelled("support", self.support, self.prototypes)

    @abstractmethod
    def _default_start(self) -> np.ndarray:
        """Where training starts if `initial` is None."""

    @abstractmethod
    def _gradient(self, rows: np.ndarray, values: Array) -> tuple[Any, Array]:
        """The mean loss of these support samples, and its gradient for what is trained."""

    def _first_values(self) -> Array:
        return self.as_float64(self._start)

    def _train(self, weights: np.ndarray | None = None) -> Trained:
        if restoring():  # what was trained is in the file
            return Trained(self._first_values(), self.zeros(len(self.rates)))
        start = self._first_values()
        values, losses = descend(start, self._gradient, self._planned(), self.weight_decay, weights)
        return Trained(values, self.as_own(losses))

    def _planned(self) -> Iterator[tuple[float, list[np.ndarray]]]:
        samples = len(self._labels)
        return planned_epochs(samples, self._n_epochs, self.batch_size, self.rate, self.seed, self.order)

    def _batch(self, rows: np.ndarray) -> tuple[Array, Array]:
        """Features (n, d) and labels (n,) of support samples."""
        index = Backend.of(self.prototypes).index
        return self.as_float64(self.support[0][index(rows)]), index(self._labels[rows])

    @property
    def _n_epochs(self) -> int:
        if self.epochs is not None:
            return self.epochs
        shots = int(np.bincount(self._labels).max())
        return next(epochs for most, epochs in EPOCHS if shots <= most)

    @property
    def losses(self) -> np.ndarray:
        """The loss of each batch of the training, before its step."""
        return np.array(to_numpy(self._trained.losses))

    @property
    def rates(self) -> np.ndarray:
        """The step size of each step."""
        return np.array([rate for rate, steps in self._planned() for _ in steps])
