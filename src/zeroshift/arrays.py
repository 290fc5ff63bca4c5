"""NumPy arrays and torch tensors: conversion between them, and the checks of input at the public boundary.

The mathematics is written against the array API standard, so one implementation serves NumPy arrays and torch tensors
on any device. This module does not import torch: the library of a tensor is found from the tensor.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import array_api_compat
import array_api_compat.numpy
import numpy as np

__all__ = [
    "Array",
    "Backend",
    "BothRows",
    "Labelled",
    "Rows",
    "UnitLengthError",
    "as_array",
    "as_floats",
    "check_labels",
    "check_matrix",
    "checked_labelled",
    "is_array",
    "is_double",
    "namespace",
    "normalize",
    "to_numpy",
]

Array = Any
"""A NumPy array or a torch tensor. (No static type covers both; the functions below check at run time.)"""

UNIT_NORM_TOLERANCE = 1e-2
"""How far a row's length may be from 1: wide enough for unit vectors in bfloat16, too narrow for raw features."""

CHECK_ROWS, CHECK_ROWS_ON_GPU = 1024, 32_768
"""Rows checked together, few enough for a memory-mapped file larger than memory. A GPU is faster with larger blocks."""

ROUNDED_LENGTH = 1e-5
"""Above the rounding error of a length in float32."""


def namespace(*arrays: Array) -> Any:
    """The array-API namespace that the arrays share."""
    if len(arrays) > 1:
        return array_api_compat.array_namespace(*arrays)
    # It depends on the type only, and finding it takes longer than many small matrix products.
    kind = type(arrays[0])
    if kind not in _NAMESPACES:
        _NAMESPACES[kind] = array_api_compat.array_namespace(*arrays)
    return _NAMESPACES[kind]


_NAMESPACES: dict[type, Any] = {}


def is_array(value: object) -> bool:
    return array_api_compat.is_numpy_array(value) or array_api_compat.is_torch_array(value)


def is_double(array: Array) -> bool:
    """Whether the numbers have at least 64 bits, in any byte order; narrower floats are computed in float32."""
    return bool(array.dtype.itemsize >= 8)


def to_numpy(array: Array) -> np.ndarray:
    """The values as a NumPy array; the floats of torch that NumPy does not have become float32."""
    if array_api_compat.is_torch_array(array):
        array = array.detach().cpu().resolve_conj().resolve_neg()
        unknown = array.dtype == namespace(array).bfloat16 or (array.is_floating_point() and array.dtype.itemsize == 1)
        return (array.float() if unknown else array).numpy()
    return np.asarray(array)


@dataclass(frozen=True)
class Backend:
    """A library and a device: those of a method's state, or those of the caller's arrays."""

    xp: Any
    device: Any

    @classmethod
    def of(cls, array: Array) -> Backend:
        if isinstance(array, np.ndarray):
            return _NUMPY_BACKEND
        if array_api_compat.is_torch_array(array):
            return cls(namespace(array), array.device)
        return cls(namespace(array), array_api_compat.device(array))

    @classmethod
    def named(cls, library: str, device: str) -> Backend:
        """A library ("numpy" or "torch") and a device by name. Raises the library's own error if one is missing."""
        return cls.of(importlib.import_module(f"array_api_compat.{library}").empty(0, device=device))

    @property
    def library(self) -> str:
        return "torch" if array_api_compat.is_torch_namespace(self.xp) else "numpy"

    @property
    def on_gpu(self) -> bool:
        return getattr(self.device, "type", "cpu") == "cuda"

    def index(self, numbers: np.ndarray) -> Array:
        """Row or class numbers (a NumPy array) as an index for arrays of this library and device."""
        if self.library == "numpy":
            return numbers
        if self.device.type != "cuda":
            return self.xp.asarray(numbers, device=self.device)
        return self.xp.asarray(numbers).pin_memory().to(self.device, non_blocking=True)  # without waiting for the GPU

    def __reduce__(self) -> tuple[Any, ...]:
        # Modules cannot be copied or sent to another process; their names can.
        return Backend.named, (self.library, str(self.device))

    def asarray(self, array: Array, dtype: Any = None) -> Array:
        """`array` in this library, on this device, in `dtype` (default: its own, at least float32); it may alias."""
        if type(array) is np.ndarray and self is _NUMPY_BACKEND:
            return array.astype(dtype or (np.float64 if is_double(array) else np.float32), copy=False)
        wanted = dtype or (self.xp.float64 if is_double(array) else self.xp.float32)
        given = "torch" if array_api_compat.is_torch_array(array) else "numpy"
        if given != self.library:
            # A copy: torch must not get memory of the caller that it could write to.
            values = to_numpy(array)
            # Of the floats of NumPy, torch has neither those of the other byte order nor those above 64 bits.
            numbers = np.float64 if values.dtype.kind == "f" and is_double(values) else values.dtype.newbyteorder("=")
            return self.xp.asarray(np.array(values, numbers), dtype=wanted, device=self.device)
        if given == "torch":
            return array.detach().to(self.device, wanted)
        return self.xp.astype(array, wanted, copy=False)

    def computing(self) -> AbstractContextManager[Any]:
        """A context for the computation. With torch, whatever the caller's context: no gradients, no autocast, and no
        inference mode, whose tensors cannot be written to later."""
        if self.library == "numpy":
            return nullcontext()
        torch = sys.modules["torch"]
        # Entered only if they change something: together they take as long as a small product on a GPU.
        context = ExitStack()
        if torch.is_inference_mode_enabled():
            context.enter_context(torch.inference_mode(False))
        if torch.is_grad_enabled():
            context.enter_context(torch.no_grad())
        if torch.is_autocast_enabled(self.device.type):
            context.enter_context(torch.autocast(self.device.type, enabled=False))
        return context

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return self.xp.zeros(shape, dtype=dtype or self.xp.float64, device=self.device)

    def copy(self, array: Array) -> Array:
        return self.xp.asarray(array, copy=True)


