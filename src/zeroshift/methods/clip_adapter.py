"""CLIP-Adapter: two small layers after the image encoder, trained on labelled samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, namespace
from zeroshift.frozen import Expression
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.training import Adam, TrainedMethod, label_loss
from zeroshift.methods._shared.tuning import SGD, checked_start, through_unit_rows
from zeroshift.parameters import Choice, Number, array_parameter, parameter
from zeroshift.zero_shot import logits


class CLIPAdapter(TrainedMethod):
    """Mixes each image feature with the output of two layers, and classifies the mixture, scaled to unit length, with
    the text prototypes. The layers are trained on the labelled samples. With a validation set, the epoch is chosen
    there; otherwise the last one is used.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import CLIPAdapter
    >>> support = np.array([[0.8, 0.6], [0.28, 0.96]]), np.array([0, 1])
    >>> layers = np.array([[1.0, -1.0]]), np.array([[0.5], [0.0]])
    >>> method = CLIPAdapter(np.eye(2), support=support, logit_scale=5.0, initial=layers)
    >>> method.losses[[0, -1]].round(4)
    array([0.1597, 0.158 ])
    >>> method.predict(np.array([0.8, 0.6])).round(3)
    array([0.753, 0.247])

    Notes
    -----
    Gao et al., *CLIP-Adapter: Better Vision-Language Models with Feature Adapters*, arXiv 2021 and IJCV 2023. The
    layers have d / 4 and d units, no offsets, and ReLU after both. The authors released the model without its
    configuration, to be run with the command of CoOp: gradient descent with momentum 0.9, a first epoch with a learning
    rate of 1e-5 and half a cosine after it, 50 epochs on ImageNet and for one sample per class, 100 for two and four
    and 200 for more. In the paper the best ratio differs between data sets; the code has the constant 0.2, as here, and
    nothing that chooses it. Difference: the authors train on new random crops in each epoch, here on the given
    features. Their adapter of the text is not in the code, and not here.

    The initial layers already change features, so that with few steps the method may be less accurate than zero-shot.
    """

    name = "clip_adapter"
    headline = "Trains two layers after the image encoder"
    state_size = "d^2 / 2, and the loss of each step"
    complexity = "O(d^2 + K d) per sample; the training O(E N (d^2 + K d)) for N support samples and E epochs"
    check_exceptions: ClassVar[Mapping[str, str]] = {"axes_do_not_matter": "ReLU treats each coordinate by itself"}

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    ratio: float = parameter(
        Number(low=0, high=1),
        "Share of the layers' output in the mixture; the rest is the feature itself.",
        default=0.2,
    )
    reduction: int = parameter(
        Number(low=1, integer=True), "The first layer has d over this many units, at least one.", default=4
    )
    optimizer: str = parameter(
        Choice(("sgd", "adam")), 'Gradient descent with momentum 0.9, or Adam. The authors use "sgd".', default="sgd"
    )
    rate: float = parameter(Number(low=0, high=1), "Learning rate.", default=2e-3)
    weight_decay: float = parameter(
        Number(low=0, high=1), "This share of the weights is added to their gradient.", default=5e-4
    )
    epochs: int = parameter(
        Number(low=0, integer=True), "Passes over the support samples.", default=50, sizes_state=True
    )
    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Support samples per step. An incomplete last batch is left out, unless it is the only one.",
        default=32,
    )
    seed: int = parameter(
        Number(low=0, integer=True), "Seed of the initial weights and of the order of the samples.", default=0
    )
    initial: tuple[Array, Array] | None = array_parameter(
        "Initial weights (h, d) and (d, h) of the two layers, h = d / reduction, in place of random ones.", default=None
    )

    @property
    def _shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        units = max(1, self.dimension // self.reduction)
        return (units, self.dimension), (self.dimension, units)

    def _validate(self) -> None:
        super()._validate()
        if self.initial is None:
            return
        if not isinstance(self.initial, (tuple, list)) or len(self.initial) != 2:
            raise TypeError(
                "initial must be a pair of weights, of the first and of the second layer; got "
                f"{type(self.initial).__name__}. Fix: initial=(first, second)."
            )
        named = zip(("initial first", "initial second"), self.initial, self._shapes, strict=True)
        fix = f"weights of this shape for reduction={self.reduction}, or another reduction"
        self.initial = tuple(self.as_own(checked_start(name, layer, shape, fix)) for name, layer, shape in named)

    @property
    def layers(self) -> tuple[Array, Array]:
        """The trained weights (h, d) and (d, h)."""
        first, second = self._trained.parameters
        backend = Backend.of(first)
        return backend.copy(first), backend.copy(second.T)

    def _start(self) -> Array:
        """Both layers in one array (2, h, d), the second transposed."""
        draw = np.random.default_rng([self.seed, 0])
        drawn = (self.as_own(draw.uniform(-1, 1, size=shape) / shape[1] ** 0.5) for shape in self._shapes)
        first, second = self.initial or drawn
        return namespace(first).stack([first, second.T])

    def _optimizer(self) -> SGD | Adam:
        return (SGD if self.optimizer == "sgd" else Adam)(self.rate, weight_decay=self.weight_decay)

    def _mixture(self, layers: Array, x: Array) -> tuple[Array, Array, Array]:
        """What the first layer and the second make of features (n, d), and the mixture with them."""
        xp = namespace(x)
        hidden = xp.clip(x @ layers[0].T, 0.0, None)
        adapted = xp.clip(hidden @ layers[1], 0.0, None)
        return hidden, adapted, self.ratio * adapted + (1 - self.ratio) * x

    def _scores(self, layers: Array, x: Array) -> Array:
        _, _, mixed = self._mixture(layers, x)
        return logits(unit_rows(mixed), self.prototypes64, self.logit_scale)

    def _loss(self, layers: Array, x: Array, labels: Array) -> tuple[Array, Array]:
        hidden, adapted, mixed = self._mixture(layers, x)
        loss, slope = label_loss(logits(unit_rows(mixed), self.prototypes64, self.logit_scale), labels)
        of_mixture = through_unit_rows(self.logit_scale * slope @ self.prototypes64, mixed)
        of_adapted = self.ratio * of_mixture * (adapted > 0)
        of_hidden = of_adapted @ layers[1].T * (hidden > 0)
        return loss, namespace(x).stack([of_hidden.T @ x, hidden.T @ of_adapted])

    def _predict_scores(self, features: Array) -> Array:
        return self._scores(self._trained.parameters, features)

    def _frozen(self, x: Expression) -> Expression:
        first, second = self._trained.parameters
        adapted = ((x @ first.T).relu() @ second).relu()
        mixed = adapted * self.ratio + x * (1 - self.ratio)
        return mixed.unit().linear(self.logit_scale * self.prototypes64).softmax()
