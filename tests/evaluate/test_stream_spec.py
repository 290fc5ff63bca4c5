"""Streams by name: each kind equals its function, and invalid parameters are refused at once."""

import json

import numpy as np
import pytest

from zeroshift import FeatureSet
from zeroshift.evaluate import MethodSpec, Trial
from zeroshift.evaluate import streams as ours
from zeroshift.evaluate.streams import KINDS, StreamInputs, StreamSpec

NEEDS = {kind: {"domains": [100, 50]} for kind in ("continual", "gradual", "mixed")}


def test_every_kind_equals_its_function(clusters):
    labels, clues = clusters.labels, StreamInputs(clusters)
    sure, classes = clues.confidences, clues.pseudo_classes
    expected = {
        "random": ours.random_order(150, 3),
        "easy_to_hard": ours.easy_to_hard(sure, 3),
        "hard_to_easy": ours.hard_to_easy(sure, 3),
        "class_sorted": ours.class_sorted(labels, 3),
        "dirichlet": ours.dirichlet(labels, 3),
        "few_classes": ours.few_classes(labels, 3),
        "bursts": ours.bursts(labels, 3),
        "recurring": ours.recurring(labels, 3),
        "some_classes": ours.some_classes(labels, 3),
        "some_classes_sorted": ours.some_classes_sorted(labels, 3),
        "continual": ours.continual([100, 50], 3),
        "gradual": ours.gradual([100, 50], 3),
        "mixed": ours.mixed([100, 50], 3),
        "long_tail": ours.long_tail(labels, 3),
        "few_confident": ours.few_confident(sure, classes, 3),
    }
    assert set(expected) == set(KINDS)
    for kind, stream in expected.items():
        found = StreamSpec(kind, NEEDS.get(kind, {})).stream(clusters, seed=3)
        np.testing.assert_array_equal(found.rows, stream.rows)
        np.testing.assert_array_equal(found.groups, stream.groups)
        assert found.group_names == stream.group_names


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_scores_only_the_rows_of_its_stream(clusters, kind):
    stream_spec = StreamSpec(kind, NEEDS.get(kind, {}))
    trial = Trial("clusters", "", "default", MethodSpec("zero_shot"), 0, None, stream_spec)
    record = trial.run(clusters)
    rows = stream_spec.stream(clusters, seed=0).rows
    assert record["scored"] == len(rows)
    assert record["accuracy"] == pytest.approx(clusters.subset(rows).zero_shot_accuracy())
    assert json.loads(json.dumps(trial.describe()))["stream"]["kind"] == kind


@pytest.mark.parametrize(
    ("kind", "parameters", "words"),
    [
        ("dirichlett", {}, "Did you mean 'dirichlet'"),
        ("random", {"seed": 1}, "has no parameter 'seed'. It takes none"),
        ("dirichlet", {"consentration": 1}, "Did you mean 'concentration'"),
        ("gradual", {}, "the stream gradual needs the parameter 'domains'"),
    ],
    ids=["kind", "none", "parameter", "missing"],
)
def test_invalid_streams_are_rejected_without_a_set(kind, parameters, words):
    with pytest.raises(ValueError, match=words):
        StreamSpec(kind, parameters)


