"""Feature set files: .safetensors, .npz and .npy, complete and damaged."""

from __future__ import annotations

import builtins
import io
import json
import pickle
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feature_sets import (
    assert_refused_or_unchanged,
    assert_same,
    clusters,
    feature_sets,
    small,
    unit,
    write_npz,
)
from zeroshift.evaluate.keys import features_digest
from zeroshift.features.feature_set import FEATURES_SCHEMA, FeatureSet
from zeroshift.files import FileFormatError
from zeroshift.tensor_files import UnverifiedFileWarning, write_tensors


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

    def test_equal_content_gives_equal_bytes(self, tmp_path):
        views, prototypes = unit(6, 2, 4), {"b": unit(3, 4), "a": unit(3, 4, seed=1)}
        FeatureSet(prototypes=prototypes, views=views, provenance={"x": 1, "y": 2}).save(tmp_path / "1.safetensors")
        FeatureSet(
            views[:, 0].copy(order="F"),
            prototypes=dict(reversed(prototypes.items())),
            views=np.asfortranarray(views),
            provenance={"y": 2, "x": 1},
        ).save(tmp_path / "2.safetensors")
        assert (tmp_path / "1.safetensors").read_bytes() == (tmp_path / "2.safetensors").read_bytes()

    def test_features_that_differ_slightly_from_view_zero_are_saved(self, tmp_path):
        views = unit(6, 2, 4)
        for dtype in ("float16", "float64"):  # other values; the same values in another precision
            made = small(features=views[:, 0].astype(dtype), views=views)
            made.save(tmp_path / "set.safetensors")
            assert_same(made, FeatureSet.load(tmp_path / "set.safetensors"))

    def test_another_suffix_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r"must end in \.safetensors.*Fix: save to .*set\.safetensors'"):
            small().save(tmp_path / "set.npz")
        assert list(tmp_path.iterdir()) == []

    def test_missing_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"folder .*absent does not exist"):
            small().save(tmp_path / "absent" / "set.safetensors")

    def test_truncated_files_are_refused(self, tmp_path):
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
        with pytest.raises(FileFormatError, match=r"has no prototypes .*it contains features"):
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


class TestNpz:
    def test_only_features_and_prototypes(self, tmp_path):
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
            notes=np.array({"anything": "else"}, dtype=object),  # unknown names are not read
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

    def test_missing_fields_can_be_passed_as_arguments(self, tmp_path):
        np.save(tmp_path / "labels.npy", np.array([0, 1, 2, 0, 1, 2]))
        np.save(tmp_path / "prototypes.npy", unit(3, 4))
        arguments = {"labels": tmp_path / "labels.npy", "class_names": ["a", "b", "c"], "logit_scale": 20}
        expected = small(labels=[0, 1, 2, 0, 1, 2], class_names=["a", "b", "c"], logit_scale=20)
        path = write_npz(tmp_path / "set.npz", features=expected.features, prototypes=expected.prototypes_for())
        assert_same(FeatureSet.load(path, **arguments, check=False), expected)
        bare = write_npz(tmp_path / "bare.npz", prototypes=None)
        loaded = FeatureSet.load(bare, prototypes=tmp_path / "prototypes.npy")
        assert_same(loaded, FeatureSet(unit(6, 4), prototypes=unit(3, 4)))

    @pytest.mark.parametrize(
        ("contained", "arguments"),
        [
            ({"labels": np.zeros(6, int)}, {"labels": "labels.npy"}),
            ({"class_names": np.array(["a", "b", "c"])}, {"class_names": ["a", "b", "c"]}),
            ({"logit_scale": np.array(25.0)}, {"logit_scale": 25}),
            ({}, {"prototypes": "prototypes.npy"}),
            ({"prototypes": None, "prototypes_a": unit(3, 4)}, {"prototypes": "prototypes.npy"}),
        ],
    )
    def test_arguments_that_the_file_contains_are_refused(self, tmp_path, contained, arguments):
        (name,) = arguments
        with pytest.raises(ValueError, match=rf"^{name} cannot be passed with set\.npz: the file contains") as refusal:
            FeatureSet.load(write_npz(tmp_path / "set.npz", **contained), **arguments)
        assert str(pickle.loads(pickle.dumps(refusal.value))) == str(refusal.value)

    def test_a_permission_error_is_not_reported_as_damage(self, tmp_path, monkeypatch):
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
            ({"features": None}, r"neither features nor view_features; it contains prototypes\."),
            ({"prototypes": None, "text": unit(3, 4)}, r"no prototypes .*it contains features, text\."),
            ({"prototypes_default": unit(3, 4)}, "both prototypes and prototypes_default"),
            ({"class_names": np.array(["a", "b", "c"], dtype=object)}, "class_names is an object array.*dtype=str"),
            ({"features": np.array([None, unit(4)], dtype=object)}, "features is an object array"),
            ({"class_names": np.array(["a", "b", "b"])}, r"repeated: 'b' at \[1, 2\]"),
            ({"class_names": np.array("abc")}, "class_names must be a sequence of names"),
            ({"features": 2 * unit(6, 4)}, "features row 0 has length 2"),
            ({"labels": np.full(6, 3)}, "labels row 0 is 3"),
            ({"logit_scale": np.array([1.0, 2.0])}, "logit_scale must be a number"),
            ({"meta": "{not json"}, "meta cannot be read as JSON"),
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
            with pytest.raises(FileFormatError, match=r"set\.npz is not a readable \.npz archive"):
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
        assert_refused_or_unchanged(path)


