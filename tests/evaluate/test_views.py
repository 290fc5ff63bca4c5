"""Views in a comparison: which methods get them, in which order and blocks, and the digest of a set with views."""

import sys

import numpy as np
import pytest

from evaluate import fake_methods, view_fixtures
from zeroshift import FeatureSet, ZeroShot, methods
from zeroshift.evaluate import (
    DatasetRef,
    Ledger,
    MethodSpec,
    Trial,
    accuracy,
    compare,
    describe_skipped,
    list_method_specs,
    plan_comparison,
    run_plan,
    stream_steps,
    summarize,
)
from zeroshift.evaluate.keys import features_digest
from zeroshift.evaluate.resources import PeakMemory
from zeroshift.evaluate.trial import run_trial

FIX = "needs several views of each image. Fix: zeroshift extract --views 64"


@pytest.fixture
def seen(clusters) -> FeatureSet:
    return view_fixtures.with_views(clusters)


@pytest.fixture
def registered(monkeypatch) -> None:
    fake_methods.register(
        monkeypatch, view_fixtures.Takes, view_fixtures.TakesAll, view_fixtures.Needs, view_fixtures.Greedy
    )
    view_fixtures.FED.clear()


def trial(name: str, seed: int | None = 0, **changes) -> Trial:
    return Trial("seen", "digest", "default", MethodSpec.named(name), seed, None, **changes)


@pytest.mark.parametrize(
    ("name", "label", "given", "protocol"),
    [
        ("takes", "takes", (), "online"),
        ("takes+views", "takes+views", ("views",), "online"),
        ("needs", "needs", ("views",), "episodic"),
        ("needs+views", "needs", ("views",), "episodic"),
        ("takes_all+views", "takes_all+views", ("views",), "transductive"),
    ],
)
def test_methods_given_views(registered, name, label, given, protocol):
    spec = MethodSpec.named(name)
    assert (spec.label, spec.given, spec.protocol) == (label, given, protocol)
    assert spec.streamed == (protocol == "online")
    assert spec.missing_input() == (FIX if given else None)
    assert spec.missing_input("views") is None


def test_only_methods_that_accept_views_get_them(registered):
    with pytest.raises(ValueError, match=r"^zero_shot takes no views. It takes features alone"):
        MethodSpec.named("zero_shot+views")


def test_rows_with_views_are_listed_where_there_are_views(registered):
    plain = ["zero_shot", "takes", "takes_all", "needs", "greedy"]
    assert [spec.label for spec in list_method_specs()] == plain
    listed = [spec.label for spec in list_method_specs(views=True)]
    assert listed == ["zero_shot", "takes", "takes+views", "takes_all", "takes_all+views", "needs", *listed[-2:]]
    assert [spec.label for spec in list_method_specs("episodic")] == ["needs"]


def test_the_registered_methods_that_take_views():
    listed = {spec.label for spec in list_method_specs(views=True)}
    assert {"tda+views", "dmn+views", "dota+views", "bca+views"} < listed
    assert not {label for label in listed if label.endswith("+views")} & {"tpt+views", "zero_shot+views"}


def test_views_are_part_of_the_digest_of_a_set(seen):
    plain = FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[0, 1])
    assert features_digest(plain) == "4ca385f65bea2a42113f9d9c07e7beb5"  # what it was when no digest knew of views
    views = np.array(seen.views)
    views[7, 3] = np.roll(views[7, 3], 1)
    other = FeatureSet(views=views, prototypes=seen.prototypes, labels=seen.labels, logit_scale=20.0)
    alone = FeatureSet(seen.features, prototypes=seen.prototypes, labels=seen.labels, logit_scale=20.0)
    assert len({features_digest(seen), features_digest(other), features_digest(alone)}) == 3
    assert DatasetRef.of("seen", seen).n_views == view_fixtures.N_VIEWS
    assert DatasetRef.of("alone", alone).n_views == 0


def test_methods_skipped_where_there_are_no_views_and_that_it_is_reported_once(registered, clusters, seen):
    chosen = [MethodSpec.named(name) for name in ("takes", "takes+views", "needs")]
    datasets = [DatasetRef.of(name, clusters.subset(slice(0, size))) for name, size in (("a", 100), ("b", 120))]
    nowhere = plan_comparison(datasets, chosen, orders=1)
    assert describe_skipped(nowhere.skipped) == [f"takes+views: {FIX}", f"needs: {FIX}"]
    assert [spec.label for spec in nowhere.specs] == ["takes"]
    somewhere = plan_comparison([*datasets, DatasetRef.of("seen", seen)], chosen, orders=2)
    assert describe_skipped(somewhere.skipped) == [f"takes+views on a, b: {FIX}", f"needs on a, b: {FIX}"]
    runs = [(t.spec.label, t.seed) for t in somewhere.trials if t.features == "seen"]
    assert runs == [("takes", 0), ("takes", 1), ("takes+views", 0), ("takes+views", 1), ("needs", None)]


@pytest.mark.parametrize("name", ["tda", "dmn"])
def test_an_online_run_is_what_the_library_s_own_calls_give(seen, name):
    order = np.random.default_rng(2).permutation(150)
    record = run_trial(trial(f"{name}+views", seed=2), seen)
    method = methods.create(name, seen.prototypes_for(), logit_scale=20.0)
    labels = seen.labels[order]
    assert record["accuracy"] == accuracy(method.adapt_views(seen.views[order]), labels)
    zero_shot = ZeroShot(seen.prototypes_for(), logit_scale=20.0).predict(seen.features[order])
    assert record["zero_shot_accuracy"] == accuracy(zero_shot, labels)
    assert record["image_passes"] == view_fixtures.N_VIEWS
    assert run_trial(trial(name, seed=2), seen)["image_passes"] == 1