_NUMPY_BACKEND = Backend(array_api_compat.numpy, "cpu")


def as_array(name: str, value: object) -> Array:
    """The argument `name` as a plain NumPy array or dense torch tensor, or a TypeError that names it and the fix.

    Of a data frame or series (pandas, or whatever has `to_numpy`) the values are taken, and its index is ignored.
    Nothing is copied unless the conversion needs it.
    """
    if type(value) is np.ndarray or type(value) is np.memmap:
        return value
    variable = name.split()[-1]
    if array_api_compat.is_torch_array(value):
        return _dense_tensor(name, variable, value)
    if isinstance(value, np.ma.MaskedArray | np.matrix):
        raise TypeError(
            f"{name} must be a plain array; got a {type(value).__name__}, which computes differently. "
            f"Fix: drop the masked rows, or numpy.asarray({variable})."
        )
    if isinstance(value, np.ndarray):
        return np.asarray(value)  # a subclass may compute differently, too
    if hasattr(value, "shape") and callable(getattr(value, "to_numpy", None)):
        return _frame_values(name, variable, value)
    whole = {"features": ".features", "prototypes": ".prototypes_for()"}.get(variable, "")
    fix = f"numpy.asarray({variable}, dtype='float32')"
    if whole and hasattr(value, "prototypes_for"):
        fix = f"{variable}{whole}"
    elif hasattr(value, "toarray"):
        fix = f"{variable}.toarray()"
    raise TypeError(f"{name} must be a NumPy array or a torch tensor; got {type(value).__name__}. Fix: {fix}.")


def _dense_tensor(name: str, variable: str, tensor: Any) -> Any:
    """The tensor, if it has values in memory, one number per entry."""
    problem = fix = None
    if tensor.is_nested:
        problem, fix = "a nested tensor", f"torch.stack(list({variable})), of rows of one length"
    elif tensor.layout is not sys.modules["torch"].strided:
        problem, fix = f"a tensor of layout {tensor.layout}", f"{variable}.to_dense()"
    elif tensor.is_quantized:
        problem, fix = f"a quantized tensor ({tensor.dtype})", f"{variable}.dequantize()"
    elif tensor.device.type == "meta":
        problem, fix = "a tensor on the meta device, which has no values", "load its values, on a CPU or a GPU"
    if problem is not None:
        raise TypeError(f"{name} must be a dense tensor with values; got {problem}. Fix: {fix}.")
    return tensor


def _frame_values(name: str, variable: str, frame: Any) -> np.ndarray:
    try:
        return np.asarray(frame.to_numpy())
    except Exception as error:  # whatever the library of the frame raises
        raise TypeError(
            f"{name} must be a NumPy array or a torch tensor; {type(frame).__name__}.to_numpy() raised "
            f"{type(error).__name__}: {error}. Fix: numpy.asarray({variable}, dtype='float32')."
        ) from error


def as_floats(name: str, value: object) -> Array:
    """`as_array`, and a TypeError unless the numbers are real floating-point ones of at least 16 bits."""
    array = as_array(name, value)
    dtype = array.dtype
    if isinstance(array, np.ndarray):
        if dtype.kind == "f":
            return array
    elif dtype.is_floating_point and dtype.itemsize > 1:
        if array.device.type == "mps":
            variable = name.split()[-1]
            raise TypeError(
                f"{name} is on an MPS device, which has no float64; statistics need it. Fix: {variable}.cpu()."
            )
        return array
    raise TypeError(
        f"{name} must hold floating-point numbers (float16, bfloat16, float32 or float64); got {_dtype_words(array)}. "
        f"Fix: {_floats_fix(name.split()[-1], array, value)}."
    )


