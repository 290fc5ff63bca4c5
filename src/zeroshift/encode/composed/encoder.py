"""The composed encoder: EfficientNet-Lite2 for pictures, MiniLM for sentences, and a bridge between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zeroshift.arrays import normalize
from zeroshift.encode.composed import packages
from zeroshift.encode.composed.bridge import Bridge, fit_bridge
from zeroshift.encode.composed.image_tower import ImageTower, lite2_preprocessing
from zeroshift.encode.composed.keeping import Arrays, kept
from zeroshift.encode.composed.space import DIMENSION
from zeroshift.encode.composed.text_tower import TEXT_DIMENSION, TEXT_LENGTH, TextTower
from zeroshift.encode.composed.wording import BRIDGE_TEMPLATES, imagenet_prompts
from zeroshift.encode.devices import choose_device, choose_dtype
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.prompts.templates import check_templates
from zeroshift.encode.registry import get

if TYPE_CHECKING:
    import torch

__all__ = ["ComposedEncoder"]

LOGIT_SCALE = 25.0
"""At which probabilities on CIFAR-10 are about as right as they claim to be (calibration error 4%; 12-21% at 100)."""

CPU_BATCH = 8
"""Pictures at a time on a CPU: measured on one thread of a Xeon, 75 ms a picture, against 100 ms with 32 at a time."""

TEXT_BATCH = 1024
"""Prompts at a time. The text tower parts them again by length, and parts more evenly what it has more of."""


class ComposedEncoder(Encoder):
    """The encoder of the bundled packs; its numbers are not CLIP's. `load` makes one.

    Prompts of a class are averaged as sentences, and their mean is carried over the bridge: rows of `encode_texts` are
    sentences (384), rows of `finish_prototypes` are in the space of the pictures (256).
    """

    family = "composed"
    source = "composed"
    dimension = DIMENSION
    logit_scale = LOGIT_SCALE
    text_length = TEXT_LENGTH
    text_batch_size = TEXT_BATCH

    def __init__(self, image: ImageTower, text: TextTower, *, device: torch.device, dtype: torch.dtype) -> None:
        self.image, self.text = image, text
        self.device, self.dtype = device, dtype
        self.revision = packages.revision()
        self.preprocessing = lite2_preprocessing()
        self.cache: Path | None = None
        if device.type == "cpu":
            self.batch_size = CPU_BATCH
        self._centres: dict[tuple[str, ...], np.ndarray] = {}

    @classmethod
    def load(cls, *, device: str = "auto", dtype: str = "auto", cache: Path | None = None) -> ComposedEncoder:
        """From the packages of the extra `offline`; `cache` is a folder for what is fitted once, None keeps nothing."""
        family = get(cls.family)
        if family.missing:
            raise ImportError(
                f"the composed encoder needs {', '.join(family.missing)}, not installed here. Fix: {family.fix}."
            )
        where = choose_device(device)
        numbers = choose_dtype(dtype, where)
        encoder = cls(ImageTower(where, numbers), TextTower(where), device=where, dtype=numbers)
        encoder.cache = cache
        return encoder

    def finish_prototypes(self, means: np.ndarray, templates: Sequence[str] | None = None) -> np.ndarray:
        """(K, 256) prototypes of unit length, from the (K, 384) mean of each class's rows of `encode_texts`.

        Parameters
        ----------
        means : as they are, not scaled to unit length.
        templates : those the prompts were made with. ImageNet's names in the same templates are the centre the means
            are taken from, as they are for the bundled packs. None takes the centre of the seven templates of
            `ensemble`, which other wordings lie beside: against the pack `cifar10`, cosines of `vanilla` fall to 0.985.
        """
        if means.ndim != 2 or means.shape[1] != TEXT_DIMENSION:
            raise ValueError(
                f"means must have the shape (classes, {TEXT_DIMENSION}); got {means.shape}. "
                "Fix: average rows of encode_texts, class by class."
            )
        centre = None if templates is None else self._centre(check_templates(templates))
        return np.asarray(normalize(self.bridge(means, centre).astype(np.float32)))

    @cached_property
    def bridge(self) -> Bridge:
        """Fitted when first needed, from seven thousand sentences; read from the cache after that."""

        def fit() -> Arrays:
            fitted = fit_bridge(self._imagenet(BRIDGE_TEMPLATES).mean(axis=1), self.image.targets)
            return vars(fitted).copy()

        return Bridge(**kept(self.cache, {"what": "bridge", "revision": self.revision}, fit))

    def _centre(self, templates: tuple[str, ...]) -> np.ndarray:
        if templates == BRIDGE_TEMPLATES:
            return self.bridge.centre
        if templates not in self._centres:
            settings = {"what": "centre", "revision": self.revision, "templates": templates}
            found = kept(self.cache, settings, lambda: {"centre": self._imagenet(templates).mean(axis=(0, 1))})
            self._centres[templates] = found["centre"]
        return self._centres[templates]

    def _imagenet(self, templates: Sequence[str]) -> np.ndarray:
        """(names, templates, 384): ImageNet's names in these templates."""
        rows = self.encode_texts(imagenet_prompts(templates), warn=False).astype(np.float64)
        return rows.reshape(-1, len(templates), TEXT_DIMENSION)

    def _image_features(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.image.features(batch[0])

    def _text_features(self, prompts: Sequence[str]) -> torch.Tensor:
        return self.text.embed(prompts)

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        return self.text.count_tokens(prompts)
