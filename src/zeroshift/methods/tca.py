"""TCA: token condensation as adaptation. Here its reservoir; `zeroshift.encode.condensation` condenses the tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, Rows, check_matrix, is_array, is_double, namespace, to_numpy
from zeroshift.methods._shared.similarity import exponential_kernel, unit_rows
from zeroshift.methods._shared.whole_steps import WholeSteps
from zeroshift.parameters import Constraint, Number
from zeroshift.zero_shot import look

__all__ = ["TCA", "ClassTokens", "TokenReservoir"]


# TCA's reservoir: a few samples a class, sure ones and different ones, each as the class token of every layer.


class ClassTokens(NamedTuple):
    """What a class holds once a sample was offered: tokens (m, layers, width) and entropies (m,), surest first."""

    k: int
    tokens: Array
    entropies: np.ndarray


class TokenReservoir:
    """At most `capacity` samples a class. One too many, and the one with the largest entropy plus mean cosine to the
    others goes: neither unsure samples nor near copies stay.

    >>> reservoir = TokenReservoir(Home.of(np.eye(2)), classes=1, capacity=2, layers=1, width=2)
    >>> for token, entropy in (([1.0, 0.0], 0.1), ([0.0, 1.0], 0.3), ([0.8, 0.6], 0.2)):
    ...     reservoir.take(reservoir.with_sample(np.array([token]), 0, entropy))
    >>> reservoir.tokens[0, :, 0]  # the last is between the two others, and less sure than the first
    array([[1., 0.],
           [0., 1.]])
    """

    def __init__(self, home: Home, classes: int, capacity: int, layers: int, width: int) -> None:
        self._home = home
        self.tokens = home.zeros((classes, capacity, layers, width))
        self.entropies = np.full((classes, capacity), np.inf)

    @property
    def counts(self) -> np.ndarray:
        """Samples a class, (K,)."""
        return np.isfinite(self.entropies).sum(axis=1)

    def with_sample(self, tokens: Array, k: int, entropy: float) -> ClassTokens:
        """What class k will hold once it is offered a sample's tokens (layers, width); nothing is stored yet."""
        xp = self._home.xp
        held = int(np.isfinite(self.entropies[k]).sum())
        candidates = xp.concat([self.tokens[k, :held], tokens[None, ...]], axis=0)
        entropies = np.append(self.entropies[k, :held], entropy)
        if held == self.entropies.shape[1]:
            gone = int(np.argmax(entropies + self._likeness(candidates)))
            staying = np.delete(np.arange(held + 1), gone)
        else:
            staying = np.arange(held + 1)
        order = staying[np.argsort(entropies[staying], kind="stable")]
        return ClassTokens(k, candidates[self._home.index(order)], entropies[order])

    def take(self, held: ClassTokens) -> None:
        """Store that. Doing it again changes nothing."""
        self.tokens[held.k, : len(held.entropies)] = held.tokens
        self.entropies[held.k, : len(held.entropies)] = held.entropies

    def _likeness(self, candidates: Array) -> np.ndarray:
        """Each candidate's mean cosine to the others, of the means of their layers."""
        means = unit_rows(self._home.xp.mean(candidates, axis=1))
        cosines = to_numpy(means @ means.T)
        return (cosines.sum(axis=1) - np.diag(cosines)) / (len(cosines) - 1)

    def anchors(self) -> Array | None:
        """The mean tokens of each class (K, layers, width), once every class has more than one sample; else None."""
        counts = self.counts
        if (counts < 2).any():
            return None
        held = self._home.xp.asarray(counts, device=self._home.device)
        return self._home.xp.sum(self.tokens, axis=1) / held[:, None, None]

    def arrays(self) -> dict[str, Array]:
        """What to save; an empty place's entropy as -1, since files hold finite numbers only."""
        entropies = np.where(np.isfinite(self.entropies), self.entropies, -1.0)
        return {"tokens": self.tokens, "entropies": self._home.bring(entropies, self._home.xp.float64)}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        entropies = to_numpy(arrays["entropies"]).astype(np.float64)
        tokens = arrays["tokens"]
        if entropies.shape != self.entropies.shape or tuple(tokens.shape[:2]) != entropies.shape:
            raise ValueError(f"a reservoir of shape {entropies.shape}, not {self.entropies.shape}, was saved")
        self.tokens, self.entropies = tokens, np.where(entropies < 0, np.inf, entropies)


BLOCK_ROWS = 256


