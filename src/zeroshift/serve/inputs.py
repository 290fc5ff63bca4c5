"""What clients send: samples as features or images in several formats, keys, and the names of streams."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pydantic_core
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors

from zeroshift.arrays import UNIT_NORM_TOLERANCE
from zeroshift.files import FileFormatError
from zeroshift.parsers import parse_npy
from zeroshift.serve.errors import Problem
from zeroshift.serve.stream import Item, features_digest

__all__ = [
    "RESERVED",
    "STREAM_ID",
    "Samples",
    "check_key",
    "check_stream_id",
    "feature_items",
    "is_text",
    "parse_keys_header",
    "parse_samples",
]

STREAM_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}(/[A-Za-z0-9][A-Za-z0-9._-]{0,63}){0,3}"
"""Up to four parts with a slash between them."""

RESERVED = frozenset(
    {
        "samples", "events", "snapshots", "rollback", "replay", "statistics", "disagreements", "thumbnails", "labels",
        "relearn", "drift", "infer", "ready", "versions", "predict", "setup", "webhook", "health",
    }
)  # fmt: skip
"""Parts of addresses that follow the id of a stream, and can therefore not be part of one."""

LONGEST_KEY = 200
NUMBERS = frozenset({float, int})
"""Types of the numbers in features: true and false are none."""


def check_stream_id(name: str) -> str:
    if not re.fullmatch(STREAM_ID, name) or not RESERVED.isdisjoint(name.split("/")):
        raise Problem(
            422, "invalid_stream_id", "The id of a stream has one to four parts with slashes between them. A part has "
            "up to 64 letters, digits, dots, hyphens and underscores, starts with a letter or digit, and is none of "
            f"the words of the interface ({', '.join(sorted(RESERVED))}).",
        )  # fmt: skip
    return name


def is_text(value: str) -> bool:
    """Whether UTF-8 can encode it. JSON can name half a character, which no answer can contain.

    >>> is_text("caf\u00e9"), is_text("\\ud800")
    (True, False)
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_key(key: Any, row: int | None = None) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
        where = {} if row is None else {"row": row}
        raise Problem(
            422, "invalid_key", f"A key has 1 to {LONGEST_KEY} printable characters. Fix: such as frame-17.", **where
        )
    return key


@dataclass
class Samples:
    """The content of a request."""

    features: np.ndarray | None = None
    """(n, d) float32."""
    images: Sequence[bytes | Problem] | None = None
    keys: Sequence[str | None] = ()
    learn: bool = True
    top: int | None = None

    @property
    def count(self) -> int:
        return len(self.features) if self.features is not None else len(self.images or ())


