"""Save and load methods: one safetensors file of arrays with a versioned JSON header. Never pickle: it can run code.

The header describes the contents (method, parameters, number of classes, dimension, dtype, library, schema version), so
that a file can be inspected, rejected with a reason, or read years later. Header and arrays have checksums. What a file
contains is checked as well, since files of schema version 1 have no checksums and anyone can write one: types, shapes,
finite numbers, and what the declarations of the state say (`state(..., check=...)`).
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from zeroshift import tensor_files
from zeroshift._version import __version__
from zeroshift.arrays import Backend, to_numpy
from zeroshift.files import FileFormatError, checked_path
from zeroshift.installation import install_command
from zeroshift.older_states import as_written_now
from zeroshift.tensor_files import UnverifiedFileWarning, read_tensors, unverified_note, write_tensors

if TYPE_CHECKING:
    from zeroshift.method import Method

__all__ = ["STATE_SCHEMA", "load", "pack", "read_header", "restoring", "save", "unpack", "without_retired"]

if TYPE_CHECKING:
    M = TypeVar("M", bound=Method)


STATE_SCHEMA = 2
"""Increased when earlier versions cannot read the files written now."""

KIND = "state"

COUNTS_ROUNDS = ("iterations", "rounds", "steps", "epochs")
"""Ends of the names of parameters that say how often something is repeated."""

MOST_ROUNDS = 10_000
"""Largest value of such a parameter in a file."""

RETIRED = ("precision", "ordered_weight", "spread_samples")
"""Parameters of methods of earlier versions, without which they continue from what they learned; files may name them.
"""

_restoring: ContextVar[bool] = ContextVar("restoring", default=False)


def restoring() -> bool:
    """Whether the method being made is one whose state is loaded next: then it need not train what the file has."""
    return _restoring.get()


def save(method: Method, path: str | os.PathLike[str]) -> None:
    arrays, values = method._state()
    tensors = {f"state/{name}": to_numpy(array) for name, array in arrays.items()}
    parameters: dict[str, Any] = {}
    models: dict[str, Any] = {}
    for name, value in method.get_params().items():
        if name in method.model_parameters:
            models[name] = None if value is None else value.identity
        elif name not in method.array_parameters:
            parameters[name] = value
        elif isinstance(value, tuple):
            tensors |= {f"parameter/{name}/{i}": to_numpy(item) for i, item in enumerate(value)}
        elif value is not None:
            tensors[f"parameter/{name}"] = to_numpy(value)
    backend = Backend.of(method.prototypes)
    header = {
        "kind": KIND,
        "schema": STATE_SCHEMA,
        "zeroshift": __version__,
        "method": method.name,
        "parameters": parameters,
        **({"models": models} if models else {}),
        "values": {**values, "n_seen": method.n_seen},
        "classes": method.n_classes,
        "dimension": method.dimension,
        "dtype": str(to_numpy(method.prototypes).dtype),
        "library": backend.library,
        "device": str(backend.device),
    }
    write_tensors(path, tensors, header)


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a state file."""
    return tensor_files.read_header(checked_path(path), kind=KIND, schema=STATE_SCHEMA)


def load(
    cls: type[M],
    path: str | os.PathLike[str],
    *,
    library: str | None,
    device: str | None,
    changes: Mapping[str, Any],
) -> M:
    if not hasattr(cls, "name"):
        raise TypeError(
            f"{cls.__name__} is a base class without a name. Fix: zeroshift.methods.load(path) selects the class."
        )
    tensors, header = read_tensors(checked_path(path), kind=KIND, schema=STATE_SCHEMA)
    if header.get("method") != cls.name:
        raise FileFormatError(
            f"{path} contains the state of the method {header.get('method')!r}, not of {cls.name!r} ({cls.__name__}). "
            "Fix: zeroshift.methods.load(path) selects the right class."
        )
    _check_header(path, header)
    with _errors_of_content(path):
        tensors = as_written_now(getattr(cls, "wrapped", cls).name, tensors)  # a filter adds arrays of its own
    _check_parameters(cls, path, header)
    models = _models(cls, path, header, changes)
    changes = {name: value for name, value in changes.items() if name not in models}
    for name in changes:
        if name not in cls.reload_parameters:
            allowed = ", ".join((*cls.model_parameters, *cls.reload_parameters)) or "none"
            raise TypeError(
                f"{name} cannot be changed by {cls.__name__}.load (allowed: {allowed}): "
                "the saved state was learned with the saved value."
            )
    _check_sizes(cls, path, header["parameters"], tensors)
    if "checksum" not in header:
        warnings.warn(unverified_note(path), UnverifiedFileWarning, stacklevel=3)
    same_library = library in (None, header["library"])
    saved_device = header["device"] if same_library else "cpu"
    try:
        backend = _backend(path, library or header["library"], device or saved_device)
    except ValueError as error:
        if library is None and device is None:
            raise FileFormatError(str(error)) from error
        raise
    converted = {name: backend.xp.asarray(array, device=backend.device, copy=True) for name, array in tensors.items()}
    arrays: dict[str, Any] = {}
    state: dict[str, Any] = {}
    for name in sorted(converted, key=_numbered):
        group, _, rest = name.partition("/")
        if group == "state":
            state[rest] = converted[name]
        elif "/" in rest:
            arrays[rest.split("/")[0]] = (*arrays.get(rest.split("/")[0], ()), converted[name])
        else:
            arrays[rest] = converted[name]
    for name, value in changes.items():
        cls.constraints[name].check(name, value)
    # A file that was edited or damaged must fail here, not later in the middle of a stream.
    token = _restoring.set(True)
    try:
        with _errors_of_content(path):
            method = cls(**arrays, **models, **header["parameters"])
        if changes:
            # An error here is about the caller's values, not about the file, so it is raised as it is.
            method = cls(**arrays, **models, **{**header["parameters"], **changes})
    finally:
        _restoring.reset(token)
    with _errors_of_content(path):
        if (method.n_classes, method.dimension) != (header["classes"], header["dimension"]):
            raise ValueError(f"prototypes of {method.n_classes} classes in d = {method.dimension}")
        method.n_seen = _checked_count("n_seen", header["values"]["n_seen"])
        _check_arrays(state, method._state()[0])
        with backend.computing():
            method._restore(state, header["values"])
    return method


