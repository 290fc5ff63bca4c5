"""TIMO-S: TIMO with everything searched on a validation set."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array, Labelled
from zeroshift.methods._shared.few_shot import accuracy_of, first_best
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods.timo import GuidedMethod, guided_text, matching_scores
from zeroshift.parameters import Number, array_parameter, parameter

__all__ = ["TIMOS"]

GAMMAS = tuple(float(gamma) for gamma in range(5, 101, 5))
"""How strongly the best matching prompts are preferred: what is tried."""


class TIMOS(GuidedMethod):
    """TIMO, whose preference for matching prompts and number of prompts that join the images are searched on a
    validation set as well, so that no number is left to choose.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TIMOS
    >>> prompts = np.array([[[1.0, 0.0], [0.8, 0.6]], [[0.0, 1.0], [0.6, 0.8]]])
    >>> support = np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([0, 1])
    >>> method = TIMOS(np.eye(2), prompts=prompts, support=support, validation=support)
    >>> method.chosen
    {'gamma': 5.0, 'transferred': 1, 'alpha': 0.0001}

    Notes
    -----
    Li et al., *Text and Image Are Mutually Beneficial: Enhancing Training-Free Few-Shot Classification with CLIP*, AAAI
    2025. Everything said of `TIMO` holds. The search over ten numbers of prompts is the quick one of the authors' code.
    """

    name = "timo_s"
    needs = ("prototypes", "prompts", "support", "validation")
    state_size = "K d"
    complexity = "O(K d) a sample; the fit O((N + K P) d^2 + d^3) for each number of prompts tried"

    prompts: Array = array_parameter("P unit-length text embeddings a class.")
    support: Labelled = array_parameter("Labelled samples: unit features (n, d) and class indices (n,).")
    validation: Labelled = array_parameter(
        "Labelled samples to search on. First gamma, among 5, 10, ..., 100, by the text alone; then how many prompts join, each number with its best weight of the text, among the powers of ten from 1e-4 to 1e4. Of equally good values the smallest wins. What was found is in `chosen`.",
    )
    candidates: int = parameter(
        Number(low=1, integer=True),
        "Numbers of prompts tried, evenly spread from 1 to 2 P; one is 1 alone.",
        default=10,
    )

    def _validate(self) -> None:
        if self.validation is None:
            raise TypeError(
                "validation must be a pair (features, labels) to search on; got None. Fix: TIMO does without a search."
            )
        super()._validate()

    @property
    def chosen(self) -> dict[str, float]:
        return {"gamma": self._gamma, "transferred": self._transferred, "alpha": self._alpha}

    def _fit(self) -> None:
        prompts = unit_rows(self._wide(self.prompts))
        matching = matching_scores(prompts, self.support)
        features, labels = self.validation
        wide = self._wide(features)

        def alone(gamma: float) -> float:
            return accuracy_of(wide @ guided_text(prompts, matching, gamma).T, labels)

        self._gamma = first_best(GAMMAS, alone)
        text = guided_text(prompts, matching, self._gamma)
        counts = np.unique(np.linspace(1, 2 * prompts.shape[1], self.candidates).astype(int))
        best = -1.0
        for count in counts.tolist():
            gaussians = self._gaussians(prompts, matching, count)
            alpha, accuracy = self._best_alpha(text, gaussians)
            if accuracy > best:
                best, found = accuracy, gaussians
                self._transferred, self._alpha = count, alpha
        self._keep(text, found, self._alpha)
