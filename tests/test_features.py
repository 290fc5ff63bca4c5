"""FeatureSet: what it refuses and how it says so, what it keeps, and that files give back what went in."""

from __future__ import annotations

import builtins
import copy
import dataclasses
import io
import json
import pickle
import re
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zeroshift import data, feature_checks
from zeroshift.arrays import UnitLengthError, normalize
from zeroshift.features import FEATURES_SCHEMA, FeatureSet
from zeroshift.files import FileFormatError, read_tensors, write_tensors


def unit(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=shape)
    return (values / np.linalg.norm(values, axis=-1, keepdims=True)).astype(dtype)


def clusters(n: int = 200, n_classes: int = 10, dimension: int = 16, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Features near their class's prototype: (features, prototypes, labels), well above chance."""
    generator = np.random.default_rng(seed)
    prototypes = unit(n_classes, dimension, seed=seed)
    labels = generator.integers(n_classes, size=n)
    noisy = prototypes[labels] + 0.1 * generator.normal(size=(n, dimension))
    return (noisy / np.linalg.norm(noisy, axis=1, keepdims=True)).astype("float32"), prototypes, labels


def small(**changes) -> FeatureSet:
    fields = {"features": unit(6, 4), "prototypes": unit(3, 4, seed=1), "labels": [0, 1, 2, 0, 1, 2], **changes}
    return FeatureSet(fields.pop("features"), **fields)


def spoilt(array: np.ndarray, index, value) -> np.ndarray:
    array = array.copy()
    array[index] = value
    return array


def assert_same(first: FeatureSet, second: FeatureSet) -> None:
    for name in ("features", "labels", "views"):
        one, other = getattr(first, name), getattr(second, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert one.dtype == other.dtype, name
            np.testing.assert_array_equal(one, other, err_msg=name)
    assert first.prompts == second.prompts
    for mode in first.prompts:
        assert first.prototypes[mode].dtype == second.prototypes[mode].dtype
        np.testing.assert_array_equal(first.prototypes[mode], second.prototypes[mode])
    for name in ("default_prompt", "class_names", "logit_scale", "provenance"):
        assert getattr(first, name) == getattr(second, name), name


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
    def test_precision_is_kept(self, dtype):
        assert small(features=unit(6, 4, dtype=dtype)).features.dtype == dtype

    def test_views_alone_give_features(self):
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
        assert features.flags.writeable, "the caller's own array must stay as it was"
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


NAN, INF = float("nan"), float("inf")

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
    "set in provenance": ({"provenance": {"x": {1}}}, TypeError, "provenance must be what JSON can hold"),
    "NaN in provenance": ({"provenance": {"x": NAN}}, ValueError, "provenance must be what JSON can hold"),
    "flat views": ({"features": None, "views": unit(6, 4)}, ValueError, r"three dimensions .* got shape \(6, 4\)"),
    "no view": ({"features": None, "views": unit(6, 0, 4)}, ValueError, r"none of them 0; got shape \(6, 0, 4\)"),
    "list of views": ({"features": None, "views": [[[1.0]]]}, TypeError, "views must be a NumPy array"),
    "integer views": ({"features": None, "views": np.ones((6, 2, 4), int)}, TypeError, "views must hold floating"),
    "views d": ({"features": None, "views": unit(6, 2, 5)}, ValueError, "views has d = 5 .* prototypes have d = 4"),
    "NaN view": (
        {"features": None, "views": spoilt(unit(6, 3, 4), (4, 2, 0), NAN)},
        ValueError,
        "views of image 4, view 2, holds NaN",
    ),
    "inf view": (
        {"features": None, "views": spoilt(unit(6, 3, 4), (3, 1, 0), INF)},
        ValueError,
        "views of image 3, view 1, holds an infinite",
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
    def test_says_what_is_wrong(self, changes, kind, message):
        if message.startswith("features must be float16") and np.longdouble(0).itemsize <= 8:
            pytest.skip("long double is float64 on this platform")
        with pytest.raises(kind, match=message), np.errstate(all="ignore"):
            small(**changes)

    def test_the_fix_for_views_is_a_fix(self):
        raw, d = 3 * unit(6, 2, 4), 4
        with pytest.raises(ValueError, match="Fix") as refusal:
            small(features=None, views=raw)
        fix = re.search(r"Fix: zeroshift\.(.*)\.$", str(refusal.value)).group(1)
        assert small(features=None, views=eval(fix, {"normalize": normalize, "views": raw, "d": d})).n_views == 2

    def test_fault_in_a_later_block_has_its_own_index(self, monkeypatch):
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


@st.composite
def feature_sets(draw) -> FeatureSet:
    n, k, d, v = (draw(st.integers(1, 5)) for _ in range(4))
    dtype = draw(st.sampled_from(["float16", "float32", "float64"]))
    modes = draw(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=3, unique=True))
    names = draw(st.lists(st.text(min_size=1).filter(str.strip), min_size=k, max_size=k, unique=True))
    views = unit(n, v, d, dtype=dtype) if draw(st.booleans()) else None
    return FeatureSet(
        unit(n, d, dtype=dtype) if views is None else None,
        prototypes={mode: unit(k, d, seed=seed) for seed, mode in enumerate(modes)},
        labels=draw(st.none() | st.lists(st.integers(0, k - 1), min_size=n, max_size=n)),
        class_names=names,
        logit_scale=draw(st.floats(1e-3, 1e3)),
        default_prompt=draw(st.sampled_from(modes)),
        views=views,
        provenance=draw(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text()))),
    )


