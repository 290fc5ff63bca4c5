"""TaskRes: a residual for each text prototype, trained on labelled samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.training import Adam, TrainedMethod, label_loss
from zeroshift.methods._shared.tuning import through_unit_rows
from zeroshift.parameters import Number, Optional, parameter
from zeroshift.zero_shot import logits

FEW_SHOTS, EPOCHS_FOR_FEW, EPOCHS_FOR_MORE = 4, 100, 200
"""With up to so many samples per class the authors train for fewer epochs."""


class TaskRes(TrainedMethod):
    """Adds a residual to each text prototype and trains the residuals on the labelled samples. The sum, scaled to unit
    length, classifies. With a validation set, the epoch is chosen there; otherwise the last one is used.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TaskRes
    >>> support = np.array([[0.8, 0.6], [0.28, 0.96]]), np.array([0, 1])
    >>> method = TaskRes(np.eye(2), support=support, logit_scale=5.0)
    >>> method.losses[[0, -1]].round(3)
    array([0.173, 0.137])
    >>> method.predict(np.array([0.8, 0.6])).round(3)
    array([0.795, 0.205])

    Notes
    -----
    Yu et al., *Task Residual for Tuning Vision-Language Models*, CVPR 2023. Adam with L2 regularisation added to the
    gradient; the first epoch has a learning rate of 1e-5, and half a cosine follows. The regularisation and the first
    epoch come from the authors' training framework. Alpha is a constant of the authors, 1 on Flowers102 and 0.5
    elsewhere, and the learning rate on ImageNet is 2e-4; their code has no procedure that chooses them, and uses no
    validation set. Differences: the authors train on new random crops in each epoch, here on the given features; their
    prototypes have the length of CLIP's text features, for which `base_norm` stands, since a step of Adam does not
    depend on it. Their enhanced variant starts from a text projection that was trained before, and is not included.
    """

    name = "taskres"
    headline = "Trains a residual for each text prototype"
    linear = True
    state_size = "K d, and the loss of each step"
    complexity = "O(K d) per sample; the training O(E N K d) for N support samples and E epochs"
    check_exceptions: ClassVar[Mapping[str, str]] = {"axes_do_not_matter": "Adam scales each coordinate by itself"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": {"alpha": 0.5, "rate": 2e-4},
        "oxford_flowers": {"alpha": 1.0, "rate": 2e-3},
    }

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    alpha: float = parameter(Number(low=0), "Weight of the residuals relative to the prototypes.", default=0.5)
    base_norm: float = parameter(
        Number(low=0, above=True),
        "Length of the prototypes to which the residuals are added. The smaller, the faster the residuals matter.",
        default=1.0,
    )
    rate: float = parameter(Number(low=0), "Learning rate of Adam.", default=2e-3)
    weight_decay: float = parameter(
        Number(low=0), "This share of the residuals is added to their gradient.", default=5e-4
    )
    epochs: int | None = parameter(
        Optional(Number(low=0, integer=True)),
        "Passes over the support samples. None means 100 for up to four samples per class, 200 for more.",
        default=None,
        sizes_state=True,
    )
    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Support samples per step. An incomplete last batch is left out, unless it is the only one.",
        default=256,
    )

    @property
    def _epochs(self) -> int:
        if self.epochs is not None:
            return self.epochs
        shots = np.bincount(self.support[1]).max()
        return EPOCHS_FOR_FEW if shots <= FEW_SHOTS else EPOCHS_FOR_MORE

    @property
    def residual(self) -> Array:
        """What is added to the prototypes (K, d), times `alpha`."""
        return Backend.of(self.prototypes).copy(self._trained.parameters)

    def _start(self) -> Array:
        return self.zeros(self.n_classes, self.dimension)

    def _optimizer(self) -> Adam:
        return Adam(self.rate, weight_decay=self.weight_decay)

    def _moved(self, residual: Array) -> Array:
        return self.base_norm * self.prototypes64 + self.alpha * residual

    def _scores(self, residual: Array, x: Array) -> Array:
        return logits(x, unit_rows(self._moved(residual)), self.logit_scale)

    def _loss(self, residual: Array, x: Array, labels: Array) -> tuple[Array, Array]:
        moved = self._moved(residual)
        loss, slope = label_loss(logits(x, unit_rows(moved), self.logit_scale), labels)
        return loss, through_unit_rows(self.alpha * self.logit_scale * slope.T @ x, moved)

    def _predict_scores(self, features: Array) -> Array:
        return self._scores(self._trained.parameters, features)