class Bank(NamedTuple):
    """The reservoir, and what votes need of it: keys (K, M, L w), and 1.0 for every place (K, M) in use."""

    reservoir: TokenReservoir
    keys: Array
    held: Array


class TCA(WholeSteps):
    """Keeps a few sure but different samples a class, as the class tokens of every layer of the vision transformer, and
    adds to the zero-shot logits how much a sample's tokens resemble them. The full method also condenses the
    transformer's tokens on the way, guided by the reservoir; features alone give its reservoir only.

    Parameters
    ----------
    prototypes : (K, d) array or tensor
        One unit-length text embedding a class.
    logit_scale : float
        Scale of the zero-shot logits; 100 for CLIP.
    reservoir_size : int
        Samples kept a class.
    layer_scale : float
        How even the layers count: layer l of L weighs exp(l / (L - 1) / layer_scale), so 0.01 is the last layer alone
        and 5 nearly all alike.
    weight : float
        Weight of the reservoir's vote.
    beta : float
        How fast that vote falls with distance.

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
    features alone every layer's token is the feature itself: the reservoir without the condensation, which is ours and
    not the authors' method; tables should say so. `adapt_tokens` takes the tokens of a vision transformer, and
    `zeroshift.encode.condensation.adapt_with_condensation` runs the whole method on a CLIP encoder. Defaults are the
    ImageNet row of the authors' table. No output of their code was available to compare with.
    """

    name = "tca"
    protocol = "online"
    takes = ("tokens",)
    from_features = "its reservoir on features alone, without the token condensation that needs images"
    state_size = "K M L w; K M d from features alone"
    complexity = "O(K M L w) a sample"
    constraints: ClassVar[Mapping[str, Constraint]] = {
        "logit_scale": Number(low=0, above=True),
        "reservoir_size": Number(low=1, integer=True),
        "layer_scale": Number(low=0, above=True),
        "weight": Number(low=0),
        "beta": Number(low=0),
    }
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

    logit_scale: float
    reservoir_size: int
    layer_scale: float
    weight: float
    beta: float

    def __init__(
        self,
        prototypes: Array,
        *,
        logit_scale: float = 100.0,
        reservoir_size: int = 3,
        layer_scale: float = 0.1,
        weight: float = 3.0,
        beta: float = 5.0,
    ) -> None:
        super().__init__(
            prototypes,
            logit_scale=logit_scale,
            reservoir_size=reservoir_size,
            layer_scale=layer_scale,
            weight=weight,
            beta=beta,
        )

    def adapt_tokens(self, features: Array, tokens: Array) -> Array:
        """`adapt` for features (N, d) with the class token of every layer, `tokens` (N, L, w)."""
        return self._answer_tokens(features, tokens, learn=True, probabilities=True)

    def adapt_tokens_scores(self, features: Array, tokens: Array) -> Array:
        """As `adapt_tokens`, but the raw scores."""
        return self._answer_tokens(features, tokens, learn=True, probabilities=False)

    def predict_tokens(self, features: Array, tokens: Array) -> Array:
        """`predict` for features with tokens: nothing is learned and no state changes."""
        return self._answer_tokens(features, tokens, learn=False, probabilities=True)

    @property
    def anchors(self) -> Array | None:
        """What condensation is guided by: each class's mean tokens (K, L, w), once all classes have two samples."""
        self._finish()
        return self._bank.reservoir.anchors()

    @property
    def bank_counts(self) -> Array:
        """Samples held a class, (K,)."""
        self._finish()
        home = Home.of(self.prototypes)
        return home.xp.asarray(self._bank.reservoir.counts, device=home.device)

    def _begin(self) -> None:
        home = Home.of(self.prototypes)
        self._wide_prototypes = home.bring(self.prototypes, home.xp.float64)
        self._bank = self._bank_of(self._empty(1, self.dimension))

    def _empty(self, layers: int, width: int) -> TokenReservoir:
        return TokenReservoir(Home.of(self.prototypes), self.n_classes, self.reservoir_size, layers, width)

    def _bank_of(self, reservoir: TokenReservoir) -> Bank:
        home = Home.of(self.prototypes)
        columns = home.xp.arange(self.reservoir_size, device=home.device)
        counts = home.xp.asarray(reservoir.counts, device=home.device)
        held = home.xp.astype(columns[None, :] < counts[:, None], home.xp.float64)
        return Bank(reservoir, self._key(reservoir.tokens), held)

    def _key(self, tokens: Array) -> Array:
        """(..., L w) from (..., L, w), such that products are the layers' cosines, weighed and summed."""
        xp = namespace(tokens)
        layers = tokens.shape[-2]
        place = xp.arange(layers, dtype=tokens.dtype, device=Home.of(tokens).device) / max(layers - 1, 1)
        rising = xp.exp((place - place[-1]) / self.layer_scale)  # the last layer weighs most, 1
        shares = xp.sqrt(rising / xp.sum(rising))
        return (unit_rows(tokens) * shares[:, None]).reshape((*tokens.shape[:-2], -1))

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        self._check_layers(1, self.dimension)
        for block, features in rows.blocks(BLOCK_ROWS):
            yield block, self._learn(features, features[:, None, :])

    def _learn(self, features: Array, tokens: Array) -> Array:
        """Scores (n, K): each sample enters, then is answered."""
        xp = namespace(features)
        seen = look(features, self._wide_prototypes, self.logit_scale)
        scores = xp.zeros_like(seen.log_y)
        logits = self.logit_scale * (features @ self._wide_prototypes.T)
        keys = self._key(tokens)
        for i in range(features.shape[0]):
            k = int(seen.classes[i])
            held = self._bank.reservoir.with_sample(tokens[i], k, abs(float(seen.confidences[i])))
            self._commit(partial(self._take, held, self._key(held.tokens)))
            scores[i] = logits[i] + self._votes(keys[i : i + 1])[0]
        return scores

    def _take(self, held: ClassTokens, keys: Array) -> None:
        n = len(held.entropies)
        self._bank.reservoir.take(held)
        self._bank.keys[held.k, :n] = keys
        self._bank.held[held.k, :n] = 1.0

    def _votes(self, keys: Array) -> Array:
        """The reservoir's vote for every class, (n, K)."""
        xp = namespace(keys)
        bank = self._bank
        classes, size, width = bank.keys.shape
        likeness = (keys @ bank.keys.reshape(classes * size, width).T).reshape(-1, classes, size)
        return self.weight * xp.sum(exponential_kernel(likeness, self.beta) * bank.held, axis=2)

    def _predict_scores(self, features: Array) -> Array:
        return self._asked(features, features[:, None, :])

    def _asked(self, features: Array, tokens: Array) -> Array:
        """Scores (n, K) with what was learned."""
        logits = self.logit_scale * (features @ self._wide_prototypes.T)
        if self.n_seen == 0:
            return logits
        self._check_layers(*tokens.shape[1:])
        return logits + self._votes(self._key(tokens))

    def _check_layers(self, layers: int, width: int) -> None:
        """A reservoir holds one kind of token; an empty one takes any."""
        held = tuple(self._bank.reservoir.tokens.shape[2:])
        if held == (layers, width):
            return
        if self.n_seen:
            raise ValueError(
                f"tokens have the shape (layers, width) = ({layers}, {width}), but those learned from have {held}. "
                "Fix: keep to adapt and predict, or to adapt_tokens and predict_tokens with one model; or reset()."
            )
        self._bank = self._bank_of(self._empty(layers, width))

    def _answer_tokens(self, features: Array, tokens: Array, *, learn: bool, probabilities: bool) -> Array:
        check_matrix("features", features, columns=self.dimension)
        if not is_array(tokens) or len(tokens.shape) != 3 or tokens.shape[0] != features.shape[0] or 0 in tokens.shape:
            shape = tuple(tokens.shape) if is_array(tokens) else type(tokens).__name__
            raise ValueError(f"tokens must have the shape (N, L, w) with N = {features.shape[0]}; got {shape}.")
        for layer in range(tokens.shape[1]):
            check_matrix(f"tokens[:, {layer}]", tokens[:, layer, :], unit=False)
        home, caller = Home.of(self.prototypes), Home.of(features)
        precision = "float64" if is_double(features) else "float32"
        self._finish()
        with home.computing():
            given = (home.bring(features, home.xp.float64), home.bring(tokens, home.xp.float64))
            if learn:
                self._check_layers(tokens.shape[1], tokens.shape[2])
            scores = self._learn(*given) if learn else self._asked(*given)
            return caller.bring(self._probabilities(scores) if probabilities else scores, getattr(caller.xp, precision))

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self._bank.reservoir.arrays(), {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        reservoir = self._empty(*arrays["tokens"].shape[2:])
        reservoir.restore(arrays)
        self._bank = self._bank_of(reservoir)
