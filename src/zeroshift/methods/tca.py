"""TCA: token condensation as adaptation. Here its reservoir; `zeroshift.encode.condensation` condenses the tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, as_floats, check_matrix, namespace, to_numpy
from zeroshift.frozen import Expression
from zeroshift.method import OnlineMethod
from zeroshift.methods._shared.similarity import SHARPNESS, exponential_kernel, frozen_votes, unit_rows
from zeroshift.parameters import Number, parameter, state
from zeroshift.state_checks import check_seen
from zeroshift.zero_shot import observe


class TokenSample(NamedTuple):
    """Samples with the class token of every layer."""

    logits: Array
    """(n, K)."""
    k: Array
    """Pseudo-classes (n,)."""
    entropy: Array
    """(n,)."""
    tokens: Array
    """(n, L, w)."""


class TCA(OnlineMethod):
    """Keeps a few confident but different samples per class, each as the class tokens of every layer of the vision
    transformer, and adds the similarity of a sample's tokens with them to the zero-shot logits. The full method also
    condenses the transformer's tokens on the way, guided by the reservoir; with features alone, only the reservoir is
    used.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TCA
    >>> method = TCA(np.eye(2), logit_scale=5.0)
    >>> method.adapt_scores(np.array([[0.8, 0.6], [0.6, 0.8]])).round(4)
    array([[7.    , 3.    ],
           [5.4562, 7.    ]])

    Notes
    -----
    Wang et al., *Is Less More? Exploring Token Condensation as Training-free Test-time Adaptation*, ICCV 2025. With
    features alone, the token of every layer is the feature itself: the reservoir without the condensation, which is
    ours and not the authors' method; tables should say so. `adapt_tokens` accepts the tokens of a vision transformer,
    and `zeroshift.encode.condensation.adapt_with_condensation` runs the whole method on a CLIP encoder. Its defaults
    are the ImageNet row of the authors' table. No output of their code was available for comparison.
    """

    name = "tca"
    headline = "Stores class tokens of sure samples"
    takes = ("tokens",)
    from_features = "its reservoir on features alone, without the token condensation that needs images"
    state_size = "K M L w; K M d from features alone"
    complexity = "O(K M L w) per sample"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        dataset: {"reservoir_size": size, "layer_scale": scale, "weight": weight, "beta": beta}
        for dataset, (size, scale, weight, beta) in {
            "imagenet": (3, 0.1, 3.0, 5.0),
            "imagenet_a": (3, 0.01, 3.0, 5.0),
            "imagenet_r": (3, 0.1, 3.0, 8.0),
            "imagenet_sketch": (3, 0.1, 4.0, 8.0),
            "imagenetv2": (3, 0.1, 4.0, 9.0),
            "caltech101": (3, 1.0, 7.0, 6.0),
            "dtd": (3, 1.0, 2.0, 6.0),
            "eurosat": (2, 5.0, 8.0, 7.0),
            "fgvc_aircraft": (3, 0.02, 2.0, 2.0),
            "food101": (3, 0.01, 2.0, 5.0),
            "oxford_flowers": (3, 0.01, 7.0, 7.0),
            "oxford_pets": (3, 5.5, 2.0, 6.0),
            "stanford_cars": (3, 0.1, 1.5, 8.0),
            "sun397": (3, 0.01, 4.0, 3.0),
            "ucf101": (3, 0.01, 6.0, 8.0),
        }.items()
    }

    logit_scale: float = parameter(
        Number(low=0, above=True), "Scale of the zero-shot logits; 100 for CLIP.", default=100.0
    )
    reservoir_size: int = parameter(Number(low=1, integer=True), "Samples kept per class.", default=3, sizes_state=True)
    layer_scale: float = parameter(
        Number(low=0, above=True),
        "How evenly the layers count: layer l of L has the weight exp(l / (L - 1) / layer_scale), so 0.01 uses the "
        "last layer only and 5 weights all layers nearly equally.",
        default=0.1,
    )
    weight: float = parameter(Number(low=0), "Weight of the reservoir's votes.", default=3.0)
    beta: float = parameter(SHARPNESS, "How fast the votes decrease with distance.", default=5.0)

    _reservoir: TokenReservoir = state(lambda self: self._empty_reservoir(1, self.dimension), saved_as="")

    def adapt_tokens(self, features: Array, tokens: Array) -> Array:
        """`adapt` for features (N, d) with the class token of every layer, `tokens` (N, L, w)."""
        return self._answer_tokens(features, tokens, learn=True, probabilities=True)

    def adapt_tokens_scores(self, features: Array, tokens: Array) -> Array:
        """Like `adapt_tokens`, but return the raw scores."""
        return self._answer_tokens(features, tokens, learn=True, probabilities=False)

    def predict_tokens(self, features: Array, tokens: Array) -> Array:
        """`predict` for features with tokens: nothing is learned and no state changes."""
        return self._answer_tokens(features, tokens, learn=False, probabilities=True)

    def _answer_tokens(self, features: Array, tokens: Array, *, learn: bool, probabilities: bool) -> Array:
        features = check_matrix("features", features, columns=self.dimension)
        tokens = as_floats("tokens", tokens)
        if len(tokens.shape) != 3 or tokens.shape[0] != features.shape[0] or 0 in tokens.shape:
            raise ValueError(
                f"tokens must have the shape (N, L, w) with N = {features.shape[0]}; got {tuple(tokens.shape)}."
            )
        for layer in range(tokens.shape[1]):
            check_matrix(f"tokens[:, {layer}]", tokens[:, layer, :], unit=False)
        backend = Backend.of(self.prototypes)

        def run(rows: Rows) -> Iterator[tuple[slice, Array]]:
            own_tokens = backend.asarray(tokens, backend.xp.float64)
            for block, x in rows.blocks(1 if learn else self._predict_rows):
                sample = self._with_tokens(x, own_tokens[block])
                yield block, self._learn_and_score(sample, 1) if learn else self.score(sample)

        return self._collect(self._rows(features), features, run, learn, probabilities)

    @property
    def anchors(self) -> Array | None:
        """The mean tokens (K, L, w) that guide condensation, once every class has two samples; else None."""
        return self._reservoir.anchors()

    @property
    def bank_counts(self) -> Array:
        """Samples kept per class, (K,)."""
        return self.as_own(self._reservoir.counts)

    def _empty_reservoir(self, layers: int, width: int) -> TokenReservoir:
        return TokenReservoir(Backend.of(self.prototypes), self.n_classes, self.reservoir_size, layers, width)

    def _derive(self) -> None:
        """Keys (K, M, L w) of the reservoir."""
        self._keys = self._key(self._reservoir.tokens)

    def _key(self, tokens: Array) -> Array:
        """(..., L w) from (..., L, w), such that inner products are the weighted sums of the layers' cosines."""
        xp = namespace(tokens)
        layers = tokens.shape[-2]
        depth = xp.arange(layers, dtype=tokens.dtype, device=Backend.of(tokens).device) / max(layers - 1, 1)
        weights = xp.exp((depth - depth[-1]) / self.layer_scale)  # the last layer has the largest weight, 1
        factors = xp.sqrt(weights / xp.sum(weights))
        return (unit_rows(tokens) * factors[:, None]).reshape((*tokens.shape[:-2], -1))

    def observe(self, features: Array) -> TokenSample:
        return self._with_tokens(features, features[:, None, :])

    def _with_tokens(self, features: Array, tokens: Array) -> TokenSample:
        x = observe(features, self.prototypes64, self.logit_scale)
        return TokenSample(x.logits, x.k, x.entropy, tokens)

    def plan(self, x: TokenSample) -> TokenSample:
        if self._n_seen:
            self._check_layers(*x.tokens.shape)
        return x

    def learn(self, x: TokenSample) -> None:
        if tuple(self._reservoir.tokens.shape[2:]) != tuple(x.tokens.shape):  # it is still empty: see plan
            self._reservoir = self._empty_reservoir(*x.tokens.shape)
            self._derive()
        k = int(x.k)
        self._reservoir.offer(x.tokens, k, abs(float(x.entropy)))
        self._keys[k] = self._key(self._reservoir.tokens[k])

    def score(self, x: TokenSample) -> Array:
        if not self._n_seen:
            return x.logits
        self._check_layers(*x.tokens.shape[1:])
        classes, size, width = self._keys.shape
        similarities = (self._key(x.tokens) @ self._keys.reshape(classes * size, width).T).reshape(-1, classes, size)
        return x.logits + (exponential_kernel(similarities, self.beta) * self._weights()).sum(axis=2)

    def _weights(self) -> Array:
        """The weight of every slot (K, M), 0 if it is empty."""
        return self.as_own(self.weight * np.isfinite(self._reservoir.entropies))

    def _frozen(self, x: Expression) -> Expression:
        scores = x.linear(self.logit_scale * self.prototypes64)
        if self._n_seen:
            self._check_layers(1, self.dimension)
            scores = scores + frozen_votes(x.unit(), self._keys, self._weights(), self.beta)
        return scores.softmax()

    def _check_layers(self, layers: int, width: int) -> None:
        """A reservoir contains tokens of one shape only."""
        learned = tuple(self._reservoir.tokens.shape[2:])
        if learned != (layers, width):
            raise ValueError(
                f"tokens have the shape (layers, width) = ({layers}, {width}), but those learned from have {learned}. "
                "Fix: keep to adapt and predict, or to adapt_tokens and predict_tokens with one model; or reset()."
            )


