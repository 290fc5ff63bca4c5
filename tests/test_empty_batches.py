"""No samples give no answers, and nothing is learned: a camera that sees nothing, a last batch without rows."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift import OnlineADAPT, OnlineAnchoredMixture, TransductiveAnchoredMixture, normalize
from zeroshift.methods import COSMIC, MTA, StickyFilter
from zeroshift.reject import class_distances
from zeroshift.testing import make_problem
from zeroshift.testing.case import fingerprint

FEATURES, PROTOTYPES, _ = make_problem(classes=4, dimension=16, samples=30)
SECOND = FEATURES[:, ::-1].copy()


@pytest.mark.parametrize("kind", [OnlineADAPT, OnlineAnchoredMixture, TransductiveAnchoredMixture, MTA])
@pytest.mark.parametrize("learned", [0, 30])
def test_calls_with_no_rows(kind, learned):
    method = kind(PROTOTYPES)
    if learned:
        method.adapt(FEATURES)
    before = fingerprint(method)
    for call in (method.adapt, method.adapt_scores, method.predict, method.predict_scores):
        for dtype in (np.float32, np.float64):
            answer = call(FEATURES[:0].astype(dtype))
            assert answer.shape == (0, 4)
            assert answer.dtype == dtype
    assert fingerprint(method) == before
    assert method.n_seen == learned


def test_tensors():
    torch = pytest.importorskip("torch")
    answer = OnlineADAPT(PROTOTYPES).adapt(torch.zeros(0, 16, dtype=torch.float16))
    assert (tuple(answer.shape), answer.dtype) == ((0, 4), torch.float32)


@pytest.mark.parametrize("shape", [(0, 15), (0, 0), (0,), (2, 0)])
def test_no_rows_of_another_length_are_refused(shape):
    with pytest.raises(ValueError, match="features"):
        OnlineADAPT(PROTOTYPES).adapt(np.zeros(shape))


def test_two_encoders():
    for kind in (OnlineAnchoredMixture, TransductiveAnchoredMixture):
        method = kind(PROTOTYPES)
        assert method.adapt(FEATURES[:0], second=SECOND[:0]).shape == (0, 4)
        method.adapt(FEATURES, second=SECOND)
        assert method.predict(FEATURES[:0], second=SECOND[:0]).shape == (0, 4)
        with pytest.raises(ValueError, match="second has 2 rows, but features has 0"):
            method.adapt(FEATURES[:0], second=SECOND[:2])


def test_views():
    method = MTA(PROTOTYPES)
    assert method.adapt_views(np.zeros((0, 3, 16))).shape == (0, 4)
    assert method.predict_views(np.zeros((0, 3, 16), np.float32)).shape == (0, 4)
    with pytest.raises(ValueError, match="without empty axes"):
        method.adapt_views(np.zeros((0, 0, 16)))


def test_views_and_a_second_encoder():
    method, views = COSMIC(PROTOTYPES), np.zeros((0, 3, 16))
    for learned in (0, 30):
        assert method.adapt_views(views, second=SECOND[:0]).shape == (0, 4)
        assert method.adapt_views_scores(views.astype(np.float32), second=SECOND[:0]).dtype == np.float32
        with pytest.raises(ValueError, match="second has 2 rows, but there are 0 images"):
            method.adapt_views(views, second=SECOND[:2])
        assert method.n_seen == learned
        method.adapt(FEATURES, second=SECOND)


@pytest.mark.parametrize("make", [OnlineAnchoredMixture, lambda p, **given: StickyFilter(OnlineADAPT(p), **given)])
def test_ordered_streams(make):
    method, plain = make(PROTOTYPES, lag=3), make(PROTOTYPES, lag=3)
    answers, expected = [], []
    for start in range(0, 30, 10):
        answers += [method.adapt_late(FEATURES[:0]), method.adapt_late(FEATURES[start : start + 10])]
        expected.append(plain.adapt_late(FEATURES[start : start + 10]))
    np.testing.assert_array_equal(np.concatenate(answers), np.concatenate(expected))
    method.finish()
    assert method.smooth(FEATURES[:0]).shape == (0, 4)


def test_what_follows_a_method():
    head = OnlineADAPT(PROTOTYPES).freeze()
    assert head.predict(FEATURES[:0]).shape == (0, 4)
    assert class_distances(FEATURES[:0], PROTOTYPES).shape == (0, 2)
    assert normalize(FEATURES[:0]).shape == (0, 16)


def test_a_method_that_failed_refuses_empty_batches_too():
    method = OnlineADAPT(PROTOTYPES)
    with pytest.raises(KeyboardInterrupt), method._learning():
        raise KeyboardInterrupt
    with pytest.raises(RuntimeError, match="reset"):
        method.adapt(FEATURES[:0])


def test_torch_modules():
    torch = pytest.importorskip("torch")
    from zeroshift.torch import FrozenModule

    method = OnlineAnchoredMixture(PROTOTYPES)
    method.adapt(FEATURES)
    assert FrozenModule(method.freeze())(torch.zeros(0, 16)).shape == (0, 4)
