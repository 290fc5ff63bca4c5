"""One run: the inputs of the method, the scored rows, and the key."""

import json
from dataclasses import replace

import numpy as np
import pytest

from evaluate import fake_methods
from zeroshift import FeatureSet, OnlineADAPT, ZeroShot, normalize
from zeroshift.evaluate import (
    DatasetRef,
    MethodSpec,
    Stream,
    StreamSpec,
    Trial,
    accuracy,
    brier_score,
    class_accuracy,
    expected_calibration_error,
    list_method_specs,
    negative_log_likelihood,
)
from zeroshift.evaluate.resources import PeakMemory
from zeroshift.evaluate.streams import KINDS
from zeroshift.evaluate.trial import REQUIRED_NUMBERS, run_trial


def trial(name: str, *, seed=0, shots=None, **parameters) -> Trial:
    return Trial("clusters", "digest", "default", MethodSpec.named(name, parameters), seed, shots)


def test_an_online_run_is_what_the_library_s_own_calls_give(clusters):
    order = np.random.default_rng(2).permutation(150)
    record = run_trial(trial("adapt_online", seed=2, bank_size=5), clusters)
    adapter = OnlineADAPT(clusters.prototypes_for(), logit_scale=20.0, bank_size=5)
    answers, labels = adapter.adapt(clusters.features[order]), clusters.labels[order]
    assert record["accuracy"] == accuracy(answers, labels)
    assert record["calibration_error"] == pytest.approx(expected_calibration_error(answers, labels))
    assert record["zero_shot_accuracy"] == pytest.approx(clusters.zero_shot_accuracy())
    assert record["settings"]["bank_size"] == 5
    assert record["settings"]["logit_scale"] == 20.0
    assert (record["scored"], record["support"], record["unlabelled"]) == (150, 0, 0)
    assert record["seconds"] > 0
    assert record["setup_seconds"] > 0


def test_the_record_holds_every_score_of_the_method_and_of_zero_shot(clusters):
    order = np.random.default_rng(1).permutation(150)
    record = run_trial(trial("adapt_online", seed=1), clusters)
    labels = clusters.labels[order]
    adapted = OnlineADAPT(clusters.prototypes_for(), logit_scale=20.0).adapt(clusters.features[order])
    plain = ZeroShot(clusters.prototypes_for(), logit_scale=20.0).predict(clusters.features[order])
    for prefix, answers in (("", adapted), ("zero_shot_", plain)):
        assert record[f"{prefix}nll"] == pytest.approx(negative_log_likelihood(answers, labels))
        assert record[f"{prefix}brier"] == pytest.approx(brier_score(answers, labels))
        assert record[f"{prefix}class_mean_accuracy"] == pytest.approx(np.mean(class_accuracy(answers, labels)))
        assert record[f"{prefix}top5_accuracy"] == 1.0  # of four classes
        assert 0.5 < record[f"{prefix}error_auroc"] <= 1
        assert 0 <= record[f"{prefix}error_fpr95"] <= 1
        confusion = np.array(record["detail"][f"{prefix}confusion"])
        assert confusion.sum(axis=1).tolist() == np.bincount(labels).tolist()
        assert np.trace(confusion) == pytest.approx(150 * accuracy(answers, labels))
        assert sum(record["detail"][f"{prefix}reliability"]["count"]) == 150
    assert record["detail"]["curve"]["accuracy"][-1] == record["accuracy"]
    assert record["detail"]["curve"]["zero_shot"][-1] == record["zero_shot_accuracy"]
    assert sum(record["paired"]) == 150
    assert record["paired"][1] - record["paired"][2] == pytest.approx(
        150 * (record["accuracy"] - record["zero_shot_accuracy"])
    )
    assert record["groups"] == {}
    assert "probabilities" not in record
    json.dumps(record, allow_nan=False)


def test_a_record_without_one_of_its_numbers_is_invalid(clusters):
    run = trial("zero_shot")
    record = run_trial(run, clusters)
    assert run.is_valid(record)
    assert run.is_valid({**record, "error_auroc": None})  # all right, or all wrong
    for name in REQUIRED_NUMBERS:
        assert not run.is_valid({**record, name: None})


def test_groups_follow_the_stream_with_the_support_taken_out(clusters, monkeypatch):
    """Two halves of the set as domains, the second first: each row keeps its domain when others are drawn out."""
    fake_methods.register(monkeypatch)
    rows = np.concatenate([np.arange(75, 150), np.arange(75)])
    halves = Stream(rows, groups=np.repeat([1, 0], 75), group_names=("first", "second"))
    monkeypatch.setitem(KINDS, "halves", lambda clues, seed: halves)
    record = run_trial(replace(trial("shots", seed=1, shots=3), stream_spec=StreamSpec("halves")), clusters)
    method = fake_methods.SEEN[-1]
    scored = [int(np.flatnonzero((clusters.features == row).all(axis=1))[0]) for row in method.rows]
    assert len(scored) == record["scored"] == 138
    assert list(record["groups"]) == ["first", "second"]
    zero_shot = ZeroShot(clusters.prototypes_for(), logit_scale=20.0).predict(clusters.features)
    for name, members in (("first", range(75)), ("second", range(75, 150))):
        here = [row for row in scored if row in members]
        found = record["groups"][name]
        assert found["scored"] == len(here)
        assert found["zero_shot_accuracy"] == pytest.approx(accuracy(zero_shot[here], clusters.labels[here]))
    shares = [found["scored"] * found["accuracy"] for found in record["groups"].values()]
    assert sum(shares) == pytest.approx(138 * record["accuracy"])


