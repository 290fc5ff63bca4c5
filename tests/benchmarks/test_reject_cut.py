"""The script that measures the cut: its sets have the unknown samples they claim, its candidates find what is plain."""

import numpy as np
import pytest
from reject_cut import (
    CANDIDATES,
    SEEDS,
    candidates_table,
    cut_table,
    few_classes,
    found_table,
    hidden_classes,
    measure,
    otsu,
    own_set,
    own_table,
    so_far,
    stricter,
    two_gaussians,
    with_strangers,
)

from zeroshift.data import packs
from zeroshift.reject import FIRST, RejectRule, class_distances


def draw(seed=0):
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def photographs():
    return packs.load("cifar10")


@pytest.fixture(scope="module")
def clothes():
    return packs.load("fmnist")


def test_hidden_classes_have_samples_and_no_prototype(photographs):
    made = hidden_classes(photographs, 1 / 5, 150, draw())
    assert made.features.shape == (150, 256)
    assert made.prototypes.shape == (8, 256)
    assert 10 < made.unknown.sum() < 60
    nobody = hidden_classes(photographs, 0.0, None, draw())
    assert (len(nobody.features), nobody.unknown.sum(), len(nobody.prototypes)) == (1500, 0, 10)


def test_strangers_are_those_of_the_other_pack(photographs, clothes):
    made = with_strangers(photographs, clothes, 0.28, 150, draw())
    assert made.unknown.sum() == 42
    theirs = np.asarray(clothes.features, np.float32)
    found = [bool((theirs == row).all(axis=1).any()) for row in made.features]
    np.testing.assert_array_equal(found, made.unknown)


def test_few_classes(photographs):
    part = few_classes(photographs, 2, draw())
    assert (part.n_classes, part.n_samples) == (2, 150)
    assert set(part.labels) == {0, 1}
    assert part.zero_shot_accuracy() > 0.6


def test_candidates_split_two_clear_groups():
    scores = np.concatenate([draw().normal(0.3, 0.02, 100), draw(1).normal(0.8, 0.02, 30)])
    expected = np.arange(130) >= 100
    np.testing.assert_array_equal(otsu(scores), expected)
    np.testing.assert_array_equal(two_gaussians(scores), expected)
    assert not two_gaussians(draw(2).normal(size=300)).any()


def test_a_stream_is_judged_by_the_samples_before(photographs, clothes):
    made = with_strangers(photographs, clothes, 0.28, 300, draw())
    distances = class_distances(made.features, made.prototypes)
    rejected = so_far(distances)
    assert not rejected[: FIRST + 1].any()
    again = so_far(np.concatenate([distances[:150], distances[150:][::-1]]))
    np.testing.assert_array_equal(rejected[:150], again[:150])
    assert rejected[made.unknown].mean() > rejected[~made.unknown].mean()


def test_records_become_tables(photographs, clothes, tmp_path):
    one = measure(with_strangers(photographs, clothes, 0.28, 150, draw()))
    none = measure(hidden_classes(photographs, 0.0, 150, draw()))
    assert set(one["rejected"]) == set(CANDIDATES)
    assert one["rejected"]["otsu"][1] > 0.8
    assert none["auroc"] is None
    records = {
        "bundled/a/28 % of another pack/150 samples/0": one,
        "bundled/a/no stranger/150 samples/0": none,
        "own/mine/own/all samples/0": one,
        "own/mine/no stranger/all samples/0": none,
    }
    false, recall, precision = (f"{100 * value:.1f}" for value in one["rejected"]["rule"])
    assert f"| {false}, {recall}, {precision}, {100 * one['auroc']:.1f} |" in cut_table(records)
    assert f"| {100 * none['rejected']['rule'][0]:.1f} |" in candidates_table(records)
    before = f"{100 * one['rejected']['stricter'][0]:.1f}"
    auroc = f"{100 * one['auroc']:.1f}"
    assert f"| mine | 150 | 42 | {auroc} | {before} | {false} |" in own_table(records)
    assert f"| bundled, none | {next(iter(SEEDS))} | 1 |" in found_table(records)


def test_before_is_the_rule_without_its_looser_cut(photographs, clothes):
    made = with_strangers(photographs, clothes, 0.28, None, draw())
    distances = class_distances(made.features, made.prototypes)
    now, before = RejectRule.fit(distances).rejected(distances), stricter(distances)
    assert now[before].all()
    assert now[made.unknown].mean() > before[made.unknown].mean()


def test_own_files_name_their_strangers(photographs, tmp_path):
    named = photographs.subset(slice(0, 4))
    fields = {
        "prototypes": named.prototypes_for(),
        "sample_names": ["cat/1.png", "none_x/1.png", "none/2.png", "b/none"],
    }
    type(named)(named.features, **fields, logit_scale=25.0).save(tmp_path / "own.safetensors")
    assert own_set(tmp_path / "own.safetensors").unknown.tolist() == [False, True, True, False]
    assert own_set(tmp_path / "own.safetensors", strangers=False).unknown.tolist() == [False, False]
