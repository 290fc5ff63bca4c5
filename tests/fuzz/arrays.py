"""Arrays: every dtype, shape, layout, library and defect, as features, prototypes, labels and array parameters.

An array is either computed with, or refused by an error of ours that names the argument. A refused call changes
nothing, and no call changes its input.
"""

from __future__ import annotations

import decimal
import fractions
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fuzz.cases import METHODS, create, method_names
from fuzz.harness import fuzzed
from fuzz.oracles import array_bytes, assert_answer, assert_our_error, learned
from zeroshift import FeatureSet, normalize
from zeroshift.arrays import to_numpy
from zeroshift.method import ViewMethod

DTYPES = (
    "float64", "float32", "float16", ">f8", ">f4", "longdouble", "complex128", "complex64", "int64", "int8", "uint16",
    "bool", "object", "U5", "S3", "datetime64[s]", "timedelta64[ns]", "record",
)  # fmt: skip

TORCH_DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "int64", "uint8", "bool",
)  # fmt: skip

LAYOUTS = (
    "plain", "fortran", "strided", "reversed", "read-only", "broadcast", "mapped", "unaligned", "matrix", "masked",
    "recarray", "subclass",
)  # fmt: skip

TORCH_LAYOUTS = (
    "plain", "transposed", "strided", "expanded", "gradient", "inference", "sparse", "csr", "nested", "meta",
    "subclass", "negative", "quantized",
)  # fmt: skip

OBJECTS = (
    "list", "tuple", "nested tuple", "ragged", "None", "string", "bytes", "dict", "set", "generator", "number",
    "range", "frame", "series", "object with shape", "object with array", "broken array", "decimals",
    "fractions", "memoryview", "scipy sparse", "module", "type", "feature set",
)  # fmt: skip

DEFECTS = (
    "none",
    "none",
    "none",
    "nan",
    "inf",
    "-inf",
    "zero row",
    "long row",
    "short row",
    "huge",
    "tiny",
    "edge",
    "over",
)


@dataclass(frozen=True)
class Array:
    """Unit rows of some shape, then spoiled."""

    shape: tuple[int, ...]
    library: str = "numpy"
    dtype: str = "float64"
    layout: str = "plain"
    defect: str = "none"
    seed: int = 0

    def build(self, folder: Path) -> Any:
        values = self._values()
        if self.library == "object":
            return _as_object(self.layout, values)
        if self.library == "torch":
            return _as_tensor(values, self.dtype, self.layout)
        return _as_numpy(values, self.dtype, self.layout, folder)

    def _values(self) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        values = np.asarray(rng.normal(size=self.shape) + 0.5)
        if values.ndim and values.size:
            values = values / np.linalg.norm(values, axis=-1, keepdims=True)
            flat = values.reshape(-1, values.shape[-1])
            row, column = rng.integers(len(flat)), rng.integers(flat.shape[1])
            match self.defect:
                case "nan" | "inf" | "-inf":
                    flat[row, column] = float(self.defect)
                case "zero row":
                    flat[row] = 0
                case "long row":
                    flat[row] *= 3
                case "short row":
                    flat[row] *= 1e-3
                case "huge":
                    flat[row] *= 1e300
                case "tiny":
                    flat[row] *= 1e-320
                case "edge":
                    flat[row] *= 1.0099
                case "over":
                    flat[row] *= 1.0101
            values = flat.reshape(self.shape)
        return values


class Subclass(np.ndarray):
    """Computes something else than an array."""

    def __add__(self, other):
        return 0.0

    def __matmul__(self, other):
        return NotImplemented


class Duck:
    """Has the attributes it is given."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Frame:
    """A data frame as far as the library may look: pandas is not needed for the tests."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.shape = values.shape
        self.columns = self.index = range(values.shape[-1] if values.ndim else 0)
        self.dtypes = [values.dtype]

    def to_numpy(self, dtype: Any = None, **options: Any) -> np.ndarray:
        return self.values.astype(dtype) if dtype else self.values.copy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.to_numpy(dtype)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Any:
        raise KeyError(key)


class Series(Frame):
    def __init__(self, values: np.ndarray) -> None:
        super().__init__(values)
        self.dtype, self.name = values.dtype, "column"


class BrokenArray:
    shape = (2, 3)
    dtype = np.dtype("float64")

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("no array today")


