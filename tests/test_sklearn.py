"""The scikit-learn classifier: scikit-learn's own checks, its tools on bundled features, and wrong inputs."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the extra `sklearn` brings it")

from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture, ZeroShot, normalize
from zeroshift.data import packs
from zeroshift.methods import list_methods
from zeroshift.methods.inputs import method_inputs
from zeroshift.sklearn import ZeroShiftClassifier
from zeroshift.testing import make_problem

CHECKED = ("auto", "transclip", "ecalp")
"""A method with `partial_fit`, one without, and the only one with an expected failure."""


def expected_failures(classifier: ZeroShiftClassifier) -> dict[str, str]:
    if classifier.method != "ecalp":
        return {}
    return {"check_classifiers_train": "ECALP gets 73 % of three blobs in the plane right; the check wants 83 %"}


@parametrize_with_checks(
    [ZeroShiftClassifier(method=method) for method in CHECKED],
    expected_failed_checks=expected_failures,
    xfail_strict=True,
)
def test_checks_of_sklearn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def pack():
    pack = packs.load("cifar10")
    return pack.subset(slice(0, 500))


@pytest.fixture(scope="module")
def names(pack):
    return np.asarray(pack.class_names)[pack.labels]


def classifier_of(pack, **parameters) -> ZeroShiftClassifier:
    return ZeroShiftClassifier(
        pack.prototypes_for(), classes=pack.class_names, logit_scale=pack.logit_scale, **parameters
    )


def test_fit_is_the_transductive_mixture(pack, names):
    classifier = classifier_of(pack).fit(pack.features)
    unit = normalize(np.asarray(pack.features, dtype=np.float64))
    mixture = TransductiveAnchoredMixture(normalize(pack.prototypes_for()), logit_scale=pack.logit_scale)
    expected = mixture.adapt(unit)
    np.testing.assert_allclose(classifier.predict_proba(pack.features), expected, atol=1e-6)
    np.testing.assert_array_equal(classifier.predict(pack.features), np.asarray(pack.class_names)[expected.argmax(1)])
    np.testing.assert_array_equal(classifier.transduction_, classifier.predict(pack.features))
    zero_shot = classifier_of(pack, method="zero_shot").fit(pack.features)
    assert classifier.score(pack.features, names) > zero_shot.score(pack.features, names) + 0.03
    assert classifier.n_features_in_ == 256


def test_labels_are_ignored_if_there_are_prototypes(pack, names):
    wrong = np.roll(names, 7)
    first, second = (classifier_of(pack).fit(pack.features, y) for y in (None, wrong))
    np.testing.assert_array_equal(first.predict_proba(pack.features), second.predict_proba(pack.features))


def test_names_in_y_need_classes(pack, names):
    """`score` would fail only after the work is done."""
    for call in ("fit", "partial_fit", "fit_predict"):
        classifier = ZeroShiftClassifier(pack.prototypes_for())
        with pytest.raises(ValueError, match=r"y has names, such as '\w+', .*because classes is None. Fix: classes="):
            getattr(classifier, call)(pack.features, names)
    numbered = ZeroShiftClassifier(pack.prototypes_for(), logit_scale=pack.logit_scale).fit(pack.features, pack.labels)
    assert numbered.score(pack.features, pack.labels) > 0.75


def test_fit_predict(pack):
    classifier = classifier_of(pack, method="transclip")
    found = classifier.fit_predict(pack.features)
    np.testing.assert_array_equal(found, classifier.transduction_)
    np.testing.assert_array_equal(make_pipeline(Normalizer(), classifier).fit_predict(pack.features), found)


def test_the_representation_has_the_shape_of_the_prototypes(pack):
    classifier = classifier_of(pack, method="tda")
    assert "method='tda', prototypes=<10 x 256>)" in repr(classifier)
    assert "array" not in repr(classifier)
    assert classifier.prototypes.shape == (10, 256)
    assert repr(ZeroShiftClassifier(logit_scale=5.0)) == "ZeroShiftClassifier(logit_scale=5.0)"


def test_partial_fit_is_the_online_mixture(pack):
    classifier = classifier_of(pack)
    for start in range(0, 300, 50):
        classifier.partial_fit(pack.features[start : start + 50])
    unit = normalize(np.asarray(pack.features, dtype=np.float64))
    mixture = OnlineAnchoredMixture(normalize(pack.prototypes_for()), logit_scale=pack.logit_scale)
    mixture.adapt(unit[:300])
    np.testing.assert_allclose(classifier.predict_proba(pack.features), mixture.predict(unit), atol=1e-6)
    assert classifier.method_.n_seen == 300


def test_partial_fit_continues_from_fit(pack):
    classifier = classifier_of(pack).fit(pack.features[:300])
    before = classifier.predict_proba(pack.features[300:])
    classifier.partial_fit(pack.features[300:310])
    assert type(classifier.method_) is OnlineAnchoredMixture
    assert classifier.method_.n_seen == 310
    after = classifier.predict_proba(pack.features[300:])
    assert 1e-6 < np.abs(after - before).max() < 0.2
    assert classifier.fit(pack.features).method_.n_seen == 500  # from scratch


def test_predict_changes_nothing(pack):
    classifier = classifier_of(pack).fit(pack.features)
    before = pickle.dumps(classifier)
    classifier.predict(pack.features[:5])
    again = pickle.loads(before)
    np.testing.assert_array_equal(again.predict_proba(pack.features), classifier.predict_proba(pack.features))


def test_columns_are_in_the_order_of_sorted_labels(pack, names):
    """As scikit-learn's scorers assume."""
    shuffled = np.random.default_rng(1).permutation(10)
    labels = np.asarray(pack.class_names)
    classifier = ZeroShiftClassifier(
        pack.prototypes_for()[shuffled], classes=labels[shuffled], logit_scale=pack.logit_scale
    ).fit(pack.features)
    np.testing.assert_array_equal(classifier.classes_, sorted(pack.class_names))
    np.testing.assert_allclose(
        classifier.predict_proba(pack.features),
        classifier_of(pack).fit(pack.features).predict_proba(pack.features),
        atol=1e-6,
    )
    assert log_loss(names, classifier.predict_proba(pack.features)) < 1.0
    assert ZeroShiftClassifier(pack.prototypes_for()).fit(pack.features).classes_.tolist() == list(range(10))