@pytest.mark.parametrize(
    ("kind", "parameters", "words"),
    [
        ("dirichlet", {"concentration": -1}, "concentration must be a number greater than 0; got -1"),
        ("dirichlet", {"slots": 1.5}, "slots must be None or an integer"),
        ("few_classes", {"batch_size": 0}, "batch_size must be an integer of at least 1; got 0"),
        ("few_classes", {"classes_per_batch": "2"}, "classes_per_batch must be an integer"),
        ("mixed", {"domains": "abc"}, "domains must be a list of sizes"),
        ("mixed", {"domains": [3, 0]}, r"domains\[1\] must be an integer of at least 1; got 0"),
        ("continual", {"domains": [3, 4], "names": ["one"]}, "names must be 2 different names"),
        ("gradual", {"domains": [3], "overlap": 2}, "overlap must be a number from 0 to 1"),
        ("long_tail", {"imbalance": 0.5}, "imbalance must be a number of at least 1"),
        ("few_confident", {"per_class": -1}, "per_class must be an integer of at least 0"),
        ("few_confident", {"share": 2}, "share must be a number from 0 to 1"),
        ("bursts", {"mean_length": 0.5}, "mean_length must be a number of at least 1; got 0.5"),
        ("recurring", {"rounds": 0}, "rounds must be an integer of at least 1; got 0"),
        ("some_classes", {"class_share": 0}, "class_share must be a number greater than 0"),
        ("some_classes_sorted", {"class_share": 1.1}, "class_share must be a number greater than 0 and at most 1"),
    ],
    ids=range(15),
)
def test_values_are_checked_without_a_set(kind, parameters, words):
    with pytest.raises((ValueError, TypeError), match=words):
        StreamSpec(kind, parameters)


def run(stream_spec, seed=0, **parameters):
    return Trial("pets", "", "default", MethodSpec("adapt_online", parameters), seed, None, stream_spec)


def test_equal_streams_have_equal_keys():
    typed = [{}, {"imbalance": 50}, {"imbalance": 50.0}, {"imbalance": np.float64(50)}, {"most": None}]
    stream_specs = [StreamSpec("long_tail", parameters) for parameters in typed]
    said = {json.dumps(stream_spec.describe()) for stream_spec in stream_specs}
    assert said == {'{"kind": "long_tail", "imbalance": 50.0, "most": null}'}
    assert len({run(stream_spec).key for stream_spec in stream_specs}) == 1
    assert run(StreamSpec("long_tail", {"imbalance": 20})).key != run(stream_specs[0]).key
    sizes = [StreamSpec("mixed", {"domains": list(map(kind, (100, 50)))}) for kind in (int, float, np.int32)]
    assert len({run(stream_spec).key for stream_spec in sizes}) == 1
    assert json.loads(json.dumps(sizes[-1].describe()))["domains"] == [100, 50]


def test_names_of_domains_are_in_the_record_and_not_in_the_key():
    called = [StreamSpec("mixed", {"domains": [100, 50], "names": names}) for names in (None, ["a", "b"], ("c", "d"))]
    assert len({run(stream_spec).key for stream_spec in called}) == 1
    assert [run(stream_spec).describe()["stream"]["names"] for stream_spec in called] == [None, ["a", "b"], ["c", "d"]]


def test_an_arranged_run_needs_a_seed():
    with pytest.raises(ValueError, match=r"a run on the stream random needs a seed; got None. Fix"):
        run(StreamSpec("random"), seed=None)


def test_domains_must_add_up_to_the_set(clusters):
    with pytest.raises(ValueError, match="domains add up to 120 rows, but the set has 150"):
        StreamSpec("mixed", {"domains": [60, 60]}).stream(clusters, seed=0)


def test_streams_by_label_need_labels(clusters):
    unlabelled = FeatureSet(clusters.features, prototypes=clusters.prototypes)
    with pytest.raises(ValueError, match="needs labels, and the set has none"):
        StreamSpec("class_sorted").stream(unlabelled, seed=0)
    assert len(StreamSpec("easy_to_hard").stream(unlabelled, seed=0)) == 150


def test_confidence_depends_on_the_prompt_mode(clusters):
    both = FeatureSet(
        clusters.features,
        prototypes={"right": clusters.prototypes_for(), "turned": np.roll(clusters.prototypes_for(), 1, axis=1)},
        labels=clusters.labels,
        logit_scale=20.0,
    )
    stream_spec = StreamSpec("easy_to_hard")
    right, turned = (stream_spec.stream(both, seed=0, prompt=prompt).rows for prompt in ("right", "turned"))
    assert (right != turned).any()
