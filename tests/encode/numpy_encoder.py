"""An encoder in NumPy, and images for it, to test extraction without a model."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from PIL import Image

from zeroshift.data.image_set import ImageSet
from zeroshift.data.images import ImageFiles
from zeroshift.encode import Extraction, Pipeline, Prompts, extract
from zeroshift.encode.encoder import Encoder, run_in_batches
from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table

SIDE, DIMENSION = 6, 8
COUNT = 11
"""Number of images in the folder most tests extract."""
PREPROCESSING = PixelPreprocessing(("exact", SIDE, SIDE), None, "bilinear", affine_table([0.5] * 3, [0.25] * 3))
VANILLA = Prompts.named("vanilla")


class NumpyEncoder(Encoder):
    """Records its inputs. `batch_dependent`: features depend on the batch, as their last bits do on a GPU."""

    family, source, dtype = "plain", "plain", "float32"
    dimension, logit_scale, text_length = DIMENSION, 50.0, 12
    preprocessing = PREPROCESSING
    device = SimpleNamespace(type="cpu")

    def __init__(self, *, batch_size=4, revision="1", batch_dependent=False, pause=0.0, blind=False) -> None:
        self.batch_size, self.revision = batch_size, revision
        self.batch_dependent, self.pause, self.blind = batch_dependent, pause, blind
        self.batches: list[int] = []
        self.prompts: list[str] = []
        self.weights = np.random.default_rng(0).normal(size=(3 * SIDE * SIDE, DIMENSION)).astype(np.float32)

    def encode_pixels(self, batch):
        def encode(rows: slice) -> np.ndarray:
            assert not self.blind, "the image encoder must not run"
            time.sleep(self.pause)
            pixels = self.preprocessing.values(batch[0][rows])
            self.batches.append(len(pixels))
            found = unit(pixels.reshape(len(pixels), -1).astype(np.float32) @ self.weights)
            return unit(found + np.float32(0.01 * len(pixels))) if self.batch_dependent else found

        rows, self.batch_size = run_in_batches(len(batch[0]), self.batch_size, encode)
        return rows

    def encode_texts(self, prompts, *, warn=True):
        self.prompts += prompts
        return np.stack([text_feature(prompt) for prompt in prompts])

    def count_tokens(self, prompts):
        return [len(prompt.split()) + 2 for prompt in prompts]

    def _image_features(self, batch):
        raise NotImplementedError

    def _text_features(self, prompts):
        raise NotImplementedError


def adapt_images(method, encoder, images, **options):
    """The probabilities of each image, as they are requested."""
    names = [f"class {k}" for k in range(getattr(method, "n_classes", 3))]
    return Pipeline(encoder, names, method, **options).probabilities(images)


def text_feature(prompt: str) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big")
    return unit(np.random.default_rng(seed).normal(size=DIMENSION)).astype(np.float32)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def noise(seed: int, width: int = 12, height: int = 9) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def write_images(folder: Path, count: int, *, suffix: str = "png", classes: int = 2, first: int = 0) -> list[str]:
    """Write images of several shapes into folders a, b, ..., with an old modification time."""
    names = []
    for i in range(first, first + count):
        name = f"{chr(ord('a') + i % classes)}/{i:03d}.{suffix}"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        noise(i, 8 + i % 5, 8 + i % 3).save(folder / name)
        age(folder / name)
        names.append(name)
    return sorted(names)


def age(path: Path, seconds: int = 1_000_000_000) -> None:
    os.utime(path, (seconds, seconds))


def image_set(folder: Path, *, labelled: bool = True, name: str = "pets") -> ImageSet:
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))
    labels = [ord(file[0]) - ord("a") for file in files] if labelled else None
    classes = ("cat", "dog") if labelled else None
    return ImageSet(name, ImageFiles(folder, tuple(files)), class_names=classes, labels=labels)


def run(folder: Path, *, encoder: Encoder | None = None, prompts=VANILLA, **options) -> Extraction:
    """`extract` in this process and with small shards, unless `options` say otherwise."""
    options = {"workers": 0, "shard_rows": 4, **options}
    return extract(image_set(folder), encoder or NumpyEncoder(), prompts, **options)


def bytes_of(extraction: Extraction, path: Path) -> bytes:
    """The content of the file it is saved as."""
    extraction.features.save(path)
    return path.read_bytes()