def _dtype_words(array: Array) -> str:
    if isinstance(array, np.ndarray) and array.dtype.names is not None:
        return f"a structured array with the fields {', '.join(map(repr, array.dtype.names))}"
    return str(array.dtype)


def _floats_fix(variable: str, array: Array, given: Any) -> str:
    """How to convert an array of another type."""
    if not isinstance(array, np.ndarray):
        if array.dtype.is_complex:
            return f"{variable}.real, if the imaginary parts mean nothing"
        return f"{variable}.float()"
    kind = array.dtype.kind
    if array.dtype.names is not None:
        return f"numpy.lib.recfunctions.structured_to_unstructured({variable}), if every field is a number"
    if kind == "c":
        return f"{variable}.real, if the imaginary parts mean nothing"
    rows = kind == "O" and array.ndim == 1 and array.size and not isinstance(array[0], (str, bytes))
    if rows and hasattr(array[0], "__len__"):
        return f"numpy.stack({variable}).astype('float32'), if every entry is a row of numbers"
    if kind in "OUSMm" and hasattr(given, "select_dtypes"):
        return f"{variable}.select_dtypes('number'), without the columns that are not features"
    if kind in "OUS":
        return f"numpy.asarray({variable}, dtype='float32'), if every entry is a number"
    if kind in "Mm":
        return "pass features; these are dates or times"
    return f"{variable}.astype('float32')"


def check_matrix(
    name: str,
    value: object,
    *,
    columns: int | None = None,
    classes: int | None = None,
    unit: bool = True,
    empty: bool = False,
) -> Array:
    """`as_floats`; raises unless it is a matrix of finite rows; with `unit`, of rows of length 1. There must be rows,
    unless `empty` allows a batch of none.

    `columns` and `classes` are the d and K of the prototypes. If the matrix, or the prototypes, look transposed, the
    error says so.
    """
    array = as_floats(name, value)
    shape = tuple(array.shape)
    if len(shape) != 2:
        raise ValueError(f"{name} must have two dimensions (rows, d); got shape {shape}.")
    if (shape[0] == 0 and not empty) or shape[1] == 0:
        raise ValueError(f"{name} is empty (shape {shape}); at least one row and one column are needed.")
    if columns is not None and shape[1] != columns:
        advice = "Features and prototypes must come from the same encoder."
        if shape[1] == classes:
            advice = f"The prototypes, of shape {(classes, columns)}, look transposed. Fix: prototypes.T, (K, d)."
        elif shape[0] == columns:
            advice = f"They look transposed. Fix: {name.split()[-1]}.T, (N, d)."
        raise ValueError(
            f"{name} has d = {shape[1]} columns (shape {shape}), but the prototypes have d = {columns}. {advice}"
        )
    on_gpu = Backend.of(array).on_gpu
    if unit and on_gpu and _has_unit_rows(array):
        return array
    block_size = CHECK_ROWS_ON_GPU if on_gpu else CHECK_ROWS
    try:
        for start in range(0, shape[0], block_size):
            _check_rows(name, array[start : start + block_size], start, unit)
    except UnitLengthError:
        if shape[0] != shape[1] and _has_unit_columns(array, block_size):
            raise ValueError(
                f"{name} has shape {shape} and columns of unit length, but each row must be one vector of unit length: "
                f"it looks transposed. Fix: {name.split()[-1]}.T."
            ) from None
        raise
    return array


def _has_unit_rows(array: Array) -> bool:
    """Whether all rows on a GPU surely have unit length: one number from the device. NaN does not."""
    torch = sys.modules["torch"]
    if array.shape[0] == 0:
        return True
    lengths = torch.linalg.vector_norm(array, dim=1, dtype=torch.promote_types(array.dtype, torch.float32))
    return float((lengths - 1.0).abs_().amax()) <= UNIT_NORM_TOLERANCE - ROUNDED_LENGTH


def _has_unit_columns(array: Array, block_size: int) -> bool:
    squares = np.zeros(array.shape[1])
    for start in range(0, array.shape[0], block_size):
        block = to_numpy(array[start : start + block_size]).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            squares += np.sum(block * block, axis=0)
    return bool((np.abs(squares**0.5 - 1.0) <= UNIT_NORM_TOLERANCE).all())


