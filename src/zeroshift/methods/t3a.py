"""T3A: test-time classifier adjustment, with the prototypes as the classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.frozen import Expression
from zeroshift.method import OnlineMethod
from zeroshift.methods._shared.class_memory import ClassMemory
from zeroshift.methods._shared.similarity import inner_products, unit_rows
from zeroshift.parameters import Flag, Number, Optional, parameter, state
from zeroshift.state_checks import check_lengths, check_seen
from zeroshift.zero_shot import Observation, observe, softmax


class T3A(OnlineMethod):
    """Replaces each prototype by the mean direction of its class's supports: the prototype itself and the samples that
    the zero-shot classifier assigns to the class, of which those with the lowest entropy are kept.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import T3A
    >>> T3A(np.eye(2)).adapt_scores(np.array([[0.8, 0.6], [0.6, 0.8]])).round(6)
    array([[0.948683, 0.6     ],
           [0.822192, 0.948683]])

    Notes
    -----
    Iwasawa and Matsuo, *Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization*, NeurIPS 2021.
    The authors adjust the last linear layer of a trained network; that the prototypes times `logit_scale` replace it,
    without a bias, is ours. So are the probabilities, the softmax of `logit_scale` times the scores: the authors' code
    predicts by the scores alone, cosines with the new class vectors. The authors try `filter_size` 1, 5, 20, 50, 100
    and all, and use batches of 32.

    A prototype is a support like any other, with the entropy of its own zero-shot prediction: nearly 0 at a scale of
    100, so that it stays, but at a scale of 1 samples may replace it.
    """

    name = "t3a"
    headline = "Prototypes become means of sure samples"
    state_size = "K M d; K d if all are kept (released: N d, which grows)"
    complexity = "O(K d + M d) per sample"

    logit_scale: float = parameter(
        Number(low=0, above=True),
        "Scale of the logits; 100 for CLIP. It determines the entropies, also those of the prototypes.",
        default=100.0,
    )
    filter_size: int | None = parameter(
        Optional(Number(low=1, integer=True)), "Supports kept per class; None keeps all.", default=20, sizes_state=True
    )
    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Samples that become supports together, before any of them is predicted. The last batch of a call may be "
        "smaller.",
        default=1,
    )
    released: bool = parameter(
        Flag(),
        "If `filter_size` is None, drop the support with the highest entropy of each class with every batch, as the "
        'authors\' code does for its "keep all" (-1). Without effect otherwise.',
        default=False,
    )

    _supports: ConfidentSupports | AllSupports = state(lambda self: self._prototype_supports(), saved_as="")

    def _prototype_supports(self) -> ConfidentSupports | AllSupports:
        backend, shape = Backend.of(self.prototypes), (self.n_classes, self.dimension)
        supports: ConfidentSupports | AllSupports
        if self.filter_size is not None:
            supports = ConfidentSupports(backend, self.n_classes, self.filter_size, self.dimension)
        else:
            supports = (DroppingSupports if self.released else AllSupports)(backend, *shape)
        # The classifier's weights are scaled prototypes, and each of them is classified by all.
        first = observe(self.prototypes64, self.prototypes64, self.logit_scale**2)
        supports.add(unit_rows(first.features), to_numpy(first.k), to_numpy(first.entropy))
        return supports

    def _derive(self) -> None:
        totals = [self._supports.total(k) for k in range(self.n_classes)]
        self._vectors = unit_rows(namespace(self.prototypes64).stack(totals))

    @property
    def means(self) -> Array:
        """The class vectors (K, d), of unit length; zero for a class without support."""
        return Backend.of(self.prototypes).copy(self._vectors)

    def observe(self, features: Array) -> Observation:
        return observe(features, self.prototypes64, self.logit_scale)

    def learn(self, batch: Observation) -> None:
        for k in self._supports.add(unit_rows(batch.features), to_numpy(batch.k), to_numpy(batch.entropy)):
            self._vectors[k] = unit_rows(self._supports.total(k))

    def score(self, x: Observation) -> Array:
        return inner_products(x.features, self._vectors)

    def _frozen(self, x: Expression) -> Expression:
        return x.linear(self.logit_scale * self._vectors).softmax()

    def _probabilities(self, scores: Array) -> Array:
        return softmax(self.logit_scale * scores)


class ConfidentSupports(ClassMemory):
    """The supports of lowest entropy of each class."""

    def add(self, samples: Array, classes: np.ndarray, entropies: np.ndarray) -> np.ndarray:
        """Store the samples that belong here; the classes that changed."""
        entered = [self.offer(k, h, x) for k, h, x in zip(classes, entropies, samples, strict=True)]
        return np.unique(classes[entered])

    def total(self, k: int) -> Array:
        return self.of_class(k).sum(axis=0)

    def check_seen(self, n_seen: int) -> None:
        super().check_seen(n_seen + len(self.rows))  # prototypes are supports, too


class AllSupports:
    """All supports, as the sums of their classes."""

    def __init__(self, backend: Backend, classes: int, width: int) -> None:
        self._backend = backend
        self._sums = backend.zeros((classes, width))

    def add(self, samples: Array, classes: np.ndarray, entropies: np.ndarray) -> np.ndarray:
        for k, x in zip(classes.tolist(), samples, strict=True):
            self._sums[k] += x
        return np.unique(classes)

    def total(self, k: int) -> Array:
        return self._sums[k]

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {"sums": self._sums}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        if tuple(arrays["sums"].shape) != tuple(self._sums.shape):
            raise ValueError(f"sums has shape {tuple(arrays['sums'].shape)}, not {tuple(self._sums.shape)}")
        self._sums = arrays["sums"]

    def check_seen(self, n_seen: int) -> None:
        check_lengths("sums", self._sums / (len(self._sums) + n_seen))


class DroppingSupports(AllSupports):
    """The released code's "keep all": with every batch, each class loses its support with the highest entropy, even if
    it is the only one. The prototypes come first, and none of them is dropped."""

    def __init__(self, backend: Backend, classes: int, width: int) -> None:
        super().__init__(backend, classes, width)
        self._samples = backend.zeros((0, width))
        self._classes, self._entropies = np.zeros(0, dtype=np.int64), np.zeros(0)
        self._begun = False
        """Whether the prototypes are here."""

    def add(self, samples: Array, classes: np.ndarray, entropies: np.ndarray) -> np.ndarray:
        samples = self._backend.xp.concat([self._samples, samples], axis=0)
        classes = np.concatenate([self._classes, classes])
        entropies = np.concatenate([self._entropies, entropies])
        order = np.lexsort((entropies, classes))
        highest = order[np.append(classes[order][1:] != classes[order][:-1], True)]
        kept = np.setdiff1d(np.arange(len(classes)), highest) if self._begun else np.arange(len(classes))
        self._samples, self._begun = samples[self._backend.index(kept)], True
        self._classes, self._entropies = classes[kept], entropies[kept]
        return np.unique(classes)

    def total(self, k: int) -> Array:
        return self._samples[self._backend.index(np.flatnonzero(self._classes == k))].sum(axis=0)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {"features": self._samples, "classes": self._classes, "entropies": self._entropies}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        samples, classes = arrays["features"], to_numpy(arrays["classes"]).astype(np.int64)
        entropies = to_numpy(arrays["entropies"]).astype(np.float64)
        n, width = len(classes), self._samples.shape[1]
        if tuple(samples.shape) != (n, width) or classes.shape != (n,) or entropies.shape != (n,):
            raise ValueError(f"supports {tuple(samples.shape)}, classes {classes.shape}, entropies {entropies.shape}")
        if len(classes) and not 0 <= classes.min() <= classes.max() < len(self._sums):
            raise ValueError(f"the classes of the supports must be from 0 to {len(self._sums) - 1}")
        self._samples, self._classes, self._entropies = samples, classes, entropies

    def check_seen(self, n_seen: int) -> None:
        check_lengths("features", self._samples)
        check_seen("the number of supports", len(self._classes), len(self._sums) + n_seen)