def _as_numpy(values: np.ndarray, dtype: str, layout: str, folder: Path) -> Any:
    array: Any
    with np.errstate(all="ignore"):
        if dtype == "record":
            array = np.zeros(values.shape, dtype=[("x", "f8"), ("name", "U3")])
        elif dtype.startswith(("datetime", "timedelta")) or dtype in ("int64", "int8", "uint16"):
            array = np.nan_to_num(values).astype("int64").astype(dtype)
        else:
            array = values.astype(dtype)
    array = np.asarray(array)
    match layout:
        case "fortran":
            return np.asfortranarray(array)
        case "strided" if array.ndim:
            return np.repeat(array, 3, axis=0)[::3]
        case "reversed" if array.ndim:
            return array[::-1].copy()[::-1]
        case "read-only":
            array.flags.writeable = False
        case "broadcast" if array.ndim and len(array):
            return np.broadcast_to(array[:1], array.shape)
        case "mapped" if array.ndim and array.size and array.dtype.kind in "fiub":
            np.save(folder / "mapped.npy", array)
            return np.load(folder / "mapped.npy", mmap_mode="r")
        case "unaligned" if array.dtype.kind == "f" and array.ndim:
            store = np.zeros(array.nbytes + 1, np.uint8)
            moved = store[1:].view(array.dtype).reshape(array.shape)
            moved[...] = array
            return moved
        case "matrix" if array.ndim == 2:
            return np.asmatrix(array)
        case "masked":
            return np.ma.masked_array(array)
        case "recarray":
            return array.view(np.recarray)
        case "subclass":
            return array.view(Subclass)
    return array


def _as_tensor(values: np.ndarray, dtype: str, layout: str) -> Any:
    import torch

    with np.errstate(all="ignore"):
        tensor = torch.tensor(np.nan_to_num(values) if dtype in ("int64", "uint8") else values).to(
            getattr(torch, dtype)
        )
        match layout:
            case "transposed" if tensor.ndim == 2 and "float8" not in dtype:
                return tensor.T.contiguous().T
            case "strided" if tensor.ndim == 2:
                return torch.stack([tensor, tensor], dim=1)[:, 0]
            case "expanded" if tensor.ndim == 2 and len(tensor):
                return tensor[:1].expand(tensor.shape)
            case "gradient" if tensor.is_floating_point():
                return tensor.requires_grad_()
            case "inference":
                with torch.inference_mode():
                    return tensor.clone()
            case "sparse" if "float8" not in dtype and tensor.ndim:
                return tensor.to_sparse()
            case "csr" if tensor.ndim == 2 and dtype in ("float64", "float32") and tensor.numel():
                return tensor.to_sparse_csr()
            case "nested" if tensor.ndim == 2 and len(tensor) and dtype in ("float64", "float32"):
                return torch.nested.nested_tensor(list(tensor))
            case "meta":
                return tensor.to("meta")
            case "subclass" if tensor.is_floating_point():
                return torch.nn.Parameter(tensor)
            case "negative" if dtype == "complex64":
                return tensor.conj().imag
            case "quantized" if dtype == "float32":
                return torch.quantize_per_tensor(torch.nan_to_num(tensor, 0.0, 1.0, -1.0), 0.1, 0, torch.qint8)
        return tensor


def _as_object(kind: str, values: np.ndarray) -> Any:
    rows = values.tolist()
    match kind:
        case "list":
            return rows
        case "tuple":
            return tuple(rows) if isinstance(rows, list) else (rows,)
        case "nested tuple":
            return ((rows,), (rows,))
        case "ragged":
            return [rows, [rows]]
        case "string":
            return "features"
        case "bytes":
            return values.tobytes()
        case "dict":
            return {"features": values}
        case "set":
            return {1.0, 2.0}
        case "generator":
            return (row for row in [rows])
        case "number":
            return 0.5
        case "range":
            return range(3)
        case "frame":
            return Frame(values)
        case "series":
            return Series(values.reshape(-1))
        case "object with shape":
            return Duck(shape=values.shape, dtype="float64")
        case "object with array":
            return Duck(shape=values.shape, __array__=lambda: values)
        case "broken array":
            return BrokenArray()
        case "decimals":
            return [[decimal.Decimal("0.6"), decimal.Decimal("0.8")]]
        case "fractions":
            return [[fractions.Fraction(3, 5), fractions.Fraction(4, 5)]]
        case "memoryview":
            return memoryview(np.ascontiguousarray(values))
        case "scipy sparse":
            from scipy import sparse

            return sparse.csr_array(np.nan_to_num(values.reshape(1, -1)))
        case "module":
            return np
        case "type":
            return np.ndarray
        case "feature set":
            return FeatureSet(np.eye(2), prototypes=np.eye(2))
    return None


