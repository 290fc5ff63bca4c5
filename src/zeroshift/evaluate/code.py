"""Which code makes a result, as one short text: changes whenever what computes changes, whatever the version says."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import pkgutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["code_digest"]

BYTES = 8

PACKAGE = "zeroshift"

MEASURING = (
    "evaluate.analysis",
    "evaluate.contestant",
    "evaluate.costs",
    "evaluate.encoders",
    "evaluate.filling",
    "evaluate.follow",
    "evaluate.gauge",
    "evaluate.measure",
    "evaluate.metrics",
    "evaluate.needs",
    "evaluate.split",
    "evaluate.streams",
    "evaluate.tallies",
    "evaluate.threads",
    "evaluate.trial",
    "features",
    "methods.zero_shot",
    "zero_shot",
)
"""What arranges, feeds and scores, and the baseline beside every score: modules, and packages with all they hold."""


class Source(NamedTuple):
    """A module: what it means, and the modules of ours it imports."""

    meaning: str
    imports: tuple[str, ...]


@cache
def code_digest(worker: type | Callable[..., Any]) -> str:
    """Hexadecimal digits of the code of a method or a function, of all of ours it imports, and of what measures it;
    comments and docstrings do not count.

    >>> from zeroshift import OnlineADAPT, ZeroShot
    >>> len(code_digest(ZeroShot)), code_digest(ZeroShot) == code_digest(OnlineADAPT)
    (16, False)
    """
    written = [cls.__module__ for cls in worker.__mro__[:-1]] if isinstance(worker, type) else [worker.__module__]
    # What those that measure import is not followed: through the registry that would be every method there is.
    reached, waiting = dict.fromkeys(_measuring()), written
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached[module] = None
            waiting += _source(module).imports
    found = hashlib.blake2b(digest_size=BYTES)
    for module in sorted(reached):
        found.update(f"{module}\n{_source(module).meaning}\n".encode())
    return found.hexdigest()


def _measuring() -> list[str]:
    names = []
    for name in (f"{PACKAGE}.{name}" for name in MEASURING):
        spec = importlib.util.find_spec(name)
        inside = None if spec is None else spec.submodule_search_locations
        names += [name] if inside is None else [found.name for found in pkgutil.walk_packages(inside, f"{name}.")]
    return names


@cache
def _source(module: str) -> Source:
    path = _file(module)
    if path is None:
        return Source("", ())  # typed in, or built into Python: nothing to read
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE:
            # `from zeroshift import ridge` names a module, `from zeroshift.ridge import ZERO_TRACE` is of one.
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            imports |= {name for name in (node.module, *named) if _file(name) is not None}
            imports |= {home for alias in node.names if (home := _home(node.module, alias.name)) is not None}
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]
    return Source(ast.unparse(tree), tuple(sorted(imports)))


@cache
def _home(package: str, name: str) -> str | None:
    """The module a name is written in that a package only passes on: `from zeroshift import OnlineADAPT`."""
    spec = None if _file(package) is not None else importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE:
            for alias in node.names:
                # `from zeroshift import data` in zeroshift itself names a package, which has no home.
                if (alias.asname or alias.name) == name and node.module != package:
                    return node.module if _file(node.module) is not None else _home(node.module, alias.name)
    return None


@cache
def _file(module: str) -> Path | None:
    """Where a module is written down. Of packages only what they hold counts, not the list of it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin is None or spec.submodule_search_locations or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _is_text(line: ast.stmt) -> bool:
    """A text that stands alone: a docstring, of an attribute too."""
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