def _check_rows(name: str, block: Array, start: int, unit: bool) -> None:
    if unit and block.shape[0] == 1 and type(block) is np.ndarray:
        wide = block[0].astype(np.float64, copy=False)
        if abs(float(wide @ wide) ** 0.5 - 1.0) <= UNIT_NORM_TOLERANCE:
            return  # otherwise, find out what is wrong below
    # One norm per row finds every error: NaN and inf remain in it, and zero and raw features do not have length 1.
    if array_api_compat.is_torch_array(block):
        torch = sys.modules["torch"]
        norms = to_numpy(torch.linalg.vector_norm(block, dim=1, dtype=torch.float64))
    else:
        wide = block.astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sum(wide * wide, axis=1) ** 0.5
    valid = np.abs(norms - 1.0) <= UNIT_NORM_TOLERANCE if unit else np.isfinite(norms) & (norms > 0)
    if valid.all():
        return
    row = int(np.argmin(valid))
    values = to_numpy(block[row])
    if np.isnan(values).any():
        raise ValueError(f"{name} row {start + row} holds NaN. Fix: drop the row or recompute its features.")
    if not np.isfinite(norms[row]):
        raise ValueError(
            f"{name} row {start + row} holds an infinite or overflowing value. "
            "Fix: drop the row or recompute its features."
        )
    if norms[row] == 0:
        raise ValueError(f"{name} row {start + row} is the zero vector, which has no direction. Fix: drop the row.")
    raise UnitLengthError(
        f"{name} row {start + row} has length {norms[row]:.4g}; every row must have unit length "
        f"(within {UNIT_NORM_TOLERANCE:g}). Fix: zeroshift.normalize({name.split()[-1]})."
    )


def check_labels(name: str, labels: object, *, rows: int, classes: int) -> np.ndarray:
    """Class indices as a NumPy int64 vector. Raises for a wrong length, non-integers and indices out of range."""
    variable = name.split()[-1]
    if isinstance(labels, (list, tuple)):
        values = _list_values(name, labels)
    elif is_array(labels) or hasattr(labels, "to_numpy"):
        if isinstance(labels, np.ma.MaskedArray):
            raise TypeError(
                f"{name} must be a plain vector; got a masked one. Fix: drop the rows whose label is not known."
            )
        values = to_numpy(as_array(name, labels))
    else:
        raise TypeError(f"{name} must be a vector of class indices; got {type(labels).__name__}.")
    if values.shape != (rows,):
        column = ".iloc[:, 0]" if hasattr(labels, "iloc") else "[:, 0]"
        fix = f" Fix: {variable}{column}." if values.shape == (rows, 1) and not isinstance(labels, list) else ""
        raise ValueError(f"{name} must have one entry per row, shape ({rows},); got shape {values.shape}.{fix}")
    if values.dtype.kind not in "iu":
        raise TypeError(
            f"{name} must hold integers (class indices 0 to {classes - 1}); got {_dtype_words(values)}. "
            f"Fix: {_integers_fix(variable, values)}."
        )
    outside = (values < 0) | (values >= classes)
    if outside.any():
        row = int(np.argmax(outside))
        raise ValueError(
            f"{name} row {row} is {values[row]}; class indices go from 0 to {classes - 1} for {classes} prototypes. "
            "Fix: check that labels and prototypes list the same classes in the same order, starting at 0."
        )
    return values.astype(np.int64)


def _list_values(name: str, labels: Sequence[Any]) -> np.ndarray:
    """A list or tuple as an array; NumPy's own messages do not name the argument."""
    try:
        return np.asarray(labels)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(
            f"{name} must be a flat list of class indices, one integer per row; got entries of different lengths or "
            f"kinds. Fix: [int(k) for k in {name.split()[-1]}], if every entry is one number."
        ) from error


def _integers_fix(variable: str, values: np.ndarray) -> str:
    """How to convert labels of another type to class indices."""
    kind = values.dtype.kind
    if kind == "f":
        if not np.isfinite(values).all():
            return "drop the rows whose label is NaN or infinite, then convert to integers"
        whole = bool((values == np.floor(values)).all())
        return f"numpy.asarray({variable}).astype(int)" if whole else "they are not class indices; check what they are"
    if kind == "b" or (kind == "O" and all(isinstance(value, (int, np.integer)) for value in values.tolist())):
        return f"numpy.asarray({variable}).astype(int)"
    if kind in "OUST":
        return f"[class_names.index(name) for name in {variable}]"
    return "they are not class indices; check what they are"


class UnitLengthError(ValueError):
    """Rows that do not have unit length, which `normalize` can fix."""


