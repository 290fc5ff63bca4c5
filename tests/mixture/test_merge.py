"""Merging methods that learned from different shards: equal to one method on all samples; support counts once."""

from __future__ import annotations

import numpy as np
import pytest

from mixture import transcription
from mixture.sets import class_sorted, few_classes, first_rows, make_support, pack_stream
from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture, methods
from zeroshift.testing import make_problem

TOLERANCE = 1e-9
BOTH = pytest.mark.parametrize("cls", [OnlineAnchoredMixture, TransductiveAnchoredMixture], ids=lambda cls: cls.name)
SUPPORTED = pytest.mark.parametrize("supported", [False, True], ids=["no support", "support"])


def create(cls, stream, supported=False, **parameters):
    support = {"support": make_support(stream)} if supported else {}
    return cls(stream.prototypes, logit_scale=stream.logit_scale, **support, **parameters)


def assert_same_state(one, other):
    for name, mine in one._all_sums().arrays().items():
        theirs = other._all_sums().arrays()[name]
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=TOLERANCE, err_msg=name)
    assert one.n_seen == other.n_seen
    np.testing.assert_allclose(one.means, other.means, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(
        one.precision_matrix, other.precision_matrix, rtol=0, atol=TOLERANCE * one.precision_matrix.max()
    )
    assert one.temperature == pytest.approx(other.temperature, abs=TOLERANCE)


@pytest.fixture
def thirds():
    """A stream, and its three parts."""
    stream = first_rows("medium")
    return stream, np.array_split(stream.features, 3)


@BOTH
@SUPPORTED
def test_merge_adds_the_sums(cls, supported, thirds):
    stream, shards = thirds
    one, other = (create(cls, stream, supported) for _ in range(2))
    one.adapt(shards[0])
    other.adapt(shards[1])
    expected = {name: mine + other._all_sums().arrays()[name] for name, mine in one._all_sums().arrays().items()}
    kept = other._all_sums().arrays()
    n_seen = one.n_seen + other.n_seen
    assert one.merge(other) is one
    for name, found in one._all_sums().arrays().items():
        np.testing.assert_array_equal(found, expected[name], err_msg=name)
        np.testing.assert_array_equal(other._all_sums().arrays()[name], kept[name], err_msg=name)
    assert one.n_seen == n_seen


@BOTH
def test_merge_counts_support_once(cls, thirds):
    stream, shards = thirds
    one, other = (create(cls, stream, supported=True) for _ in range(2))
    one.adapt(shards[0])
    other.adapt(shards[1])
    labelled = len(one.support[1])
    assert one.merge(other).counts.sum() == pytest.approx(len(shards[0]) + len(shards[1]) + labelled)


@BOTH
@SUPPORTED
def test_merge_is_commutative_and_associative(cls, supported, thirds):
    stream, shards = thirds

    def learned():
        found = [create(cls, stream, supported) for _ in shards]
        for method, shard in zip(found, shards, strict=True):
            method.adapt(shard)
        return found

    a, b, c = learned()
    left = a.merge(b).merge(c)
    a, b, c = learned()
    assert_same_state(left, a.merge(b.merge(c)))
    a, b, c = learned()
    assert_same_state(left, c.merge(b).merge(a))


@BOTH
def test_merging_a_method_that_learned_nothing_changes_nothing(cls, thirds):
    stream, shards = thirds
    learned, fresh = create(cls, stream), create(cls, stream)
    expected = create(cls, stream)
    learned.adapt(shards[0])
    expected.adapt(shards[0])
    assert_same_state(learned.merge(fresh), expected)
    assert_same_state(fresh.merge(expected), expected)


@SUPPORTED
@pytest.mark.parametrize("staleness", [0.0, 0.03125])
def test_merged_streams_predict_and_continue_like_the_transcription(supported, staleness):
    stream = class_sorted()
    first, second, rest = np.array_split(stream.features, [43, 70])
    one, other = (create(OnlineAnchoredMixture, stream, supported, staleness=staleness) for _ in range(2))
    one.adapt(first)
    other.adapt(second)
    one.merge(other)

    support = make_support(stream) if supported else None
    given = {"logit_scale": stream.logit_scale}
    learned = [
        transcription.online(part, stream.prototypes, staleness=staleness, support=support, **given).memory
        for part in (first, second)
    ]
    memory = learned[0].joined(learned[1])
    assert one.stay == pytest.approx(memory.chain.stay(), abs=TOLERANCE)
    assert one.stay > 0.5
    labelled = transcription.one_hot(support, len(stream.prototypes))
    settings = transcription.Settings(**given)
    expected = transcription.predict(rest, memory, labelled, stream.prototypes, settings)
    np.testing.assert_allclose(one.predict(rest), expected, rtol=0, atol=TOLERANCE)
    run = transcription.online(rest, stream.prototypes, staleness=staleness, support=support, memory=memory, **given)
    np.testing.assert_allclose(one.adapt(rest), run.probabilities, rtol=0, atol=TOLERANCE)


SETS = {"all classes": lambda: first_rows("medium"), "a third": few_classes, "a pack": lambda: pack_stream(300)}


@pytest.mark.parametrize("name", SETS)
@SUPPORTED
def test_adapt_shards_equals_adapt(name, supported):
    stream = SETS[name]()
    whole = create(TransductiveAnchoredMixture, stream, supported)
    expected = whole.adapt(stream.features)
    shards = np.split(stream.features, [1, 30, 31])
    apart = create(TransductiveAnchoredMixture, stream, supported)
    found = apart.adapt_shards(shards)
    assert [len(part) for part in found] == [len(shard) for shard in shards]
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=0, atol=TOLERANCE)
    assert apart.n_seen == whole.n_seen
    np.testing.assert_allclose(apart.means, whole.means, rtol=0, atol=TOLERANCE)
    assert apart.temperature == pytest.approx(whole.temperature, abs=TOLERANCE)


