"""Feature set files: writing .safetensors, reading .safetensors, .npz, .npy and .pt.

Reading returns the arguments of `FeatureSet` as a dictionary. `FeatureSet` validates them.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from zeroshift.arrays import is_array
from zeroshift.features.checks import UNNAMED_PROMPT
from zeroshift.features.torch_files import TORCH_SUFFIXES, read_torch
from zeroshift.files import FileFormatError, checked_path
from zeroshift.parameters import Number
from zeroshift.parsers import check_regular_file, parse_json, read_npy, read_npz, read_text
from zeroshift.suggest import did_you_mean, first_few
from zeroshift.tensor_files import (
    UnverifiedFileWarning,
    read_plain_tensors,
    read_tensors,
    unverified_note,
    write_tensors,
)

__all__ = [
    "FEATURES_SCHEMA",
    "FEATURE_SUFFIXES",
    "KEY_ARGUMENTS",
    "FileArgumentError",
    "names_in",
    "read_arrays",
    "read_feature_file",
    "write_feature_file",
]

FEATURES_SCHEMA = 2
"""Version of the .safetensors layout; raised when an older zeroshift could not read the new one."""

NPZ_KEYS = ("features", "view_features", "labels", "prototypes", "class_names", "logit_scale", "meta")
"""The arrays read from .npz and .pt files, with `prototypes_<mode>` and `extra_features_<name>`; others are ignored."""

EXTRA_PREFIX = "extra_features_"

FEATURE_SUFFIXES = (".safetensors", ".npz", ".npy", *TORCH_SUFFIXES)

KEY_ARGUMENTS = ("features_key", "prototypes_key", "labels_key")
"""Arguments with the name that an array has in a file of another program."""


class FileArgumentError(ValueError):
    """An argument that does not fit the file: it is required and missing, or the file already contains it.

    `message_with(format_argument)` returns the message with another spelling of the arguments, such as command-line
    options.
    """

    def __init__(self, message_with: Callable[[Callable[..., str]], str]) -> None:
        self.message_with = message_with
        super().__init__(message_with(_format_argument))

    def __reduce__(self) -> tuple[Any, ...]:
        # A lambda cannot be pickled; the message can.
        return ValueError, (str(self),)


def _format_argument(name: str, value: str = "") -> str:
    return f"{name}={value!r}" if value else name


def write_feature_file(
    path: str | os.PathLike[str],
    *,
    features: np.ndarray | None,
    views: np.ndarray | None,
    labels: np.ndarray | None,
    sample_names: Sequence[str] | None,
    prototypes: Mapping[str, np.ndarray],
    extra: Mapping[str, np.ndarray],
    **header: Any,
) -> None:
    """Write one .safetensors file: the arrays that are not None, and the other fields as its header."""
    path = checked_path(path)
    if path.suffix != ".safetensors":
        raise ValueError(
            f"path must end in .safetensors, the format a feature set is saved in; got {str(path)!r}. "
            f"Fix: save to {str(path).removesuffix(path.suffix) + '.safetensors'!r}."
        )
    arrays = {f"prototypes_{mode}": matrix for mode, matrix in prototypes.items()}
    arrays |= {f"{EXTRA_PREFIX}{name}": rows for name, rows in extra.items()}
    for name, array in (("features", features), ("view_features", views), ("labels", labels)):
        if array is not None:
            arrays[name] = array
    if sample_names is not None:
        # As an array of bytes, not in the header: reading the header alone stays quick.
        arrays["sample_names"] = np.frombuffer(json.dumps(list(sample_names)).encode(), np.uint8)
    write_tensors(path, arrays, {"kind": "features", "schema": FEATURES_SCHEMA, **header})


def read_feature_file(path: Path, **extra: Any) -> dict[str, Any]:
    """Constructor arguments from a file; `extra` has what the file does not contain, and `KEY_ARGUMENTS`."""
    if path.suffix not in FEATURE_SUFFIXES:
        raise FileFormatError(
            f"{path} has the suffix {path.suffix!r}; feature sets are read from .safetensors, .npz, .npy and .pt "
            "files. Fix: save it as one of those; images are for zeroshift classify."
        )
    check_regular_file(path)
    extra = {name: value for name, value in extra.items() if value is not None}
    if not isinstance(extra.get("extra", {}), Mapping):
        raise TypeError(
            f"extra must be a mapping from names to paths of .npy files; got {type(extra['extra']).__name__}. "
            "Fix: extra={'dinov2': 'dinov2.npy'}."
        )
    keys = {name.removesuffix("_key"): extra.pop(name) for name in KEY_ARGUMENTS if name in extra}
    for name, key in keys.items():
        if not isinstance(key, str):
            raise TypeError(
                f"{name}_key must be the name of an array in {path.name}; got {type(key).__name__}. "
                f"Fix: {name}_key='image_features', for example."
            )
    # A key of what comes from another file is the name of an array there.
    extra |= {f"{name}_key": keys.pop(name) for name in ("prototypes", "labels") if name in keys and name in extra}
    if path.suffix == ".safetensors" and not keys:
        _refuse_conflicts(path, list(extra), f"a {path.suffix} file contains its own")
        return _read_safetensors_file(path)
    content = read_arrays(path, keys)
    if isinstance(content, np.ndarray):
        _refuse_keys(path, keys)
        return _with_features(path, content, **extra)
    return _fields_by_name(path, *content, keys, extra)


def read_arrays(
    path: Path, keys: Mapping[str, str] = MappingProxyType({})
) -> np.ndarray | tuple[list[str], dict[str, Any]]:
    """The array of a file that contains one array; otherwise the names of all arrays, and those that are needed, which
    are under their own names or those in `keys`."""

    def needed(name: str) -> bool:
        return name in (*NPZ_KEYS, *keys.values()) or name.startswith(("prototypes_", EXTRA_PREFIX))

    if path.suffix == ".npy":
        return _read_npy(path, mapped=True)
    if path.suffix == ".npz":
        return read_npz(path, needed)
    if path.suffix == ".safetensors":
        return read_plain_tensors(path, needed)
    content = read_torch(path)
    if isinstance(content, np.ndarray):
        return content
    return list(content), {
        name: value
        for name, value in content.items()
        if name in keys.values() or (needed(name) and value is not None and (name in NPZ_KEYS or is_array(value)))
    }


def names_in(path: str | os.PathLike[str]) -> list[str]:
    """The names of the arrays in a file; none if it contains one array without a name."""
    path = Path(path)
    if path.suffix == ".npy":
        return []
    if path.suffix == ".npz":
        return read_npz(path, lambda name: False)[0]
    if path.suffix == ".safetensors":
        return read_plain_tensors(path, lambda name: False)[0]
    content = read_torch(path)
    return [] if isinstance(content, np.ndarray) else list(content)


def _refuse_keys(path: Path, keys: Mapping[str, str]) -> None:
    if keys:
        raise FileArgumentError(
            lambda format_argument: (
                f"{', '.join(format_argument(f'{name}_key', key) for name, key in keys.items())} cannot be passed with "
                f"{path.name}, which contains one array without a name. Fix: leave it out."
            )
        )


def _refuse_conflicts(path: Path, names: Sequence[str], why: str) -> None:
    """Refuse arguments that the file also contains: either could be meant."""
    if names:
        raise FileArgumentError(
            lambda format_argument: (
                f"{', '.join(map(format_argument, names))} cannot be passed with {path.name}: {why}. "
                "Fix: leave it out, or pass the features as an .npy file."
            )
        )


def _fields_from_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], keys: Sequence[str], *, foreign: bool = False
) -> dict[str, Any]:
    """Constructor arguments from the arrays of a file; `keys` lists everything in it. A `foreign` file may have other
    names than ours."""
    prototypes = {
        key.removeprefix("prototypes_"): array for key, array in arrays.items() if key.startswith("prototypes_")
    }
    if "prototypes" in arrays:
        if UNNAMED_PROMPT in prototypes:
            raise FileFormatError(
                f"{path} has both prototypes and prototypes_default, which mean the same. Fix: keep one."
            )
        prototypes[UNNAMED_PROMPT] = arrays["prototypes"]
    present = ", ".join(keys) or "nothing"
    if not prototypes:
        raise FileFormatError(
            f"{path} has no prototypes (or prototypes_<mode>); it contains {present}. Fix: add it, (K, d)"
            f"{_or_name_it('prototypes', keys) if foreign else ''}."
        )
    if "features" not in arrays and "view_features" not in arrays:
        raise FileFormatError(
            f"{path} has neither features nor view_features; it contains {present}. Fix: add features, (N, d)"
            f"{_or_name_it('features', keys) if foreign else ''}."
        )
    return {
        "features": arrays.get("features"),
        "views": arrays.get("view_features"),
        "labels": arrays.get("labels"),
        "prototypes": prototypes,
        "extra": {
            key.removeprefix("extra_features_"): array
            for key, array in arrays.items()
            if key.startswith("extra_features_")
        },
    }


def _or_name_it(argument: str, names: Sequence[str]) -> str:
    """The array that is probably meant, for a message."""
    words = {"features": ("image", "feat", "emb"), "prototypes": ("text", "proto", "weight")}[argument]
    likely = next((name for word in words for name in names if word in name.lower()), "NAME")
    return f", or say what it is called: {argument}_key={likely!r} (`zeroshift adapt --{argument}-key {likely}`)"


def _read_safetensors_file(path: Path) -> dict[str, Any]:
    arrays, header = read_tensors(path, kind="features", schema=FEATURES_SCHEMA)
    if "checksum" not in header:
        warnings.warn(unverified_note(path), UnverifiedFileWarning, stacklevel=4)
    fields = _fields_from_arrays(path, arrays, list(arrays))
    for name in ("class_names", "logit_scale", "default_prompt", "provenance"):
        if name not in header:
            raise FileFormatError(f"{path} has no {name} in its header. Fix: write it with FeatureSet.save.")
        fields[name] = header[name]
    if "sample_names" in arrays:
        fields["sample_names"] = parse_json(arrays["sample_names"].tobytes(), f"{path}: sample_names")
    return fields


def _unknown_key(path: Path, argument: str, key: str, names: Sequence[str]) -> FileArgumentError:
    return FileArgumentError(
        lambda format_argument: (
            f"{format_argument(argument, key)}: {path.name} has no {key!r}; it contains "
            f"{', '.join(names) or 'nothing'}. {did_you_mean(key, names)}Fix: one of these."
        )
    )


def _fields_by_name(
    path: Path, names: list[str], arrays: dict[str, Any], keys: Mapping[str, str], extra: Mapping[str, Any]
) -> dict[str, Any]:
    """Constructor arguments from arrays by name; `keys` has other names than ours for some of them."""
    for name, key in keys.items():
        if key not in names:
            raise _unknown_key(path, f"{name}_key", key, names)
        if isinstance(arrays[key], Mapping):
            raise FileFormatError(
                f"{path}: {key} is a dictionary with {first_few([*map(str, arrays[key])])}; {name} must be one tensor. "
                f"Fix: torch.save(torch.load(path)[{key!r}], path)."
            )
    others = {name: array for name, array in arrays.items() if name not in keys and name not in keys.values()}
    if "prototypes" in keys:
        others = {name: array for name, array in others.items() if not name.startswith("prototypes_")}
    arrays = others | {name: arrays[key] for name, key in keys.items()}
    present_names = {"prototypes" if key.startswith("prototypes_") else key for key in arrays}
    conflicts = [name for name in extra if name in present_names]
    conflicts += [f"extra[{name!r}]" for name in extra.get("extra", {}) if f"{EXTRA_PREFIX}{name}" in arrays]
    _refuse_conflicts(path, conflicts, f"the file contains its own ({', '.join(names)})")
    given = _read_extra_files(**extra)
    arrays |= {name: given.pop(name) for name in ("prototypes", "labels") if name in given}
    fields = _fields_from_arrays(path, arrays, names, foreign=True)
    fields["extra"] |= given.pop("extra", {})
    if "class_names" in arrays:
        fields["class_names"] = arrays["class_names"]
    if "logit_scale" in arrays:
        fields["logit_scale"] = np.asarray(arrays["logit_scale"]).squeeze()
    if "meta" in arrays:
        meta = arrays["meta"]
        fields["provenance"] = meta if isinstance(meta, Mapping) else parse_json(str(meta), f"{path}: meta")
    return {**fields, **given}


def _read_npy(
    path: str | os.PathLike[str], *, argument: str = "path", mapped: bool = False, key: str | None = None
) -> np.ndarray:
    """The array of a file; with a `key`, the one of this name among several."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"{argument} must be the path of an .npy file; got {type(path).__name__}. Fix: save it with numpy.save and "
            "pass the path, or make the set with FeatureSet(features, prototypes=..., labels=...)."
        )
    path = Path(path)
    if path.suffix == ".npy" or (key is None and path.suffix not in TORCH_SUFFIXES):
        if key is not None:
            _refuse_keys(path, {argument: key})
        return read_npy(path, mapped=mapped)
    content = read_arrays(path, {} if key is None else {argument: key})
    if isinstance(content, np.ndarray):
        if key is not None:
            _refuse_keys(path, {argument: key})
        return content
    names, arrays = content
    if key is None:
        named = (
            f"{argument}_key='NAME' (`zeroshift adapt --{argument}-key NAME`), or "
            if argument in ("prototypes", "labels")
            else ""
        )
        raise FileFormatError(
            f"{path} contains a dictionary with {', '.join(names) or 'nothing'}; {argument} must be one tensor. "
            f"Fix: {named}torch.save(tensor, path)."
        )
    if key not in names:
        raise _unknown_key(path, f"{argument}_key", key, names)
    return arrays[key]