def test_scoring_is_not_part_of_time_and_memory(clusters, monkeypatch):
    """Memory is read, and the timer stopped, before anything is scored."""
    seen = []
    monkeypatch.setattr("zeroshift.evaluate.trial.score_run", lambda *_, **__: seen.append("scored") or {})
    peak = PeakMemory.peak
    monkeypatch.setattr(PeakMemory, "peak", lambda self: seen.append("weighed") or peak(self))
    run_trial(trial("zero_shot"), clusters)
    assert seen == ["weighed", "weighed", "scored"]  # after set-up, after the stream


def test_support_is_labelled_rightly_and_not_scored(clusters, monkeypatch):
    fake_methods.register(monkeypatch)
    record = run_trial(trial("shots", seed=1, shots=3), clusters)
    method = fake_methods.SEEN[-1]
    features, labels = method.support
    assert np.bincount(labels).tolist() == [3, 3, 3, 3]
    assert (record["scored"], record["support"]) == (138, 12)
    rows = [int(np.flatnonzero((clusters.features == row).all(axis=1))[0]) for row in features]
    np.testing.assert_array_equal(clusters.labels[rows], labels)
    left = np.setdiff1d(np.arange(150), rows)
    np.testing.assert_array_equal(method.rows, clusters.features[left])
    scored = clusters.subset(left)
    assert record["zero_shot_accuracy"] == pytest.approx(scored.zero_shot_accuracy())
    zero_shot = ZeroShot(scored.prototypes_for(), logit_scale=20.0).predict(scored.features)
    assert record["zero_shot_calibration_error"] == pytest.approx(expected_calibration_error(zero_shot, scored.labels))
    assert method.validation is None


def test_half_of_the_set_is_given_unlabelled_and_the_other_half_scored(clusters, monkeypatch):
    fake_methods.register(monkeypatch)
    record = run_trial(trial("pool"), clusters)
    method = fake_methods.SEEN[-1]
    assert (record["scored"], record["unlabelled"]) == (75, 75)
    together = np.concatenate([method.unlabelled, method.rows])
    np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(clusters.features, axis=0))


@pytest.mark.parametrize("modes", [1, 2])
def test_prompt_modes_are_stacked_as_prompts(clusters, monkeypatch, modes):
    fake_methods.register(monkeypatch)
    prototypes = {mode: clusters.prototypes_for() for mode in ("a", "b")[:modes]}
    prototypes["a"] = np.roll(prototypes["a"], 1, axis=1)
    several = FeatureSet(clusters.features, prototypes=prototypes, labels=clusters.labels, logit_scale=20.0)
    record = run_trial(replace(trial("whole", seed=None), prompt="a"), several)
    method = fake_methods.SEEN[-1]
    np.testing.assert_array_equal(method.prompts, np.stack([several.prototypes[m] for m in ("a", "b")[:modes]], axis=1))
    np.testing.assert_array_equal(method.prototypes, prototypes["a"])
    np.testing.assert_array_equal(method.rows, clusters.features)
    assert record["zero_shot_accuracy"] == several.zero_shot_accuracy("a")


def test_optional_support_is_given_only_on_request(clusters, monkeypatch):
    fake_methods.register(monkeypatch)
    run_trial(trial("either", seed=None), clusters)
    assert fake_methods.SEEN[-1].support is None
    run_trial(trial("either+support", shots=2), clusters)
    assert len(fake_methods.SEEN[-1].support[1]) == 8
    assert MethodSpec.named("either").protocol == "transductive"
    assert MethodSpec.named("either+support").protocol == "few-shot"


def test_every_protocol_methods(monkeypatch):
    fake_methods.register(monkeypatch)
    assert [c.label for c in list_method_specs("few-shot")] == ["shots", "either+support"]
    assert [c.label for c in list_method_specs("transductive")] == ["whole", "either"]
    assert {"pool", "tuned", "zero_shot"} < {c.label for c in list_method_specs("online")}
    with pytest.raises(ValueError, match="protocol must be one of 'online'"):
        list_method_specs("offline")


def test_missing_inputs_prevent_a_method_from_being_created(monkeypatch):
    fake_methods.register(monkeypatch)
    assert MethodSpec("tuned").missing_input() == (
        "needs scale (a number of at least 0), which has no default. Fix: --set tuned.scale=VALUE"
    )
    assert MethodSpec("tuned", {"scale": 1.0}).missing_input() is None
    assert (
        MethodSpec("tokens").missing_input().startswith("needs tokens of a transformer. Fix: leave it out; in Python, ")
    )
    with pytest.raises(ValueError, match=r"stream takes no support. It takes features alone"):
        MethodSpec.named("stream+support")
    with pytest.raises(ValueError, match=r"either takes no suport. Did you mean 'support'"):
        MethodSpec.named("either+suport")


