"""TIP-X, the inference of SuS-X: Tip-Adapter's votes, and divergences between zero-shot predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import numpy as np

from zeroshift.arrays import Array, Rows, namespace
from zeroshift.methods._shared.few_shot import labelled_blocks
from zeroshift.methods._shared.similarity import SHARPNESS, exponential_kernel
from zeroshift.methods._shared.support_votes import STEPS, SupportVotes, candidates
from zeroshift.parameters import Flag, Number, Pair, parameter
from zeroshift.zero_shot import log_softmax

SMALLEST_RANGE = 1e-12
"""Divergences in a smaller range are equal but for rounding."""


class TipX(SupportVotes):
    """Tip-Adapter with a second kind of vote. Every support sample also votes against its class, the more the further
    its zero-shot prediction is, by the divergence, from that of the sample to predict. With a validation set, the
    sharpness and the weights of both votes are searched there.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TipX
    >>> support = np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([0, 1])
    >>> TipX(np.eye(2), support=support, logit_scale=5.0).predict_scores(np.array([0.8, 0.6])).round(6)
    array([4.04    , 2.802519])

    Notes
    -----
    Udandarao, Gupta and Albanie, *SuS-X: Training-Free Name-Only Transfer of Vision-Language Models*, ICCV 2023: its
    inference. The paper makes the support set from the names of the classes, by Stable Diffusion (SuS-SD) or retrieval
    from LAION-5B (SuS-LC). This class makes no images: bring a support set, labelled by the names its images were made
    or found with. The authors search all three parameters on labelled validation images of the target task, also for
    "name-only" transfer; their code has no fixed values, and the defaults here are ours.

    Divergences are rescaled to the range of cosines. Here both ranges are those of the validation samples, or of the
    support samples among themselves, so that an answer depends on its own sample only. In the authors' code, the
    divergences' range is that of all samples predicted together, which `released` reproduces. Their code also computes
    divergences in batches of one hundred and leaves those of the last, incomplete batch at zero; here, none are left
    out. A class without support samples gets no vote of either kind, which favours it in the second.
    """

    name = "tip_x"
    headline = "Labelled samples vote by likeness of prediction"
    state_size = "N (d + 2 K) for N support samples"
    complexity = "O(N (d + K)) per sample"
    not_frozen = "its divergences take a logarithm, which frozen steps do not have"

    temperature: float = parameter(
        Number(low=1e-3, high=1e3),
        "Divergences are between the softmax of cosines divided by this.",
        default=0.5,
    )
    beta: float = parameter(
        SHARPNESS, "Sharpness of the kernel exp(-beta (1 - cosine)) if there is no validation set.", default=5.5
    )
    alpha: float = parameter(
        Number(low=0), "Weight of the votes by that kernel if there is no validation set.", default=1.0
    )
    gamma: float = parameter(
        Number(low=0), "Weight of the votes by divergence if there is no validation set.", default=1.0
    )
    search_alpha: tuple[float, float] = parameter(
        Pair(Number(low=0), Number(low=0), ("start", "end")),
        "First candidate for alpha, and the end of the search, which stops one step before it.",
        default=(0.1, 50.0),
    )
    search_beta: tuple[float, float] = parameter(
        Pair(SHARPNESS, SHARPNESS, ("start", "end")), "The same for beta.", default=(1.0, 50.0)
    )
    search_gamma: tuple[float, float] = parameter(
        Pair(Number(low=0), Number(low=0), ("start", "end")), "The same for gamma.", default=(0.1, 30.0)
    )
    search_steps: tuple[int, int] = parameter(
        Pair(STEPS, STEPS, ("beta", "alpha")),
        "Number of candidates of each. All combinations are tried; of equally good ones, the first alpha is chosen, "
        "then the first beta and gamma.",
        default=(200, 20),
    )
    gamma_steps: int = parameter(STEPS, "Number of candidates for gamma.", default=50)
    released: bool = parameter(
        Flag(),
        "Take the range of divergences from all samples of a call, as the authors' code does: answers then depend on "
        "which samples are predicted together. Without a validation set, the range of cosines, too.",
        default=False,
    )

    def _validate(self) -> None:
        super()._validate()
        for name in ("search_alpha", "search_beta", "search_gamma"):
            start, end = getattr(self, name)
            if start > end:
                raise ValueError(f"{name} must be a pair (start, end); got {(start, end)}. Fix: {(end, start)}.")

    @property
    def _grid(self) -> dict[str, Sequence[float]]:
        beta_steps, alpha_steps = self.search_steps
        return {
            "alpha": candidates(*self.search_alpha, alpha_steps),
            "beta": candidates(*self.search_beta, beta_steps),
            "gamma": candidates(*self.search_gamma, self.gamma_steps),
        }

    def _use_keys(self, keys: Array) -> None:
        self._keys, self._log_signatures = keys, self._log_signature(keys)
        known = self.support if self.validation is None else self.validation
        self._ranges = self._ranges_of(x for x, _ in labelled_blocks(known, len(self.support[1])))
        super()._use_keys(keys)

    def _log_signature(self, x: Array) -> Array:
        """Logarithm of the softmax of cosines at the temperature, (n, K)."""
        return log_softmax(x @ self.prototypes64.T / self.temperature)

    def _divergences(self, x: Array) -> Array:
        """From samples to support samples, (n, N), in nats."""
        log_signatures = self._log_signature(x)
        signatures = namespace(x).exp(log_signatures)
        return (signatures * log_signatures).sum(axis=1)[:, None] - signatures @ self._log_signatures.T

    def _ranges_of(self, blocks: Iterable[Array]) -> np.ndarray:
        """The smallest and the largest divergence, and the smallest and the largest cosine, of all samples."""
        pairs = ((self._divergences(x), self._cosines(x)) for x in blocks)
        ends = [[float(end) for part in pair for end in (part.min(), -part.max())] for pair in pairs]
        return np.min(ends, axis=0) * (1, -1, 1, -1)

    def _scores_by(self, x: Array, ranges: np.ndarray | None = None) -> Callable[..., Array]:
        zero_shot, cosines = self._zero_shot(x), self._cosines(x)
        votes = cache(lambda beta: exponential_kernel(cosines, beta) @ self._values)
        low, high, least, greatest = (self._ranges if ranges is None else ranges).tolist()
        factor = (greatest - least) / (high - low) if high - low > SMALLEST_RANGE else 0.0
        against = (least + factor * (self._divergences(x) - low)) @ self._values
        return lambda alpha, beta, gamma: zero_shot + alpha * votes(beta) - gamma * against

    def _predict_blocks(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        ranges = self._ranges
        if self.released:
            found = self._ranges_of(x for _, x in rows.blocks(self._predict_rows))
            ranges = found if self.validation is None else np.append(found[:2], ranges[2:])
        for block, x in rows.blocks(self._predict_rows):
            yield block, self._scores_by(x, ranges)(**self._chosen)