class TestSafetensors:
    @given(made=feature_sets())
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_round_trip_is_exact_and_byte_identical(self, tmp_path, made):
        first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
        made.save(first)
        loaded = FeatureSet.load(first, check=False)
        assert_same(made, loaded)
        loaded.save(second)
        assert first.read_bytes() == second.read_bytes()

    def test_same_content_given_differently_is_the_same_bytes(self, tmp_path):
        views, prototypes = unit(6, 2, 4), {"b": unit(3, 4), "a": unit(3, 4, seed=1)}
        FeatureSet(prototypes=prototypes, views=views, provenance={"x": 1, "y": 2}).save(tmp_path / "1.safetensors")
        FeatureSet(
            views[:, 0].copy(order="F"),
            prototypes=dict(reversed(prototypes.items())),
            views=np.asfortranarray(views),
            provenance={"y": 2, "x": 1},
        ).save(tmp_path / "2.safetensors")
        assert (tmp_path / "1.safetensors").read_bytes() == (tmp_path / "2.safetensors").read_bytes()

    def test_features_that_only_resemble_view_zero_are_kept(self, tmp_path):
        views = unit(6, 2, 4)
        for dtype in ("float16", "float64"):  # other values; the same values in another precision
            made = small(features=views[:, 0].astype(dtype), views=views)
            made.save(tmp_path / "set.safetensors")
            assert_same(made, FeatureSet.load(tmp_path / "set.safetensors"))

    def test_other_suffix_is_refused_with_the_fix(self, tmp_path):
        with pytest.raises(ValueError, match=r"must end in \.safetensors.*Fix: save to .*set\.safetensors'"):
            small().save(tmp_path / "set.npz")
        assert list(tmp_path.iterdir()) == []

    def test_missing_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"folder .*absent does not exist"):
            small().save(tmp_path / "absent" / "set.safetensors")

    def test_cut_anywhere_is_refused(self, tmp_path):
        path, cut = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
        small().save(path)
        whole = path.read_bytes()
        for length in range(0, len(whole), 7):
            cut.write_bytes(whole[:length])
            with pytest.raises(FileFormatError, match=r"cut\.safetensors .*Fix: "):
                FeatureSet.load(cut)

    def test_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"no file at .*absent\.safetensors"):
            FeatureSet.load(tmp_path / "absent.safetensors")

    def test_another_kind_and_a_newer_schema(self, tmp_path):
        path = tmp_path / "file.safetensors"
        write_tensors(path, {"features": unit(6, 4)}, {"kind": "state", "schema": 1})
        with pytest.raises(FileFormatError, match="is a state file of zeroshift; a features file is needed"):
            FeatureSet.load(path)
        write_tensors(path, {"features": unit(6, 4)}, {"kind": "features", "schema": FEATURES_SCHEMA + 1})
        with pytest.raises(FileFormatError, match="Fix: upgrade zeroshift"):
            FeatureSet.load(path)

    def test_incomplete_files_name_what_is_missing(self, tmp_path):
        path, header = tmp_path / "file.safetensors", {"kind": "features", "schema": 1}
        write_tensors(path, {"features": unit(6, 4)}, header)
        with pytest.raises(FileFormatError, match=r"has no prototypes .*it holds features"):
            FeatureSet.load(path)
        write_tensors(path, {"features": unit(6, 4), "prototypes_a": unit(3, 4)}, header)
        with pytest.raises(FileFormatError, match="has no class_names in its header"):
            FeatureSet.load(path)

    def test_bad_content_names_the_file(self, tmp_path):
        path = tmp_path / "file.safetensors"
        small().save(path)
        arrays = {"features": 2 * unit(6, 4), "prototypes_default": unit(3, 4)}
        header = {"class_names": list("abc"), "logit_scale": 1, "default_prompt": "default", "provenance": {}}
        write_tensors(path, arrays, {"kind": "features", "schema": 1, **header})
        with pytest.raises(FileFormatError, match=r"file\.safetensors: features row 0 has length 2"):
            FeatureSet.load(path)