def test_views_are_passed_in_order_and_in_blocks(registered, seen, monkeypatch):
    monkeypatch.setattr(sys.modules[stream_steps.__module__], "VIEW_NUMBERS", 20 * view_fixtures.N_VIEWS * 12)
    order = np.random.default_rng(1).permutation(150)
    run_trial(trial("takes+views", seed=1), seen)
    warming, *fed = view_fixtures.FED
    assert len(warming) == 2
    assert [len(views) for views in fed] == [20] * 7 + [10]
    np.testing.assert_array_equal(np.concatenate(fed), seen.views[order])


def test_episodic_methods_run_once_in_the_stored_order(registered, seen):
    record = run_trial(trial("needs", seed=None), seen)
    np.testing.assert_array_equal(np.concatenate(view_fixtures.FED[1:]), seen.views)
    expected = view_fixtures.Needs(seen.prototypes_for(), logit_scale=20.0).adapt_views(np.array(seen.views))
    assert record["accuracy"] == accuracy(expected, seen.labels)
    assert record["seconds"] > 0


def test_a_transductive_method_is_given_all_images_at_once_and_not_a_copy(registered, seen):
    run_trial(trial("takes_all+views", seed=None), seen)
    assert view_fixtures.FED[-1].shape == seen.views.shape
    assert np.shares_memory(view_fixtures.FED[-1], seen.views)


def test_a_run_without_views_names_what_is_missing(registered, clusters):
    with pytest.raises(ValueError, match=r"needs needs several views of each image. Fix: zeroshift extract --views 64"):
        run_trial(trial("needs", seed=None), clusters)


def test_memory_of_views_is_part_of_the_peak(registered, seen):
    peak = run_trial(trial("greedy+views"), seen.subset(slice(0, 3)))["peak_bytes"]
    gauge = PeakMemory()
    gauge.reset()
    if gauge.resets:
        assert view_fixtures.Greedy.taken * 0.7 < peak < view_fixtures.Greedy.taken * 1.5


def test_following_views(seen):
    method = methods.create("tda", seen.prototypes_for(), logit_scale=20.0)
    rows = np.arange(149, -1, -1)
    steps = list(stream_steps(method, seen.views, rows=rows, every=40))
    assert [(step.start, step.stop) for step in steps] == [(0, 40), (40, 80), (80, 120), (120, 150)]
    other = methods.create("tda", seen.prototypes_for(), logit_scale=20.0)
    expected = other.adapt_views(seen.views[::-1])
    np.testing.assert_array_equal(np.concatenate([step.probabilities for step in steps]), expected)


def test_invalid_views_are_rejected_before_anything_is_learned(seen):
    method = methods.create("tda", seen.prototypes_for())
    with pytest.raises(TypeError, match=r"zero_shot takes no views; got features of shape .*Fix: features\[:, 0\]"):
        stream_steps(ZeroShot(seen.prototypes_for()), seen.views)
    broken = np.array(seen.views)
    broken[149, 4] *= 2
    with pytest.raises(ValueError, match=r"views\[149\] row 4 has length 2"):
        stream_steps(method, broken)
    with pytest.raises(ValueError, match="views has d = 11"):
        stream_steps(method, broken[..., 1:])
    for rows in (np.array([0, 150]), np.array([-1]), np.array([], int), np.array([[0]]), np.array([0.0]), [0, 1]):
        with pytest.raises(ValueError, match=r"rows must be a NumPy array of at least one row number from 0 to 149"):
            stream_steps(method, seen.views, rows=rows)
    assert method.n_seen == 0


def test_comparing_in_memory(registered, seen, clusters):
    zero_shot, takes, needs = (
        methods.create(name, seen.prototypes_for(), logit_scale=20.0) for name in ("zero_shot", "takes", "needs")
    )
    done = compare(seen, [zero_shot, takes, needs])
    np.testing.assert_array_equal(done.result("takes").run.probabilities, takes.predict(seen.features))
    expected = view_fixtures.Needs(seen.prototypes_for(), logit_scale=20.0).predict_views(np.array(seen.views))
    np.testing.assert_allclose(done.result("needs").run.probabilities, expected, rtol=1e-12)
    given = compare(seen, [zero_shot, takes], views=True)
    np.testing.assert_allclose(given.result("takes").run.probabilities, expected, rtol=1e-12)
    np.testing.assert_array_equal(given.baseline.run.probabilities, done.baseline.run.probabilities)
    with pytest.raises(ValueError, match=r"needs needs several views of each image. Fix: zero"):
        compare(clusters, [needs])
    with pytest.raises(ValueError, match=r"takes needs several views of each image."):
        compare(clusters, [takes], views=True)


def test_a_whole_comparison(registered, seen, tmp_path, monkeypatch):
    monkeypatch.setattr(view_fixtures.Greedy, "taken", 1)  # no memory is judged here
    planned = plan_comparison(
        [DatasetRef.of("seen", seen.subset(slice(0, 20)))], list_method_specs(views=True), orders=1
    )
    summary = summarize(planned, list(run_plan(planned, Ledger(tmp_path))))
    assert not summary.failed
    passes = {standing.spec.label: standing.costs["image_passes"] for standing in summary.overall}
    many = {"takes+views", "takes_all+views", "needs", "greedy+views"}
    assert passes == {label: view_fixtures.N_VIEWS if label in many else 1 for label in passes}
    assert len(passes) == 8
    steps = {standing.spec.label: standing.costs["gradient_steps"] for standing in summary.overall}
    assert {label for label, number in steps.items() if number} == {"greedy", "greedy+views"}
    assert steps["greedy"] == 3
