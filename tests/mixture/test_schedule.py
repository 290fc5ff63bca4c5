"""When the online mixture updates its statistics."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift import OnlineAnchoredMixture
from zeroshift.testing import make_problem


def update_counts(method, features):
    """The number of samples in the statistics after each update."""
    found = []
    for x in features:
        method.adapt(x)
        if method._stream.n_counted not in found:
            found.append(method._stream.n_counted)
    return [n for n in found if n]


@pytest.mark.parametrize(
    ("classes", "staleness", "expected"),
    [
        (4, 1 / 32, [*range(1, 65), *range(66, 97, 2), 99]),
        (128, 1 / 32, [*range(4, 101, 4)]),
        (128, 0.0, [*range(1, 101)]),
        (700, 1 / 4, []),
    ],
    ids=["few classes", "many", "at every sample", "fewer samples than one interval"],
)
def test_update_interval_follows_samples_and_classes(classes, staleness, expected):
    problem = make_problem(classes, 8, 100, seed=1)
    method = OnlineAnchoredMixture(problem.prototypes, logit_scale=20.0, staleness=staleness)
    assert update_counts(method, problem.features) == expected


def test_one_call_equals_single_samples():
    problem = make_problem(128, 8, 300, seed=2)
    one, other = (OnlineAnchoredMixture(problem.prototypes, logit_scale=20.0) for _ in range(2))
    singly = np.array([one.adapt_scores(x) for x in problem.features])
    np.testing.assert_allclose(singly, other.adapt_scores(problem.features), rtol=0, atol=1e-9)
