"""Frolic: prompt distributions, and a classifier whose label bias is measured on the set itself and taken off."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from zeroshift.adapt.statistics import linear_head
from zeroshift.arrays import Array, Home, Rows
from zeroshift.methods.parts.confidence_matching import matching_temperature, mean_confidence
from zeroshift.methods.parts.examples import example_prompts
from zeroshift.methods.parts.label_bias import corrected, stationary_vector, transition_matrix
from zeroshift.methods.parts.linear_head import LinearHead
from zeroshift.methods.parts.linear_transductive import BLOCK_ROWS, LinearTransductive
from zeroshift.methods.parts.prompt_distribution import (
    mean_prompts,
    moment_covariance,
    pooled_variance,
    prompt_logits,
    shrunken_precision,
)
from zeroshift.methods.parts.prompts import checked_prompts
from zeroshift.methods.parts.proxies import label_sums, refine_proxies
from zeroshift.methods.parts.rows import unit_rows
from zeroshift.methods.parts.sinkhorn import balance, class_shares
from zeroshift.parameters import Choice, Constraint, Number, Optional
from zeroshift.zero_shot import softmax

__all__ = ["Frolic"]

ROUNDS = {"released": 11, "paper": 1}


class Frolic(LinearTransductive):
    """Takes each class's prompts for samples of a Gaussian, makes a classifier of it and of the whole unlabelled set,
    and takes off how much that classifier favours each class. No labels, and no hyper-parameter chosen by them.

    `adapt` starts afresh from the set it is given. Its cost is that of two products of all features with 2 K vectors,
    `proxy_iterations` times over: minutes on a processor for tens of thousands of features and a hundred classes.
    `predict` scores other features with the classifier and the bias that set taught, which is ours: the authors know no
    other features. Before `adapt` it is the zero-shot classifier.

    Parameters
    ----------
    prototypes : (K, d) array or tensor
        One unit-length text embedding a class.
    prompts : (K, P, d) array or tensor
        P unit-length text embeddings a class: templates and descriptions.
    logit_scale : float
        Scale of the logits; 100 for CLIP.
    variant : "released" or "paper"
        What the authors' code computes, or what the paper says, reconstructed; see Notes.
    shrinkage : float
        How far the variances of the prompts' Gaussian are drawn towards 1 ("released").
    label_temperature, label_gamma, label_iterations : float, float, int
        Temperature, exponent of the classes' shares and number of iterations of the Sinkhorn scaling that makes soft
        labels ("released"); see `zeroshift.methods.parts.sinkhorn`.
    hard_above : float
        Soft labels surer than this are made hard ("released").
    proxy_temperature, proxy_rate, proxy_iterations : float, float, int
        Temperature, first step size and number of steps of the InMaP classifiers ("released"); see
        `zeroshift.methods.parts.proxies`.
    ridge : float
        The smallest eigenvalue of the prompts' covariance, as a share of the largest in size ("paper").
    bias_margin : float, optional
        Samples whose two best logits are no further apart do not count for the bias. None: 1 / K for "released", every
        sample counts for "paper".
    bias_rounds : int, optional
        How often the bias is measured and taken off. None: 11 for "released", once for "paper".
    bias_tolerance, bias_iterations : float, int
        When the power iteration for the bias ends: at a change below the one, or after the other.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import Frolic
    >>> prototypes = np.eye(3, 8)
    >>> frolic = Frolic(prototypes, prompts=prototypes[:, None, :], proxy_iterations=100)
    >>> frolic.adapt(prototypes[[0, 1, 2, 1]]).argmax(axis=1)
    array([0, 1, 2, 1])

    Notes
    -----
    Zhu et al., *Enhancing Zero-Shot Vision Models by Label-Free Prompt Distribution Learning and Bias Correcting*,
    NeurIPS 2024.

    "released" is the authors' one released file. Their helpers are not released; `image_opt` and `sinkhorn` are taken
    to be those of InMaP, whose arguments are one fewer, with its defaults. Two InMaP classifiers start from the
    prototypes, one with soft labels from cosines to the mean prompts, one from Gaussian logits with the diagonal of the
    covariance of features and prompts together, `1 / (0.1 v + 0.9)`. Their logits are added up and the bias is taken
    off eleven times, measured on samples with a margin above 1 / K. Of a covariance only the diagonal is kept, so
    features and texts turned together can give other soft labels; where those are hardened, mostly the same ones.

    "paper" is reconstructed. The covariance is `mean x x^T - mean m m^T`, which is not positive definite where texts
    and images lie apart; the identity is added until the smallest eigenvalue is `ridge` times the largest in size.
    Gaussian logits, at the temperature at which they are as confident as the zero-shot ones, are added to those, and
    the bias, measured on every sample, is taken off once.

    A class nothing is predicted as has no column in the bias matrix; where no sample has the margin, the bias stays
    uniform. Everything is computed in float64.
    """

    name = "frolic"
    # In float32 the rounding of two thousand steps can decide a round of the bias correction, and with it many labels.
    computes_in = "float64"
    needs = ("prototypes", "prompts")
    array_parameters = ("prototypes", "prompts")
    example_parameters: ClassVar[Mapping[str, Any]] = {"prompts": example_prompts}
    state_size = "K d"
    complexity = "O(I N K d), I = 4000 steps"
    constraints: ClassVar[Mapping[str, Constraint]] = {
        "logit_scale": Number(low=0, above=True),
        "variant": Choice(("released", "paper")),
        "shrinkage": Number(low=0, high=1, above=True),
        "label_temperature": Number(low=0, above=True),
        "label_gamma": Number(low=0),
        "label_iterations": Number(low=0, integer=True),
        "hard_above": Number(low=0, high=1),
        "proxy_temperature": Number(low=0, above=True),
        "proxy_rate": Number(low=0, above=True),
        "proxy_iterations": Number(low=0, integer=True),
        "ridge": Number(low=0, above=True),
        "bias_margin": Optional(Number(low=0)),
        "bias_rounds": Optional(Number(low=0, integer=True)),
        "bias_tolerance": Number(low=0),
        "bias_iterations": Number(low=0, integer=True),
    }

    prompts: Array
    variant: str
    shrinkage: float
    label_temperature: float
    label_gamma: float
    label_iterations: int
    hard_above: float
    proxy_temperature: float
    proxy_rate: float
    proxy_iterations: int
    ridge: float
    bias_margin: float | None
    bias_rounds: int | None
    bias_tolerance: float
    bias_iterations: int

    def __init__(
        self,
        prototypes: Array,
        *,
        prompts: Array,
        logit_scale: float = 100.0,
        variant: str = "released",
        shrinkage: float = 0.9,
        label_temperature: float = 0.01,
        label_gamma: float = 1.0,
        label_iterations: int = 20,
        hard_above: float = 0.6,
        proxy_temperature: float = 0.04,
        proxy_rate: float = 10.0,
        proxy_iterations: int = 2000,
        ridge: float = 1.0,
        bias_margin: float | None = None,
        bias_rounds: int | None = None,
        bias_tolerance: float = 1e-3,
        bias_iterations: int = 100,
    ) -> None:
        super().__init__(
            prototypes,
            prompts=prompts,
            logit_scale=logit_scale,
            variant=variant,
            shrinkage=shrinkage,
            label_temperature=label_temperature,
            label_gamma=label_gamma,
            label_iterations=label_iterations,
            hard_above=hard_above,
            proxy_temperature=proxy_temperature,
            proxy_rate=proxy_rate,
            proxy_iterations=proxy_iterations,
            ridge=ridge,
            bias_margin=bias_margin,
            bias_rounds=bias_rounds,
            bias_tolerance=bias_tolerance,
            bias_iterations=bias_iterations,
        )

    def _validate(self) -> None:
        self.prompts = checked_prompts(self.prompts, self.prototypes)

    def _learn(self, rows: Rows) -> LinearHead:
        # Thousands of passes: the whole set at once, in one library and precision. Where it is so already, no copy.
        features = rows[slice(0, len(rows))]
        fused = self._released_head(features) if self.variant == "released" else self._paper_head(features)
        return self._unbiased(fused, features)

    @property
    def _mean_prompts(self) -> Array:
        home = Home.of(self.prototypes)
        return mean_prompts(unit_rows(home.bring(self.prompts, home.xp.float64)))

    def _released_head(self, features: Array) -> LinearHead:
        home = Home.of(features)
        means = self._mean_prompts
        precision = shrunken_precision(pooled_variance(features, unit_rows(self.prompts)), self.shrinkage)
        ways: tuple[Callable[[Array], Array], ...] = (
            lambda x: x @ means.T,
            lambda x: prompt_logits(x, means, precision),
        )
        sums = home.xp.stack([self._label_sums(features, way) for way in ways])
        start = home.bring(self.prototypes, features.dtype)
        proxies = refine_proxies(
            features,
            home.xp.stack([start] * len(ways)),
            sums,
            temperature=self.proxy_temperature,
            rate=self.proxy_rate,
            iterations=self.proxy_iterations,
        )
        weights = home.xp.sum(home.bring(proxies, home.xp.float64), axis=0)
        return LinearHead(self.logit_scale * weights, home.zeros((self.n_classes,)))

    def _label_sums(self, features: Array, scores: Callable[[Array], Array]) -> Array:
        """What a classifier learns from soft labels made of these scores."""
        home = Home.of(features)
        labels = home.zeros((features.shape[0], self.n_classes), features.dtype)
        for start in range(0, features.shape[0], BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            # In float64: so low a temperature makes much of the last digits of a cosine.
            wide = scores(home.bring(features[rows], home.xp.float64))
            labels[rows] = softmax(wide / self.label_temperature)
        labels = balance(labels, class_shares(labels, self.label_gamma), self.label_iterations)
        return label_sums(features, labels, self.hard_above)

    def _paper_head(self, features: Array) -> LinearHead:
        zero_shot, means = self._zero_shot, self._mean_prompts
        covariance, _ = moment_covariance(features, means, self.ridge)
        gaussian = LinearHead(*linear_head(means, Home.of(features).xp.linalg.inv(covariance)))
        temperature = matching_temperature(gaussian.scores(features), mean_confidence(zero_shot.scores(features)))
        return LinearHead(
            zero_shot.weights + gaussian.weights / temperature, zero_shot.offsets + gaussian.offsets / temperature
        )

    def _unbiased(self, head: LinearHead, features: Array) -> LinearHead:
        released = self.variant == "released"
        margin = self.bias_margin
        if margin is None:
            margin = 1 / self.n_classes if released else -math.inf
        for _ in range(ROUNDS[self.variant] if self.bias_rounds is None else self.bias_rounds):
            transition = transition_matrix(_logit_blocks(head, features), margin)
            beta = stationary_vector(transition, tolerance=self.bias_tolerance, iterations=self.bias_iterations)
            head = LinearHead(head.weights, corrected(head.offsets, beta))
        return head


def _logit_blocks(head: LinearHead, features: Array) -> Iterator[Array]:
    """The logits of all features, block by block, rather than an array as large as the answer."""
    return (head.scores(features[start : start + BLOCK_ROWS]) for start in range(0, features.shape[0], BLOCK_ROWS))
