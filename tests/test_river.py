"""The river classifier: river's own checks, its evaluation on a bundled pack, and wrong inputs."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift import OnlineAnchoredMixture, normalize
from zeroshift.data import packs

river = pytest.importorskip("river", reason="the extra `test` brings it")

from river import checks, datasets, evaluate, metrics, stream  # noqa: E402

from zeroshift.river import ZeroShiftClassifier  # noqa: E402

PHISHING = list(next(iter(datasets.Phishing()))[0])
"""Features of the data set that river checks binary classifiers with."""

PROTOTYPES = normalize(np.random.default_rng(0).normal(size=(2, len(PHISHING))))


@pytest.mark.parametrize("method", ["tda", pytest.param("anchored_mixture_online", marks=pytest.mark.slow)])
def test_checks_of_river(method):
    """All of them, without skips. They include features that come and go."""
    model = ZeroShiftClassifier(PROTOTYPES, [False, True], method=method, features=PHISHING)
    assert not model._unit_test_skips()
    checks.check_estimator(model)


@pytest.fixture(scope="module")
def pack():
    return packs.load("cifar10").subset(slice(0, 400))


def names_of(pack):
    return np.asarray(pack.class_names)[pack.labels]


def test_progressive_validation(pack):
    """`evaluate` predicts each sample before it is learned, as `adapt` of the mixture does in random order."""
    features = normalize(np.asarray(pack.features, dtype=np.float64))
    model = ZeroShiftClassifier(pack.prototypes_for(), pack.class_names, logit_scale=pack.logit_scale)
    samples = stream.iter_array(features, names_of(pack))
    accuracy = evaluate.progressive_val_score(samples, model, metrics.Accuracy())
    mixture = OnlineAnchoredMixture(pack.prototypes_for(), logit_scale=pack.logit_scale, order="none")
    expected = mixture.adapt(features).argmax(axis=1) == pack.labels
    assert accuracy.get() == pytest.approx(expected.mean(), abs=0.01)
    found = model.predict_proba_one(dict(enumerate(features[0])))
    assert tuple(found) == pack.class_names
    np.testing.assert_allclose(list(found.values()), model.learner.predict(features[0]), atol=1e-12)
    assert model.predict_one(dict(enumerate(features[0]))) == max(found, key=found.get)
    assert model.learner.n_seen == 400


def test_labels_are_ignored():
    first, second = (ZeroShiftClassifier(np.eye(2), ["a", "b"], method="adapt_online") for _ in range(2))
    first.learn_one({0: 0.8, 1: 0.6}, "b")
    second.learn_one({0: 0.8, 1: 0.6})
    assert first.predict_proba_one({0: 0.6, 1: 0.8}) == second.predict_proba_one({0: 0.6, 1: 0.8})


def test_features_are_named_scaled_and_may_be_missing():
    model = ZeroShiftClassifier(np.eye(3), ["a", "b", "c"], logit_scale=5.0, features=["x", "y", "z"])
    expected = model.learner.predict(np.array([0.6, 0.8, 0.0]))
    found = model.predict_proba_one({"y": 8.0, "other": 3.0, "x": 6.0})
    np.testing.assert_allclose(list(found.values()), expected, atol=1e-12)
    model.learn_one({"x": 0.0})
    assert model.learner.n_seen == 0
    assert model.predict_proba_one({"x": 0.0}) == dict.fromkeys("abc", 1 / 3)


def test_names_of_features_may_be_the_numbers_as_texts():
    """As in rows of a CSV file."""
    model = ZeroShiftClassifier(np.eye(2), ["0", "1"], logit_scale=5.0)
    assert model.predict_proba_one({"0": 0.6, "1": 0.8}) == model.predict_proba_one({0: 0.6, 1: 0.8})
    assert model.predict_proba_one({"id": 7, 0: 0.6, 1: 0.8}) == model.predict_proba_one({0: 0.6, 1: 0.8})
    assert model.predict_one({"0": 0.6, "1": 0.8}) == "1"
    model.learn_one({"0": 0.6, "1": 0.8})
    assert model.learner.n_seen == 1


def test_labels_of_an_array_are_plain():
    (label, _), *_ = ZeroShiftClassifier(np.eye(2), np.array(["a", "b"])).predict_proba_one({0: 1.0}).items()
    assert type(label) is str


@pytest.mark.parametrize("method", ["anchored_mixture_online", "tda"])
def test_rows_of_a_data_frame_are_as_single_samples(pack, method):
    pyarrow = pytest.importorskip("pyarrow")
    one, many = (
        ZeroShiftClassifier(pack.prototypes_for(), pack.class_names, method, pack.logit_scale) for _ in range(2)
    )
    rows = np.asarray(pack.features[:60], dtype=np.float64)
    rows[7] = 0
    frame = pyarrow.table({str(j): rows[:, j] for j in range(rows.shape[1])}).append_column("note", [["x"] * 60])
    for x in rows[:40]:
        one.learn_one(dict(enumerate(x)))
    many.learn_many(frame.slice(0, 40), names_of(pack)[:40])
    assert many.learner.n_seen == one.learner.n_seen == 39
    found = many.predict_proba_many(frame)
    assert isinstance(found, pyarrow.Table)
    assert found.column_names == list(pack.class_names)
    expected = [one.predict_proba_one(dict(enumerate(x))) for x in rows]
    for name in pack.class_names:
        np.testing.assert_allclose(found[name], [p[name] for p in expected], atol=1e-6)
    assert many.predict_many(frame).to_pylist() == [max(p, key=p.get) for p in expected]
    assert len(many.predict_many(frame.slice(0, 0))) == 0


def test_wrong_data_frames():
    pyarrow = pytest.importorskip("pyarrow")
    model = ZeroShiftClassifier(np.eye(2), ["a", "b"])
    with pytest.raises(ValueError, match=r"X has none of the features 0, 1, ...; its own are \['x1'\]"):
        model.learn_many(pyarrow.table({"x1": [1.0]}))
    with pytest.raises(TypeError, match="X must have a number for each feature; could not convert string to float"):
        model.predict_many(pyarrow.table({"0": ["red"], "1": ["blue"]}))
    with pytest.raises(TypeError, match=r"X must be a data frame .*; got list. Fix: pandas.DataFrame\(X\)"):
        model.predict_many([[1.0, 0.0]])


@pytest.mark.parametrize(
    ("parameters", "kind", "message"),
    [
        ({"classes": ["a"]}, ValueError, "classes must be 2 different names, one for each of the prototypes; got 1"),
        ({"classes": ["a", "a"]}, ValueError, "got 2, 1 of them different"),
        ({"features": ["x"]}, ValueError, "features must be 2 different names, one for each of the columns"),
        ({"method": "transclip"}, ValueError, "method must be online; transclip is transductive"),
        ({"method": "zlap_inductive"}, TypeError, "zlap_inductive needs unlabelled samples"),
        ({"method": "tdaa"}, ValueError, "Did you mean 'tda'"),
        ({"parameters": {"alpah": 3}}, TypeError, "no parameter 'alpah'"),
    ],
)
def test_wrong_parameters(parameters, kind, message):
    with pytest.raises(kind, match=message):
        ZeroShiftClassifier(**{"prototypes": np.eye(2), "classes": ["a", "b"], **parameters})


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([1.0, 0.0], r"x must be a dictionary of features; got list. Fix: dict\(enumerate\(x\)\)"),
        ({0: "red"}, "x must have a number for each feature; could not convert string to float: 'red'"),
    ],
)
def test_wrong_samples(x, message):
    model = ZeroShiftClassifier(np.eye(2), ["a", "b"])
    with pytest.raises(TypeError, match=message):
        model.learn_one(x)
    assert model.learner.n_seen == 0
    with pytest.raises(TypeError, match="classes must be a list of names; got 'ab'"):
        ZeroShiftClassifier(np.eye(2), "ab")


def test_features_of_other_names():
    model = ZeroShiftClassifier(np.eye(2), ["a", "b"])
    with pytest.raises(ValueError, match=r"x has none of the features 0, 1, ...; its own are \['x1', 'x2'\]"):
        model.learn_one({"x1": 1.0, "x2": 0.0})
