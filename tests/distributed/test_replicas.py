"""Online mixtures in several replicas: nothing counts twice, and the answers do not depend on where they run."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from zeroshift import OnlineADAPT, OnlineAnchoredMixture, TransductiveAnchoredMixture
from zeroshift.distributed import FeatureShards, Replica, adapt_replicas, assign_keys, follow_shards
from zeroshift.distributed.answers import RECORD
from zeroshift.files import with_checksum
from zeroshift.testing import make_problem


@pytest.fixture
def problem():
    features, prototypes, _ = make_problem(classes=6, dimension=16, samples=900)
    return features, prototypes, np.random.default_rng(0).integers(0, 12, size=900)


def make(prototypes, **parameters):
    return OnlineAnchoredMixture(prototypes, logit_scale=20.0, order="none", **parameters)


def close(mine, theirs):
    return all(np.allclose(mine[name], theirs[name], rtol=0, atol=1e-9) for name in mine)


def test_one_replica_is_the_method(problem):
    """With one replica an exchange changes nothing but when the statistics are updated."""
    features, prototypes, keys = problem
    expected, made = (make(prototypes, staleness=0.0) for _ in range(2))
    answer = expected.adapt(features)
    assert np.abs(adapt_replicas(made, features, keys=keys, replicas=1, every=70, on="local:0") - answer).max() < 1e-9
    assert made.n_seen == expected.n_seen == 900
    assert close(made.sums(), expected.sums())


def test_every_replica_has_counted_every_sample_once(problem):
    features, prototypes, _ = problem
    replicas = [Replica(make(prototypes), str(index)) for index in range(3)]
    for start in range(0, 900, 90):
        for index, replica in enumerate(replicas):
            replica.method.adapt(features[start + 30 * index : start + 30 * (index + 1)])
        changes = [replica.take_changes() for replica in replicas]
        for replica in replicas:
            for one in [*changes, *changes]:  # a network may deliver twice
                replica.receive(one)
    for replica in replicas:
        assert replica.method.n_seen == 900
        sums = replica.method.sums()
        # What does not depend on answers is that of all samples, each counted once.
        assert np.abs(sums["scatter"] - features.T @ features).max() < 1e-9
        assert np.abs(sums["total"] - features.sum(axis=0)).max() < 1e-9
        assert abs(sums["counts"].sum() - 900) < 1e-9
        assert close(sums, replicas[0].method.sums())
        assert replica.take_changes().samples == 0


def test_exchange_without_new_samples_changes_no_answer(problem):
    features, prototypes, _ = problem
    replica = Replica(make(prototypes), "a")
    replica.method.adapt(features[:400])
    before = replica.method.predict(features)
    replica.take_changes()
    assert np.array_equal(replica.method.predict(features), before)
    other = Replica(make(prototypes), "b")
    other.receive(replica_changes := Replica(copy.deepcopy(replica.method), "c").take_changes())
    assert replica_changes.samples == 0  # what a replica began with is not its own
    assert other.method.n_seen == 0


def test_missing_changes_are_an_error(problem):
    features, prototypes, _ = problem
    first, second = (Replica(make(prototypes), name) for name in "ab")
    first.take_changes()
    first.method.adapt(features[:10])
    with pytest.raises(ValueError, match="changes 2 of replica a came, but 1 did not"):
        second.receive(first.take_changes())


@pytest.mark.parametrize("on", ["local:1", "local:2"])
def test_same_bits_wherever_they_run(problem, on):
    features, prototypes, keys = problem
    here, there = make(prototypes), make(prototypes)
    answers = [adapt_replicas(here, features, keys=keys, replicas=3, every=100, on="local:0")]
    answers.append(adapt_replicas(there, features, keys=keys, replicas=3, every=100, on=on))
    assert np.array_equal(*answers)
    assert np.array_equal(here.predict(features), there.predict(features))


def test_accuracy_is_that_of_one_stream(problem):
    features, prototypes, keys = problem
    labels = TransductiveAnchoredMixture(prototypes, logit_scale=20.0).adapt(features).argmax(1)
    alone = (make(prototypes).adapt(features).argmax(1) == labels).mean()
    shared = adapt_replicas(make(prototypes), features, keys=keys, replicas=4, every=50, on="local:0").argmax(1)
    assert (shared == labels).mean() > alone - 0.02


def test_shards(problem, tmp_path):
    from pyarrow import parquet

    features, prototypes, _ = problem
    for number in range(6):
        np.save(tmp_path / f"{number}.npy", features[150 * number : 150 * (number + 1)])
    shards = FeatureShards.open(tmp_path)
    made = make(prototypes)
    follow_shards(made, shards, replicas=2, every=100, on="local:2", out=tmp_path / "out")
    table = parquet.read_table(tmp_path / "out" / "predictions")
    rows = {(shard, row) for shard, row in zip(table["shard"].to_pylist(), table["row"].to_pylist(), strict=True)}
    assert len(rows) == table.num_rows == made.n_seen == 900
    assert np.abs(made.sums()["scatter"] - features.T @ features).max() < 1e-9


def test_refused(problem):
    features, prototypes, keys = problem
    with pytest.raises(TypeError, match="must be an OnlineAnchoredMixture"):
        Replica(OnlineADAPT(prototypes), "a")
    with pytest.raises(ValueError, match="half_life=100"):
        Replica(make(prototypes, half_life=100.0), "a")
    with pytest.raises(ValueError, match="one entry per sample"):
        adapt_replicas(make(prototypes), features, keys=keys[:5], replicas=2)
    assert np.array_equal(assign_keys(keys, 4), assign_keys([str(key) for key in keys], 4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "every must be at least 1; got 0"),
        ({"replicas": 0}, "replicas must be at least 1; got 0"),
        ({"class_names": ["a", "b"]}, "class_names must be 6 names; got 2"),
        ({"class_names": list("abcdefgh")}, "class_names must be 6 names; got 8"),
        ({"on_bad_shard": "ignore"}, "on_bad_shard must be 'raise' or 'skip'; got 'ignore'"),
        ({"on": "spark"}, "on must be local"),
        ({"prototypes": np.eye(6, 8)}, "the shards have d = 16 columns, but the prototypes have d = 8"),
    ],
)
def test_shards_are_refused_before_anything_is_deleted(problem, tmp_path, arguments, message):
    features, prototypes, _ = problem
    np.save(tmp_path / "0.npy", features)
    kept = tmp_path / "out" / "predictions" / "predictions_00000.parquet"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"of an earlier run")
    record = {"run": "another", "key": "", "finished": True, "files": [kept.name]}
    (tmp_path / "out" / RECORD).write_text(json.dumps(with_checksum(record)))
    given = {"replicas": 2, "on": "local:0", **arguments}
    made = make(given.pop("prototypes", prototypes))
    with pytest.raises(ValueError, match=message):
        follow_shards(made, FeatureShards.open(tmp_path / "0.npy"), out=tmp_path / "out", force=True, **given)
    assert kept.exists()
