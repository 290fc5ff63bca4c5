"""TIP-X, the inference of SuS-X: Tip-Adapter's votes, and divergences between zero-shot predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, Labelled, Rows, to_numpy
from zeroshift.methods._shared.few_shot import FewShotMethod, count_correct, row_blocks
from zeroshift.methods._shared.gaussian_classifier import ClassGroups
from zeroshift.methods._shared.similarity import SHARPNESS, exponential_kernel
from zeroshift.methods.tip_adapter import KERNEL_NUMBERS, KERNEL_NUMBERS_ON_GPU
from zeroshift.parameters import Flag, Number, Pair, array_parameter, parameter
from zeroshift.zero_shot import log_softmax, logits

__all__ = ["TipX"]

SMALLEST_RANGE = 1e-12
"""Divergences in a smaller range are equal but for rounding."""


class Ranges(NamedTuple):
    """Smallest and largest divergence and cosine of samples with the support samples."""

    divergences: tuple[float, float]
    cosines: tuple[float, float]

    def joined(self, other: Ranges) -> Ranges:
        """The ranges of the samples of both."""
        return Ranges(*((min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(self, other, strict=True)))

    def rescaling(self) -> tuple[float, float]:
        """Factor and offset that map the range of divergences to that of cosines.

        >>> Ranges((0.0, 0.5), (0.2, 1.0)).rescaling()
        (1.6, 0.2)
        """
        (low, high), (least, greatest) = self
        factor = (greatest - least) / (high - low) if high - low > SMALLEST_RANGE else 0.0
        return factor, least - factor * low


class TipX(FewShotMethod):
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
    state_size = "N (d + K) for N support samples"
    complexity = "O(N d + K d + K^2) per sample"
    not_frozen = "its divergences take a logarithm, which frozen steps do not have"

    validation: Labelled | None = array_parameter(
        "Labelled samples to search `beta`, `alpha` and `gamma` with; `chosen` returns the choice.", default=None
    )
    logit_scale: float = parameter(
        Number(low=0, above=True), "Scale of the zero-shot logits; 100 for CLIP.", default=100.0
    )
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
        Pair(Number(low=1, integer=True), Number(low=1, integer=True), ("beta", "alpha")),
        "Number of candidates of each. All combinations are tried; of equally good ones, the first alpha is chosen, "
        "then the first beta and gamma.",
        default=(200, 20),
    )
    gamma_steps: int = parameter(Number(low=1, integer=True), "Number of candidates for gamma.", default=50)
    released: bool = parameter(
        Flag(),
        "Take the range of divergences from all samples of a call, as the authors' code does: answers then depend on "
        "which samples are predicted together. Without a validation set, the range of cosines, too.",
        default=False,
    )

    @property
    def chosen(self) -> dict[str, float]:
        return {"beta": self._beta, "alpha": self._alpha, "gamma": self._gamma}

    def _validate(self) -> None:
        super()._validate()
        for name in ("search_alpha", "search_beta", "search_gamma"):
            start, end = getattr(self, name)
            if start > end:
                raise ValueError(f"{name} must be a pair (start, end); got {(start, end)}. Fix: {(end, start)}.")

    def _fit(self) -> None:
        features, labels = self.support
        backend = Backend.of(self.prototypes)
        self._text = self._to_float64(self.prototypes)
        self._groups = ClassGroups(labels, self.n_classes)
        self._counts = backend.asarray(self._groups.counts.astype(np.float64), backend.xp.float64)
        self._keys = features[backend.index(self._groups.order)]
        self._log_signatures = self._log_signature(self._to_float64(self._keys))
        self._class_log_signatures = self._groups.sums(self._log_signatures)
        self._beta, self._alpha, self._gamma = self.beta, self.alpha, self.gamma
        known = features if self.validation is None else self.validation[0]
        blocks = row_blocks(known.shape[0], max(len(labels), self.n_classes), backend)
        self._ranges = self._ranges_of(self._to_float64(known[block]) for block in blocks)
        if self.validation is not None:
            self._beta, self._alpha, self._gamma = self._search(*self.validation)

    def _log_signature(self, features: Array) -> Array:
        """Logarithm of the softmax of cosines at the temperature, (n, K), float64."""
        return log_softmax(features @ self._text.T / self.temperature)

    def _divergences(self, log_signatures: Array) -> Array:
        """From samples to support samples, (n, N), in nats."""
        xp = Backend.of(log_signatures).xp
        signatures = xp.exp(log_signatures)
        own = xp.sum(signatures * log_signatures, axis=1, keepdims=True)
        return own - signatures @ self._log_signatures.T

    def _ranges_of(self, blocks: Iterable[Array]) -> Ranges:
        """The ranges of all rows of the blocks."""
        keys, found = self._to_float64(self._keys), None
        for x in blocks:
            pairs = (self._divergences(self._log_signature(x)), x @ keys.T)
            ranges = Ranges(*((float(part.min()), float(part.max())) for part in pairs))
            found = ranges if found is None else found.joined(ranges)
        if found is None:
            raise ValueError("no samples to take ranges from.")
        return found

    def _divergence_votes(self, features: Array, ranges: Ranges) -> Array:
        """Minus the sum of the rescaled divergences from the support samples of each class, (n, K), float64.

        A divergence is a term of the sample minus a product of its signature with the logarithm of the support
        sample's. So the sum over a class needs only the sum of these logarithms.
        """
        factor, offset = ranges.rescaling()
        xp = Backend.of(features).xp
        log_signatures = self._log_signature(features)
        signatures = xp.exp(log_signatures)
        own = xp.sum(signatures * log_signatures, axis=1, keepdims=True)
        return -factor * (own * self._counts - signatures @ self._class_log_signatures.T) - offset * self._counts

    def _search(self, features: Array, labels: np.ndarray) -> tuple[float, float, float]:
        beta_steps, alpha_steps = self.search_steps
        alphas = _candidates(self.search_alpha, alpha_steps)
        betas = _candidates(self.search_beta, beta_steps)
        gammas = _candidates(self.search_gamma, self.gamma_steps)
        backend = Backend.of(self.prototypes)
        xp = backend.xp
        keys = self._to_float64(self._keys)
        weights = xp.asarray(gammas, dtype=xp.float64, device=backend.device)
        correct = backend.zeros((alpha_steps, beta_steps, self.gamma_steps), xp.int64)
        for block in row_blocks(len(labels), max(keys.shape[0], self.n_classes), backend):
            x, block_labels = self._to_float64(features[block]), backend.index(labels[block])
            zero_shot = self.logit_scale * (x @ self._text.T)
            term, cosines = self._divergence_votes(x, self._ranges), keys @ x.T
            for i, beta in enumerate(betas):
                votes = self._groups.sums(exponential_kernel(cosines, beta)).T
                for j, alpha in enumerate(alphas):
                    correct[j, i] += count_correct(zero_shot + alpha * votes, term, block_labels, weights)
        best = int(np.argmax(to_numpy(correct)))
        j, i, g = (int(part) for part in np.unravel_index(best, (alpha_steps, beta_steps, self.gamma_steps)))
        return betas[i], alphas[j], gammas[g]

    def _predict_blocks(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        ranges = self._ranges
        if self.released:
            found = self._ranges_of(self._to_float64(x) for _, x in rows.blocks(self._predict_rows))
            ranges = found if self.validation is None else found._replace(cosines=ranges.cosines)
        return ((block, self._scores(x, ranges)) for block, x in rows.blocks(self._predict_rows))

    def _predict_scores(self, features: Array) -> Array:
        return self._scores(features, self._ranges)

    def _scores(self, features: Array, ranges: Ranges) -> Array:
        backend = Backend.of(features)
        keys = backend.asarray(self._keys, features.dtype)
        votes = self._groups.sums(exponential_kernel(keys @ features.T, self._beta)).T
        divergence_votes = backend.asarray(self._divergence_votes(self._to_float64(features), ranges), features.dtype)
        zero_shot = logits(features, self.prototypes, self.logit_scale)
        return zero_shot + self._gamma * divergence_votes + self._alpha * votes

    @property
    def _predict_rows(self) -> int:
        # Every row is compared with all support samples.
        numbers = KERNEL_NUMBERS_ON_GPU if Backend.of(self.prototypes).on_gpu else KERNEL_NUMBERS
        return max(1, min(super()._predict_rows, numbers // self._keys.shape[0]))


def _candidates(search: tuple[float, float], steps: int) -> list[float]:
    """Equally spaced from the start; the end is one step after the last.

    >>> _candidates((1.0, 3.0), 4)
    [1.0, 1.5, 2.0, 2.5]
    """
    start, end = search
    return [start + i * (end - start) / steps for i in range(steps)]
