"""COSMIC: cliques of similar classes, in the spaces of two encoders, vote for what is near to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, as_floats, check_matrix, namespace, to_numpy
from zeroshift.features.checks import blocks
from zeroshift.method import OnlineMethod, TwoEncoderMethod
from zeroshift.methods._shared.class_memory import ClassMemory
from zeroshift.methods._shared.cliques import CliqueSet
from zeroshift.methods._shared.similarity import SHARPNESS, exponential_kernel, normalize_rows, unit_rows
from zeroshift.methods.tda import TDA
from zeroshift.parameters import Flag, Number, parameter, state
from zeroshift.views import RATIO, as_images, check_unit_views, observe_views
from zeroshift.zero_shot import confidence, log_softmax, logits, observe, pseudo_class, softmax

SHARED_NEIGHBOURS = 2
"""Edges whose ends have fewer neighbours in common are removed."""

DEGREE_SHARE = 0.8
"""Mean degree of the graph in the first encoder's space, relative to that in the second's."""

WITHOUT_SECOND = (
    "second is missing: cosmic needs features of the same images from a second encoder. Fix: adapt(features, "
    "second=...), --second in commands; or alone=True, which uses the first encoder's features in its place."
)


class Memories:
    """The samples stored for each class in both spaces, and the cliques found among the classes.

    The dimension of the second space is that of the first sample; before, it is 0.
    """

    def __init__(self, backend: Backend, classes: int, capacity: int, dimension: int, second: int = 0) -> None:
        self._backend = backend
        self.first = ClassMemory(backend, classes, capacity, dimension, ties="first slot")
        self.second = ClassMemory(backend, classes, capacity, second)
        self.first_cliques, self.second_cliques = CliqueSet.empty(dimension), CliqueSet.empty(second)

    @property
    def second_dimension(self) -> int:
        return int(self.second.entries.shape[1])

    def with_second(self, dimension: int) -> Memories:
        """Empty memories for a second space of this dimension."""
        return Memories(self._backend, *self.first.rows.shape, self.first.entries.shape[1], dimension)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        found: dict[str, Array] = {}
        for space in ("first", "second"):
            found |= {f"{space}_{name}": array for name, array in getattr(self, space).state()[0].items()}
            cliques: CliqueSet = getattr(self, f"{space}_cliques")
            found |= {f"{space}_cliques_{name}": array for name, array in cliques.arrays(self._backend).items()}
        return found, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> Memories:
        shape = tuple(arrays["second_entries"].shape)
        restored = self.with_second(int(shape[1]) if len(shape) == 2 else 0)
        classes = len(restored.first.rows)
        for space, nodes in (("first", 2 * classes), ("second", classes)):
            memory = getattr(restored, space)
            own = {name.removeprefix(f"{space}_"): array for name, array in arrays.items() if name.startswith(space)}
            memory.restore(own, values)
            cliques = {name.removeprefix("cliques_"): array for name, array in own.items()}
            found = CliqueSet.empty(0).restored(cliques, nodes, int(memory.entries.shape[1]))
            setattr(restored, f"{space}_cliques", found)
        return restored

    def check_seen(self, n_seen: int) -> None:
        """ValueError if no stream of so many samples leads to these memories."""
        self.first.check_seen(n_seen)
        self.second.check_seen(n_seen)


class TwoSpaces(NamedTuple):
    """Samples in both spaces, and what of them is stored."""

    x: Array
    """(n, d)."""
    z: Array
    """(n, e)."""
    stored: Array
    """(n, d): what the first memory gets."""
    k: Array
    """The class it gets it under (n,)."""
    entropy: Array
    """(n,)."""


class COSMIC(OnlineMethod, TwoEncoderMethod):
    """Memories of the most confident samples describe the classes in the spaces of two encoders. In each space,
    similar classes form cliques. A sample is compared with the centres of the cliques, and those nearest to it let
    their members vote. The votes are added to the zero-shot posterior.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import COSMIC
    >>> method = COSMIC(np.eye(2), logit_scale=5.0, degree=1.0)
    >>> features, second = np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> method.adapt(features, second=second).round(3)
    array([[0.932, 0.068],
           [0.068, 0.932]])

    Notes
    -----
    Huang et al., *COSMIC: Clique-Oriented Semantic Multi-space Integration for Robust CLIP Test-Time Adaptation*, CVPR
    2025, from the authors' code: the path that their two scripts select. The second encoder (theirs is DINOv2) needs no
    text. The authors search the weights of both kinds of votes on the test labels and report the best; here they are
    1. They use TDA's alpha and beta for each data set (`presets`), 16 samples per class on variants of ImageNet and 8
    elsewhere, and 8 views of an image, of which the most confident one determines what is stored. `adapt_scores`
    returns the sum of the posterior and the votes; probabilities are its shares.

    Graphs have a threshold by which they reach a mean degree. Often none does, or products are equal up to rounding; as
    long as a class has no sample, its class vector is its prototype. The authors' result then depends on rounding. Here
    equal products are treated alike, the sparser graph is taken, and of equally near cliques all vote. Cliques are
    found again for each sample that is stored, among the first K times `memory_size`, later for every
    `rebuild_every`-th; in between, samples are compared with the old ones. A dense graph may have very many: at most
    100,000 are listed. The entropy by which samples enter the second memory is that of a softmax over the sum of two
    posteriors, as in the authors' code.
    """

    name = "cosmic"
    headline = "Cliques of classes in two encoders' spaces vote"
    needs: ClassVar[tuple[str, ...]] = ("prototypes", "second")
    views_with_second = True
    state_size = "K M (d + e) and the cliques, M = memory_size, e the second encoder's dimension"
    complexity = "O(K M (d + e)) per sample; the cliques O(K^2 (d + e)), and at least one step for each"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        dataset: {
            "alpha": of_tda["positive_alpha"],
            "beta": of_tda["positive_beta"],
            "memory_size": 16 if dataset.startswith("imagenet") else 8,
        }
        for dataset, of_tda in TDA.presets.items()
    }
    not_frozen = "its class vectors and cliques follow each sample"
    example_parameters: ClassVar[Mapping[str, Any]] = {"alone": True}

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    memory_size: int = parameter(
        Number(low=1, integer=True), "Samples stored per class and space.", default=8, sizes_state=True
    )
    memory_beta: float = parameter(
        SHARPNESS, "Sharpness of the kernel by which the samples of a class are averaged for a query.", default=5.5
    )
    alpha: float = parameter(
        Number(low=0), "Height of the votes of a node, alpha exp(-beta (1 - cosine)).", default=2.0
    )
    beta: float = parameter(SHARPNESS, "Their sharpness.", default=5.0)
    degree: float = parameter(
        Number(low=0),
        "Mean number of neighbours in the graph of the second space; in the first, where every class has two nodes, "
        "0.8 of it.",
        default=5.0,
    )
    clique_share: float = parameter(
        Number(0, 1, above=True), "Share of the cliques that vote, the nearest; at least one.", default=0.2
    )
    rebuild_every: int = parameter(
        Number(low=1, integer=True),
        "Samples from one search for cliques to the next, once there were many.",
        default=100,
    )
    clique_weight: float = parameter(Number(low=0), "Weight of the votes in the first space.", default=1.0)
    second_clique_weight: float = parameter(Number(low=0), "Weight of the votes in the second space.", default=1.0)
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views that `adapt_views` keeps, those of lowest entropy; at least one.",
        default=RATIO,
    )
    alone: bool = parameter(
        Flag(), "Without `second`, use the first encoder's features in its place instead of an error.", default=False
    )

    _memories: Memories = state(
        lambda self: Memories(Backend.of(self.prototypes), self.n_classes, self.memory_size, self.dimension)
    )

    @property
    def n_cliques(self) -> tuple[int, int]:
        """Number of cliques in the first space and in the second."""
        return len(self._memories.first_cliques.sizes), len(self._memories.second_cliques.sizes)

    def adapt_views(self, views: Array, *, second: Array | None = None) -> Array:
        """Learn from each image's views and predict it: (N, K) for (N, V, d), (K,) for (V, d) of one image.

        `second` (N, e) or (e,) holds features of the images themselves from the second encoder.
        """
        if second is None:
            return super().adapt_views(views)
        return self._answer_views_both(views, second, probabilities=True)

    def adapt_views_scores(self, views: Array, *, second: Array | None = None) -> Array:
        """Like `adapt_views`, but return the raw scores."""
        if second is None:
            return super().adapt_views_scores(views)
        return self._answer_views_both(views, second, probabilities=False)

    def _answer_views_both(self, views: Array, second: Array, *, probabilities: bool) -> Array:
        images, single = as_images(views, self.dimension, empty=True)
        second = as_floats("second", second)
        other = second[None, :] if single and len(second.shape) == 1 else second
        check_matrix("second", other, empty=True)
        if other.shape[0] != images.shape[0]:
            raise ValueError(
                f"second has {other.shape[0]} rows, but there are {images.shape[0]} images with views. "
                "Fix: one row of the second encoder for each image."
            )
        for block in blocks(images.shape[0], images.shape[1] * images.shape[2]):
            check_unit_views(images[block], block.start)
        run = partial(self._adapt_view_scores, second=self._rows(other))
        answer = self._collect(self._rows(images), images, run, True, probabilities)
        return answer[0] if single else answer

    def _adapt_view_scores(self, images: Rows, second: Rows | None = None) -> Iterator[tuple[slice, Array]]:
        for block, views in images.blocks(1):
            image = views[0]
            z = self._second_of(image[:1], None if second is None else second[block])
            kept = observe_views(image, self.prototypes64, self.logit_scale, self.view_ratio)
            x = TwoSpaces(image[:1], z, kept.features, pseudo_class(kept.y), kept.entropy)
            yield block, self._learn_and_score(x, 1)

    def observe(self, both: Array) -> TwoSpaces:
        features, second = self._parts(both)
        x = observe(features, self.prototypes64, self.logit_scale)
        return TwoSpaces(features, self._second_of(features, second), features, x.k, x.entropy)

    def _second_of(self, features: Array, second: Array | None) -> Array:
        """The features of the second encoder; of the first, if it is used alone."""
        if second is None:
            if not self.alone:
                raise ValueError(WITHOUT_SECOND)
            second = features
        known = self._memories.second_dimension
        if self._n_seen and known != second.shape[1]:
            raise ValueError(
                f"second has {second.shape[1]} columns, but for the {self._n_seen} samples before it had {known}. "
                "Fix: the same encoder for the whole stream, or reset() to begin again."
            )
        return second

    def learn(self, x: TwoSpaces) -> None:
        """Store a sample in both memories, and find the cliques where that is due."""
        if self._memories.second_dimension != x.z.shape[0]:
            self._memories = self._memories.with_second(int(x.z.shape[0]))
        memories = self._memories
        in_first = memories.first.offer(x.k, x.entropy, unit_rows(x.stored[None, :])[0])
        vectors = self._class_vectors(x.x)
        text, cache = (softmax(self.logit_scale * (rows @ x.x)) for rows in (self.prototypes64, vectors))
        both = (text + cache)[None, :]
        in_second = memories.second.offer(pseudo_class(both)[0], -confidence(log_softmax(both))[0], x.z)
        early = self._n_seen <= self.n_classes * self.memory_size
        due = not early and self._n_seen % self.rebuild_every == 0
        if due or (early and in_first):
            nodes = np.concatenate([to_numpy(self.prototypes64), to_numpy(vectors)])
            memories.first_cliques = CliqueSet.of(nodes, degree=DEGREE_SHARE * self.degree, shared=SHARED_NEIGHBOURS)
        if due or (early and in_second):
            means = to_numpy(self._class_means())
            memories.second_cliques = CliqueSet.of(means, degree=self.degree, shared=SHARED_NEIGHBOURS)

    def _class_vectors(self, x: Array) -> Array:
        """Each class's prototype and stored samples, averaged by their similarity with x: rows (K, d) of unit length.

        A class without samples has its prototype.
        """
        memory, text = self._memories.first, self.prototypes64
        index, vectors = Backend.of(text).index, Backend.of(text).copy(text)
        used = int(memory.counts.max())  # slots are filled in order
        classes = np.flatnonzero(memory.counts)
        if not len(classes):
            return vectors
        rows, k = index(memory.rows[classes, :used]), index(classes)
        stored = memory.entries[rows]
        weights = exponential_kernel(stored @ x, self.memory_beta)  # an empty slot has a row of zeros
        own = exponential_kernel(text[k] @ x, self.memory_beta)[:, None] * text[k]
        vectors[k] = unit_rows(own + (weights[:, None, :] @ stored)[:, 0])
        return vectors

    def _class_means(self) -> Array:
        """The mean of the samples of each class in the second space, (K, e); zero for a class without any."""
        memory = self._memories.second
        sums = memory.entries[Backend.of(self.prototypes).index(memory.rows)].sum(axis=1)
        return sums / self.as_own(np.maximum(memory.counts, 1.0))[:, None]

    def score(self, samples: TwoSpaces) -> Array:
        if not self._n_seen:
            return softmax(logits(samples.x, self.prototypes64, self.logit_scale))  # there are no cliques yet
        scores = [self._scores_of(x, z) for x, z in zip(samples.x, samples.z, strict=True)]
        return namespace(samples.x).stack(scores)

    def _scores_of(self, x: Array, z: Array) -> Array:
        """The posterior of a sample, plus the votes of the cliques in both spaces, (K,)."""
        vectors, text, memories = self._class_vectors(x), self.prototypes64, self._memories
        nodes = namespace(x).concat([text @ x, vectors @ x])
        votes = self._votes(memories.first_cliques, x, nodes)
        first = (votes[: self.n_classes] + votes[self.n_classes :]) / 2
        second = self._votes(memories.second_cliques, z, self._class_means() @ z)
        return softmax(self.logit_scale * (text @ x)) + self.clique_weight * first + self.second_clique_weight * second

    def _votes(self, cliques: CliqueSet, y: Array, products: Array) -> Array:
        """Votes (n,) of the nodes of the cliques nearest to y; `products` (n,) are those of y and the nodes."""
        if not len(cliques.sizes):
            return 0.0 * products
        nearest = cliques.nearest(to_numpy(y), self.clique_share, int(products.shape[0]))
        return self.alpha * exponential_kernel(products, self.beta) * Backend.of(products).index(nearest)

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)