def arrays(*shapes: tuple[int, ...]) -> st.SearchStrategy[Array]:
    """Arrays of one of these shapes, or of another one."""
    others = st.lists(st.sampled_from([0, 1, 2, 3, 4, 5]), max_size=4).map(tuple)
    shape = st.one_of(st.sampled_from(shapes), st.sampled_from(shapes), others)
    seeds, defects = st.integers(0, 99), st.sampled_from(DEFECTS)
    numpy_arrays = st.builds(
        Array, shape, st.just("numpy"), st.sampled_from(DTYPES), st.sampled_from(LAYOUTS), defects, seeds
    )
    torch_arrays = st.builds(
        Array, shape, st.just("torch"), st.sampled_from(TORCH_DTYPES), st.sampled_from(TORCH_LAYOUTS), defects, seeds
    )
    objects = st.builds(Array, shape, st.just("object"), st.just("float64"), st.sampled_from(OBJECTS), defects, seeds)
    return st.one_of(numpy_arrays, torch_arrays, objects)


PROTOTYPES = Array((3, 4), seed=5)


def _prepared(name: str) -> Any:
    """A method that has learned something."""
    with tempfile.TemporaryDirectory() as folder:
        method = create(name, PROTOTYPES.build(Path(folder)))
        method.adapt(Array((6, 4), seed=7).build(Path(folder)))
    return method


@fuzzed(
    "arrays",
    100,
    name=method_names,
    call=st.sampled_from(["adapt", "predict", "adapt_scores", "predict_scores", "adapt_views"]),
    features=arrays((5, 4), (4,), (1, 4), (3, 2, 4)),
)
def features_are_computed_or_refused(name: str, call: str, features: Array) -> None:
    if call == "adapt_views" and not issubclass(METHODS[name], ViewMethod):
        return
    method = _prepared(name)
    with tempfile.TemporaryDirectory() as folder:
        given = features.build(Path(folder))
        bytes_before, before = array_bytes(given), learned(method)
        try:
            answer = getattr(method, call)(given)
        except Exception as error:
            assert_our_error(error, "features", "views", "images")
            assert learned(method) == before, f"{name}.{call} was refused, and changed the state"
        else:
            if not call.endswith("scores"):
                single = len(answer.shape) == 1
                rows = answer[None] if single else answer
                assert_answer(rows, rows.shape[0], 3, f"{name}.{call}", tolerance=1e-5)
        assert array_bytes(given) == bytes_before, f"{name}.{call} changed its input"


@fuzzed("arrays", 60, name=method_names, prototypes=arrays((3, 4), (1, 1), (4, 2)))
def prototypes_are_computed_with_or_refused(name: str, prototypes: Array) -> None:
    with tempfile.TemporaryDirectory() as folder:
        given = prototypes.build(Path(folder))
        before = array_bytes(given)
        # The arrays and models that the method needs besides are made for prototypes of the same shape.
        plain = Array(prototypes.shape if len(prototypes.shape) == 2 and 0 not in prototypes.shape else (3, 4))
        others = create(name, plain.build(Path(folder))).get_params()
        try:
            method = METHODS[name](**{**others, "prototypes": given})
        except Exception as error:
            assert_our_error(error, "prototypes")
        else:
            k, d = method.prototypes.shape
            features = Array((4, d), seed=3).build(Path(folder))
            assert_answer(method.adapt(features), 4, k, name, tolerance=1e-5)
        assert array_bytes(given) == before, f"{name} changed its prototypes"


ARRAY_PARAMETERS = tuple(
    (name, parameter)
    for name, cls in METHODS.items()
    for parameter in cls.array_parameters
    if parameter != "prototypes"
)

values_of_parameters = st.one_of(
    arrays((6, 4), (3, 2, 4)),
    st.tuples(arrays((6, 4)), arrays((6,))),
    st.tuples(arrays((6, 4)), st.lists(st.integers(-1, 4), min_size=5, max_size=7)),
    st.lists(arrays((2, 4)), max_size=3),
)


