"""What TransCLIP, Histo-TransCLIP and StatA share as methods: a set in, Gaussian classes kept, other samples scored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from zeroshift.arrays import Array, Home, Rows, namespace
from zeroshift.method import Method
from zeroshift.methods.parts.affinity import Affinity
from zeroshift.methods.parts.assignments import Assignments
from zeroshift.methods.parts.diagonal_gaussians import Gaussians, log_densities
from zeroshift.methods.parts.rows import normalize_rows
from zeroshift.parameters import Constraint, Number
from zeroshift.zero_shot import log_posterior, softmax

__all__ = ["GaussianMethod", "Solution"]


class Solution(NamedTuple):
    z: Array
    """Assignments (N, K)."""
    gaussians: Gaussians
    """What the samples were compared with last."""
    gamma: float = 0.0
    """Weight of labelled samples."""


class GaussianMethod(Method):
    """A transductive method that alternates between assigning a set's samples and fitting Gaussians to them.

    A subclass fills in `_solve` and `_first_variances`. Scores are the assignments: probabilities already.
    """

    protocol = "transductive"
    computes_in = None
    constraints: ClassVar[Mapping[str, Constraint]] = {
        "logit_scale": Number(low=0, above=True),
        "neighbours": Number(low=1, integer=True),
        "iterations": Number(low=0, integer=True),
        "inner_iterations": Number(low=1, integer=True),
        "temperature": Number(low=0, above=True),
    }
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "axes_do_not_matter": "variances belong to single dimensions, which a rotation mixes",
        "all_samples_equal": "of equal samples each picks a few as neighbours, and some are picked more often",
    }

    logit_scale: float
    neighbours: int
    iterations: int
    inner_iterations: int
    temperature: float

    @abstractmethod
    def _solve(self, features: Array) -> Solution:
        """The samples' assignments, and the Gaussians that come with them."""

    @abstractmethod
    def _first_variances(self) -> Array:
        """Variances before any sample, float64."""

    @property
    def _text(self) -> Array:
        """What stands for each class's text, (K, d)."""
        return self.prototypes

    @property
    def _text_share(self) -> float:
        """The power the text's posterior is raised to."""
        return 1.0

    def _samples_at_once(self, n_samples: int) -> int:
        """How many samples are solved together."""
        return n_samples

    @property
    def means(self) -> Array:
        """Class means (K, d), float64: the text until something was learned."""
        return Home.of(self.prototypes).copy(self._gaussians.means)

    @property
    def variances(self) -> Array:
        """Variances of the dimensions, float64: (d,) where all classes share them, else (K, d)."""
        return Home.of(self.prototypes).copy(self._gaussians.variances)

    @property
    def _wide_text(self) -> Array:
        home = Home.of(self.prototypes)
        return home.bring(self._text, home.xp.float64)

    def _begin(self) -> None:
        self._gaussians = Gaussians(self._wide_text, self._first_variances())

    def _log_text(self, features: Array) -> Array:
        return log_posterior(features, self._text, self.logit_scale)

    def _assignments(self, log_y: Array, affinity: Affinity, neighbour_weight: float = 1.0) -> Assignments:
        return Assignments(
            log_prior=self._text_share * log_y,
            affinity=affinity,
            neighbour_weight=neighbour_weight / (2 * self.neighbours),
            temperature=self.temperature,
            iterations=self.inner_iterations,
        )

    def _alternate(
        self, features: Array, start: Solution, assignments: Assignments, fit: Callable[[Array, Gaussians], Gaussians]
    ) -> Solution:
        """Assign, fit, assign, ..., and assign once more; `fit` makes new Gaussians of assignments and the old ones."""
        z, gaussians, gamma = start
        for iteration in range(self.iterations + 1):
            z = assignments.update(z, log_densities(features, gaussians))
            if iteration < self.iterations:
                gaussians = fit(z, gaussians)
        return Solution(z, gaussians, gamma)

    def _keep(self, solution: Solution) -> None:
        """Remember what was learned."""
        self._gaussians = solution.gaussians

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        size = self._samples_at_once(len(rows))
        for start in range(0, len(rows), size):
            batch = slice(start, min(start + size, len(rows)))
            solution = self._solve(rows[batch])
            self._keep(solution)
            self.n_seen = batch.stop
            yield batch, solution.z

    def _predict_scores(self, features: Array) -> Array:
        if self.n_seen == 0:
            return namespace(features).exp(log_posterior(features, self.prototypes, self.logit_scale))
        scores = log_densities(features, self._gaussians)
        scores /= self.temperature
        scores += self._text_share * self._log_text(features)
        return softmax(scores)

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self._gaussians._asdict(), {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        fresh = self._gaussians
        for name, own in fresh._asdict().items():
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} has the shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}")
        self._gaussians = Gaussians(arrays["means"], arrays["variances"])
