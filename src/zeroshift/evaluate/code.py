"""Which code made a result, as one short text: changes whenever what computes changes, whatever the version says."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

import zeroshift

__all__ = ["code_digest"]

BYTES = 8

ROOMS = ("adapt", "methods", "arrays.py", "labelled.py", "low_entropy.py", "method.py", "ridge.py", "zero_shot.py")
MEASURING = ("evaluate/follow.py", "evaluate/metrics.py", "evaluate/split.py", "evaluate/trial.py")


@cache
def code_digest() -> str:
    """Hexadecimal digits of the numeric rooms and of what feeds and scores them; comments and docstrings do not count.

    >>> len(code_digest())
    16
    """
    top = Path(zeroshift.__file__).parent
    found = hashlib.blake2b(digest_size=BYTES)
    for name in (*ROOMS, *MEASURING):
        for path in sorted((top / name).rglob("*.py")) if (top / name).is_dir() else [top / name]:
            found.update(f"{path.relative_to(top).as_posix()}\n{_meaning(path)}\n".encode())
    return found.hexdigest()


def _meaning(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # Texts that stand alone: docstrings, of attributes too.
            node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