def test_the_key_changes_exactly_with_what_changes_the_result(clusters, monkeypatch):
    base = Trial("clusters", DatasetRef.of("x", clusters).digest, "default", MethodSpec("adapt_online"), 0, None)
    others = [
        replace(base, digest=DatasetRef.of("x", clusters.subset(slice(0, 100))).digest),
        replace(base, prompt="vanilla"),
        replace(base, seed=1),
        replace(base, seed=None),
        replace(base, shots=4),
        replace(base, spec=MethodSpec("adapt_transductive")),
        replace(base, spec=MethodSpec("adapt_online", {"bank_size": 8})),
        replace(base, spec=MethodSpec.named("adapt_online+support")),
    ]
    assert len({base.key, *(other.key for other in others)}) == 9
    assert replace(base, features="renamed").key == base.key
    assert replace(base, spec=MethodSpec("adapt_online", {"bank_size": 16})).key == base.key  # the default
    monkeypatch.setattr("zeroshift.evaluate.trial.__version__", "99")
    assert replace(base).key != base.key


def test_equal_numbers_of_different_types_have_one_key():
    keys = {trial("adapt_online", alpha=alpha).key for alpha in (1, 1.0, np.float64(1), np.int64(1), np.float32(1))}
    assert len(keys) == 1
    assert trial("adapt_online", alpha=0.5).key not in keys
    assert len({trial("adapt_online", prune=prune).key for prune in ((4, 0.5), [4.0, 0.5])}) == 1
    assert trial("adapt_online", seed=np.int64(3)).key == trial("adapt_online", seed=3).key


def test_the_record_has_timing_and_rows_per_call():
    run = replace(trial("adapt_online"), timed=True, every=7)
    assert (run.describe()["timed"], run.describe()["every"]) == (True, 7)


@pytest.mark.parametrize(("every", "sizes"), [(None, [150]), (64, [64, 64, 22]), (200, [150])])
def test_an_online_method_gets_all_rows_in_one_call_unless_the_trial_says_otherwise(
    clusters, monkeypatch, every, sizes
):
    fake_methods.register(monkeypatch, fake_methods.Stream)
    run_trial(replace(trial("stream"), every=every), clusters)
    assert [len(rows) for rows in fake_methods.SEEN[-1]._fed] == sizes


def test_the_key_of_a_trial_is_computed_once(monkeypatch):
    one, computed = trial("adapt_online"), []
    monkeypatch.setattr("zeroshift.evaluate.trial.canonical", lambda content: computed.append(content) or content)
    assert one.key == one.key
    assert len(computed) == 1


def test_rows_per_call_are_part_of_the_key():
    assert len({replace(trial("adapt_online"), every=every).key for every in (None, 64, 256)}) == 3


def test_a_method_is_warmed_up_once_in_a_process(clusters, monkeypatch):
    fake_methods.register(monkeypatch, fake_methods.Stream, fake_methods.TwoEncoders)
    fed = []
    for name in ("stream", "stream", "two_encoders", "stream"):
        fake_methods.SEEN.clear()
        run_trial(trial(name), clusters)
        fed.append([len(rows) for method in fake_methods.SEEN for rows in method._fed])
    assert fed == [[64, 150], [150], [64, 150], [150]]


def test_a_method_is_warmed_up_again_for_rows_of_another_size(clusters, monkeypatch):
    fake_methods.register(monkeypatch, fake_methods.Stream)
    narrow = FeatureSet(
        normalize(clusters.features[:, :6]), prototypes=normalize(clusters.prototypes_for()[:, :6]),
        labels=clusters.labels,
    )  # fmt: skip
    for features in (clusters, narrow, clusters, narrow):
        run_trial(trial("stream"), features)
    assert len(fake_methods.SEEN) == 6


def test_a_dataset_has_the_names_of_its_classes(clusters):
    named = FeatureSet(
        clusters.features, prototypes=clusters.prototypes, labels=clusters.labels, class_names=list("abcd")
    )
    assert DatasetRef.of("pets", named).class_names == ("a", "b", "c", "d")


def test_a_set_without_labels_is_rejected(clusters):
    bare = FeatureSet(clusters.features, prototypes=clusters.prototypes)
    with pytest.raises(ValueError, match="pets has no labels, so there is no accuracy"):
        DatasetRef.of("pets", bare)
    with pytest.raises(ValueError, match="clusters has no labels"):
        run_trial(trial("zero_shot"), bare)


def test_memory_is_unknown_if_the_peak_cannot_be_reset(clusters, monkeypatch):
    monkeypatch.setattr("zeroshift.evaluate.resources.PeakMemory.reset", lambda self: None)
    assert run_trial(trial("zero_shot"), clusters)["peak_bytes"] is None
