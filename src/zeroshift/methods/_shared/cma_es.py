"""CMA-ES (Hansen, *The CMA Evolution Strategy: A Tutorial*, arXiv 1604.00772): optimisation without gradients.

Candidates are drawn from a Gaussian whose mean, scale and covariance move towards the better ones. The state consists
of plain arrays and numbers, and every generation draws from a seed of its own, so a saved search resumes bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeroshift.arrays import to_numpy
from zeroshift.state_checks import check_lengths, check_range

__all__ = ["CMAES", "LARGEST", "StrategyConstants"]

COVARIANCE_RATE = 2.0
"""alpha_cov of the tutorial: both learning rates of the covariance are about this divided by n^2."""

LAZY_UPDATE = 10.0
"""Eigenvectors are computed again when the covariance may have changed by one part in this many. With hundreds of
dimensions that is not in every generation, as in Hansen's own program."""

MAX_CONDITION = 1e14
"""Largest ratio of the covariance's eigenvalues; smaller eigenvalues are rounding errors."""


SHORTEST = 1e-30
"""Smallest squared length of a step: a step of zero has no direction, and must not be divided by zero."""

LARGEST = 1e100
"""Largest size of a number in a state: its square can be computed with."""


@dataclass(frozen=True)
class StrategyConstants:
    """The constants of the tutorial's Table 1 for n dimensions and a population size."""

    weights: np.ndarray
    """Weights of the candidates, best first: positive with sum 1 for the better half, negative for the worse."""
    parents: int
    mu_eff: float
    c_sigma: float
    d_sigma: float
    c_c: float
    c_1: float
    c_mu: float
    expected: float
    """Expected length of a standard normal vector."""
    gap: float
    """Generations between two eigendecompositions."""

    @classmethod
    def of(cls, n: int, population: int) -> StrategyConstants:
        raw = math.log((population + 1) / 2) - np.log(np.arange(1, population + 1))
        parents = population // 2
        better, worse = raw[:parents], raw[parents:]
        mu_eff = float(better.sum() ** 2 / (better**2).sum())
        mu_eff_worse = float(worse.sum() ** 2 / (worse**2).sum())
        c_sigma = (mu_eff + 2) / (n + mu_eff + 5)
        c_1 = COVARIANCE_RATE / ((n + 1.3) ** 2 + mu_eff)
        c_mu = min(
            1 - c_1,
            COVARIANCE_RATE * (0.25 + mu_eff + 1 / mu_eff - 2) / ((n + 2) ** 2 + COVARIANCE_RATE * mu_eff / 2),
        )
        # The negative weights must not outweigh the positive ones, nor make the covariance indefinite.
        total = min(1 + c_1 / c_mu, 1 + 2 * mu_eff_worse / (mu_eff + 2), (1 - c_1 - c_mu) / (n * c_mu))
        return cls(
            weights=np.concatenate([better / better.sum(), worse * (total / np.abs(worse).sum())]),
            parents=parents,
            mu_eff=mu_eff,
            c_sigma=c_sigma,
            d_sigma=1 + 2 * max(0.0, math.sqrt((mu_eff - 1) / (n + 1)) - 1) + c_sigma,
            c_c=(4 + mu_eff / n) / (n + 4 + 2 * mu_eff / n),
            c_1=c_1,
            c_mu=c_mu,
            expected=math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2)),
            gap=1 / (LAZY_UPDATE * n * (c_1 + c_mu)),
        )