def test_merged_surveys_equal_adapt():
    """As on several machines: each surveys its part with the statistics of the round before."""
    stream = few_classes()
    whole = create(TransductiveAnchoredMixture, stream, rounds=4)
    expected = whole.adapt(stream.features)
    shards = np.array_split(stream.features, 3)
    method = create(TransductiveAnchoredMixture, stream, rounds=4)
    for _ in range(4):
        first, second, third = (method.survey(shard) for shard in shards)
        method = third.merge(first).merge(second)
    np.testing.assert_allclose(method.predict(stream.features), expected, rtol=0, atol=TOLERANCE)
    assert_same_state(method, whole)


def test_survey_does_not_change_the_method():
    stream = first_rows("small")
    method = create(TransductiveAnchoredMixture, stream)
    before = method.adapt(stream.features)
    found = method.survey(stream.features[:10])
    assert found.n_seen == 10
    assert method.n_seen == len(stream.features)
    np.testing.assert_array_equal(method.predict(stream.features), before)


def test_an_empty_list_of_shards_is_rejected():
    with pytest.raises(ValueError, match="shards is empty; at least one"):
        create(TransductiveAnchoredMixture, first_rows("small")).adapt_shards([])


@BOTH
@SUPPORTED
def test_a_merged_method_can_be_saved_and_loaded(cls, supported, thirds, tmp_path):
    stream, shards = thirds
    one, other = (create(cls, stream, supported) for _ in range(2))
    one.adapt(shards[0])
    other.adapt(shards[1])
    one.merge(other).save(tmp_path / "merged.safetensors")
    loaded = methods.load(tmp_path / "merged.safetensors")
    assert loaded.n_seen == one.n_seen
    np.testing.assert_array_equal(loaded.predict(shards[2]), one.predict(shards[2]))
    np.testing.assert_array_equal(loaded.adapt(shards[2]), one.adapt(shards[2]))
    np.testing.assert_array_equal(loaded.predict(shards[2]), one.predict(shards[2]))


@BOTH
@pytest.mark.parametrize("towards", ["numpy", "torch"])
def test_merge_between_numpy_and_torch(cls, towards, thirds):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    stream, shards = thirds
    plain, tensors = create(cls, stream), create(cls, stream._replace(prototypes=torch.from_numpy(stream.prototypes)))
    expected = create(cls, stream)
    expected.adapt(shards[0])
    tensors.adapt(torch.from_numpy(shards[0]))
    plain.adapt(shards[1])
    expected.merge(plain)
    merged = tensors.merge(plain) if towards == "torch" else plain.merge(tensors)
    found = merged.predict(torch.from_numpy(shards[2]) if towards == "torch" else shards[2])
    np.testing.assert_allclose(np.asarray(found), expected.predict(shards[2]), rtol=0, atol=TOLERANCE)


