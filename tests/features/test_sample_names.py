"""Sample names: stored, subset, saved, and refused where they do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feature_sets import (
    small,
)
from zeroshift import data
from zeroshift.features.feature_set import FEATURES_SCHEMA, FeatureSet
from zeroshift.files import FileFormatError
from zeroshift.tensor_files import read_tensors, write_tensors

NAMES = ("a/1.jpg", "a/2.jpg", "b/1.jpg", "b/1.jpg", "", 'ü \n"{}\\ 猫.png')


class TestSampleNames:
    def test_are_optional(self):
        assert small().sample_names is None
        assert small().subset([0]).sample_names is None

    def test_are_stored_as_a_tuple(self):
        given = list(NAMES)
        made = small(sample_names=given)
        given[0] = "other"
        assert made.sample_names == NAMES

    @pytest.mark.parametrize(
        ("names", "error", "message"),
        [
            ("abcdef", TypeError, "sample_names must be a sequence of strings, one per sample; got str"),
            (iter(NAMES), TypeError, "sample_names must be a sequence of strings, one per sample; got tuple_iterator"),
            (set("abcdef"), TypeError, "sample_names must be a sequence of strings, one per sample; got set"),
            (NAMES[:5], ValueError, "sample_names has 5 names, but there are 6 samples"),
            ([*NAMES[:5], 7], TypeError, r"sample_names\[5\] must be a string; got 7"),
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
    def test_any_string_survives_a_round_trip(self, tmp_path, names):
        # Includes lone surrogates, which file names that are not UTF-8 contain.
        small(sample_names=names).save(tmp_path / "set.safetensors")
        assert FeatureSet.load(tmp_path / "set.safetensors").sample_names == tuple(names)

    def test_survive_normalization(self, tmp_path):
        small(sample_names=NAMES).save(tmp_path / "set.safetensors")
        assert FeatureSet.load(tmp_path / "set.safetensors", normalize=True).sample_names == NAMES

    def test_an_older_file_without_names_round_trips_byte_for_byte(self, tmp_path):
        old = Path(data.__file__).parent / "bundle" / "fmnist.safetensors"
        loaded = FeatureSet.load(old, check=False)
        assert loaded.sample_names is None
        loaded.save(tmp_path / "again.safetensors")
        assert (tmp_path / "again.safetensors").read_bytes() == old.read_bytes()

    def test_equal_names_give_equal_bytes(self, tmp_path):
        one, two, three = (tmp_path / f"{i}.safetensors" for i in range(3))
        for path, names in ((one, NAMES), (two, list(NAMES)), (three, NAMES[::-1])):
            small(sample_names=names).save(path)
        assert one.read_bytes() == two.read_bytes()
        assert one.read_bytes() != three.read_bytes()

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b'["a"', r"sample_names cannot be read as JSON \(.*\). Fix: correct it, or write or copy it again"),
            (b"\xff\xfe", "sample_names cannot be read as JSON"),
            (b'"abcdef"', "sample_names must be a sequence of strings"),
            (b'["a"]', "sample_names has 1 names, but there are 6 samples"),
            (b"[1, 2, 3, 4, 5, 6]", r"sample_names\[0\] must be a string; got 1"),
            (b"{}", "sample_names must be a sequence of strings, one per sample; got dict"),
        ],
    )
    def test_damaged_names_are_refused(self, tmp_path, content, message):
        path = tmp_path / "set.safetensors"
        small(sample_names=NAMES).save(path)
        arrays, header = read_tensors(path, kind="features", schema=FEATURES_SCHEMA)
        write_tensors(path, {**arrays, "sample_names": np.frombuffer(content, np.uint8)}, header)
        with pytest.raises(FileFormatError, match=rf"set\.safetensors: {message}"):
            FeatureSet.load(path)