def write_npz(path, **changes):
    arrays = {"features": unit(6, 4), "prototypes": unit(3, 4), **changes}
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


class TestNpz:
    def test_least_there_can_be(self, tmp_path):
        loaded = FeatureSet.load(write_npz(tmp_path / "set.npz"))
        assert_same(loaded, FeatureSet(unit(6, 4), prototypes=unit(3, 4)))

    def test_everything(self, tmp_path):
        path = write_npz(
            tmp_path / "set.npz",
            features=None,
            view_features=unit(6, 2, 4, dtype="float16"),
            prototypes=None,
            prototypes_vanilla=unit(3, 4),
            prototypes_ensemble=unit(3, 4, seed=1),
            labels=np.array([0, 1, 2, 0, 1, 2], dtype=np.int16),
            class_names=np.array(["a", "b", "c"]),
            logit_scale=np.float32(25),
            meta=json.dumps({"encoder": "none"}),
            index=np.arange(6),
            notes=np.array({"anything": "else"}, dtype=object),  # not ours, so not read
        )
        expected = FeatureSet(
            views=unit(6, 2, 4, dtype="float16"),
            prototypes={"vanilla": unit(3, 4), "ensemble": unit(3, 4, seed=1)},
            labels=[0, 1, 2, 0, 1, 2],
            class_names=["a", "b", "c"],
            logit_scale=25,
            provenance={"encoder": "none"},
        )
        assert_same(FeatureSet.load(path), expected)
        assert all(type(name) is str for name in FeatureSet.load(path).class_names)

    def test_what_it_lacks_may_be_passed_beside_it(self, tmp_path):
        np.save(tmp_path / "labels.npy", np.array([0, 1, 2, 0, 1, 2]))
        np.save(tmp_path / "prototypes.npy", unit(3, 4))
        beside = {"labels": tmp_path / "labels.npy", "class_names": ["a", "b", "c"], "logit_scale": 20}
        expected = small(labels=[0, 1, 2, 0, 1, 2], class_names=["a", "b", "c"], logit_scale=20)
        path = write_npz(tmp_path / "set.npz", features=expected.features, prototypes=expected.prototypes_for())
        assert_same(FeatureSet.load(path, **beside, check=False), expected)
        bare = write_npz(tmp_path / "bare.npz", prototypes=None)
        loaded = FeatureSet.load(bare, prototypes=tmp_path / "prototypes.npy")
        assert_same(loaded, FeatureSet(unit(6, 4), prototypes=unit(3, 4)))

    @pytest.mark.parametrize(
        ("held", "beside"),
        [
            ({"labels": np.zeros(6, int)}, {"labels": "labels.npy"}),
            ({"class_names": np.array(["a", "b", "c"])}, {"class_names": ["a", "b", "c"]}),
            ({"logit_scale": np.array(25.0)}, {"logit_scale": 25}),
            ({}, {"prototypes": "prototypes.npy"}),
            ({"prototypes": None, "prototypes_a": unit(3, 4)}, {"prototypes": "prototypes.npy"}),
        ],
    )
    def test_what_it_holds_may_not(self, tmp_path, held, beside):
        (name,) = beside
        with pytest.raises(ValueError, match=rf"^{name} cannot be passed with set\.npz: the file holds") as refusal:
            FeatureSet.load(write_npz(tmp_path / "set.npz", **held), **beside)
        assert str(pickle.loads(pickle.dumps(refusal.value))) == str(refusal.value)

    def test_a_file_that_may_not_be_read_is_not_called_damaged(self, tmp_path, monkeypatch):
        path = write_npz(tmp_path / "set.npz")

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied", str(path))

        # Not by chmod: the super-user may read everything.
        monkeypatch.setattr(builtins, "open", refuse)
        monkeypatch.setattr(io, "open", refuse)
        with pytest.raises(PermissionError):
            FeatureSet.load(path)

    def test_logit_scale_of_one_entry(self, tmp_path):
        assert FeatureSet.load(write_npz(tmp_path / "set.npz", logit_scale=np.array([25.0]))).logit_scale == 25.0

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"features": None}, r"neither features nor view_features; it holds prototypes\."),
            ({"prototypes": None, "text": unit(3, 4)}, r"no prototypes .*it holds features, text\."),
            ({"prototypes_default": unit(3, 4)}, "both prototypes and prototypes_default"),
            ({"class_names": np.array(["a", "b", "c"], dtype=object)}, "class_names is an object array.*dtype=str"),
            ({"features": np.array([None, unit(4)], dtype=object)}, "features is an object array"),
            ({"class_names": np.array(["a", "b", "b"])}, r"repeated: 'b' at \[1, 2\]"),
            ({"class_names": np.array("abc")}, "class_names must be a sequence of names"),
            ({"features": 2 * unit(6, 4)}, "features row 0 has length 2"),
            ({"labels": np.full(6, 3)}, "labels row 0 is 3"),
            ({"logit_scale": np.array([1.0, 2.0])}, "logit_scale must be a number"),
            ({"meta": "{not json"}, "meta is not JSON"),
            ({"meta": "[1, 2]"}, "provenance must be a mapping; got list"),
        ],
    )
    def test_refusals_name_the_file(self, tmp_path, changes, message):
        with pytest.raises(FileFormatError, match=message) as refusal:
            FeatureSet.load(write_npz(tmp_path / "set.npz", **changes))
        assert str(tmp_path / "set.npz") in str(refusal.value)

    def test_not_an_archive(self, tmp_path):
        path = tmp_path / "set.npz"
        for content in (b"", b"text", pickle.dumps({"features": 1})):
            path.write_bytes(content)
            with pytest.raises(FileFormatError, match=r"set\.npz is not an \.npz archive"):
                FeatureSet.load(path)

    @pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
    @given(data=st.data())
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    def test_damage_is_a_file_format_error_or_harmless(self, tmp_path, write, data):
        path = tmp_path / "set.npz"
        write(path, features=unit(6, 4), prototypes=unit(3, 4))
        whole = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            del whole[data.draw(st.integers(0, len(whole) - 1)) :]
        else:
            whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(bytes(whole))
        assert_refused_or_unharmed(path)