@BOTH
def test_merge_rejects_different_parameters(cls):
    stream = first_rows("small")
    learned = create(cls, stream)
    learned.adapt(stream.features)
    before = learned.predict(stream.features)
    with pytest.raises(ValueError, match=r"another weight \(0\.5\).*Fix: make both with the same weight"):
        learned.merge(create(cls, stream, weight=0.5))
    with pytest.raises(ValueError, match=r"another varying \(.*Fix: make both with the same varying"):
        learned.merge(create(cls, stream, varying=(0.3, 0.8)))
    with pytest.raises(ValueError, match="another logit_scale"):
        learned.merge(create(cls, stream._replace(logit_scale=21.0)))
    with pytest.raises(ValueError, match=r"another prototypes \(another array\)"):
        learned.merge(create(cls, stream._replace(prototypes=stream.prototypes[::-1].copy())))
    with pytest.raises(ValueError, match="another prototypes"):
        learned.merge(create(cls, stream._replace(prototypes=make_problem(4, 8, 1).prototypes)))
    with pytest.raises(ValueError, match="another support"):
        learned.merge(create(cls, stream, supported=True))
    np.testing.assert_array_equal(learned.predict(stream.features), before)


def test_parameters_that_select_how_to_compute_may_differ():
    stream = first_rows("small")
    one, other = create(TransductiveAnchoredMixture, stream), create(TransductiveAnchoredMixture, stream, chunk_size=3)
    assert one.merge(other) is one


@BOTH
def test_merge_rejects_other_classes(cls):
    stream = first_rows("small")
    method = create(cls, stream)
    (another,) = {OnlineAnchoredMixture, TransductiveAnchoredMixture} - {cls}
    with pytest.raises(TypeError, match=f"other must be of class {cls.__name__}; got {another.__name__}"):
        method.merge(create(another, stream))
    with pytest.raises(TypeError, match=f"other must be of class {cls.__name__}; got dict"):
        method.merge({})


@SUPPORTED
def test_a_stream_continues_from_a_set(supported, thirds, tmp_path):
    """It answers as the transductive mixture does, and then learns on; the set keeps what it has learned."""
    stream, shards = thirds
    mixture = create(TransductiveAnchoredMixture, stream, supported, anchor_count=2.0)
    mixture.adapt(shards[0])
    before = mixture.predict(shards[1])
    online = OnlineAnchoredMixture.from_set(mixture, half_life=500.0)
    assert (online.n_seen, online.anchor_count, online.half_life) == (len(shards[0]), 2.0, 500.0)
    assert online.few_classes == 0  # otherwise a set makes classes that do not occur improbable; a stream does not
    np.testing.assert_allclose(online.predict(shards[1]), before, rtol=0, atol=TOLERANCE)
    online.adapt(shards[1])
    assert online.n_seen == len(shards[0]) + len(shards[1])
    assert np.abs(online.predict(shards[1]) - before).max() > 1e-4
    np.testing.assert_array_equal(mixture.predict(shards[1]), before)
    online.save(tmp_path / "state.safetensors")
    loaded = OnlineAnchoredMixture.load(tmp_path / "state.safetensors")
    np.testing.assert_array_equal(loaded.adapt(shards[2]), online.adapt(shards[2]))


def test_a_stream_that_continues_from_a_set_counts_its_samples(thirds):
    """It estimates its statistics from the sums of both, like merged streams."""
    stream, shards = thirds
    mixture, alone = create(TransductiveAnchoredMixture, stream), create(OnlineAnchoredMixture, stream)
    mixture.adapt(shards[0])
    online = OnlineAnchoredMixture.from_set(mixture)
    online.adapt(shards[1])
    alone.adapt(shards[1])
    assert float(online.counts.sum()) == pytest.approx(len(shards[0]) + len(shards[1]), abs=1e-6)
    assert online.reliability > alone.reliability


def test_a_stream_continues_from_a_set_only():
    with pytest.raises(TypeError, match="mixture must be a TransductiveAnchoredMixture; got OnlineAnchoredMixture"):
        OnlineAnchoredMixture.from_set(OnlineAnchoredMixture(np.eye(3)))
