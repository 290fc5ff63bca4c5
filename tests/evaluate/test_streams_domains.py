"""Streams of several domains: one after another, gradual, mixed; and combining sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeroshift import FeatureSet
from zeroshift.evaluate.streams import can_stack, continual, gradual, mixed, stack_datasets

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=5)
KINDS = {"continual": continual, "gradual": gradual, "mixed": mixed}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@given(sizes=SIZES, seed=st.integers(0, 100))
def test_every_row_comes_once_and_its_group_is_its_domain(kind, sizes, seed):
    stream = kind(sizes, seed)
    assert sorted(stream.rows) == list(range(sum(sizes)))
    np.testing.assert_array_equal(stream.groups, np.repeat(np.arange(len(sizes)), sizes)[stream.rows])
    assert stream.group_names == tuple(f"domain {i}" for i in range(len(sizes)))
    np.testing.assert_array_equal(stream.rows, kind(sizes, seed).rows)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_another_seed_gives_another_order(kind):
    assert (kind([20, 20], 0).rows != kind([20, 20], 1).rows).any()


@given(sizes=SIZES, seed=st.integers(0, 100))
def test_continual_keeps_the_order_of_domains_and_shuffles_within(sizes, seed):
    assert (np.diff(continual(sizes, seed).groups) >= 0).all()
    rows = continual([200], seed).rows
    assert (rows != np.arange(200)).any()


def test_gradual_rises_linearly_between_the_middles():
    share = np.mean([gradual([200, 200], seed, overlap=1.0).groups for seed in range(60)], axis=0)
    assert (share[:90] < 0.05).all()
    tenths = share.reshape(10, 40).mean(axis=1)
    assert (np.diff(tenths) >= 0).all()
    expected = np.clip((np.arange(400) + 0.5 - 100) / 200, 0, 1).reshape(10, 40).mean(axis=1)
    np.testing.assert_allclose(tenths, expected, atol=0.03)


def test_gradual_changes_only_around_the_border():
    """With an overlap of a half of 200 rows, 50 before the border to 50 behind it."""
    for seed in range(10):
        groups = gradual([200, 200], seed, overlap=0.5).groups
        assert not groups[:145].any()
        assert groups[255:].all()
        assert 0 < groups[150:200].sum() < 50


def test_without_overlap_gradual_is_continual():
    np.testing.assert_array_equal(gradual([30, 50], 4, overlap=0).rows, continual([30, 50], 4).rows)


def test_mixed_has_equal_shares_of_domains_from_the_start():
    groups = np.concatenate([mixed([100, 100], seed).groups[:50] for seed in range(20)])
    assert groups.mean() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: continual([], 0), "domains must be a list of sizes"),
        (lambda: continual([3, 0], 0), r"domains\[1\] must be an integer of at least 1; got 0"),
        (lambda: gradual([3, 4], 0, overlap=1.5), "overlap must be a number from 0 to 1; got 1.5"),
        (lambda: mixed([3, 4], 0, names=["one"]), "names must be 2 different names"),
    ],
    ids=["none", "empty", "overlap", "names"],
)
def test_parameters_are_checked(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make()


def test_combined_sets_keep_rows_and_provenance(clusters):
    both = stack_datasets({"whole": clusters, "part": clusters.subset(slice(0, 20))})
    np.testing.assert_array_equal(both.features[150:], clusters.features[:20])
    np.testing.assert_array_equal(both.labels[150:], clusters.labels[:20])
    assert both.logit_scale == clusters.logit_scale
    assert both.provenance["domains"] == [{"name": "whole", "samples": 150}, {"name": "part", "samples": 20}]
    assert stack_datasets([clusters]).provenance["domains"][0]["name"] == "domain 0"


def test_provenance_keeps_the_values_all_sets_share():
    def made(**said):
        return FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[0, 1], provenance=said)

    both = stack_datasets([made(encoder="CLIP", corruption="fog"), made(encoder="CLIP", corruption="snow")])
    assert both.provenance["encoder"] == "CLIP"
    assert "corruption" not in both.provenance


def _other(clusters, **changed):
    kept = {"prototypes": clusters.prototypes, "labels": clusters.labels, "logit_scale": clusters.logit_scale}
    return FeatureSet(clusters.features, **{**kept, **changed})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"logit_scale": 30.0}, "its logit scale is 30, not 20"),
        ({"labels": None}, "only one of them has labels"),
        ({"class_names": list("abcd")}, "class names are not the same"),
        ({"prototypes": np.eye(4, 12)}, "prototypes of the prompt mode 'default' differ"),
        ({"prototypes": {"vanilla": np.eye(4, 12)}}, "prompt modes"),
    ],
    ids=["logit_scale", "labels", "class_names", "prototypes", "prompts"],
)
def test_sets_that_do_not_fit_are_rejected(clusters, changed, words):
    other = _other(clusters, **changed)
    assert not can_stack(clusters, other)
    with pytest.raises(ValueError, match=words):
        stack_datasets([clusters, other])


def test_another_dimension_is_rejected(clusters):
    flat = FeatureSet(np.eye(4, 5), prototypes=np.eye(4, 5), labels=[0, 1, 2, 3], logit_scale=20.0)
    with pytest.raises(ValueError, match=r"dimension 5, not 12.*Fix: encode both"):
        stack_datasets([clusters, flat])
    with pytest.raises(ValueError, match="sets is empty"):
        stack_datasets([])