class Rows:
    """Checked features, in blocks of the method's own library, device and precision.

    Blocks are converted one at a time, so a memory-mapped file is never completely in memory.
    """

    def __init__(self, features: Array, backend: Backend, dtype: Any) -> None:
        self._features = features
        self._backend = backend
        self._dtype = dtype

    def __len__(self) -> int:
        return int(self._features.shape[0])

    @property
    def dtype(self) -> Any:
        """The precision of the blocks."""
        return self._dtype

    def astype(self, dtype: Any) -> Rows:
        """The same rows in another precision."""
        return Rows(self._features, self._backend, dtype)

    def wide(self) -> Rows:
        """The same rows in float64."""
        return self.astype(self._backend.xp.float64)

    def __getitem__(self, rows: slice) -> Array:
        return self._backend.asarray(self._features[rows], self._dtype)

    def take(self, rows: Array) -> Array:
        """The rows with these numbers."""
        source, numbers = Backend.of(self._features), rows
        if Backend.of(rows) != source:
            numbers = source.index(to_numpy(rows))
        return self._backend.asarray(self._features[numbers], self._dtype)

    def blocks(self, size: int, *, reuse: bool = False, within: slice | None = None) -> Iterator[tuple[slice, Array]]:
        """(rows, features) in order, `size` rows at a time; with `reuse` a block may overwrite the one before it, and
        with `within` only these rows are taken."""
        first, last = (0, len(self)) if within is None else (within.start, within.stop)
        convert = reuse and self._features.dtype != self._dtype and Backend.of(self._features) == self._backend
        buffer = (
            self._backend.zeros((min(size, last - first), self._features.shape[1]), self._dtype) if convert else None
        )
        for start in range(first, last, size):
            rows = slice(start, min(start + size, last))
            if buffer is None:
                yield rows, self[rows]
            else:
                block = buffer[: rows.stop - start]
                block[:] = self._features[rows]
                yield rows, block


class BothRows(Rows):
    """Rows of two encoders side by side."""

    def __init__(self, first: Rows, second: Rows) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, rows: slice) -> Array:
        first = self._first[rows]
        return Backend.of(first).xp.concat([first, self._second[rows]], axis=1)

    def take(self, rows: Array) -> Array:
        first = self._first.take(rows)
        return Backend.of(first).xp.concat([first, self._second.take(rows)], axis=1)

    def wide(self) -> BothRows:
        return BothRows(self._first.wide(), self._second.wide())

    def blocks(self, size: int, *, reuse: bool = False, within: slice | None = None) -> Iterator[tuple[slice, Array]]:
        return super().blocks(size, within=within)  # a new array every time, so there is no memory to reuse


def normalize(features: Array) -> Array:
    """Rows scaled to unit length, in the caller's library and device (half precision comes back as float32).

    >>> import numpy as np
    >>> normalize(np.array([[3.0, 4.0]]))
    array([[0.6, 0.8]])
    """
    features = as_floats("features", features)
    single = len(features.shape) == 1
    matrix = features[None, :] if single else features
    check_matrix("features", matrix, unit=False, empty=True)
    backend = Backend.of(matrix)
    with backend.computing():
        unit = backend.copy(backend.asarray(matrix))
        for start in range(0, matrix.shape[0], CHECK_ROWS):
            # In float64, in which the square of a float32 neither overflows nor underflows.
            wide = backend.asarray(matrix[start : start + CHECK_ROWS], backend.xp.float64)
            lengths = backend.xp.linalg.vector_norm(wide, axis=1, keepdims=True)
            unit[start : start + CHECK_ROWS] = backend.asarray(wide / lengths, unit.dtype)
    return unit[0] if single else unit


Labelled = tuple[Array, np.ndarray]
"""Unit-length features (n, d), and class indices (n,) as a NumPy array."""


def checked_labelled(name: str, pair: Any, prototypes: Array) -> Labelled:
    """The pair (features, labels) in the library of the prototypes. Features are copied. Errors mention `name`."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        given = f"a {type(pair).__name__} of {len(pair)}" if isinstance(pair, (tuple, list)) else type(pair).__name__
        fix = f"{name}=({name}.features, {name}.labels)" if hasattr(pair, "labels") else f"{name}=(features, labels)"
        raise TypeError(f"{name} must be a pair (features, labels); got {given}. Fix: {fix}.")
    features, labels = pair
    features = check_matrix(f"{name} features", features, columns=prototypes.shape[1], classes=prototypes.shape[0])
    labels = check_labels(f"{name} labels", labels, rows=features.shape[0], classes=prototypes.shape[0])
    backend = Backend.of(prototypes)
    return backend.copy(backend.asarray(features)), labels