def _with_features(path: Path, features: np.ndarray, **extra: Any) -> dict[str, Any]:
    if "prototypes" not in extra:
        raise FileArgumentError(
            lambda format_argument: (
                f"{format_argument('prototypes')} is missing: {path.name} contains only features. "
                f"Fix: pass {format_argument('prototypes', 'prototypes.npy')}, the (K, d) text features of the classes."
            )
        )
    return {**_read_extra_files(**extra), "features": features}


def _read_extra_files(
    prototypes: str | os.PathLike[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    class_names: str | os.PathLike[str] | Sequence[str] | None = None,
    logit_scale: float | None = None,
    extra: Mapping[str, str | os.PathLike[str]] | None = None,
    prototypes_key: str | None = None,
    labels_key: str | None = None,
) -> dict[str, Any]:
    """Constructor arguments from what is passed in addition to a file; what is not passed is omitted."""
    fields: dict[str, Any] = {}
    if prototypes is not None:
        fields["prototypes"] = _read_npy(prototypes, argument="prototypes", key=prototypes_key)
    if labels is not None:
        fields["labels"] = _read_npy(labels, argument="labels", key=labels_key)
    if class_names is not None:
        if isinstance(class_names, (str, os.PathLike)):
            class_names = _read_names(Path(class_names))
        fields["class_names"] = class_names
    if extra is not None:
        fields["extra"] = {
            name: _read_npy(path, argument=f"extra[{name!r}]", mapped=True) for name, path in extra.items()
        }
    if logit_scale is not None:  # checked here: a wrong argument is not an error of the file
        fields["logit_scale"] = Number(0, above=True).check("logit_scale", logit_scale)
    return fields


def _read_names(path: Path) -> list[str]:
    return [line.strip() for line in read_text(path, pipes=True).rstrip().split("\n")]