def parse_samples(content_type: str, body: bytes, keys_header: str | None) -> Samples:
    """The samples in a body that is not a form."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("application/json", ""):
        samples = _parse_json(body, typed=bool(kind))
    elif kind in ("application/x-npy", "application/octet-stream"):
        try:
            samples = Samples(features=as_matrix(parse_npy(body, "the body")))
        except FileFormatError as error:
            raise Problem(422, "invalid_body", str(error)) from error
    elif kind in ("application/x-safetensors", "application/vnd.safetensors"):
        samples = _parse_safetensors(body)
    elif kind.startswith("image/"):
        samples = Samples(images=[body])
    else:
        raise Problem(
            415, "unsupported_type", f"Content-Type {kind[:80]!r} is not read. Fix: application/json, "
            "application/x-npy, application/x-safetensors, multipart/form-data or image/*.",
        )  # fmt: skip
    if keys_header is not None:
        samples.keys = parse_keys_header(keys_header)
    samples.keys = check_keys(samples.keys, samples.count)
    return samples


def parse_keys_header(header: str) -> Any:
    """The keys of a header `Sample-Keys`: a JSON list, or names with commas between them."""
    try:
        return json.loads(header)
    except (ValueError, RecursionError):
        return header.split(",")


def check_keys(keys: Any, count: int) -> Sequence[str | None]:
    """One key or None for each sample."""
    if not isinstance(keys, list | tuple):
        raise Problem(422, "invalid_key", 'keys must be a list of strings, one per sample. Fix: ["frame-1", ...].')
    if not keys:
        return (None,) * count
    if len(keys) != count:
        raise Problem(422, "invalid_key", f"There are {len(keys)} keys for {count} samples. Fix: one key per sample.")
    checked = tuple(None if key is None else check_key(key, row) for row, key in enumerate(keys))
    given = [key for key in checked if key is not None]
    if len(set(given)) < len(given):
        row = next(row for row, key in enumerate(checked) if key is not None and key in checked[:row])
        raise Problem(422, "duplicate_key", f"The key {checked[row]!r} occurs twice. Fix: one key per sample.", row=row)
    return checked


def _parse_json(body: bytes, typed: bool) -> Samples:
    try:
        content = pydantic_core.from_json(body)
    except ValueError as error:
        fix = "" if typed else " Fix: the header Content-Type, such as application/json or application/x-npy."
        raise Problem(422, "invalid_body", f"The body is not JSON ({str(error)[:200]}).{fix}") from error
    if not isinstance(content, dict):
        raise Problem(422, "invalid_body", 'The body must be an object. Fix: {"features": [[...], ...]}.')
    unknown = content.keys() - {"features", "images", "keys", "learn", "top"}
    if unknown:
        raise Problem(
            422, "invalid_body", f"Unknown field {min(unknown)[:80]!r}. Known: features, images, keys, learn, top."
        )
    if ("features" in content) == ("images" in content):
        raise Problem(422, "invalid_body", "Give features or images, one of them.")
    learn, top = content.get("learn", True), content.get("top")
    if not isinstance(learn, bool):
        raise Problem(422, "invalid_body", "learn must be true or false.")
    samples = Samples(learn=learn, top=check_top(top), keys=content.get("keys") or ())
    if "features" in content:
        samples.features = as_matrix(content["features"])
    else:
        samples.images = _decode_base64(content["images"])
    return samples


def check_top(top: Any) -> int | None:
    if top is not None and (type(top) is not int or not 1 <= top <= 100_000):
        raise Problem(422, "invalid_body", "top must be a number from 1 to 100000: how many predictions are answered.")
    return top


def _decode_base64(images: Any) -> list[bytes | Problem]:
    if not isinstance(images, list):
        raise Problem(422, "invalid_body", "images must be a list of base64 strings.")
    found: list[bytes | Problem] = []
    for image in images:
        try:
            text = image.partition(",")[2] if image.startswith("data:") else image
            found.append(base64.b64decode(text, validate=True))
        except (AttributeError, ValueError, binascii.Error):
            found.append(Problem(422, "invalid_image", "It is not base64. Fix: encode the bytes of the file."))
    return found


def _parse_safetensors(body: bytes) -> Samples:
    try:
        tensors = load_tensors(body)
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise Problem(422, "invalid_body", f"The body is not a safetensors file ({str(error)[:200]}).") from error
    if "features" not in tensors:
        raise Problem(422, "invalid_body", "The safetensors file has no tensor called features.")
    return Samples(features=as_matrix(tensors["features"]))


def as_matrix(values: Any, name: str = "features") -> np.ndarray:
    """(n, d) float32 from nested lists or an array; a Problem with the row that has another shape."""
    code = "invalid_prototypes" if name == "prototypes" else "invalid_shape"
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "fiu":
            raise Problem(422, code, f"{name} must be numbers; got {values.dtype}.")
        matrix = values[None, :] if values.ndim == 1 else values
        if matrix.ndim != 2:
            raise Problem(422, code, f"{name} must have the shape (n, d); got {values.shape}.", row=0)
        with np.errstate(over="ignore", invalid="ignore"):
            return matrix.astype(np.float32, order="C")  # as the log has it: the order may change the bits of answers
    if not isinstance(values, list) or not values:
        raise Problem(422, code, f"{name} must be a list with one list of numbers per sample.")
    if not isinstance(values[0], list):
        values = [values]
    length = len(values[0]) if isinstance(values[0], list) else 0
    for row, one in enumerate(values):
        if not isinstance(one, list) or len(one) != length or not length:
            shown = f"{len(one)} numbers" if isinstance(one, list) else type(one).__name__
            raise Problem(422, code, f"Row {row} has {shown}, row 0 has {length}. Fix: lists of equal length.", row=row)
        if not NUMBERS.issuperset(map(type, one)):
            raise Problem(422, code, f"Row {row} has an entry that is not a number.", row=row)
    matrix = np.empty((len(values), length), np.float32)
    try:
        with np.errstate(over="ignore"):
            for row, one in enumerate(values):  # row by row, so that other threads may run in between
                matrix[row] = np.array(one, np.float64)
        return matrix
    except (OverflowError, ValueError) as error:
        raise Problem(422, code, f"{name} has a number that is too large.") from error


def feature_items(features: np.ndarray, keys: Sequence[str | None], dimension: int) -> list[Item]:
    """One item per row; a row that is not finite or not of unit length is an error of its own."""
    if features.shape[1] != dimension:
        raise Problem(
            422, "invalid_shape", f"Features of this stream have d = {dimension}; row 0 has {features.shape[1]}.",
            row=0,
        )  # fmt: skip
    with np.errstate(over="ignore", invalid="ignore"):
        exact = features.astype(np.float64)
        lengths = np.sqrt(np.einsum("nd,nd->n", exact, exact))
    items = [Item(values, None, key) for values, key in zip(features, keys, strict=True)]
    for row in np.flatnonzero(~(np.abs(lengths - 1) <= UNIT_NORM_TOLERANCE)).tolist():
        if lengths[row] == 0:
            problem = f"Row {row} is zero. Fix: leave it out, or compute it again."
        elif np.isfinite(lengths[row]):
            problem = f"Row {row} has length {lengths[row]:.4g}, not 1. Fix: divide it by its length."
        else:
            problem = f"Row {row} has NaN, infinity or a number that is too large."
        error = {"code": "invalid_feature", "message": problem}
        items[row] = Item(None, features_digest(features[row]), keys[row], error)
    return items
