"""What a feature set answers: accuracy and hints, subsets, descriptions of itself."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feature_sets import (
    clusters,
    small,
    unit,
)
from zeroshift.features import FeatureSet
from zeroshift.features import checks as feature_checks


class TestAccuracy:
    def test_by_hand(self):
        made = FeatureSet(np.eye(3)[[0, 1, 2, 2]], prototypes=np.eye(3), labels=[0, 1, 2, 1])
        assert made.zero_shot_accuracy() == 0.75

    def test_prompts_have_their_own(self):
        prototypes = {"right": np.eye(3), "wrong": np.roll(np.eye(3), 1, axis=0)}
        made = FeatureSet(np.eye(3), prototypes=prototypes, labels=[0, 1, 2])
        assert (made.zero_shot_accuracy("right"), made.zero_shot_accuracy("wrong")) == (1.0, 0.0)

    def test_ties_go_to_the_first_class(self):
        made = FeatureSet(np.eye(2), prototypes=np.eye(2)[[0, 0, 1]], labels=[0, 2])
        assert made.zero_shot_accuracy() == 1.0

    def test_needs_labels(self):
        with pytest.raises(ValueError, match=r"zero_shot_accuracy needs labels, .* Fix: pass labels="):
            small(labels=None).zero_shot_accuracy()

    @given(entries=st.integers(1, 4000), n=st.integers(1, 60))
    def test_block_size_does_not_matter(self, entries, n):
        features, prototypes, _ = clusters(n)
        labels = np.random.default_rng(n).integers(10, size=n)
        expected = np.mean(np.argmax(features @ prototypes.T, axis=1) == labels)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(feature_checks, "BLOCK_ENTRIES", entries)
            made = FeatureSet(features, prototypes=prototypes, labels=labels)
            assert made.zero_shot_accuracy() == pytest.approx(expected, abs=1e-12)

    def test_hint_on_permuted_labels_only(self):
        features, prototypes, labels = clusters()
        assert FeatureSet(features, prototypes=prototypes, labels=labels).hints() == []
        slipped = FeatureSet(features, prototypes=prototypes, labels=(labels + 1) % 10)
        assert slipped.hints() == [
            "zero-shot accuracy 0.0% is below three times chance (30.0% for 10 classes): check the label order"
        ]
        assert FeatureSet(features, prototypes=prototypes).hints() == []

    def test_hint_is_for_the_prompt_mode_asked_for(self):
        features, prototypes, labels = clusters()
        modes = {"ensemble": prototypes, "slipped": np.roll(prototypes, 1, axis=0)}
        made = FeatureSet(features, prototypes=modes, labels=labels)
        assert made.hints() == made.hints("ensemble") == []
        assert len(made.hints("slipped")) == 1

    def test_no_hint_where_three_times_chance_cannot_be_reached(self):
        assert FeatureSet(np.eye(3), prototypes=np.eye(3), labels=[1, 2, 0]).hints() == []

    def test_hint_is_for_less_than_three_times_chance(self):
        def hints(classes, right):
            labels = [k if k < right else (k + 1) % classes for k in range(classes)]
            return FeatureSet(np.eye(classes), prototypes=np.eye(classes), labels=labels).hints()

        assert hints(10, 3) == []  # 30%, just reached
        assert "below three times chance (30.0% for 10 classes)" in hints(10, 2)[0]

    def test_with_few_classes_it_is_for_less_than_twenty_points_above_chance(self):
        assert FeatureSet(np.eye(4), prototypes=np.eye(4), labels=[0, 1, 0, 0]).hints() == []  # 50% of 45%
        (hint,) = FeatureSet(np.eye(4), prototypes=np.eye(4), labels=[0, 0, 0, 0]).hints()
        assert "25.0% is below twenty points above chance (45.0% for 4 classes)" in hint


class TestSubset:
    @given(st.lists(st.integers(-6, 5), min_size=1, max_size=12))
    def test_rows_in_the_order_asked_for(self, indices):
        made = FeatureSet(prototypes=unit(3, 4), views=unit(6, 2, 4), labels=[0, 1, 2, 0, 1, 2], provenance={"a": 1})
        chosen = made.subset(indices)
        np.testing.assert_array_equal(chosen.features, made.features[indices])
        np.testing.assert_array_equal(chosen.views, made.views[indices])
        np.testing.assert_array_equal(chosen.labels, made.labels[indices])
        assert chosen.n_samples == len(indices)
        assert chosen.provenance == made.provenance
        assert chosen.class_names == made.class_names
        assert not chosen.features.flags.writeable
        assert not chosen.labels.flags.writeable

    def test_masks_slices_and_tensors(self):
        torch = pytest.importorskip("torch")
        made = small()
        for indices in (made.labels == 1, slice(1, None, 3), [1, 4], torch.tensor([1, 4])):
            np.testing.assert_array_equal(made.subset(indices).features, made.features[[1, 4]])
        assert np.shares_memory(made.subset(slice(3)).features, made.features)
        assert small(labels=None).subset([0]).labels is None

    @pytest.mark.parametrize(
        ("indices", "kind", "message"),
        [
            ([0, 6], IndexError, "indices holds 6, but the set has 6 samples"),
            ([-7], IndexError, "indices holds -7"),
            ([], ValueError, "indices chooses none of the 6 samples"),
            (slice(6, None), ValueError, "indices chooses none"),
            ([False] * 6, ValueError, "indices chooses none"),
            ([True], ValueError, r"mask must have shape \(6,\).*got shape \(1,\)"),
            ([0.5], TypeError, "indices must be a vector of integers"),
            (3, TypeError, "indices must be a vector of integers"),
        ],
    )
    def test_refusals(self, indices, kind, message):
        with pytest.raises(kind, match=message):
            small().subset(indices)


class TestDescription:
    def test_repr(self):
        made = FeatureSet(
            prototypes={"vanilla": unit(3, 4), "ensemble": unit(3, 4)},
            views=unit(6, 2, 4, dtype="float16"),
            logit_scale=25,
        )
        assert repr(made) == (
            "FeatureSet(6 samples, 3 classes, d=4, float16, 2 views, unlabelled, "
            "prompts: ensemble (default), vanilla, logit_scale=25)"
        )

    def test_summary_is_json(self):
        made = small(class_names=["a", "b", "c"], provenance={"from": "here"})
        summary = json.loads(json.dumps(made.summary()))
        assert summary == made.summary()
        assert summary["n_samples"] == 6
        assert summary["class_names"] == ["a", "b", "c"]
        assert summary["zero_shot_accuracy"] == made.zero_shot_accuracy()
        assert summary["provenance"] == {"from": "here"}
        assert small(labels=None).summary()["zero_shot_accuracy"] is None

    def test_summary_is_the_callers_to_change(self):
        made = small(provenance={"from": ["here"]})
        made.summary()["provenance"]["from"].append("there")
        assert made.provenance == {"from": ["here"]}
