"""Methods that take views: wrong ones raise an error with name and fix before anything is learned."""

import numpy as np
import pytest

from zeroshift.methods import TDA
from zeroshift.testing import make_problem
from zeroshift.testing.case import fingerprint

FEATURES, PROTOTYPES, _ = make_problem()
VIEWS = np.stack([FEATURES[:6], FEATURES[6:12]], axis=1)


def with_row(value):
    views = VIEWS.copy()
    views[4, 1] = value
    return views


@pytest.mark.parametrize(
    ("views", "message"),
    [
        (with_row(np.nan), r"views\[4\] row 1 holds NaN\. Fix"),
        (with_row(0.0), r"views\[4\] row 1 is the zero vector.*Fix"),
        (VIEWS * 3, r"views\[0\] row 0 has length 3.*Fix"),
        (VIEWS[:, :, :5], r"views has d = 5, but the prototypes have d = 16\. Fix"),
        (VIEWS[:, :0], r"views must have the shape \(N, V, d\).*got \(6, 0, 16\)\. Fix"),
        (VIEWS[None], r"views must have the shape.*got \(1, 6, 2, 16\)\. Fix"),
        (FEATURES[0], r"views must have the shape.*got \(16,\)\. Fix"),
        (VIEWS.tolist(), r"views must be a NumPy array or a torch tensor; got list\. Fix"),
        (None, "views must be .*got NoneType"),
        (np.ones((2, 3, 16), int), "views.* must hold floating-point numbers"),
    ],
)
def test_wrong_views_raise(views, message):
    method = TDA(PROTOTYPES, logit_scale=20.0)
    method.adapt_views(VIEWS[:2])
    before = fingerprint(method)
    with pytest.raises((TypeError, ValueError), match=message):
        method.adapt_views(views)
    assert fingerprint(method) == before