@contextmanager
def _errors_of_content(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever the content of a file leads to is an error that names the file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError, MemoryError) as error:
        raise FileFormatError(
            f"{path} does not contain the state that its header describes: {str(error).rstrip('.')}. "
            "Fix: copy or save it again."
        ) from error


def _check_header(path: str | os.PathLike[str], header: Mapping[str, Any]) -> None:
    for key, kind in {"parameters": dict, "values": dict, "library": str, "device": str}.items():
        if not isinstance(header.get(key), kind) or (kind is str and len(header[key]) > 100):
            raise FileFormatError(f"{path} has a header without a valid {key!r}. Fix: copy or save it again.")
    if not isinstance(header.get("models", {}), dict):
        raise FileFormatError(f"{path} has a header without valid 'models'. Fix: copy or save it again.")
    if header["library"] not in ("numpy", "torch"):
        raise FileFormatError(
            f"{path} has the library {header['library']!r}; it must be 'numpy' or 'torch'. Fix: copy or save it again."
        )


def without_retired(cls: type[Method], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Stored parameters of a method, without those that earlier versions had."""
    return {name: one for name, one in parameters.items() if name not in RETIRED or name in cls.declared_parameters}


def _check_parameters(cls: type[M], path: str | os.PathLike[str], header: dict[str, Any]) -> None:
    """Leave out retired parameters. Refuse the state of a method whose parameters were others: what it learned means
    something else."""
    header["parameters"] = without_retired(cls, header["parameters"])
    unknown = [repr(name) for name in header["parameters"] if name not in cls.declared_parameters]
    if unknown:
        raise FileFormatError(
            f"{path} was saved by an older or newer version of zeroshift: {cls.__name__} had the parameter(s) "
            f"{', '.join(unknown)}, which it does not have in this version ({__version__}), so that what was learned "
            "does not fit. Fix: adapt again with this version and save, or load it with the version that saved it."
        )


def _check_sizes(
    cls: type[M], path: str | os.PathLike[str], parameters: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> None:
    """Refuse parameters that ask for more memory than the state in the file takes, before any is allocated, and for
    more rounds than anybody waits for."""
    arrays = [array for name, array in tensors.items() if name.startswith("state/") and array.size]
    longest = max((length for array in arrays for length in array.shape), default=0)
    for name, declared in cls.declared_parameters.items():
        value = parameters.get(name)
        if declared.sizes_state and isinstance(value, int | float) and value > longest:
            raise FileFormatError(
                f"{path} does not contain the state that its header describes: with {name} = {value} an array has that "
                f"many entries, but the largest has {longest}. Fix: copy or save it again."
            )
        if name.endswith(COUNTS_ROUNDS) and isinstance(value, int | float) and value > MOST_ROUNDS:
            raise FileFormatError(
                f"{path} has {name} = {value}; of a file, at most {MOST_ROUNDS:,} are accepted, because more may take "
                "forever. Fix: adapt again with fewer, and save."
            )


def _checked_count(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{name} must be an integer from 0 to 2**63 - 1; it is {value!r}.")
    return value


def pack(value: Any, name: str, arrays: dict[str, Any], values: dict[str, Any], backend: Backend) -> None:
    """Add one piece of state to the arrays and JSON values of a state file, under `name`.

    The parts of a named tuple, and of an object with `state()`, get `name` as a prefix; with `name=""` they get none.
    """
    if hasattr(value, "_asdict"):
        for part, item in value._asdict().items():
            pack(item, _joined(name, part), arrays, values, backend)
    elif hasattr(value, "state"):
        own_arrays, own_values = value.state()
        for part, array in own_arrays.items():
            pack(array, _joined(name, part), arrays, values, backend)
        if own_values:
            values.update({name: own_values} if name else own_values)
    elif isinstance(value, np.ndarray) and backend.library != "numpy":
        arrays[name] = backend.xp.asarray(value, device=backend.device, copy=True)  # kept on the host by the method
    elif hasattr(value, "shape"):
        arrays[name] = value
    else:
        values[name] = value


def unpack(fresh: Any, name: str, arrays: Mapping[str, Any], values: Mapping[str, Any], *, grows: bool = False) -> Any:
    """The piece of state that `pack` stored under `name`. `fresh`, its initial value, says what it must look like."""
    if hasattr(fresh, "_asdict"):
        parts = (
            unpack(item, _joined(name, part), arrays, values, grows=grows) for part, item in fresh._asdict().items()
        )
        return type(fresh)(*parts)
    if hasattr(fresh, "restore"):
        prefix = f"{name}_" if name else ""
        own = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
        own_values = values.get(name, {}) if name else values
        if not isinstance(own_values, Mapping):
            raise ValueError(f"{name} is {own_values!r}, not an object with the values of its parts")
        restored = fresh.restore(own, own_values)
        return fresh if restored is None else restored
    if hasattr(fresh, "shape"):
        array = arrays[name]
        skip = 1 if grows else 0
        if tuple(array.shape)[skip:] != tuple(fresh.shape)[skip:]:
            raise ValueError(f"{name} has shape {tuple(array.shape)}, not {tuple(fresh.shape)}")
        return to_numpy(array).astype(fresh.dtype) if isinstance(fresh, np.ndarray) else array
    value = values[name]
    if not isinstance(fresh, bool | int | float):
        return value
    fits = isinstance(value, bool | int | float) and (isinstance(fresh, float) or value % 1 == 0)
    if not fits or (isinstance(fresh, bool) and value not in (0, 1)):
        raise ValueError(f"{name} is {value!r}; its type must be {type(fresh).__name__}")
    return type(fresh)(value)


def _joined(name: str, part: str) -> str:
    return f"{name}_{part}" if name else part


def _models(
    cls: type[M], path: str | os.PathLike[str], header: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The models the method computes with. The file contains only their identity; the caller must pass them."""
    saved, models = header.get("models", {}), {}
    for name in cls.model_parameters:
        if name not in given and saved.get(name) is not None:
            raise TypeError(
                f"{path} does not contain the model {name}, only its identity: {saved[name]}. "
                f"Fix: {cls.__name__}.load(path, {name}=...), with the model it was saved with."
            )
        if name not in given:
            continue
        models[name] = cls.constraints[name].check(name, given[name])
        identity = None if models[name] is None else json.loads(json.dumps(models[name].identity))
        if identity != saved.get(name):
            raise ValueError(
                f"{name} is {identity}, but {path} was saved with {saved.get(name)}: the state would not fit. "
                f"Fix: pass the {name} it was saved with."
            )
    return models


def _check_arrays(state: Mapping[str, Any], fresh: Mapping[str, Any]) -> None:
    """Check that every array of a new method is present with the same dtype, and that the squares of all numbers are
    finite: a single number that is far too large would make every answer NaN."""
    for name, own in fresh.items():
        if name not in state:
            raise ValueError(f"the array {name!r} is missing")
        if state[name].dtype != own.dtype:
            raise ValueError(f"the array {name!r} holds {state[name].dtype}, not {own.dtype}")
    for name, array in state.items():
        numbers = to_numpy(array)
        limit = np.finfo(numbers.dtype).max ** 0.5 if numbers.dtype.kind == "f" else np.inf
        if numbers.size and not (numbers.min() > -limit and numbers.max() < limit):
            raise ValueError(f"the array {name!r} holds NaN, infinity or a number that is far too large")


def _numbered(name: str) -> tuple[str, int]:
    """Sorts parameter/support/2 before parameter/support/10."""
    head, _, tail = name.rpartition("/")
    return (head, int(tail)) if tail.isdigit() else (name, 0)


def _backend(path: str | os.PathLike[str], library: str, device: str) -> Backend:
    if library not in ("numpy", "torch"):
        raise ValueError(f"library must be 'numpy' or 'torch'; got {library!r}.")
    try:
        return Backend.named(library, device)
    except ImportError as error:
        raise ImportError(
            f"{path} is to be loaded into torch, which is not installed. Fix: {install_command('torch')}, "
            "or load it into NumPy with library='numpy'."
        ) from error
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ValueError(
            f"{path} cannot be loaded: the device {device!r} is not available for {library} ({error}). "
            "Fix: pass device='cpu', or library='torch' for a device NumPy does not have."
        ) from error
