"""Feature sets as files: .safetensors written and read, .npz and .npy read. What is read comes back unchecked.

A file becomes the dictionary of arguments that `FeatureSet` is made with; whether they fit together, `FeatureSet` says.
"""

from __future__ import annotations

import json
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.files import FileFormatError, read_tensors, write_tensors
from zeroshift.parameters import Number

__all__ = ["FEATURES_SCHEMA", "BesideError", "read_set", "write_set"]

FEATURES_SCHEMA = 1
"""Version of the .safetensors layout; raised when an older zeroshift could not read the new one."""

BAD_FILE_ERRORS = (
    *(ValueError, KeyError, EOFError, OSError, RuntimeError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
"""What NumPy and the standard library raise, between them, over .npy and .npz files that are damaged."""

NPZ_KEYS = ("features", "view_features", "labels", "prototypes", "class_names", "logit_scale", "meta")
"""What is read from an .npz file, beside `prototypes_<mode>`; it may hold more."""


class BesideError(ValueError):
    """An argument that does not go with the file: missing beside it, or held by it already.

    `said_with` gives the message with the arguments named as the caller's user knows them.
    """

    def __init__(self, said_with: Callable[[Callable[..., str]], str]) -> None:
        self.said_with = said_with
        super().__init__(said_with(_as_argument))

    def __reduce__(self) -> tuple[Any, ...]:
        # A function made on the spot cannot be sent to another process; the message can.
        return ValueError, (str(self),)


def _as_argument(name: str, value: str = "") -> str:
    return f"{name}={value!r}" if value else name


def write_set(
    path: str | os.PathLike[str],
    *,
    features: np.ndarray | None,
    views: np.ndarray | None,
    labels: np.ndarray | None,
    sample_names: Sequence[str] | None,
    prototypes: Mapping[str, np.ndarray],
    **header: Any,
) -> None:
    """Write one .safetensors file: the arrays that are not None, and the rest of the set as its header."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(
            f"path must end in .safetensors, the format a feature set is saved in; got {str(path)!r}. "
            f"Fix: save to {str(path.with_suffix('.safetensors'))!r}."
        )
    arrays = {f"prototypes_{mode}": matrix for mode, matrix in prototypes.items()}
    for name, array in (("features", features), ("view_features", views), ("labels", labels)):
        if array is not None:
            arrays[name] = array
    if sample_names is not None:
        # As an array of bytes: in the header, whoever only wants to know what the set is would read them all.
        arrays["sample_names"] = np.frombuffer(json.dumps(list(sample_names)).encode(), np.uint8)
    write_tensors(path, arrays, {"kind": "features", "schema": FEATURES_SCHEMA, **header})


def read_set(path: Path, **beside: Any) -> dict[str, Any]:
    """Constructor arguments from a file of any of the three kinds; `beside` is what the file does not hold."""
    if path.suffix not in (".safetensors", ".npz", ".npy"):
        raise FileFormatError(
            f"{path} has the suffix {path.suffix!r}; feature sets are read from .safetensors, .npz and .npy files. "
            "Fix: save it as one of those."
        )
    _check_is_file(path)
    beside = {name: value for name, value in beside.items() if value is not None}
    if path.suffix == ".npy":
        return _read_npy_set(path, **beside)
    if path.suffix == ".npz":
        return _read_npz_set(path, beside)
    _refuse_held(path, list(beside), f"a {path.suffix} file holds its own")
    return _read_safetensors_set(path)


def _refuse_held(path: Path, names: Sequence[str], why: str) -> None:
    """Two answers to one question: the file's or the argument's could be meant, so neither is taken."""
    if names:
        raise BesideError(
            lambda named: (
                f"{', '.join(map(named, names))} cannot be passed with {path.name}: {why}. "
                "Fix: leave it out, or pass the features as an .npy file."
            )
        )


def _check_is_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}. Fix: check the path.")


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Turns what is raised over a bad file into one error that names the file and the fix."""
    try:
        yield
    except (FileFormatError, BesideError, PermissionError):
        raise
    except BAD_FILE_ERRORS as error:
        if "Object arrays" in str(error) or "Python objects" in str(error):
            raise FileFormatError(
                f"{path}: {what} is an object array, which is not read because reading one can run code. "
                "Fix: save numbers as numpy.asarray(x, dtype='float32') and names as numpy.array(names, dtype=str)."
            ) from error
        raise FileFormatError(
            f"{path}: {what} cannot be read ({error}). Fix: the file may be truncated; write or copy it again."
        ) from error


def _named_arrays(path: Path, arrays: Mapping[str, np.ndarray], keys: Sequence[str]) -> dict[str, Any]:
    """Constructor arguments from `arrays`, named alike in .safetensors and .npz files; `keys` is all the file holds."""
    prototypes = {
        key.removeprefix("prototypes_"): array for key, array in arrays.items() if key.startswith("prototypes_")
    }
    if "prototypes" in arrays:
        if "default" in prototypes:
            raise FileFormatError(
                f"{path} has both prototypes and prototypes_default, which mean the same. Fix: keep one."
            )
        prototypes["default"] = arrays["prototypes"]
    present = ", ".join(keys) or "nothing"
    if not prototypes:
        raise FileFormatError(
            f"{path} has no prototypes (or prototypes_<mode>); it holds {present}. Fix: add it, (K, d)."
        )
    if "features" not in arrays and "view_features" not in arrays:
        raise FileFormatError(
            f"{path} has neither features nor view_features; it holds {present}. Fix: add features, (N, d)."
        )
    return {
        "features": arrays.get("features"),
        "views": arrays.get("view_features"),
        "labels": arrays.get("labels"),
        "prototypes": prototypes,
    }


def _read_safetensors_set(path: Path) -> dict[str, Any]:
    arrays, header = read_tensors(path, kind="features", schema=FEATURES_SCHEMA)
    fields = _named_arrays(path, arrays, list(arrays))
    for name in ("class_names", "logit_scale", "default_prompt", "provenance"):
        if name not in header:
            raise FileFormatError(f"{path} has no {name} in its header. Fix: write it with FeatureSet.save.")
        fields[name] = header[name]
    if "sample_names" in arrays:
        try:
            fields["sample_names"] = json.loads(arrays["sample_names"].tobytes())
        except ValueError as error:
            raise FileFormatError(f"{path}: sample_names is damaged ({error}). Fix: write the file again.") from error
    return fields


def _read_npz_set(path: Path, beside: Mapping[str, Any]) -> dict[str, Any]:
    with open(path, "rb") as handle:  # `is_zipfile` takes a file it may not open for one that is no archive
        is_archive = zipfile.is_zipfile(handle)
    if not is_archive:
        raise FileFormatError(
            f"{path} is not an .npz archive. Fix: it may be truncated; write it again with numpy.savez."
        )
    arrays: dict[str, np.ndarray] = {}
    with _reading(path, "the archive"), np.load(path, allow_pickle=False) as archive:
        keys = archive.files
        held = {"prototypes" if key.startswith("prototypes_") else key for key in keys}
        twice = [name for name in beside if name in held]
        _refuse_held(path, twice, f"the file holds its own ({', '.join(keys)})")
        for key in keys:
            if key in NPZ_KEYS or key.startswith("prototypes_"):
                with _reading(path, key):
                    arrays[key] = np.asarray(archive[key])
    given = _read_beside(**beside)
    arrays |= {name: given.pop(name) for name in ("prototypes", "labels") if name in given}
    fields = _named_arrays(path, arrays, keys)
    if "class_names" in arrays:
        fields["class_names"] = arrays["class_names"].tolist()
    if "logit_scale" in arrays:
        fields["logit_scale"] = arrays["logit_scale"].squeeze()
    if "meta" in arrays:
        try:
            fields["provenance"] = json.loads(str(arrays["meta"]))
        except json.JSONDecodeError as error:
            raise FileFormatError(f"{path}: meta is not JSON ({error}). Fix: write it with json.dumps.") from error
    return {**fields, **given}


def _read_npy(path: str | os.PathLike[str], *, argument: str = "path", mapped: bool = False) -> np.ndarray:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"{argument} must be the path of an .npy file; got {type(path).__name__}. Fix: save it with numpy.save and "
            "pass the path, or make the set with FeatureSet(features, prototypes=..., labels=...)."
        )
    path = Path(path)
    _check_is_file(path)
    with _reading(path, "the array"):
        with open(path, "rb") as handle:
            if handle.read(6) != b"\x93NUMPY":
                raise FileFormatError(f"{path} is not an .npy file. Fix: write it with numpy.save.")
        array: np.ndarray = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    return array


def _read_npy_set(path: Path, **beside: Any) -> dict[str, Any]:
    if "prototypes" not in beside:
        raise BesideError(
            lambda named: (
                f"{named('prototypes')} is missing: {path.name} holds features alone. "
                f"Fix: pass {named('prototypes', 'prototypes.npy')}, the (K, d) text features of the classes."
            )
        )
    return {**_read_beside(**beside), "features": _read_npy(path, mapped=True)}


def _read_beside(
    prototypes: str | os.PathLike[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    class_names: str | os.PathLike[str] | Sequence[str] | None = None,
    logit_scale: float | None = None,
) -> dict[str, Any]:
    """Constructor arguments from what is passed beside a file; what is not passed is left out."""
    fields: dict[str, Any] = {}
    if prototypes is not None:
        fields["prototypes"] = _read_npy(prototypes, argument="prototypes")
    if labels is not None:
        fields["labels"] = _read_npy(labels, argument="labels")
    if class_names is not None:
        if isinstance(class_names, (str, os.PathLike)):
            class_names = _read_names(Path(class_names))
        fields["class_names"] = class_names
    if logit_scale is not None:  # checked here, because a wrong argument is not the file's fault
        fields["logit_scale"] = Number(0, above=True).check("logit_scale", logit_scale)
    return fields


def _read_names(path: Path) -> list[str]:
    _check_is_file(path)
    with _reading(path, "the list of class names (UTF-8, one a line)"):
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").rstrip().split("\n")]
