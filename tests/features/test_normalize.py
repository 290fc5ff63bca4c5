"""`normalize=True`: rows scaled to unit length while they are read."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from feature_sets import INF, NAN, clusters, feature_sets, spoilt, unit, write_npz
from zeroshift.arrays import normalize
from zeroshift.features import FeatureSet
from zeroshift.features import checks as feature_checks
from zeroshift.files import FileFormatError
from zeroshift.tensor_files import write_tensors


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
    def test_rows_are_scaled_like_normalize(self, tmp_path, name, dtype, expected):
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
    def test_a_saved_set_is_unchanged(self, tmp_path, made):
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
    def test_zero_and_non_finite_rows_are_named(self, tmp_path, name, spoil, fault):
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

    def test_errors_in_later_blocks_name_the_right_row(self, npy, monkeypatch):
        monkeypatch.setattr(feature_checks, "BLOCK_ENTRIES", 48)
        features = 5 * clusters()[0]
        np.save(npy / "features.npy", features)
        arguments = {"prototypes": npy / "prototypes.npy", "normalize": True}
        np.testing.assert_array_equal(FeatureSet.load(npy / "features.npy", **arguments).features, normalize(features))
        np.save(npy / "spoilt.npy", spoilt(features, 150, 0))
        with pytest.raises(FileFormatError, match=r"spoilt\.npy: features row 150 is the zero vector"):
            FeatureSet.load(npy / "spoilt.npy", **arguments)

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
    def test_other_errors_are_still_raised(self, tmp_path, changes, message):
        with pytest.raises(FileFormatError, match=rf"set\.npz: {message}"):
            FeatureSet.load(write_npz(tmp_path / "set.npz", **changes), normalize=True)

    def test_npy_is_copied_once_and_not_changed(self, npy):
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
