"""A folder of images, and features by a tiny model, for the tests of commands that encode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from encode.numpy_encoder import age, noise
from zeroshift import FeatureSet

CLASSES = ("cat", "dog", "horse")
PER_CLASS = 3


def write_pets(folder: Path, *, labelled: bool = True, per_class: int = PER_CLASS) -> list[str]:
    """Write images of `CLASSES`, in one folder per class or all in one; returns their names in reading order."""
    names = []
    for k, name in enumerate(CLASSES):
        for i in range(per_class):
            path = folder / name / f"{i}.png" if labelled else folder / f"{name}-{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise(100 * k + i, 16 + i, 14 + k).save(path)
            age(path)  # recently changed files would be read again by the next run
            names.append(path.relative_to(folder).as_posix())
    return names


def encoded(model: Path, paths: Sequence[Path]) -> np.ndarray:
    """Features by the encoder itself, without extraction."""
    from zeroshift.encode import registry

    return registry.load(str(model), device="cpu").encode_images([Image.open(path) for path in paths])


def prototypes(model: Path, prompts: Sequence[Sequence[str]]) -> np.ndarray:
    """For each class, the normalised mean of its prompts' unit features."""
    from zeroshift.encode import registry

    encoder = registry.load(str(model), device="cpu")
    means = np.stack([encoder.encode_texts(list(listed)).astype(np.float64).mean(axis=0) for listed in prompts])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def load(path: Path) -> FeatureSet:
    return FeatureSet.load(path, check=False)


def record(done) -> dict:
    """The JSON output of a successful command."""
    assert done.exit_code == 0, (done.stderr, done.exception)
    return json.loads(done.stdout)
