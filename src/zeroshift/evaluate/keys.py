"""What the keys of jobs are made of: numbers in a canonical form, digests of feature sets, and digests of code."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import pkgutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zeroshift.features import FeatureSet
from zeroshift.features.checks import blocks
from zeroshift.methods.registry import ENTRY_POINT_GROUP

__all__ = ["canonical", "code_digest", "features_digest"]


def canonical(value: Any) -> Any:
    """Convert 1, 1.0 and NumPy's 1 to the same value, in lists and mappings too; everything else stays as it is.

    >>> canonical({"bank_size": np.int64(16), "alpha": 1.0, "prune": (4, 0.5), "moving": True})
    {'bank_size': 16, 'alpha': 1, 'prune': [4, 0.5], 'moving': True}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {name: canonical(one) for name, one in value.items()}
    return [canonical(one) for one in value] if isinstance(value, (list, tuple)) else value


DIGEST_BYTES = 16
"""Enough that two sets never have the same digest by chance."""


def features_digest(features: FeatureSet) -> str:
    """Digest of features, views, extra features, labels, prototypes of all prompt modes and logit scale. Names of
    classes and samples are not included.

    >>> pets = FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[0, 1])
    >>> features_digest(pets) == features_digest(
    ...     FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[0, 1], class_names=["cat", "dog"])
    ... )
    True
    >>> features_digest(pets) == features_digest(FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[1, 1]))
    False
    """
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    head = {"logit_scale": features.logit_scale, "default_prompt": features.default_prompt}
    found.update(json.dumps(head, sort_keys=True).encode())
    arrays: dict[str, np.ndarray | None] = {"features": features.features, "labels": features.labels}
    arrays |= {f"prototypes {mode}": matrix for mode, matrix in sorted(features.prototypes.items())}
    arrays["views"] = features.views
    arrays |= {f"extra {name}": rows for name, rows in features.extra.items()}
    for name, array in arrays.items():
        if array is not None:
            _add(found, name, array)
    return found.hexdigest()


def _add(found: hashlib.blake2b, name: str, array: np.ndarray) -> None:
    # Dtype and shape are included, because the same bytes can mean different arrays.
    found.update(f"\n{name} {array.dtype.newbyteorder('<').str} {array.shape}\n".encode())
    little = array.dtype.newbyteorder("<")
    width = int(np.prod(array.shape[1:]))
    for rows in blocks(len(array), width):
        found.update(np.ascontiguousarray(array[rows], dtype=little).tobytes())


BYTES = 8

PACKAGE = "zeroshift"

MEASURING = (
    "evaluate.costs",
    "evaluate.encoder_ref",
    "evaluate.job",
    "evaluate.method_spec",
    "evaluate.metrics",
    "evaluate.resources",
    "evaluate.stream_loop",
    "evaluate.streams",
    "evaluate.trial",
    "features",
    "methods.inputs",
    "methods.zero_shot",
    "zero_shot",
)
"""Modules, and packages with all their modules, that run and score methods; part of the code of every job."""


class ModuleSource(NamedTuple):
    """A module: its normalized source, and the modules of this package that it imports."""

    code: str
    imports: tuple[str, ...]


@cache
def code_digest(worker: type | Callable[..., Any]) -> str:
    """Digest of the code of a method or function: its module, the modules of this package it imports, `MEASURING`, and
    for a plug-in all files of its package. Comments and docstrings do not count.

    >>> from zeroshift import OnlineADAPT, ZeroShot
    >>> len(code_digest(ZeroShot)), code_digest(ZeroShot) == code_digest(OnlineADAPT)
    (16, False)
    """
    modules = [cls.__module__ for cls in worker.__mro__[:-1]] if isinstance(worker, type) else [worker.__module__]
    # Imports of the measuring modules are not followed: through the registry that would be every method.
    reached, waiting = dict.fromkeys(_measuring_modules()), modules
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached[module] = None
            waiting += _source(module).imports
    found = hashlib.blake2b(digest_size=BYTES)
    for module in sorted(reached):
        found.update(f"{module}\n{_source(module).code}\n".encode())
    if (top := worker.__module__.partition(".")[0]) != PACKAGE:
        for file in _plug_in_files(top):
            found.update(f"{file.name}\n{hashlib.sha256(_content(file)).hexdigest()}\n".encode())
        found.update("\n".join(_plug_in_versions(top)).encode())
    return found.hexdigest()