def assert_refused_or_unharmed(path, **beside):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            features = FeatureSet.load(path, **beside).features
        except FileFormatError as error:
            refusal = str(error)
        else:
            np.testing.assert_array_equal(features, unit(6, 4))
            return
    assert str(path) in refusal


@pytest.fixture
def npy(tmp_path):
    """features, prototypes and labels as .npy files, and classes.txt."""
    features, prototypes, labels = clusters()
    np.save(tmp_path / "features.npy", features)
    np.save(tmp_path / "prototypes.npy", prototypes)
    np.save(tmp_path / "labels.npy", labels)
    (tmp_path / "classes.txt").write_text("".join(f"class-{k} \n" for k in range(10)), encoding="utf-8")
    return tmp_path


class TestNpy:
    def test_all_four_files(self, npy):
        features, prototypes, labels = clusters()
        loaded = FeatureSet.load(
            str(npy / "features.npy"),
            prototypes=str(npy / "prototypes.npy"),
            labels=npy / "labels.npy",
            class_names=npy / "classes.txt",
            logit_scale=50,
        )
        names = [f"class-{k}" for k in range(10)]
        expected = FeatureSet(features, prototypes=prototypes, labels=labels, class_names=names, logit_scale=50)
        assert_same(loaded, expected)

    def test_two_files_and_a_list(self, npy):
        loaded = FeatureSet.load(
            npy / "features.npy", prototypes=npy / "prototypes.npy", class_names=list("abcdefghij")
        )
        assert loaded.labels is None
        assert loaded.logit_scale == 100.0
        assert loaded.class_names == tuple("abcdefghij")

    def test_features_stay_on_the_disk(self, npy):
        loaded = FeatureSet.load(npy / "features.npy", prototypes=npy / "prototypes.npy", labels=npy / "labels.npy")
        for made in (loaded, loaded.subset(slice(10, 20)), FeatureSet(loaded.features, prototypes=unit(10, 16))):
            assert isinstance(made.features, np.memmap)
            assert made.features.filename == npy / "features.npy"
        assert type(loaded.prototypes_for()) is np.ndarray
        assert type(loaded.labels) is np.ndarray

    def test_a_large_file_is_never_in_memory_whole(self, npy):
        np.save(npy / "features.npy", np.tile(unit(256, 512, dtype="float16"), (256, 1)))
        np.save(npy / "prototypes.npy", unit(10, 512))
        np.save(npy / "labels.npy", np.zeros(256 * 256, dtype=np.uint8))
        tracemalloc.start()
        try:
            beside = {"prototypes": npy / "prototypes.npy", "labels": npy / "labels.npy"}
            loaded = FeatureSet.load(npy / "features.npy", **beside, check=False)
            loaded.zero_shot_accuracy()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < loaded.features.nbytes  # in float32, all of it would be twice that

    def test_names_file_with_a_byte_order_mark_and_windows_lines(self, npy):
        (npy / "classes.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join("äbcdefghij").encode() + b"\r\n\r\n")
        loaded = FeatureSet.load(
            npy / "features.npy", prototypes=npy / "prototypes.npy", class_names=npy / "classes.txt"
        )
        assert loaded.class_names == tuple("äbcdefghij")

    def test_prototypes_are_needed(self, npy):
        with pytest.raises(ValueError, match=r"prototypes is missing: features\.npy .*Fix: pass prototypes="):
            FeatureSet.load(npy / "features.npy")

    @pytest.mark.parametrize("name", ["features", "prototypes", "labels"])
    @pytest.mark.parametrize(
        ("damage", "kind", "message"),
        [
            (lambda path: path.unlink(), FileNotFoundError, "no file at"),
            (lambda path: path.write_bytes(b""), FileFormatError, "is not an .npy file"),
            (lambda path: path.write_bytes(b"PK\x03\x04 zip"), FileFormatError, "is not an .npy file"),
            (lambda path: path.write_bytes(path.read_bytes()[:60]), FileFormatError, "cannot be read"),
            (lambda path: path.write_bytes(path.read_bytes()[:-9]), FileFormatError, "cannot be read .*truncated"),
            (lambda path: np.save(path, np.array([{}], dtype=object)), FileFormatError, "is an object array"),
        ],
        ids=["missing", "empty", "zip", "cut header", "cut data", "objects"],
    )
    def test_bad_files_are_named(self, npy, name, damage, kind, message):
        damage(npy / f"{name}.npy")
        with pytest.raises(kind, match=rf"{name}\.npy.*{message}|{message}.*{name}\.npy"):
            FeatureSet.load(npy / "features.npy", prototypes=npy / "prototypes.npy", labels=npy / "labels.npy")

    def test_every_damaged_header_is_refused_or_harmless(self, tmp_path):
        path, prototypes = tmp_path / "features.npy", tmp_path / "prototypes.npy"
        np.save(path, unit(6, 4))
        np.save(prototypes, unit(3, 4))
        whole = path.read_bytes()
        for position in range(whole.index(b"\n")):
            for byte in (0, ord("("), ord(" "), ord("9"), 0xFF):
                path.unlink()  # never write into a file that is mapped
                path.write_bytes(whole[:position] + bytes([byte]) + whole[position + 1 :])
                assert_refused_or_unharmed(path, prototypes=prototypes)

    def test_bad_names_files(self, npy):
        def load():
            FeatureSet.load(npy / "features.npy", prototypes=npy / "prototypes.npy", class_names=npy / "classes.txt")

        (npy / "classes.txt").write_text("a\n\nc\nd\ne\nf\ng\nh\ni\nj\n")
        with pytest.raises(FileFormatError, match=r"class_names\[1\] is empty"):
            load()
        (npy / "classes.txt").write_bytes(b"\xff\xfe")
        with pytest.raises(FileFormatError, match=r"classes\.txt: the list of class names \(UTF-8"):
            load()
        (npy / "classes.txt").unlink()
        with pytest.raises(FileNotFoundError, match=r"classes\.txt"):
            load()

    @pytest.mark.parametrize("argument", ["prototypes", "labels"])
    def test_arrays_in_place_of_paths_are_named(self, npy, argument):
        beside = {"prototypes": npy / "prototypes.npy", argument: np.load(npy / f"{argument}.npy")}
        with pytest.raises(TypeError, match=rf"^{argument} must be the path of an \.npy file; got ndarray. Fix: save"):
            FeatureSet.load(npy / "features.npy", **beside)

    def test_a_wrong_argument_is_not_the_files_fault(self, npy):
        with pytest.raises(TypeError, match="logit_scale must be a number greater than 0; got 'hot'"):
            FeatureSet.load(npy / "features.npy", prototypes=npy / "prototypes.npy", logit_scale="hot")


class TestLoad:
    @pytest.mark.parametrize("name", ["set.csv", "set", "set.pt"])
    def test_unknown_suffix(self, tmp_path, name):
        with pytest.raises(FileFormatError, match=rf"{name} has the suffix .*\.safetensors, \.npz and \.npy"):
            FeatureSet.load(tmp_path / name)

    def test_a_folder_is_no_file(self, tmp_path):
        (tmp_path / "set.npz").mkdir()
        with pytest.raises(FileNotFoundError, match=r"no file at .*set\.npz"):
            FeatureSet.load(tmp_path / "set.npz")

    def test_nothing_may_be_passed_beside_a_whole_file(self, tmp_path):
        small().save(tmp_path / "set.safetensors")
        with pytest.raises(ValueError, match=r"labels, logit_scale cannot be passed with set\.safetensors"):
            FeatureSet.load(tmp_path / "set.safetensors", labels="labels.npy", logit_scale=3)

    def test_hints_are_warnings_unless_check_is_off(self, tmp_path):
        features, prototypes, labels = clusters()
        right, wrong = tmp_path / "right.safetensors", tmp_path / "wrong.safetensors"
        FeatureSet(features, prototypes=prototypes, labels=labels).save(right)
        FeatureSet(features, prototypes=prototypes, labels=(labels + 1) % 10).save(wrong)
        with pytest.warns(
            UserWarning, match=r"wrong\.safetensors: zero-shot accuracy 0\.0% .*check the label order"
        ) as seen:
            FeatureSet.load(wrong)
        assert [warning.filename for warning in seen] == [__file__], "the warning points at the caller"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            FeatureSet.load(wrong, check=False)
            FeatureSet.load(right)


def raw(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Rows of many lengths, none of them 1."""
    lengths = np.random.default_rng(seed).uniform(2, 30, size=(*shape[:-1], 1))
    return (lengths * unit(*shape, seed=seed, dtype="float64")).astype(dtype)


def write_set_file(path, features=None, prototypes=None, views=None):
    """A file of the kind `path` says, as another program would write it; returns the arguments that load it."""
    arrays = {"features": features, "prototypes": prototypes, "view_features": views}
    arrays = {key: array for key, array in arrays.items() if array is not None}
    if path.suffix == ".npy":
        np.save(path, features)
        np.save(path.with_name("prototypes.npy"), prototypes)
        return {"path": path, "prototypes": path.with_name("prototypes.npy")}
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        header = {"class_names": list("abc"), "logit_scale": 1, "default_prompt": "default", "provenance": {}}
        write_tensors(path, arrays, {"kind": "features", "schema": 1, **header})
    return {"path": path}


every_format = pytest.mark.parametrize("name", ["set.safetensors", "set.npz", "features.npy"])


class TestNormalize:
    @every_format
    @pytest.mark.parametrize(
        ("dtype", "expected"), [("float16", "float32"), ("float32", "float32"), ("float64", "float64")]
    )
    def test_rows_are_scaled_as_by_the_function(self, tmp_path, name, dtype, expected):
        features, prototypes = raw(6, 4, dtype=dtype), raw(3, 4, seed=1, dtype=dtype)
        arguments = write_set_file(tmp_path / name, features, prototypes)
        with pytest.raises(FileFormatError, match=r"prototypes.* row 0 has length"):
            FeatureSet.load(**arguments)
        loaded = FeatureSet.load(**arguments, normalize=True)
        assert loaded.features.dtype == loaded.prototypes_for().dtype == expected
        np.testing.assert_array_equal(loaded.features, normalize(features))
        np.testing.assert_array_equal(loaded.prototypes_for(), normalize(prototypes))

    @pytest.mark.parametrize("name", ["set.safetensors", "set.npz"])
    def test_views_are_scaled_with_and_without_features(self, tmp_path, name):
        views, prototypes = raw(6, 3, 4, dtype="float16"), unit(3, 4, seed=1)
        expected = normalize(views.reshape(-1, 4)).reshape(views.shape)
        for features in (None, 7 * views[:, 0].astype("float64")):
            arguments = write_set_file(tmp_path / name, features, prototypes, views)
            loaded = FeatureSet.load(**arguments, normalize=True)
            np.testing.assert_array_equal(loaded.views, expected)
            np.testing.assert_allclose(loaded.features, expected[:, 0], atol=1e-6)
            assert loaded.views.dtype == np.float32

    def test_every_prompt_mode_is_scaled(self, tmp_path):
        modes = {"prototypes_a": raw(3, 4), "prototypes_b": raw(3, 4, seed=1)}
        loaded = FeatureSet.load(write_npz(tmp_path / "set.npz", prototypes=None, **modes), normalize=True)
        for mode in loaded.prompts:
            np.testing.assert_array_equal(loaded.prototypes[mode], normalize(modes[f"prototypes_{mode}"]))

    @given(made=feature_sets())
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_a_saved_set_is_unharmed(self, tmp_path, made):
        made.save(tmp_path / "set.safetensors")
        loaded = FeatureSet.load(tmp_path / "set.safetensors", normalize=True, check=False)
        np.testing.assert_allclose(loaded.features, made.features, atol=1e-3)  # half precision is that far from 1
        assert np.linalg.norm(loaded.features, axis=1) == pytest.approx(1, abs=1e-6)
        assert (loaded.views is None) == (made.views is None)
        for field in ("prompts", "default_prompt", "class_names", "logit_scale", "provenance"):
            assert getattr(loaded, field) == getattr(made, field), field
        assert (loaded.labels is None) == (made.labels is None)

    @every_format
    @pytest.mark.parametrize(
        ("spoil", "fault"), [(0, "is the zero vector"), (NAN, "holds NaN"), (INF, "holds an infinite")]
    )
    def test_rows_without_a_direction_are_named(self, tmp_path, name, spoil, fault):
        features, prototypes = raw(6, 4), raw(3, 4)
        arguments = write_set_file(tmp_path / name, spoilt(features, 4, spoil), prototypes)
        with pytest.raises(FileFormatError, match=rf"{name}: features row 4 {fault}"):
            FeatureSet.load(**arguments, normalize=True)
        array = "prototypes" if name == "features.npy" else r"prototypes\['default'\]"
        arguments = write_set_file(tmp_path / name, features, spoilt(prototypes, 2, spoil))
        with pytest.raises(FileFormatError, match=rf"{name}: {array} row 2 {fault}"):
            FeatureSet.load(**arguments, normalize=True)
        if name != "features.npy":
            arguments = write_set_file(tmp_path / name, None, prototypes, spoilt(raw(6, 3, 4), (4, 2), spoil))
            with pytest.raises(FileFormatError, match=rf"{name}: views\[:, 2\] row 4 {fault}"):
                FeatureSet.load(**arguments, normalize=True)

    def test_a_fault_in_a_later_block_has_its_own_row(self, npy, monkeypatch):
        monkeypatch.setattr(feature_checks, "BLOCK_ENTRIES", 48)
        features = 5 * clusters()[0]
        np.save(npy / "features.npy", features)
        beside = {"prototypes": npy / "prototypes.npy", "normalize": True}
        np.testing.assert_array_equal(FeatureSet.load(npy / "features.npy", **beside).features, normalize(features))
        np.save(npy / "spoilt.npy", spoilt(features, 150, 0))
        with pytest.raises(FileFormatError, match=r"spoilt\.npy: features row 150 is the zero vector"):
            FeatureSet.load(npy / "spoilt.npy", **beside)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"features": np.eye(4, dtype=int)}, "features must hold floating-point numbers"),
            ({"features": unit(4)}, "features must have two dimensions"),
            ({"features": unit(6, 5)}, "features has d = 5 .* prototypes have d = 4"),
            ({"view_features": unit(6, 4)}, "views must have three dimensions"),
            ({"view_features": unit(6, 0, 4)}, "views must have three dimensions"),
            ({"view_features": np.ones((6, 2, 4), int)}, "views must hold floating-point numbers"),
            ({"view_features": np.roll(raw(6, 1, 4), 1, axis=0)}, "features row 0 is not view 0"),
        ],
    )
    def test_what_is_wrong_beside_the_length_is_refused_as_ever(self, tmp_path, changes, message):
        with pytest.raises(FileFormatError, match=rf"set\.npz: {message}"):
            FeatureSet.load(write_npz(tmp_path / "set.npz", **changes), normalize=True)

    def test_npy_is_copied_once_and_left_as_it_was(self, npy):
        np.save(npy / "features.npy", 3 * np.tile(unit(256, 512, dtype="float16"), (256, 1)))
        np.save(npy / "prototypes.npy", unit(10, 512))
        before = (npy / "features.npy").read_bytes()
        tracemalloc.start()
        try:
            loaded = FeatureSet.load(npy / "features.npy", prototypes=npy / "prototypes.npy", normalize=True)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert type(loaded.features) is np.ndarray
        assert peak < 1.5 * loaded.features.nbytes
        assert (npy / "features.npy").read_bytes() == before


NAMES = ("a/1.jpg", "a/2.jpg", "b/1.jpg", "b/1.jpg", "", 'ü \n"{}\\ 猫.png')


class TestSampleNames:
    def test_there_need_not_be_any(self):
        assert small().sample_names is None
        assert small().subset([0]).sample_names is None

    def test_are_kept_as_a_tuple(self):
        given = list(NAMES)
        made = small(sample_names=given)
        given[0] = "other"
        assert made.sample_names == NAMES

    @pytest.mark.parametrize(
        ("names", "error", "message"),
        [
            ("abcdef", TypeError, "sample_names must be a sequence of strings, one a sample; got str"),
            (iter(NAMES), TypeError, "sample_names must be a sequence of strings, one a sample; got tuple_iterator"),
            (set("abcdef"), TypeError, "sample_names must be a sequence of strings, one a sample; got set"),
            (NAMES[:5], ValueError, "sample_names has 5 names, but there are 6 samples"),
            ([*NAMES[:5], 7], TypeError, "sample_names must hold strings; got 7"),
        ],
    )
    def test_refusals(self, names, error, message):
        with pytest.raises(error, match=message):
            small(sample_names=names)

    @pytest.mark.parametrize(
        ("indices", "chosen"),
        [
            ([3, 0, 3], (3, 0, 3)),
            (slice(1, 6, 2), (1, 3, 5)),
            (np.arange(6) > 3, (4, 5)),
            ([-1], (5,)),
        ],
    )
    def test_follow_the_rows_of_a_subset(self, indices, chosen):
        names = tuple(f"{i}.png" for i in range(6))
        made = small(sample_names=names).subset(indices)
        assert made.sample_names == tuple(f"{i}.png" for i in chosen)
        assert len(made.sample_names) == made.n_samples

    @given(names=st.lists(st.text(st.characters(exclude_categories=())), min_size=6, max_size=6))
    @settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_come_back_from_a_file_whatever_they_are(self, tmp_path, names):
        # Also what no text can hold: names of files that are not UTF-8 have single surrogates in them.
        small(sample_names=names).save(tmp_path / "set.safetensors")
        assert FeatureSet.load(tmp_path / "set.safetensors").sample_names == tuple(names)

    def test_come_back_with_scaled_rows(self, tmp_path):
        small(sample_names=NAMES).save(tmp_path / "set.safetensors")
        assert FeatureSet.load(tmp_path / "set.safetensors", normalize=True).sample_names == NAMES

    def test_a_file_from_before_there_were_names_comes_back_byte_for_byte(self, tmp_path):
        old = Path(data.__file__).parent / "bundle" / "fmnist.safetensors"
        loaded = FeatureSet.load(old, check=False)
        assert loaded.sample_names is None
        loaded.save(tmp_path / "again.safetensors")
        assert (tmp_path / "again.safetensors").read_bytes() == old.read_bytes()

    def test_the_same_names_are_the_same_bytes(self, tmp_path):
        one, two, three = (tmp_path / f"{i}.safetensors" for i in range(3))
        for path, names in ((one, NAMES), (two, list(NAMES)), (three, NAMES[::-1])):
            small(sample_names=names).save(path)
        assert one.read_bytes() == two.read_bytes()
        assert one.read_bytes() != three.read_bytes()

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b'["a"', r"sample_names is damaged \(.*\). Fix: write the file again"),
            (b"\xff\xfe", r"sample_names is damaged"),
            (b'"abcdef"', "sample_names must be a sequence of strings"),
            (b'["a"]', "sample_names has 1 names, but there are 6 samples"),
            (b"[1, 2, 3, 4, 5, 6]", "sample_names must hold strings; got 1"),
            (b"{}", "sample_names must be a sequence of strings, one a sample; got dict"),
        ],
    )
    def test_damaged_names_are_refused(self, tmp_path, content, message):
        path = tmp_path / "set.safetensors"
        small(sample_names=NAMES).save(path)
        arrays, header = read_tensors(path, kind="features", schema=FEATURES_SCHEMA)
        write_tensors(path, {**arrays, "sample_names": np.frombuffer(content, np.uint8)}, header)
        with pytest.raises(FileFormatError, match=rf"set\.safetensors: {message}"):
            FeatureSet.load(path)
