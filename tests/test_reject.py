"""Distances to the classes and the cut by their definitions, on drawn and on real features; files and wrong input."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroshift import normalize, reject
from zeroshift.data import packs
from zeroshift.files import FileFormatError
from zeroshift.reject import (
    DOUBTFUL_ABOVE,
    EXPECTED,
    FIRST,
    LOOSER,
    MOST_WRONG,
    NEAREST,
    SPREAD,
    RejectRule,
    Rejects,
    class_distances,
    median_of_neighbours,
    rejected_label,
)

RNG = np.random.default_rng(2)
FEATURES, PROTOTYPES = normalize(RNG.normal(size=(20, 7))), normalize(RNG.normal(size=(3, 7)))


# Distances.


def by_definition(features, prototypes):
    found = []
    for feature in np.asarray(features, np.float64):
        angles = [np.arccos(np.clip(feature @ prototype, -1, 1)) for prototype in prototypes]
        found.append([1 - np.cos(angle) for angle in sorted(angles)[:2]])
    return found


def test_one_minus_the_cosine_with_the_nearest_and_the_second_nearest():
    found = class_distances(FEATURES, PROTOTYPES)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, by_definition(FEATURES, PROTOTYPES), atol=2e-6)
    np.testing.assert_array_equal(class_distances(FEATURES[3], PROTOTYPES), found[3])
    np.testing.assert_array_equal(class_distances(FEATURES, PROTOTYPES[::-1]), found)


def test_blocks_give_the_same_distances(monkeypatch):
    whole = class_distances(FEATURES, PROTOTYPES)
    monkeypatch.setattr(reject, "BLOCK_ENTRIES", 3 * 7)
    np.testing.assert_allclose(class_distances(FEATURES, PROTOTYPES), whole, atol=2e-6)


def test_from_zero_on_a_prototype_to_two_opposite_it_and_never_negative():
    features = np.array([[0.6, 0.8], [-0.6, -0.8], [0.8, -0.6]])
    np.testing.assert_allclose(class_distances(features, features[:1]), [[0, 2], [2, 2], [1, 2]], atol=1e-6)
    long = normalize(np.random.default_rng(0).normal(size=(50, 30))).astype(np.float16)
    assert (np.linalg.norm(long.astype(np.float64), axis=1) > 1).any()
    found = class_distances(long, long.astype(np.float32))
    assert found.min() == 0
    assert not np.signbit(found).any()  # "-0" in a table reads as an error


def test_torch_tensors_give_the_same_distances():
    torch = pytest.importorskip("torch")
    found = class_distances(torch.from_numpy(FEATURES), torch.from_numpy(PROTOTYPES))
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, class_distances(FEATURES, PROTOTYPES))


@pytest.mark.parametrize(
    ("features", "prototypes", "message"),
    [
        (2 * FEATURES, PROTOTYPES, "unit length"),
        (FEATURES[:, :4], PROTOTYPES, "d = 4 columns"),
        (FEATURES, normalize(PROTOTYPES[:, :4]), "d = 7 columns"),
    ],
)
def test_wrong_features_are_refused(features, prototypes, message):
    with pytest.raises(ValueError, match=message):
        class_distances(features, prototypes)
    with pytest.raises(TypeError, match="features must be a NumPy array"):
        class_distances([[1.0]], prototypes)


# The rule.


def expected_cut(distances):
    """The definition, from sorted lists."""
    rows = sorted(map(tuple, np.asarray(distances)))
    kept = rows[: len(rows) - max(0, len(rows) - FIRST) // 2]
    first, second = (float(np.median([row[place] for row in kept])) for place in (0, 1))
    reach = float(np.quantile([row[1] for row in kept], MOST_WRONG)) - second
    if len(rows) <= FIRST:
        return first, max(row[1] for row in rows)
    as_wrong = second + (reach if second - first <= reach else reach**2 / (second - first))
    spread = first - float(np.quantile([row[0] for row in kept], NEAREST))
    least = float(np.quantile([row[1] for row in kept], 1 - MOST_WRONG))
    strict = min(as_wrong, max(first + SPREAD * spread, least))
    loose = strict - LOOSER * (strict - first)
    beyond = sum(row[0] > loose for row in rows) / len(rows)
    return first, strict + (loose - strict) * min(max(beyond / EXPECTED - 1, 0), 1)


def draw(seed, n, *, members=0.4, strangers=0.0, share=0.0, gap=0.3):
    """Distances of n samples: members around `members`, their second class `gap` farther, and a share of strangers."""
    rng = np.random.default_rng(seed)
    second = rng.normal(members + gap, 0.03, n)
    first = np.minimum(rng.normal(members, 0.05, n), second)
    count = round(share * n)
    first[:count] = rng.normal(strangers, 0.02, count)
    second[:count] = first[:count] + 0.05
    return np.clip(np.column_stack([first, second]), 0, 2)


@pytest.mark.parametrize("n", [1, 2, 19, 20, 21, 22, 150])
@pytest.mark.parametrize("gap", [0.3, 0.02])
def test_the_cut_equals_the_definition(n, gap):
    distances = draw(n, n, gap=gap)
    rule = RejectRule.fit(distances)
    assert (rule.typical, rule.cut) == pytest.approx(expected_cut(distances), abs=1e-12)
    assert rule.n_samples == n


def test_the_order_of_samples_does_not_matter():
    distances = draw(0, 99)
    distances[10:20, 0] = distances[10, 0]  # ties
    shuffled = np.random.default_rng(1).permutation(distances)
    assert RejectRule.fit(shuffled) == RejectRule.fit(distances)


def test_strangers_are_rejected_and_members_are_not():
    distances = draw(3, 200, strangers=0.85, share=0.3)
    rejected = RejectRule.fit(distances).rejected(distances)
    assert rejected[:60].mean() > 0.95
    assert rejected[60:].mean() < 0.02
    alone = distances[60:]
    assert RejectRule.fit(alone).rejected(alone).mean() < 0.02


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_random_directions_are_strangers_among_tight_classes(noise):
    rng = np.random.default_rng(8)
    prototypes = normalize(rng.normal(size=(10, 64)))
    members = normalize(prototypes[rng.integers(0, 10, 160)] + noise * rng.normal(size=(160, 64)))
    strangers = normalize(rng.normal(size=(40, 64)))
    distances = class_distances(np.concatenate([members, strangers]), prototypes)
    rejected = RejectRule.fit(distances).rejected(distances)
    assert not rejected[:160].any()
    assert rejected[160:].mean() > 0.9


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 60))
def test_scores_rise_with_the_distance_and_are_from_0_to_1(seed, n):
    rng = np.random.default_rng(seed)
    distances = np.sort(rng.uniform(0, 2, (n, 2)), axis=1)
    rule = RejectRule.fit(distances)
    scores = rule.scores(distances)
    assert ((scores >= 0) & (scores <= 1)).all()
    order = np.argsort(distances[:, 0])
    assert (np.diff(scores[order]) >= 0).all()
    np.testing.assert_array_equal(rule.rejected(distances), distances[:, 0] > rule.cut)


def test_what_scores_mean():
    rule = RejectRule(typical=0.3, cut=0.7, n_samples=50)
    found = rule.scores(np.array([[0.3, 1.0], [0.7, 1.0], [1.1, 1.2], [0.0, 1.0], [2.0, 2.0]]))
    np.testing.assert_allclose(found[:3], [0.05, 0.5, 0.95], atol=1e-12)
    assert found[3] < 0.05
    assert found[4] > 0.95
    assert rule.scores(np.array([0.7, 0.9])).shape == ()
    assert rule.rejected(np.array([[0.6, 1.0]]), above=0.3).all()
    assert not rule.rejected(np.array([[2.0, 2.0]]), above=1).any()


@pytest.mark.parametrize("n", range(1, 21))
def test_of_small_sets_nothing_is_rejected(n):
    distances = draw(n, n, strangers=1.0, share=0.2, gap=0.1)
    rule = RejectRule.fit(distances)
    assert not rule.rejected(distances).any()
    assert not rule.rejected(distances, above=0).any()
    assert not rule.rejected(np.array([[2.0, 2.0]])).any()
    assert not Rejects.of(distances, above=0.1).count


def test_equal_samples_are_not_rejected():
    distances = np.tile([0.5, 0.5], (100, 1))
    assert not RejectRule.fit(distances).rejected(distances).any()
    assert RejectRule.fit(distances).scores(distances) == pytest.approx(0.5)


def test_on_real_features():
    """The bundled packs have no strangers; clothes are strangers among photographs of animals and vehicles."""
    shares = []
    for info in packs.list():
        pack = packs.load(info.name)
        distances = class_distances(pack.features, pack.prototypes_for())
        shares.append(RejectRule.fit(distances).rejected(distances).mean())
    assert max(shares) < 0.08
    photographs, clothes = packs.load("cifar10"), packs.load("fmnist")
    both = np.concatenate([photographs.features[:110], clothes.features[:40]])
    distances = class_distances(both, photographs.prototypes_for())
    rejected = RejectRule.fit(distances).rejected(distances)
    assert rejected[:110].mean() < 0.05
    assert rejected[110:].mean() > 0.4


def test_many_strangers_move_the_cut_towards_the_members_and_few_do_not(monkeypatch):
    photographs, clothes = packs.load("cifar10"), packs.load("fmnist")
    prototypes = photographs.prototypes_for()
    members = class_distances(photographs.features[:1000], prototypes)
    strangers = class_distances(clothes.features[:400], prototypes)
    many, few = np.concatenate([members, strangers]), np.concatenate([members, strangers[:20]])
    rule = RejectRule.fit(many)
    assert rule.rejected(members).mean() < 0.05
    assert rule.rejected(strangers).mean() > 0.6
    found = {"many": rule.cut, "few": RejectRule.fit(few).cut, "none": RejectRule.fit(members).cut}
    monkeypatch.setattr(reject, "LOOSER", 0.0)
    stricter = RejectRule.fit(many)
    assert stricter.rejected(strangers).mean() < 0.5
    assert found["many"] < stricter.cut
    assert found["few"] == RejectRule.fit(few).cut
    assert found["none"] == RejectRule.fit(members).cut


def test_doubtful_samples_are_those_between_the_cuts():
    photographs = packs.load("cifar10")
    distances = class_distances(photographs.features, photographs.prototypes_for())
    rejects = Rejects.of(distances)
    assert rejects.doubtful == ((rejects.scores > DOUBTFUL_ABOVE) & (rejects.scores <= 0.5)).sum() > 0
    assert Rejects.of(distances, above=0.1).doubtful == 0
    assert Rejects.of(distances[:20]).doubtful == 0


@pytest.mark.parametrize(
    ("distances", "error", "message"),
    [
        (np.zeros(3), ValueError, r"distances must have the shape \(N, 2\).*got \(3,\)"),
        (np.zeros((0, 2)), ValueError, r"got \(0, 2\)"),
        (np.zeros((4, 3)), ValueError, r"got \(4, 3\)"),
        (np.array([[0.1, 0.2], [0.3, 0.2]]), ValueError, r"the nearest first; got \[0.3, 0.2\] for sample 1"),
        (np.array([[0.1, np.nan]]), ValueError, r"from 0 to 2.*for sample 0"),
        (np.array([[-0.1, 0.2]]), ValueError, "from 0 to 2"),
        (np.zeros((2, 2), int), TypeError, "distances must hold floating-point numbers"),
        ([[0.1, 0.2]], TypeError, "distances must be a NumPy array"),
    ],
)
def test_wrong_distances_are_refused(distances, error, message):
    with pytest.raises(error, match=message):
        RejectRule.fit(distances)
    with pytest.raises(error, match=message):
        RejectRule(0.1, 0.2, 3).scores(distances)


def test_one_sample_is_scored_but_a_rule_needs_a_set():
    with pytest.raises(ValueError, match="of several samples"):
        RejectRule.fit(np.array([0.1, 0.2]))


@pytest.mark.parametrize("above", [-0.1, 1.5, float("nan"), "0.5", None])
def test_above_is_from_0_to_1(above):
    with pytest.raises((ValueError, TypeError), match="above must be a number from 0 to 1"):
        RejectRule(0.1, 0.2, 3).rejected(np.array([[0.1, 0.2]]), above=above)
    with pytest.raises((ValueError, TypeError), match="above must be a number from 0 to 1"):
        Rejects.of(np.array([[0.1, 0.2]]), above=above)


# Files.


def test_a_saved_rule_is_the_same_rule(tmp_path):
    rule = RejectRule.fit(draw(5, 77))
    rule.save(tmp_path / "rule.json")
    assert RejectRule.load(tmp_path / "rule.json") == rule
    content = json.loads((tmp_path / "rule.json").read_text())
    assert content["kind"] == "reject rule"
    assert content["cut"] == rule.cut


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "state"}, "is no reject rule of zeroshift"),
        ({"schema": 2}, "has schema 2; this version of zeroshift reads 1"),
        ({"cut": "0.5"}, "has numbers that no rule has: .*cut '0.5'"),
        ({"cut": 0.1, "typical": 0.2}, "has numbers that no rule has"),
        ({"typical": -1.0}, "has numbers that no rule has"),
        ({"n_samples": 0}, "has numbers that no rule has"),
        ({"n_samples": 1.5}, "has numbers that no rule has"),
        ({"n_samples": True}, "has numbers that no rule has"),
        ({"cut": None}, "has numbers that no rule has"),
    ],
)
def test_other_files_are_refused(tmp_path, change, message):
    RejectRule(0.2, 0.5, 10).save(tmp_path / "rule.json")
    content = json.loads((tmp_path / "rule.json").read_text())
    (tmp_path / "rule.json").write_text(json.dumps(content | change))
    with pytest.raises(FileFormatError, match=rf"rule\.json {message}"):
        RejectRule.load(tmp_path / "rule.json")
    (tmp_path / "rule.json").write_text("[1, 2")
    with pytest.raises(FileFormatError, match=r"rule\.json"):
        RejectRule.load(tmp_path / "rule.json")
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        RejectRule.load(tmp_path / "nothing.json")


def test_neither_torch_nor_the_commands_are_imported():
    code = "import sys, zeroshift.reject; assert not {'torch', 'rich', 'typer', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Sequences and names.


def test_rejects_of_a_set_and_of_a_sequence():
    distances = draw(7, 120)
    odd = distances.copy()
    odd[60] = [1.5, 1.6]  # one frame
    odd[90:96] = [1.5, 1.6]  # three seconds
    classes = np.arange(120) // 2 % 3
    single, sequence = Rejects.of(odd), Rejects.of(odd, sequence=classes)
    assert single.rule == RejectRule.fit(odd)
    assert sequence.rule == RejectRule.fit(np.median(odd.reshape(60, 2, 2), axis=1))
    assert single.rejected[60]
    assert single.rejected[90:96].all()
    assert not sequence.rejected[60]
    assert sequence.rejected[90:96].all()
    assert single.count == single.rejected.sum()
    np.testing.assert_array_equal(single.scores > single.above, single.rejected)
    assert Rejects.of(odd, above=1).count == 0
    assert not single.too_few


def test_a_clip_of_few_scenes_is_not_rejected_in_part():
    """Three scenes of forty frames are three samples: the farthest scene is no stranger for that."""
    distances = np.repeat([[0.30, 0.34], [0.31, 0.35], [0.40, 0.41]], 40, axis=0)
    assert Rejects.of(distances).count == 40
    clip = Rejects.of(distances, sequence=np.repeat([0, 1, 0], 40))
    assert clip.count == 0
    assert clip.too_few


def test_a_sequence_has_a_class_for_each_frame():
    with pytest.raises(ValueError, match=r"sequence must have one class for each of the 30 samples; got shape \(29,\)"):
        Rejects.of(draw(1, 30), sequence=np.zeros(29, int))


def test_medians_of_neighbours():
    values = np.array([[float(v), float(v)] for v in (5, 1, 9, 2, 3, 8)])
    expected = [5, 3.5, 3, 3, 5.5, 3]
    np.testing.assert_array_equal(median_of_neighbours(values)[:, 0], expected)
    np.testing.assert_array_equal(median_of_neighbours(values[:1]), values[:1])


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (["cat"], "none of these"),
        (["none of these", "cat"], "none of these (rejected)"),
        (["  NONE of\tthese "], "none of these (rejected)"),
        (["none of these", "None of these (rejected)"], "none of these (rejected) (rejected)"),
    ],
)
def test_the_label_is_no_class(names, label):
    assert rejected_label(names) == label
