"""Feature sets from .npy files and what is passed beside them; which file is read how."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest

from feature_sets import (
    assert_refused_or_unharmed,
    assert_same,
    clusters,
    small,
    unit,
)
from zeroshift.features import FeatureSet
from zeroshift.files import FileFormatError


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