class TokenReservoir:
    """At most `capacity` samples per class, each as the class token of every layer. From a class with one sample too
    many, the one with the largest entropy plus mean cosine to the others is removed: neither uncertain samples nor near
    duplicates stay.

    >>> reservoir = TokenReservoir(Backend.of(np.eye(2)), classes=1, capacity=2, layers=1, width=2)
    >>> for token, entropy in (([1.0, 0.0], 0.1), ([0.0, 1.0], 0.3), ([0.8, 0.6], 0.2)):
    ...     reservoir.offer(np.array([token]), 0, entropy)
    >>> reservoir.tokens[0, :, 0]  # the last is between the two others, and less certain than the first
    array([[1., 0.],
           [0., 1.]])
    """

    def __init__(self, backend: Backend, classes: int, capacity: int, layers: int, width: int) -> None:
        self._backend = backend
        self.tokens = backend.zeros((classes, capacity, layers, width))
        self.entropies = np.full((classes, capacity), np.inf)

    @property
    def counts(self) -> np.ndarray:
        """Samples per class, (K,)."""
        return np.isfinite(self.entropies).sum(axis=1)

    def offer(self, tokens: Array, k: int, entropy: float) -> None:
        """Add a sample's tokens (layers, width) to class k."""
        count = int(self.counts[k])
        candidates = self._backend.xp.concat([self.tokens[k, :count], tokens[None, ...]], axis=0)
        entropies = np.append(self.entropies[k, :count], entropy)
        kept = np.arange(count + 1)
        if count == self.entropies.shape[1]:
            kept = np.delete(kept, int(np.argmax(entropies + self._mean_cosines(candidates))))
        order = kept[np.argsort(entropies[kept], kind="stable")]
        self.tokens[k, : len(order)] = candidates[self._backend.index(order)]
        self.entropies[k, : len(order)] = entropies[order]

    def _mean_cosines(self, candidates: Array) -> np.ndarray:
        """Mean cosine of each candidate to the others, computed from the means over layers."""
        means = unit_rows(self._backend.xp.mean(candidates, axis=1))
        cosines = to_numpy(means @ means.T)
        return (cosines.sum(axis=1) - np.diag(cosines)) / (len(cosines) - 1)

    def anchors(self) -> Array | None:
        """The mean tokens of each class (K, layers, width), once every class has more than one sample; else None."""
        counts = self.counts
        if (counts < 2).any():
            return None
        divisors = self._backend.xp.asarray(counts, device=self._backend.device)
        return self._backend.xp.sum(self.tokens, axis=1) / divisors[:, None, None]

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The entropy of an empty slot is saved as -1, since files contain finite numbers only."""
        entropies = np.where(np.isfinite(self.entropies), self.entropies, -1.0)
        return {"tokens": self.tokens, "entropies": entropies}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """The saved tokens may have another number of layers and another width."""
        entropies = to_numpy(arrays["entropies"]).astype(np.float64)
        tokens = arrays["tokens"]
        if entropies.shape != self.entropies.shape or tuple(tokens.shape[:2]) != entropies.shape:
            raise ValueError(f"the saved reservoir has shape {entropies.shape}, not {self.entropies.shape}")
        self.tokens, self.entropies = tokens, np.where(entropies < 0, np.inf, entropies)

    def check_seen(self, n_seen: int) -> None:
        check_seen("the number of samples in the reservoir", int(self.counts.sum()), n_seen)