class CMAES:
    """A minimisation: `ask` returns a generation of candidates, `tell` takes the loss of each.

    >>> import numpy as np
    >>> search = CMAES(np.array([3.0, -2.0]), sigma=1.0, population=6)
    >>> for _ in range(60):
    ...     candidates = search.ask()
    ...     search.tell(candidates, (candidates**2).sum(axis=1))
    >>> bool(np.abs(search.mean).max() < 1e-3)
    True

    Parameters
    ----------
    mean : initial mean, (n,).
    sigma : initial standard deviation.
    population : candidates per generation, at least two.
    seed : seed of the candidates. Those of generation g are drawn from (seed, g), so calling `ask` twice returns the
        same candidates.
    """

    def __init__(self, mean: np.ndarray, *, sigma: float, population: int, seed: int = 0) -> None:
        self.mean, self.sigma = np.array(mean, dtype=np.float64), float(sigma)
        n = len(self.mean)
        self.population, self.seed, self.constants = population, seed, StrategyConstants.of(n, population)
        self.generation = 0
        self.decomposed_at = 0
        self.covariance, self.axes, self.lengths = np.eye(n), np.eye(n), np.ones(n)
        self.path_sigma, self.path_c = np.zeros(n), np.zeros(n)

    def ask(self) -> np.ndarray:
        """The candidates (population, n) of this generation."""
        draw = np.random.default_rng([self.seed, self.generation])
        normal = draw.standard_normal((self.population, len(self.mean)))
        return self.mean + self.sigma * ((normal * self.lengths) @ self.axes.T)

    def tell(self, candidates: np.ndarray, losses: np.ndarray) -> None:
        """Learn from the candidates of `ask` and the loss of each. Of equal losses the earlier one ranks first."""
        k, n = self.constants, len(self.mean)
        steps = (candidates[np.argsort(losses, kind="stable")] - self.mean) / self.sigma
        step = k.weights[: k.parents] @ steps[: k.parents]
        whitened = self._whitened(steps)
        self.generation += 1
        self.mean = self.mean + self.sigma * step
        self.path_sigma = (1 - k.c_sigma) * self.path_sigma + math.sqrt(
            k.c_sigma * (2 - k.c_sigma) * k.mu_eff
        ) * self._whitened(step)
        length = float(np.linalg.norm(self.path_sigma))
        converged = math.sqrt(1 - (1 - k.c_sigma) ** (2 * self.generation))
        # While the scale grows fast this path is not updated, or the covariance would grow as well.
        updated = float(length / converged < (1.4 + 2 / (n + 1)) * k.expected)
        self.path_c = (1 - k.c_c) * self.path_c + updated * math.sqrt(k.c_c * (2 - k.c_c) * k.mu_eff) * step
        # A bad candidate counts like a step of average length, however far away it was.
        lengths = np.maximum((whitened**2).sum(axis=1), SHORTEST)
        weights = np.where(k.weights < 0, k.weights * n / lengths, k.weights)
        kept = 1 + k.c_1 * (1 - updated) * k.c_c * (2 - k.c_c) - k.c_1 - k.c_mu * k.weights.sum()
        self.covariance = (
            kept * self.covariance + k.c_1 * np.outer(self.path_c, self.path_c) + k.c_mu * (steps.T * weights) @ steps
        )
        self.sigma *= math.exp(k.c_sigma / k.d_sigma * (length / k.expected - 1))
        if self.generation > self.decomposed_at + k.gap:
            self._decompose()

    def _whitened(self, steps: np.ndarray) -> np.ndarray:
        """C^(-1/2) y for each row y, with the latest eigenvectors."""
        return ((steps @ self.axes) / self.lengths) @ self.axes.T

    def _decompose(self) -> None:
        self.covariance = (self.covariance + self.covariance.T) / 2
        values, self.axes = np.linalg.eigh(self.covariance)
        self.lengths = np.sqrt(np.maximum(values, values.max() / MAX_CONDITION))
        self.decomposed_at = self.generation

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything that changes: arrays and JSON numbers."""
        names = ("mean", "covariance", "axes", "lengths", "path_sigma", "path_c")
        numbers = {"generation": self.generation, "decomposed_at": self.decomposed_at, "sigma": self.sigma}
        return {name: getattr(self, name) for name in names}, numbers

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore what `state` returned. Arrays may be of any library."""
        own, _ = self.state()
        for name, array in own.items():
            saved = to_numpy(arrays[name])
            if saved.shape != array.shape:
                raise ValueError(f"the array {name!r} has the shape {saved.shape}, not {array.shape}")
            setattr(self, name, np.array(saved, dtype=np.float64))
        self.generation, self.decomposed_at = int(values["generation"]), int(values["decomposed_at"])
        self.sigma = float(values["sigma"])
        self._check()

    def _check(self) -> None:
        """ValueError for a state that no search leads to."""
        if not 0 <= self.decomposed_at <= self.generation:
            raise ValueError(
                f"decomposed_at must be from 0 to generation = {self.generation}; it is {self.decomposed_at}."
            )
        for name in ("mean", "path_c", "covariance"):
            check_range(name, getattr(self, name), -LARGEST, LARGEST)
        for name, numbers in (
            ("sigma", self.sigma),
            ("lengths", self.lengths),
            ("variances", self.covariance.diagonal()),
        ):
            if not (np.min(numbers) >= 1 / LARGEST and np.max(numbers) <= LARGEST):
                raise ValueError(f"{name} must be from {1 / LARGEST:g} to {LARGEST:g}.")
        if not self.lengths.max() <= 1.001 * math.sqrt(MAX_CONDITION) * self.lengths.min():
            raise ValueError(f"lengths must differ by a factor of at most {math.sqrt(MAX_CONDITION):g}.")
        n, k = len(self.mean), self.constants
        if not np.abs(self.axes.T @ self.axes - np.eye(n)).max() <= 1e-6:
            raise ValueError("the columns of axes must be orthogonal and of unit length.")
        # A sum of steps that shrink by 1 - c_sigma each; hardly any normal vector is longer than sqrt(n) + 10.
        longest = math.sqrt(2 * k.mu_eff / k.c_sigma) * (math.sqrt(n) + 10)
        check_lengths("path_sigma", self.path_sigma, longest=longest)