@fuzzed("arrays", 60, chosen=st.sampled_from(ARRAY_PARAMETERS), value=values_of_parameters)
def array_parameters_are_computed_with_or_refused(chosen: tuple[str, str], value: Any) -> None:
    name, parameter = chosen
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        given = _built(value, path)
        others = create(name, PROTOTYPES.build(path)).get_params()
        try:
            method = METHODS[name](**{**others, parameter: given})
        except Exception as error:
            assert_our_error(error, parameter)
        else:
            assert_answer(
                method.adapt(Array((4, 4), seed=3).build(path)), 4, 3, f"{name} with {parameter}", tolerance=1e-5
            )


def _built(value: Any, folder: Path) -> Any:
    if isinstance(value, Array):
        return value.build(folder)
    if isinstance(value, (tuple, list)):
        return type(value)(_built(item, folder) for item in value)
    return value


@fuzzed("arrays", 60, features=arrays((5, 4), (4,)))
def normalized_rows_have_unit_length(features: Array) -> None:
    with tempfile.TemporaryDirectory() as folder:
        given = features.build(Path(folder))
        before = array_bytes(given)
        try:
            unit = to_numpy(normalize(given))
        except Exception as error:
            assert_our_error(error, "features")
        else:
            lengths = np.linalg.norm(unit.astype(np.float64), axis=-1)
            assert np.abs(lengths - 1).max(initial=0) < 1e-5, f"rows have the lengths {lengths}"
        assert array_bytes(given) == before, "normalize changed its input"


FIELDS = {
    "features": arrays((5, 4)),
    "prototypes": st.one_of(
        arrays((3, 4)),
        st.dictionaries(st.one_of(st.text(max_size=3), st.none(), st.integers()), arrays((3, 4)), max_size=2),
    ),
    "labels": st.one_of(arrays((5,)), st.lists(st.integers(-1, 3), min_size=4, max_size=6), st.just([[0], [1, 2]])),
    "class_names": st.one_of(
        st.lists(st.one_of(st.text(max_size=4), st.none(), st.integers()), max_size=4),
        st.text(max_size=3),
        arrays((3,)),
    ),
    "logit_scale": st.one_of(st.floats(), st.integers(), st.text(max_size=3), st.none(), arrays((), (1,))),
    "default_prompt": st.one_of(st.text(max_size=3), st.integers(), arrays((2,))),
    "views": arrays((5, 2, 4), (5, 1, 4)),
    "sample_names": st.one_of(
        st.lists(st.one_of(st.text(max_size=4), st.none()), min_size=4, max_size=6), arrays((5,))
    ),
    "provenance": st.one_of(
        st.dictionaries(
            st.one_of(st.text(max_size=2), st.integers()), st.one_of(st.floats(), st.text(max_size=2)), max_size=2
        ),
        arrays((2,)),
    ),
}


one_field = st.one_of([st.tuples(st.just(name), values) for name, values in FIELDS.items()])


@fuzzed("arrays", 80, given_field=one_field)
def feature_sets_are_valid_or_refused(given_field: tuple[str, Any]) -> None:
    field, value = given_field
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        fields = {
            "features": Array((5, 4)).build(path),
            "prototypes": PROTOTYPES.build(path),
            "labels": [0, 1, 2, 0, 1],
        }
        given = _built(value, path) if not isinstance(value, dict) else {k: _built(v, path) for k, v in value.items()}
        before = array_bytes(given)
        try:
            made = FeatureSet(**{**fields, field: given})
        except Exception as error:
            # Features and labels of different lengths: the message may name either.
            assert_our_error(error, *(("features", "labels") if field == "features" else (field,)))
        else:
            for matrix in (made.features, *made.prototypes.values(), *([] if made.views is None else made.views)):
                assert matrix.dtype.str[1:] in ("f2", "f4", "f8"), f"a matrix is stored as {matrix.dtype.str}"
                assert np.abs(np.linalg.norm(matrix.astype(float), axis=1) - 1).max() < 0.011, "rows of another length"
            assert made.n_classes == len(made.prototypes_for())
            assert np.isfinite(made.logit_scale)
            made.save(path / "set.safetensors")
            again = FeatureSet.load(path / "set.safetensors", check=False)
            assert again.class_names == made.class_names
            assert again.sample_names == made.sample_names
            assert np.array_equal(again.features, made.features), "saved and loaded features differ"
        assert array_bytes(given) == before, f"{field} was changed"
