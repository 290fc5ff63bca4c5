"""Validation of the arguments of `FeatureSet`. Each function returns its argument in the form the set stores.

`normalize_fields` scales rows to unit length first, for arrays that are not normalised yet.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.arrays import (
    UNIT_NORM_TOLERANCE,
    Array,
    UnitLengthError,
    as_floats,
    check_matrix,
    normalize,
    to_numpy,
)
from zeroshift.parsers import parse_json

__all__ = [
    "UNNAMED_PROMPT",
    "blocks",
    "check_same_images",
    "check_view_zero",
    "normalize_fields",
    "read_only",
    "same_values",
    "validate_class_names",
    "validate_extra",
    "validate_extra_name",
    "validate_features",
    "validate_indices",
    "validate_prototypes",
    "validate_provenance",
    "validate_sample_names",
    "validate_views",
]

UNNAMED_PROMPT = "default"
"""The prompt mode of prototypes that were given without one."""

BLOCK_ENTRIES = 2**22
"""Numbers processed at a time (16 MiB of float32), so that a set larger than memory can be validated and scored."""

VIEW_ZERO_DISTANCE = 0.1
"""Largest distance of features from view 0: more than two half-precision runs differ by, less than two images do."""


def blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices that cover `rows` rows of `width` numbers, BLOCK_ENTRIES at a time."""
    step = max(1, BLOCK_ENTRIES // width)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def same_values(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two matrices of the same shape have the same values in the same precision."""
    return first.dtype == second.dtype and all(
        np.array_equal(first[rows], second[rows]) for rows in blocks(len(first), first.shape[1])
    )


def read_only(array: np.ndarray) -> np.ndarray:
    """A view of `array` that cannot be written to; `array` itself is not changed."""
    view: np.ndarray = array.view()
    view.flags.writeable = False
    return view


def _as_read_only_numpy(name: str, given: Array) -> np.ndarray:
    """A read-only NumPy view of `array` in a precision the file format supports; memory-mapped arrays stay mapped."""
    array = as_floats(name, given)
    if not isinstance(array, np.memmap):
        array = to_numpy(array)
    if array.dtype.itemsize > 8:
        raise TypeError(
            f"{name} must be float16, float32 or float64; got {array.dtype}. Fix: {name}.astype('float64')."
        )
    return read_only(array)


def normalize_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments with all rows (prototypes, views, features, extra) scaled to unit length, in new arrays."""
    scaled = dict(fields)
    prototypes = fields["prototypes"]
    if isinstance(prototypes, Mapping):
        scaled["prototypes"] = {
            mode: _unit_rows(f"prototypes[{mode!r}]", matrix) for mode, matrix in prototypes.items()
        }
    else:
        scaled["prototypes"] = _unit_rows("prototypes", prototypes)
    if fields.get("views") is not None:
        scaled["views"] = _unit_views(fields["views"])
    if fields.get("features") is not None:
        scaled["features"] = _unit_rows("features", fields["features"])
    if fields.get("extra"):
        scaled["extra"] = {name: _unit_rows(f"extra[{name!r}]", rows) for name, rows in fields["extra"].items()}
    return scaled


def _unit_rows(name: str, given: Array) -> np.ndarray:
    """`zeroshift.normalize` in blocks, so that a memory-mapped matrix is copied into memory only once."""
    matrix = _as_read_only_numpy(name, given)
    check_matrix(name, matrix, unit=False)
    scaled = np.empty(matrix.shape, np.promote_types(matrix.dtype, np.float32))
    for rows in blocks(*matrix.shape):
        scaled[rows] = normalize(matrix[rows].astype(scaled.dtype, copy=False))
    return scaled


def _unit_views(given: Array) -> np.ndarray:
    views = _as_views(given)
    scaled = np.empty(views.shape, np.promote_types(views.dtype, np.float32))
    for view in range(views.shape[1]):
        scaled[:, view] = _unit_rows(f"views[:, {view}]", views[:, view])
    return scaled


def validate_features(given: Array, n_classes: int, dimension: int) -> np.ndarray:
    """(N, d) unit rows with the prototypes' d; not copied."""
    features = _as_read_only_numpy("features", given)
    check_matrix("features", features, columns=dimension, classes=n_classes)
    return features


EXTRA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of extra features are also names of arrays in files, and typed on command lines."""


def validate_extra_name(name: object) -> str:
    """The name of extra features."""
    if not isinstance(name, str):
        raise TypeError(f"the name of extra features must be a string; got {name!r}. Fix: 'dinov2'.")
    if not EXTRA_NAME.fullmatch(name):
        fitting = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:100].lstrip("._-") or "second"
        raise ValueError(
            "the name of extra features must be 1 to 100 letters (a to z), digits, '.', '_' and '-', the first a "
            f"letter or digit; got {name!r}. Fix: {fitting!r}."
        )
    return name


def validate_extra(given: Mapping[str, Array], samples: int) -> dict[str, np.ndarray]:
    """(N, any d) unit rows of other encoders by name, in the order of the names; not copied."""
    if not isinstance(given, Mapping):
        raise TypeError(
            f"extra must be a mapping from names to arrays; got {type(given).__name__}. Fix: extra={{'dinov2': rows}}."
        )
    checked: dict[str, np.ndarray] = {}
    for name in sorted(map(validate_extra_name, given)):
        argument = f"extra[{name!r}]"
        rows = _as_read_only_numpy(argument, given[name])
        if rows.ndim == 2 and len(rows) != samples:
            raise ValueError(
                f"{argument} has {len(rows)} rows, but features has {samples}: one row for each image, in the same "
                "order. Fix: encode the same images with both encoders."
            )
        check_matrix(argument, rows)
        checked[name] = rows
    return checked


def check_same_images(ours: Any, theirs: Any, name: str) -> None:
    """Refuse a `FeatureSet` that cannot contain the same images in the same order, as far as numbers, labels and names
    of samples tell."""
    fix = "Fix: extract both from the same images, in the same order."
    if ours.n_samples != theirs.n_samples:
        raise ValueError(
            f"{name!r} has {theirs.n_samples} samples, but this set has {ours.n_samples}: they are not of the same "
            f"images. {fix}"
        )
    if ours.sample_names is not None and theirs.sample_names is not None:
        differing = (i for i in range(ours.n_samples) if ours.sample_names[i] != theirs.sample_names[i])
        if (row := next(differing, None)) is not None:
            raise ValueError(
                f"{name!r} calls sample {row} {theirs.sample_names[row]!r}, this set {ours.sample_names[row]!r}: they "
                f"are not the same images in the same order. {fix}"
            )
    if ours.labels is None or theirs.labels is None:
        return
    # Where both have the same names of classes, perhaps in another order, the names are compared.
    same_names = sorted(ours.class_names) == sorted(theirs.class_names)
    place = [ours.class_names.index(one) for one in theirs.class_names] if same_names else range(theirs.n_classes)
    wrong = np.asarray(place)[theirs.labels] != ours.labels
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"{name!r} has other labels than this set ({int(wrong.sum())} of {len(wrong)} differ, the first in row "
            f"{row}): they are not the same images in the same order. {fix}"
        )


def validate_prototypes(prototypes: Array | Mapping[str, Array]) -> dict[str, np.ndarray]:
    """Copies of the (K, d) matrices, all of one shape, by prompt mode in the order of the names."""
    by_mode = dict(prototypes) if isinstance(prototypes, Mapping) else {UNNAMED_PROMPT: prototypes}
    if not by_mode:
        raise ValueError("prototypes is an empty mapping; at least one prompt mode is needed.")
    if not all(isinstance(mode, str) and mode for mode in by_mode):
        raise ValueError(f"prototypes must be keyed by names of prompt modes; got the keys {list(by_mode)!r}.")
    for mode in by_mode:
        if any("\ud800" <= letter <= "\udfff" for letter in mode):
            raise ValueError(f"prototypes has the prompt mode {mode!r}, which is not valid text. Fix: rename it.")
    checked: dict[str, np.ndarray] = {}
    for mode in sorted(by_mode):
        name = f"prototypes[{mode!r}]" if isinstance(prototypes, Mapping) else "prototypes"
        matrix = _as_read_only_numpy(name, by_mode[mode])
        check_matrix(name, matrix)
        first = next(iter(checked), mode)
        if checked and matrix.shape != checked[first].shape:
            raise ValueError(
                f"{name} has shape {matrix.shape}, but prototypes[{first!r}] has shape {checked[first].shape}. "
                "Every prompt mode describes the same classes with the same encoder."
            )
        checked[mode] = read_only(np.array(matrix))
    return checked


def _as_views(given: Array) -> np.ndarray:
    views = _as_read_only_numpy("views", given)
    if views.ndim != 3 or 0 in views.shape:
        raise ValueError(f"views must have three dimensions (N, V, d), none of them 0; got shape {views.shape}.")
    return views


def validate_views(given: Array, dimension: int) -> np.ndarray:
    """(N, V, d) unit features with the prototypes' d; not copied."""
    views = _as_views(given)
    if views.shape[2] != dimension:
        raise ValueError(
            f"views has d = {views.shape[2]} (shape {views.shape}), but the prototypes have d = {dimension}. "
            "Views and prototypes must come from the same encoder."
        )
    for images in blocks(len(views), views.shape[1] * dimension):
        block = views[images].astype(np.promote_types(views.dtype, np.float32), copy=False)
        with np.errstate(over="ignore"):
            lengths = np.asarray(np.sqrt((block * block).sum(axis=2)))
        wrong = ~(np.abs(lengths - 1) <= UNIT_NORM_TOLERANCE)  # written so that NaN counts as wrong
        if wrong.any():
            image, view = (int(index) for index in np.argwhere(wrong)[0])
            raise _view_error(images.start + image, view, block[image, view], lengths[image, view])
    return views


def _view_error(image: int, view: int, values: np.ndarray, length: float) -> ValueError:
    where = f"views of image {image}, view {view},"
    if np.isnan(values).any():
        return ValueError(f"{where} contains NaN. Fix: drop the image or recompute its features.")
    if not np.isfinite(length):
        return ValueError(
            f"{where} contains an infinite or overflowing value. Fix: drop the image or recompute its features."
        )
    if not values.any():
        return ValueError(
            f"{where} is the zero vector, which has no direction. Fix: drop the image or recompute its features."
        )
    return UnitLengthError(
        f"{where} has length {length:.4g}; every view must have unit length (within {UNIT_NORM_TOLERANCE:g}). "
        "Fix: zeroshift.normalize(views.reshape(-1, d)).reshape(views.shape)."
    )


def check_view_zero(features: np.ndarray, views: np.ndarray) -> None:
    """Refuse features that differ from view 0, which is the unchanged image."""
    if len(features) != len(views):
        raise ValueError(
            f"features has {len(features)} rows, but views has {len(views)} images; they must be the same images."
        )
    for rows in blocks(len(features), features.shape[1]):
        difference = features[rows].astype(np.float32) - views[rows, 0].astype(np.float32)
        far = (difference * difference).sum(axis=1) > VIEW_ZERO_DISTANCE**2
        if far.any():
            row = rows.start + int(np.argmax(far))
            raise ValueError(
                f"features row {row} is not view 0 of image {row} in views; view 0 is the unchanged image. "
                "Fix: check that both list the same images in the same order, or omit features."
            )


def validate_class_names(class_names: Sequence[str] | None, n_classes: int) -> tuple[str, ...]:
    """One name per class, all different; "class 0", "class 1", ... if none are given."""
    if class_names is None:
        return tuple(f"class {k}" for k in range(n_classes))
    class_names = _listed(class_names)
    if isinstance(class_names, (str, bytes)):
        raise TypeError(f"class_names must be a sequence of names; got the single string {class_names!r}.")
    # A set has no order, and the keys of a mapping may be in another order than the prototypes.
    if not isinstance(class_names, Sequence) or isinstance(class_names, (bytearray, memoryview)):
        raise TypeError(
            "class_names must be a sequence of names, in the order of the prototypes; "
            f"got {_kind(class_names)}. Fix: list them in order."
        )
    names = list(class_names)
    for k, name in enumerate(names):
        if not isinstance(name, str):
            raise TypeError(f"class_names[{k}] must be a string; got {name!r}.")
        if not name.strip():
            raise ValueError(f"class_names[{k}] is empty; every class needs a name.")
    if len(names) != n_classes:
        raise ValueError(
            f"class_names has {len(names)} names, but the prototypes have {n_classes} rows: one name per row."
        )
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        places = "; ".join(f"{name!r} at {[k for k, other in enumerate(names) if other == name]}" for name in repeated)
        raise ValueError(
            f"class_names must differ from each other; repeated: {places}. Fix: merge or rename these classes."
        )
    return tuple(str(name) for name in names)


def _listed(names: Any) -> Any:
    """An array or series of text as a list; anything else unchanged."""
    if isinstance(names, type) or not (isinstance(names, np.ndarray) or callable(getattr(names, "to_numpy", None))):
        return names
    array = names if isinstance(names, np.ma.MaskedArray) else np.asarray(names)  # masked names are None
    return array.tolist() if array.ndim == 1 and array.dtype.kind in "UO" else names


def _kind(value: Any) -> str:
    dtype = f" of {value.dtype}" if isinstance(value, np.ndarray) else ""
    return f"{type(value).__name__}{dtype}"


def validate_sample_names(names: Sequence[str] | None, samples: int) -> tuple[str, ...] | None:
    """One string per sample; they may repeat."""
    if names is None:
        return None
    names = _listed(names)
    if isinstance(names, (str, bytes, bytearray, memoryview)) or not isinstance(names, Sequence):
        raise TypeError(f"sample_names must be a sequence of strings, one per sample; got {_kind(names)}.")
    if len(names) != samples:
        raise ValueError(f"sample_names has {len(names)} names, but there are {samples} samples: one name per sample.")
    for i, name in enumerate(names):
        if not isinstance(name, str):
            raise TypeError(f"sample_names[{i}] must be a string; got {name!r}.")
    return tuple(map(str, names))


def validate_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a mapping that can be written as JSON."""
    if not isinstance(provenance, Mapping):
        raise TypeError(f"provenance must be a mapping; got {type(provenance).__name__}.")
    try:
        # Through JSON and back: a deep copy, in the form it will have after `load`.
        return dict(parse_json(json.dumps(dict(provenance), allow_nan=False), "provenance"))
    except (TypeError, ValueError, RecursionError) as error:
        raise type(error)(
            f"provenance must be JSON-serialisable (strings, finite numbers, lists, mappings): {error}."
        ) from None


def validate_indices(indices: Array | Sequence[int], rows: int) -> np.ndarray:
    """Row numbers within `rows`, from integers or a mask."""
    try:
        values = to_numpy(indices)
    except (TypeError, ValueError, RuntimeError):  # lists of different lengths; tensors that are not dense
        values = np.array(None)
    if values.dtype == bool:
        if values.shape != (rows,):
            raise ValueError(
                f"indices as a mask must have shape ({rows},), one entry per sample; got shape {values.shape}."
            )
        return np.flatnonzero(values)
    if values.ndim != 1 or (values.dtype.kind not in "iu" and values.size):
        raise TypeError(
            f"indices must be a vector of integers, a mask or a slice; got shape {values.shape} of {values.dtype}."
        )
    outside = (values < -rows) | (values >= rows)
    if outside.any():
        raise IndexError(
            f"indices contains {values[np.argmax(outside)]}, but the set has {rows} samples (0 to {rows - 1})."
        )
    return values.astype(np.int64)