class TestNpy:
    def test_features_prototypes_labels_and_class_names(self, npy):
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

    def test_class_names_as_a_list(self, npy):
        loaded = FeatureSet.load(
            npy / "features.npy", prototypes=npy / "prototypes.npy", class_names=list("abcdefghij")
        )
        assert loaded.labels is None
        assert loaded.logit_scale == 100.0
        assert loaded.class_names == tuple("abcdefghij")

    def test_features_are_memory_mapped(self, npy):
        loaded = FeatureSet.load(npy / "features.npy", prototypes=npy / "prototypes.npy", labels=npy / "labels.npy")
        for made in (loaded, loaded.subset(slice(10, 20)), FeatureSet(loaded.features, prototypes=unit(10, 16))):
            assert isinstance(made.features, np.memmap)
            assert made.features.filename == npy / "features.npy"
        assert type(loaded.prototypes_for()) is np.ndarray
        assert type(loaded.labels) is np.ndarray

    def test_a_large_file_is_not_loaded_into_memory(self, npy):
        np.save(npy / "features.npy", np.tile(unit(256, 512, dtype="float16"), (256, 1)))
        np.save(npy / "prototypes.npy", unit(10, 512))
        np.save(npy / "labels.npy", np.zeros(256 * 256, dtype=np.uint8))
        tracemalloc.start()
        try:
            arguments = {"prototypes": npy / "prototypes.npy", "labels": npy / "labels.npy"}
            loaded = FeatureSet.load(npy / "features.npy", **arguments, check=False)
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

    def test_prototypes_are_required(self, npy):
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
            (
                lambda path: path.write_bytes(path.read_bytes()[:-9]),
                FileFormatError,
                "cannot be read: .*truncated",
            ),
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
                assert_refused_or_unchanged(path, prototypes=prototypes)

    def test_bad_names_files(self, npy):
        def load():
            FeatureSet.load(npy / "features.npy", prototypes=npy / "prototypes.npy", class_names=npy / "classes.txt")

        (npy / "classes.txt").write_text("a\n\nc\nd\ne\nf\ng\nh\ni\nj\n")
        with pytest.raises(FileFormatError, match=r"class_names\[1\] is empty"):
            load()
        (npy / "classes.txt").write_bytes(b"\xff\xfe")
        with pytest.raises(FileFormatError, match=r"classes\.txt is not UTF-8 text"):
            load()
        (npy / "classes.txt").unlink()
        with pytest.raises(FileNotFoundError, match=r"classes\.txt"):
            load()

    @pytest.mark.parametrize("argument", ["prototypes", "labels"])
    def test_arrays_instead_of_paths_are_refused(self, npy, argument):
        arguments = {"prototypes": npy / "prototypes.npy", argument: np.load(npy / f"{argument}.npy")}
        with pytest.raises(TypeError, match=rf"^{argument} must be the path of an \.npy file; got ndarray. Fix: save"):
            FeatureSet.load(npy / "features.npy", **arguments)

    def test_a_wrong_argument_is_not_an_error_of_the_file(self, npy):
        with pytest.raises(TypeError, match="logit_scale must be a number greater than 0; got 'hot'"):
            FeatureSet.load(npy / "features.npy", prototypes=npy / "prototypes.npy", logit_scale="hot")


class TestLoad:
    @pytest.mark.parametrize("name", ["set.csv", "set", "set.pkl"])
    def test_unknown_suffix(self, tmp_path, name):
        with pytest.raises(FileFormatError, match=rf"{name} has the suffix .*\.safetensors, \.npz, \.npy and \.pt"):
            FeatureSet.load(tmp_path / name)

    def test_a_folder_is_refused(self, tmp_path):
        (tmp_path / "set.npz").mkdir()
        with pytest.raises(IsADirectoryError, match=r"set\.npz is a folder"):
            FeatureSet.load(tmp_path / "set.npz")

    def test_safetensors_files_take_no_further_arguments(self, tmp_path):
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


class TestEarlierVersions:
    SAVED = Path(__file__).parent / "saved"

    def test_a_file_without_checksums_loads_with_a_note(self):
        with pytest.warns(UnverifiedFileWarning, match=r"schema_1\.safetensors was written by an earlier version"):
            old = FeatureSet.load(self.SAVED / "schema_1.safetensors", check=False)
        new = FeatureSet.load(self.SAVED / "schema_2.safetensors", check=False)
        assert features_digest(old) == features_digest(new)
        for field in ("class_names", "sample_names", "provenance"):
            assert getattr(old, field) == getattr(new, field)

    def test_a_saved_file_has_the_same_bytes_in_every_version(self, tmp_path):
        FeatureSet.load(self.SAVED / "schema_2.safetensors", check=False).save(tmp_path / "again.safetensors")
        assert (tmp_path / "again.safetensors").read_bytes() == (self.SAVED / "schema_2.safetensors").read_bytes()
