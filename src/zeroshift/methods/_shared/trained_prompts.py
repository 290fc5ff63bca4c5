"""Base class of methods that learn prompts from labelled samples with SGD, as CoOp does."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from zeroshift.arrays import Array, checked_labelled, to_numpy
from zeroshift.method import Method
from zeroshift.methods._shared.training import batches, checked_order, epoch_batches, warm_cosine_rate
from zeroshift.parameters import Number, Optional, array_parameter, parameter, state
from zeroshift.serialization import restoring

MOMENTUM = 0.9

EPOCHS = ((1, 50), (4, 100))
"""Most samples per class, and CoOp's number of epochs."""

MOST_EPOCHS = 200


class TrainedPrompts(Method):
    """A method whose prompts are trained on labelled samples when it is created: SGD with momentum and weight decay, a
    first epoch of small steps, then half a cosine.

    What was trained is the state: loading a file does not train again, and `reset` keeps it. A subclass defines
    `_start` and `_train`.
    """

    protocol = "few-shot"
    computes_in = None

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
    _trained: Any = state(
        lambda self: self.__dict__.get("_trained") or (self._start() if restoring() else self._train()),
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

    def _check_support(self) -> None:
        self.support = checked_labelled("support", self.support, self.prototypes)

    @abstractmethod
    def _start(self) -> Any:
        """What is trained, before training: a named tuple with the field `losses`, in the shapes of the result."""

    @abstractmethod
    def _train(self) -> Any:
        """The same after training."""

    @property
    def _n_epochs(self) -> int:
        if self.epochs is not None:
            return self.epochs
        shots = int(np.bincount(self._labels).max())
        return next((epochs for most, epochs in EPOCHS if shots <= most), MOST_EPOCHS)

    def _steps(self) -> Iterator[tuple[int, float, np.ndarray]]:
        """The number of each step, its step size, and the numbers of its support samples."""
        epochs = self._n_epochs
        planned = epoch_batches(
            len(self._labels), epochs, self.batch_size, drop_last=True, seed=self.seed, order=self.order
        )
        number = 0
        for epoch, rows_of_steps in enumerate(planned):
            for rows in rows_of_steps:
                yield number, warm_cosine_rate(epoch, epochs, self.rate), rows
                number += 1

    @property
    def _steps_per_epoch(self) -> int:
        return len(batches(np.arange(len(self._labels)), self.batch_size, drop_last=True))

    def _no_losses(self) -> Array:
        return self.zeros(self._n_epochs * self._steps_per_epoch)

    @property
    def losses(self) -> np.ndarray:
        """The loss of each batch of the training, before its step."""
        return np.array(to_numpy(self._trained.losses))

    @property
    def rates(self) -> np.ndarray:
        """The step size of each step."""
        rates = [warm_cosine_rate(epoch, self._n_epochs, self.rate) for epoch in range(self._n_epochs)]
        return np.repeat(rates, self._steps_per_epoch)
