"""Feature sets to test with, and how two of them are compared."""

from __future__ import annotations

import warnings

import numpy as np
from hypothesis import strategies as st

from zeroshift.features import FeatureSet
from zeroshift.files import FileFormatError

NAN, INF = float("nan"), float("inf")


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
    assert list(first.extra) == list(second.extra)
    for name, rows in first.extra.items():
        assert rows.dtype == second.extra[name].dtype
        np.testing.assert_array_equal(rows, second.extra[name])
    for name in ("default_prompt", "class_names", "logit_scale", "provenance"):
        assert getattr(first, name) == getattr(second, name), name


@st.composite
def feature_sets(draw) -> FeatureSet:
    n, k, d, v = (draw(st.integers(1, 5)) for _ in range(4))
    dtype = draw(st.sampled_from(["float16", "float32", "float64"]))
    modes = draw(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=3, unique=True))
    names = draw(st.lists(st.text(min_size=1).filter(str.strip), min_size=k, max_size=k, unique=True))
    views = unit(n, v, d, dtype=dtype) if draw(st.booleans()) else None
    others = draw(st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True), max_size=2, unique=True))
    return FeatureSet(
        unit(n, d, dtype=dtype) if views is None else None,
        prototypes={mode: unit(k, d, seed=seed) for seed, mode in enumerate(modes)},
        labels=draw(st.none() | st.lists(st.integers(0, k - 1), min_size=n, max_size=n)),
        class_names=names,
        logit_scale=draw(st.floats(1e-3, 1e3)),
        default_prompt=draw(st.sampled_from(modes)),
        views=views,
        extra={name: unit(n, seed + 1, seed=seed, dtype=dtype) for seed, name in enumerate(others)},
        provenance=draw(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text()))),
    )


def write_npz(path, **changes):
    arrays = {"features": unit(6, 4), "prototypes": unit(3, 4), **changes}
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


def assert_refused_or_unchanged(path, **arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            features = FeatureSet.load(path, **arguments).features
        except FileFormatError as error:
            refusal = str(error)
        else:
            np.testing.assert_array_equal(features, unit(6, 4))
            return
    assert str(path) in refusal
