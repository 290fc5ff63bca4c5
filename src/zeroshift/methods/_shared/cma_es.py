"""CMA-ES (Hansen, *The CMA Evolution Strategy: A Tutorial*, arXiv 1604.00772): optimisation without gradients.

Candidates are drawn from a Gaussian whose mean, scale and covariance move towards the better ones. Every generation
draws from a seed of its own, so a saved search resumes bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift.arrays import to_numpy
from zeroshift.state_checks import check_lengths, check_range

COVARIANCE_RATE = 2.0
"""alpha_cov of the tutorial: both learning rates of the covariance are about this divided by n^2."""

MAX_CONDITION = 1e14
"""Largest ratio of the covariance's eigenvalues; smaller eigenvalues are rounding errors."""

SHORTEST = 1e-30
"""Smallest squared length of a step: a step of zero has no direction, and must not be divided by zero."""

LARGEST = 1e100
"""Largest size of a number in a state: its square can be computed with."""


class CMAES:
    """A minimisation: `ask` returns a generation of candidates, `tell` takes the loss of each. Arrays are replaced, not
    written to, so a shallow copy is independent.

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
        n = len(mean)
        self.population, self.seed, self.generation = population, seed, 0
        self.mean, self.sigma, self.covariance = np.array(mean, dtype=np.float64), float(sigma), np.eye(n)
        self.path_sigma, self.path_c = np.zeros(n), np.zeros(n)
        self._decompose()
        # The tutorial's Table 1.
        raw = math.log((population + 1) / 2) - np.log(np.arange(1, population + 1))
        self.parents = population // 2
        better, worse = raw[: self.parents], raw[self.parents :]
        self.mu_eff = mu = float(better.sum() ** 2 / (better**2).sum())
        mu_worse = float(worse.sum() ** 2 / (worse**2).sum())
        self.c_sigma = (mu + 2) / (n + mu + 5)
        self.d_sigma = 1 + 2 * max(0.0, math.sqrt((mu - 1) / (n + 1)) - 1) + self.c_sigma
        self.c_c = (4 + mu / n) / (n + 4 + 2 * mu / n)
        self.c_1 = COVARIANCE_RATE / ((n + 1.3) ** 2 + mu)
        c_mu = COVARIANCE_RATE * (0.25 + mu + 1 / mu - 2) / ((n + 2) ** 2 + COVARIANCE_RATE * mu / 2)
        self.c_mu = min(1 - self.c_1, c_mu)
        # The negative weights must not outweigh the positive ones, nor make the covariance indefinite.
        kept = (1 - self.c_1 - self.c_mu) / (n * self.c_mu)
        total = min(1 + self.c_1 / self.c_mu, 1 + 2 * mu_worse / (mu + 2), kept)
        # Of the candidates, best first: positive with sum 1 for the better half, negative for the worse.
        self.weights = np.concatenate([better / better.sum(), worse * (total / np.abs(worse).sum())])
        # The expected length of a standard normal vector.
        self.expected = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))

    def ask(self) -> np.ndarray:
        """The candidates (population, n) of this generation."""
        draw = np.random.default_rng([self.seed, self.generation])
        normal = draw.standard_normal((self.population, len(self.mean)))
        return self.mean + self.sigma * ((normal * self._lengths) @ self._axes.T)

    def tell(self, candidates: np.ndarray, losses: np.ndarray) -> None:
        """Learn from the candidates of `ask` and the loss of each. Of equal losses the earlier one ranks first."""
        n = len(self.mean)
        steps = (candidates[np.argsort(losses, kind="stable")] - self.mean) / self.sigma
        step = self.weights[: self.parents] @ steps[: self.parents]
        self.generation += 1
        self.mean = self.mean + self.sigma * step
        pull = math.sqrt(self.c_sigma * (2 - self.c_sigma) * self.mu_eff)
        self.path_sigma = (1 - self.c_sigma) * self.path_sigma + pull * self._whitened(step)
        length = float(np.linalg.norm(self.path_sigma))
        converged = math.sqrt(1 - (1 - self.c_sigma) ** (2 * self.generation))
        # While the scale grows fast this path is not updated, or the covariance would grow as well.
        updated = float(length / converged < (1.4 + 2 / (n + 1)) * self.expected)
        gain_c = self.c_c * (2 - self.c_c)
        self.path_c = (1 - self.c_c) * self.path_c + updated * math.sqrt(gain_c * self.mu_eff) * step
        # A bad candidate counts like a step of average length, however far away it was.
        lengths = np.maximum((self._whitened(steps) ** 2).sum(axis=1), SHORTEST)
        weights = np.where(self.weights < 0, self.weights * n / lengths, self.weights)
        kept = 1 + self.c_1 * (1 - updated) * gain_c - self.c_1 - self.c_mu * self.weights.sum()
        # In this order: where eigenvalues are equal, rounding decides along which axes candidates are drawn.
        self.covariance = (
            kept * self.covariance
            + self.c_1 * np.outer(self.path_c, self.path_c)
            + self.c_mu * (steps.T * weights) @ steps
        )
        # Bounded, so that a step stays finite whatever the covariance of a loaded state is.
        self.sigma *= math.exp(min(30.0, self.c_sigma / self.d_sigma * (length / self.expected - 1)))
        self._decompose()

    def _whitened(self, steps: np.ndarray) -> np.ndarray:
        """C^(-1/2) y for each row y."""
        return ((steps @ self._axes) / self._lengths) @ self._axes.T

    def _decompose(self) -> None:
        self.covariance = (self.covariance + self.covariance.T) / 2
        values, self._axes = np.linalg.eigh(self.covariance)
        self._lengths = np.sqrt(np.maximum(values, values.max() / MAX_CONDITION))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything that changes: arrays and JSON numbers."""
        names = ("mean", "covariance", "path_sigma", "path_c")
        return {name: getattr(self, name) for name in names}, {"generation": self.generation, "sigma": self.sigma}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore what `state` returned, with arrays of any library. ValueError for what no search leads to."""
        for name, own in self.state()[0].items():
            saved = to_numpy(arrays[name]).astype(np.float64)
            if saved.shape != own.shape:
                raise ValueError(f"the array {name!r} has the shape {saved.shape}, not {own.shape}")
            check_range(name, saved, -LARGEST, LARGEST)
            setattr(self, name, saved)
        self.generation, self.sigma = int(values["generation"]), float(values["sigma"])
        check_range("generation", self.generation, 0, LARGEST)
        if not (self.sigma <= LARGEST and min(self.sigma, self.covariance.diagonal().min()) >= 1 / LARGEST):
            raise ValueError(f"sigma and the variances must be from {1 / LARGEST:g} to {LARGEST:g}.")
        # A sum of steps that shrink by 1 - c_sigma each; hardly any normal vector is longer than sqrt(n) + 10.
        longest = math.sqrt(2 * self.mu_eff / self.c_sigma) * (math.sqrt(len(self.mean)) + 10)
        check_lengths("path_sigma", self.path_sigma, longest=longest)
        self._decompose()