def test_pipeline_and_cross_validation(pack, names):
    pipeline = make_pipeline(Normalizer(), classifier_of(pack))
    scores = cross_val_score(pipeline, 3 * pack.features, names, cv=3)
    assert scores.mean() > 0.75
    probabilities = cross_val_predict(pipeline, pack.features, names, cv=3, method="predict_proba")
    assert probabilities.shape == (500, 10)
    pipeline.set_params(zeroshiftclassifier__method__rounds=2)
    assert pipeline.fit(pack.features)[-1].method_.rounds == 2


def test_grid_search_over_parameters_of_the_method(pack, names):
    grid = {"method__rounds": [1, 3], "method__anchor_count": [1.0, 4.0]}
    search = GridSearchCV(classifier_of(pack, parameters={"rounds": 7}), grid, cv=3).fit(pack.features, names)
    assert set(search.best_params_) == set(grid)
    assert search.best_estimator_.method_.anchor_count == search.best_params_["method__anchor_count"]
    assert np.ptp(search.cv_results_["mean_test_score"]) > 0
    methods = GridSearchCV(classifier_of(pack), {"method": ["zero_shot", "auto"]}, cv=3).fit(pack.features, names)
    assert methods.best_params_ == {"method": "auto"}


def test_other_tools_wrap_it(pack, names):
    calibrated = CalibratedClassifierCV(classifier_of(pack), cv=2).fit(pack.features, names)
    assert calibrated.score(pack.features, names) > 0.7


def test_parameters_are_cloned_and_set(pack):
    classifier = classifier_of(pack, parameters={"rounds": 4})
    assert classifier.get_params()["method__rounds"] == 4
    assert "method__rounds" not in classifier.get_params(deep=False)
    twin = clone(classifier).set_params(method__rounds=5, logit_scale=30.0)
    assert (twin.parameters, twin.logit_scale) == ({"rounds": 5}, 30.0)
    assert classifier.parameters == {"rounds": 4}
    with pytest.raises(ValueError, match="Invalid parameter 'round'"):
        classifier.set_params(round=3)


def test_without_prototypes_labels_make_them():
    problem = make_problem(classes=4, dimension=8, samples=200, noise=0.6)
    labels = np.array(["d", "a", "c", "b"])[problem.labels]
    fitted = ZeroShiftClassifier(method="zero_shot", logit_scale=20.0).fit(problem.features, labels)
    means = np.stack([problem.features[labels == name].mean(axis=0) for name in "abcd"])
    np.testing.assert_allclose(fitted.method_.prototypes, normalize(means), atol=1e-12)
    assert fitted.score(problem.features, labels) > 0.8
    stream = ZeroShiftClassifier(logit_scale=20.0).partial_fit(problem.features, labels, classes=list("abcd"))
    stream.partial_fit(problem.features[:20])
    assert stream.method_.n_seen == 220


def test_rows_of_zeros(pack):
    features = np.asarray(pack.features[:100], dtype=np.float64)
    features[3] = 0
    classifier = classifier_of(pack).fit(features)
    assert classifier.method_.n_seen == 99
    np.testing.assert_allclose(classifier.predict_proba(features)[3], 0.1)
    assert len(classifier.transduction_) == 100
    np.testing.assert_allclose(classifier.predict_proba(np.zeros((2, 256))), 0.1)