def _plug_in_files(top: str) -> list[Path]:
    """The files of a package; for a module outside of packages, the modules next to it too, which it may import."""
    spec = importlib.util.find_spec(top) if top != "__main__" else None
    if spec is not None and spec.submodule_search_locations is not None:
        # A set: a folder that is in `sys.path` twice is a location twice.
        inside = {file for folder in spec.submodule_search_locations for file in Path(folder).rglob("*")}
        return sorted(file for file in inside if file.is_file() and "__pycache__" not in file.parts)
    path = getattr(sys.modules.get(top), "__file__", None) if spec is None else spec.origin
    if path is None or not path.endswith(".py"):
        return []
    shared = any(Path(path).parent.glob("*.dist-info"))  # site-packages, whose other modules are not the plug-in's
    return [Path(path)] if shared else sorted(Path(path).parent.glob("*.py"))


def _content(file: Path) -> bytes:
    if file.suffix == ".py":
        with suppress(SyntaxError, ValueError):  # not Python after all
            return _code(file).encode()
    return file.read_bytes()


def _plug_in_versions(top: str) -> list[str]:
    """The distributions that offer methods of this package, with their versions."""
    offered = [entry for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.module.partition(".")[0] == top]
    return sorted({f"{entry.dist.name} {entry.dist.version}" for entry in offered if entry.dist is not None})


def _measuring_modules() -> list[str]:
    names = []
    for name in (f"{PACKAGE}.{name}" for name in MEASURING):
        spec = importlib.util.find_spec(name)
        inside = None if spec is None else spec.submodule_search_locations
        names += [name] if inside is None else [found.name for found in pkgutil.walk_packages(inside, f"{name}.")]
    return names


@cache
def _source(module: str) -> ModuleSource:
    path = _file(module)
    if path is None:
        return ModuleSource("", ())  # no source file
    imports = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE:
            # `from zeroshift import linalg` names a module, `from zeroshift.linalg import ridge` a name inside one.
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            imports |= {name for name in (node.module, *named) if _file(name) is not None}
            imports |= {
                module_name
                for alias in node.names
                if (module_name := _defining_module(node.module, alias.name)) is not None
            }
    return ModuleSource(_code(path), tuple(sorted(imports)))


def _code(path: Path) -> str:
    """The code of a file, without comments and docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_bare_string(line)]  # type: ignore[attr-defined]
    return ast.unparse(tree)


@cache
def _defining_module(package: str, name: str) -> str | None:
    """The module that defines a name which a package re-exports, as in `from zeroshift import OnlineADAPT`."""
    spec = None if _file(package) is not None else importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    # All of the file: a package may import its names only for type checkers, and at run time when they are used.
    for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE:
            for alias in node.names:
                # `from zeroshift import data` in zeroshift itself names a package.
                if (alias.asname or alias.name) == name and node.module != package:
                    return node.module if _file(node.module) is not None else _defining_module(node.module, alias.name)
    return None


@cache
def _file(module: str) -> Path | None:
    """The file of a module. An `__init__.py` counts only where it defines functions or classes."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    path = Path(spec.origin)
    return path if spec.submodule_search_locations is None or _defines_code(path) else None


def _defines_code(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    definitions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return any(not node.name.startswith("__") for node in definitions)  # `__dir__` computes nothing


def _is_bare_string(line: ast.stmt) -> bool:
    """A string as a statement: a docstring, also of an attribute."""
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
