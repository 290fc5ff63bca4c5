"""Feature sets: construction, validation, accuracy and hints, subsets, descriptions."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feature_sets import (
    INF,
    NAN,
    assert_same,
    clusters,
    small,
    spoilt,
    unit,
)
from zeroshift.arrays import UnitLengthError, normalize
from zeroshift.features import FeatureSet
from zeroshift.features import checks as feature_checks


class TestConstruction:
    def test_defaults(self):
        made = FeatureSet(unit(6, 4), prototypes=unit(3, 4))
        assert (made.n_samples, made.n_classes, made.dimension, made.n_views) == (6, 3, 4, 0)
        assert made.class_names == ("class 0", "class 1", "class 2")
        assert made.logit_scale == 100.0
        assert made.prompts == ("default",)
        assert made.default_prompt == "default"
        assert made.labels is None
        assert made.views is None
        assert made.provenance == {}

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_precision_is_preserved(self, dtype):
        assert small(features=unit(6, 4, dtype=dtype)).features.dtype == dtype

    def test_features_default_to_view_zero(self):
        views = unit(5, 3, 4)
        made = FeatureSet(prototypes=unit(3, 4), views=views)
        np.testing.assert_array_equal(made.features, views[:, 0])
        assert made.n_views == 3
        assert not made.features.flags.writeable

    def test_modes_are_sorted_and_ensemble_is_the_default(self):
        modes = {mode: unit(3, 4, seed=seed) for seed, mode in enumerate(["vanilla", "ensemble", "cupl"])}
        made = small(prototypes=modes)
        assert made.prompts == ("cupl", "ensemble", "vanilla")
        assert made.default_prompt == "ensemble"
        np.testing.assert_array_equal(made.prototypes_for(), modes["ensemble"])
        np.testing.assert_array_equal(made.prototypes_for("cupl"), modes["cupl"])
        del modes["ensemble"]
        assert small(prototypes=modes).default_prompt == "cupl"
        assert small(prototypes=modes, default_prompt="vanilla").default_prompt == "vanilla"

    def test_torch_tensors(self):
        torch = pytest.importorskip("torch")
        made = FeatureSet(
            torch.tensor(unit(6, 4), requires_grad=True),
            prototypes=torch.tensor(unit(3, 4)).to(torch.bfloat16),
            labels=torch.tensor([0, 1, 2, 0, 1, 2], dtype=torch.int32),
            logit_scale=torch.tensor(4.6).exp(),
        )
        np.testing.assert_array_equal(made.features, unit(6, 4))
        assert made.prototypes_for().dtype == np.float32  # NumPy has no bfloat16
        assert made.labels.dtype == np.int64
        assert type(made.logit_scale) is float

    def test_replace_makes_a_checked_copy(self):
        made = dataclasses.replace(small(), logit_scale=7)
        assert made.logit_scale == 7.0
        with pytest.raises(ValueError, match="class_names has 1 names"):
            dataclasses.replace(made, class_names=["one"])


class TestOwnership:
    def test_is_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            small().logit_scale = 3.0

    def test_arrays_are_read_only(self):
        made = FeatureSet(prototypes=unit(3, 4), views=unit(6, 2, 4), labels=[0] * 6)
        for array in (made.features, made.views, made.labels, made.prototypes_for()):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0

    def test_small_arrays_are_copied_and_large_ones_are_not(self):
        features, prototypes, labels = unit(6, 4), unit(3, 4), np.zeros(6, dtype=np.int64)
        names, origin = ["a", "b", "c"], {"from": ["here"]}
        made = small(features=features, prototypes=prototypes, labels=labels, class_names=names, provenance=origin)
        assert np.shares_memory(made.features, features)
        assert features.flags.writeable, "the caller's array must stay writeable"
        prototypes[:], labels[:] = 0, 2
        names.append("d")
        origin["from"].append("there")
        assert np.linalg.norm(made.prototypes_for(), axis=1) == pytest.approx(1, abs=1e-6)
        assert made.labels.tolist() == [0] * 6
        assert made.class_names == ("a", "b", "c")
        assert made.provenance == {"from": ["here"]}

    def test_copies_and_pickles(self):
        made = small(views=None, class_names=["a", "b", "c"])
        assert_same(made, pickle.loads(pickle.dumps(made)))
        assert_same(made, copy.deepcopy(made))


REFUSED = {
    "list of features": ({"features": [[1.0, 0.0, 0.0, 0.0]]}, TypeError, "features must be a NumPy array"),
    "integer features": ({"features": np.eye(4, dtype=int)}, TypeError, "features must hold floating-point numbers"),
    "long doubles": ({"features": np.eye(4).astype(np.longdouble)}, TypeError, r"features must be float16, .*Fix:"),
    "one feature": ({"features": unit(4)}, ValueError, r"features must have two dimensions .* got shape \(4,\)"),
    "no features": ({"features": unit(0, 4)}, ValueError, r"features is empty \(shape \(0, 4\)\)"),
    "nothing": ({"features": None}, ValueError, "features and views are both None"),
    "other d": ({"features": unit(6, 5)}, ValueError, "features has d = 5 .* prototypes have d = 4"),
    "NaN": ({"features": spoilt(unit(6, 4), (4, 1), NAN)}, ValueError, "features row 4 holds NaN"),
    "inf": ({"features": spoilt(unit(6, 4), (5, 1), INF)}, ValueError, "features row 5 holds an infinite"),
    "zero": ({"features": spoilt(unit(6, 4), 2, 0)}, ValueError, "features row 2 is the zero vector"),
    "raw": ({"features": 3 * unit(6, 4)}, ValueError, r"row 0 has length 3; .*zeroshift\.normalize\(features\)"),
    "no modes": ({"prototypes": {}}, ValueError, "prototypes is an empty mapping"),
    "mode that is no text": ({"prototypes": {"a\ud800": np.eye(3, 4)}}, ValueError, "prompt mode .* is not valid text"),
    "mode 0": ({"prototypes": {0: unit(3, 4)}}, ValueError, r"keyed by names of prompt modes; got the keys \[0\]"),
    "raw prototypes": ({"prototypes": {"a": 2 * unit(3, 4)}}, ValueError, r"prototypes\['a'\] row 0 has length 2"),
    "NaN prototype": ({"prototypes": spoilt(unit(3, 4), 1, NAN)}, ValueError, "prototypes row 1 holds NaN"),
    "other K in a mode": (
        {"prototypes": {"a": unit(3, 4), "b": unit(2, 4)}},
        ValueError,
        r"prototypes\['b'\] has shape \(2, 4\), but prototypes\['a'\] has shape \(3, 4\)",
    ),
    "other d in a mode": (
        {"prototypes": {"a": unit(3, 4), "b": unit(3, 5)}},
        ValueError,
        r"prototypes\['b'\] has shape \(3, 5\), but prototypes\['a'\] has shape \(3, 4\)",
    ),
    "unknown default": (
        {"prototypes": {"ensemble": unit(3, 4), "vanilla": unit(3, 4)}, "default_prompt": "ensembel"},
        ValueError,
        "default_prompt must be .*'ensemble', 'vanilla'; got 'ensembel'. Did you mean 'ensemble'?",
    ),
    "list as default": (
        {"default_prompt": ["x"]},
        TypeError,
        "default_prompt must be the name of .*'default'; got list. Fix: default_prompt='default'",
    ),
    "few labels": ({"labels": [0, 1]}, ValueError, r"labels must have .* \(6,\); got shape \(2,\)"),
    "label K": ({"labels": [0, 1, 2, 3, 0, 0]}, ValueError, "labels row 3 is 3; class indices go from 0 to 2"),
    "label -1": ({"labels": [0, 1, 2, 0, -1, 0]}, ValueError, "labels row 4 is -1"),
    "float labels": ({"labels": np.zeros(6)}, TypeError, "labels must hold integers .* got float64"),
    "few names": ({"class_names": ["a", "b"]}, ValueError, "class_names has 2 names, but the prototypes have 3 rows"),
    "one string": ({"class_names": "abc"}, TypeError, "class_names must be a sequence of names; got .*'abc'"),
    "set of names": ({"class_names": {"a", "b", "c"}}, TypeError, "in the order of the prototypes; got set. Fix: list"),
    "dict of names": ({"class_names": {"a": 0, "b": 1, "c": 2}}, TypeError, "must be a sequence of names.* got dict"),
    "number of names": ({"class_names": 3}, TypeError, "class_names must be a sequence of names.* got int"),
    "number as name": ({"class_names": ["a", 1, "c"]}, TypeError, r"class_names\[1\] must be a string; got 1"),
    "empty name": ({"class_names": ["a", "b", " "]}, ValueError, r"class_names\[2\] is empty"),
    "repeated names": ({"class_names": ["a", "b", "a"]}, ValueError, r"repeated: 'a' at \[0, 2\]"),
    "scale 0": ({"logit_scale": 0}, ValueError, "logit_scale must be a number greater than 0; got 0"),
    "scale in words": ({"logit_scale": "100"}, TypeError, "logit_scale must be a number greater than 0; got '100'"),
    "list as provenance": ({"provenance": ["x"]}, TypeError, "provenance must be a mapping; got list"),
    "set in provenance": ({"provenance": {"x": {1}}}, TypeError, "provenance must be JSON-serialisable"),
    "NaN in provenance": ({"provenance": {"x": NAN}}, ValueError, "provenance must be JSON-serialisable"),
    "flat views": ({"features": None, "views": unit(6, 4)}, ValueError, r"three dimensions .* got shape \(6, 4\)"),
    "no view": ({"features": None, "views": unit(6, 0, 4)}, ValueError, r"none of them 0; got shape \(6, 0, 4\)"),
    "list of views": ({"features": None, "views": [[[1.0]]]}, TypeError, "views must be a NumPy array"),
    "integer views": ({"features": None, "views": np.ones((6, 2, 4), int)}, TypeError, "views must hold floating"),
    "views d": ({"features": None, "views": unit(6, 2, 5)}, ValueError, "views has d = 5 .* prototypes have d = 4"),
    "NaN view": (
        {"features": None, "views": spoilt(unit(6, 3, 4), (4, 2, 0), NAN)},
        ValueError,
        "views of image 4, view 2, contains NaN",
    ),
    "inf view": (
        {"features": None, "views": spoilt(unit(6, 3, 4), (3, 1, 0), INF)},
        ValueError,
        "views of image 3, view 1, contains an infinite",
    ),
    "zero view": (
        {"features": None, "views": spoilt(unit(6, 3, 4), (2, 1), 0)},
        ValueError,
        "views of image 2, view 1, is the zero vector, which has no direction. Fix: drop",
    ),
    "raw view": (
        {"features": None, "views": spoilt(unit(6, 3, 4), (5, 0), 1)},
        UnitLengthError,
        r"views of image 5, view 0, has length 2; .*zeroshift\.normalize\(views",
    ),
    "views of other images": (
        {"views": unit(5, 3, 4)},
        ValueError,
        "features has 6 rows, but views has 5 images",
    ),
    "views in another order": (
        {"features": unit(6, 4), "views": spoilt(np.repeat(unit(6, 1, 4), 2, axis=1), (3, 0), unit(6, 4)[2])},
        ValueError,
        "features row 3 is not view 0 of image 3",
    ),
}


class TestRefusals:
    @pytest.mark.parametrize(("changes", "kind", "message"), REFUSED.values(), ids=REFUSED.keys())
    def test_message(self, changes, kind, message):
        if message.startswith("features must be float16") and np.longdouble(0).itemsize <= 8:
            pytest.skip("long double is float64 on this platform")
        with pytest.raises(kind, match=message), np.errstate(all="ignore"):
            small(**changes)

    def test_the_suggested_fix_for_views_works(self):
        raw, d = 3 * unit(6, 2, 4), 4
        with pytest.raises(ValueError, match="Fix") as refusal:
            small(features=None, views=raw)
        fix = re.search(r"Fix: zeroshift\.(.*)\.$", str(refusal.value)).group(1)
        assert small(features=None, views=eval(fix, {"normalize": normalize, "views": raw, "d": d})).n_views == 2

    def test_errors_in_later_blocks_name_the_right_image(self, monkeypatch):
        monkeypatch.setattr(feature_checks, "BLOCK_ENTRIES", 16)
        with pytest.raises(ValueError, match="views of image 5, view 1,"):
            small(features=None, views=spoilt(unit(6, 2, 4), (5, 1), 0))
        views = np.repeat(unit(9, 1, 4), 2, axis=1)
        with pytest.raises(ValueError, match="features row 7 is not view 0"):
            small(features=views[[0, 1, 2, 3, 4, 5, 6, 6, 8], 0], views=views, labels=None)

    def test_half_precision_features_may_differ_from_view_zero_by_rounding(self):
        views = unit(6, 2, 4)
        assert small(features=views[:, 0].astype("float16"), views=views).n_views == 2

    def test_unknown_prompt_lists_the_modes_and_the_nearest(self):
        made = small(prototypes={"vanilla": unit(3, 4), "ensemble": unit(3, 4)})
        with pytest.raises(
            ValueError, match=r"prompt must .*'ensemble', 'vanilla'; got 'vanila'. Did you mean 'vanilla'"
        ):
            made.prototypes_for("vanila")
        with pytest.raises(ValueError, match=r"got 'zzz'.$"):
            made.zero_shot_accuracy("zzz")


class TestAccuracy:
    def test_by_hand(self):
        made = FeatureSet(np.eye(3)[[0, 1, 2, 2]], prototypes=np.eye(3), labels=[0, 1, 2, 1])
        assert made.zero_shot_accuracy() == 0.75

    def test_each_prompt_mode_has_its_own_accuracy(self):
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

    def test_hint_uses_the_given_prompt_mode(self):
        features, prototypes, labels = clusters()
        modes = {"ensemble": prototypes, "slipped": np.roll(prototypes, 1, axis=0)}
        made = FeatureSet(features, prototypes=modes, labels=labels)
        assert made.hints() == made.hints("ensemble") == []
        assert len(made.hints("slipped")) == 1

    def test_no_hint_with_three_classes_or_fewer(self):
        assert FeatureSet(np.eye(3), prototypes=np.eye(3), labels=[1, 2, 0]).hints() == []

    def test_hint_below_three_times_chance(self):
        def hints(classes, right):
            labels = [k if k < right else (k + 1) % classes for k in range(classes)]
            return FeatureSet(np.eye(classes), prototypes=np.eye(classes), labels=labels).hints()

        assert hints(10, 3) == []  # 30%, just reached
        assert "below three times chance (30.0% for 10 classes)" in hints(10, 2)[0]

    def test_hint_with_few_classes_is_below_twenty_points_above_chance(self):
        assert FeatureSet(np.eye(4), prototypes=np.eye(4), labels=[0, 1, 0, 0]).hints() == []  # 50% of 45%
        (hint,) = FeatureSet(np.eye(4), prototypes=np.eye(4), labels=[0, 0, 0, 0]).hints()
        assert "25.0% is below twenty points above chance (45.0% for 4 classes)" in hint


class TestSubset:
    @given(st.lists(st.integers(-6, 5), min_size=1, max_size=12))
    def test_rows_are_in_the_given_order(self, indices):
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
            ([0, 6], IndexError, "indices contains 6, but the set has 6 samples"),
            ([-7], IndexError, "indices contains -7"),
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

    def test_summary_is_a_copy(self):
        made = small(provenance={"from": ["here"]})
        made.summary()["provenance"]["from"].append("there")
        assert made.provenance == {"from": ["here"]}
