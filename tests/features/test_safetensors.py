"""Feature sets as .safetensors: what is saved is what is loaded, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from feature_sets import (
    assert_same,
    feature_sets,
    small,
    unit,
)
from zeroshift.features.feature_set import FEATURES_SCHEMA, FeatureSet
from zeroshift.files import FileFormatError, write_tensors


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