def test_frozen_classifier(pack):
    classifier = classifier_of(pack).fit(pack.features)
    head = classifier.method_.freeze(classifier.classes_, normalize=True)
    assert head.class_names == tuple(sorted(pack.class_names))
    np.testing.assert_allclose(head.predict(pack.features), classifier.predict_proba(pack.features), atol=1e-6)


ON_FEATURES = [info.name for info in list_methods() if not method_inputs(info).required]


@pytest.mark.parametrize("name", ON_FEATURES)
def test_every_method_on_features(name):
    problem = make_problem(classes=4, dimension=8, samples=40)
    classifier = ZeroShiftClassifier(problem.prototypes, method=name, logit_scale=20.0).fit(problem.features)
    assert classifier.predict_proba(problem.features).shape == (40, 4)
    assert hasattr(classifier, "partial_fit") == (classifier.method_.protocol == "online")


def test_settings_without_a_default_are_parameters():
    classifier = ZeroShiftClassifier(np.eye(3, 8), method="adapt_released_online")
    with pytest.raises(TypeError, match=r"adapt_released_online needs scale.*Fix: parameters=\{'scale': VALUE\}"):
        classifier.fit(np.eye(3, 8))
    assert classifier.set_params(method__scale=60.0).fit(np.eye(3, 8)).method_.scale == 60.0


@pytest.mark.parametrize(
    ("parameters", "kind", "message"),
    [
        ({"method": "tpt"}, TypeError, "tpt needs several views of each image. Fix: choose a method on features"),
        ({"method": "tip_adapter"}, TypeError, "tip_adapter needs labelled samples"),
        ({"method": "adapt_onlin"}, ValueError, "no method is called 'adapt_onlin'. Did you mean 'adapt_online'"),
        ({"method": ZeroShot}, TypeError, "method must be 'auto' or the name of a method; got"),
        ({"parameters": {"alhpa": 1}}, TypeError, "has no parameter 'alhpa'"),
        ({"parameters": 3}, TypeError, "parameters must be a dict.*got 3"),
        ({"logit_scale": -1.0}, ValueError, "logit_scale must be a number greater than 0; got -1"),
        ({"classes": ["a", "b"]}, ValueError, r"classes must be 3 different labels.*got \['a', 'b'\]"),
        ({"classes": ["a", "b", "b"]}, ValueError, "classes must be 3 different labels"),
        ({"prototypes": np.eye(3, 5)}, ValueError, "X has 8 features, but the prototypes have 5"),
        ({"prototypes": np.eye(8)[0]}, ValueError, "prototypes must have two dimensions"),
        ({"prototypes": np.zeros((3, 8))}, ValueError, "prototypes row 0 is the zero vector"),
        ({"prototypes": np.eye(3, 8, dtype=int)}, TypeError, "prototypes must hold floating-point numbers"),
        ({"prototypes": [[1.0, 0.0]]}, ValueError, "X has 8 features, but the prototypes have 2"),
        ({"prototypes": None}, ValueError, "requires y to be passed, but the target y is None"),
    ],
)
def test_wrong_parameters(parameters, kind, message):
    classifier = ZeroShiftClassifier(**{"prototypes": np.eye(3, 8), **parameters})
    with pytest.raises(kind, match=message):
        classifier.fit(np.eye(3, 8))


def test_labels_are_required_only_without_prototypes():
    """Tools ask the tags whether to pass labels."""
    assert get_tags(ZeroShiftClassifier()).target_tags.required
    assert not get_tags(ZeroShiftClassifier(np.eye(3, 8))).target_tags.required


def test_wrong_calls():
    classifier = ZeroShiftClassifier(np.eye(3, 8))
    with pytest.raises(NotFittedError):
        classifier.predict(np.eye(3, 8))
    with pytest.raises(ValueError, match="X has 7 features, but ZeroShiftClassifier is expecting 8"):
        classifier.fit(np.eye(3, 8)).predict(np.eye(3, 7))
    with pytest.raises(TypeError, match=r"parameters must be a dict, .*; got \[3\]"):
        ZeroShiftClassifier(np.eye(3), parameters=[3]).set_params(method__rounds=5)
    with pytest.raises(TypeError, match=r"classes must be labels of one kind; got \['a', None, 'b'\]"):
        ZeroShiftClassifier(np.eye(3), classes=["a", None, "b"]).fit(np.eye(3))
    with pytest.raises(AttributeError, match="partial_fit"):
        ZeroShiftClassifier(np.eye(3, 8), method="transclip").partial_fit(np.eye(3, 8))
    with pytest.raises(ValueError, match=r"samples of every class.*\['c'\] are in only one"):
        ZeroShiftClassifier().partial_fit(np.eye(2), ["a", "b"], classes=["a", "b", "c"])
    with pytest.raises(ValueError, match="no mean direction"):
        ZeroShiftClassifier().fit(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]), ["a", "a", "b"])
