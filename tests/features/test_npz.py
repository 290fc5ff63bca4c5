"""Feature sets from .npz archives, whole and broken."""

from __future__ import annotations

import builtins
import io
import json
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feature_sets import (
    assert_refused_or_unharmed,
    assert_same,
    small,
    unit,
    write_npz,
)
from zeroshift.features import FeatureSet
from zeroshift.files import FileFormatError


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
