"""The composed encoder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift.arrays import normalize
from zeroshift.data.catalogue.files import class_list
from zeroshift.encode.encoder import Encoder, choose_device, choose_dtype
from zeroshift.encode.extraction.store import keyed_folder
from zeroshift.encode.families import composed_models as packages
from zeroshift.encode.families.composed_models import (
    DIMENSION,
    TEXT_DIMENSION,
    TEXT_LENGTH,
    ImageTower,
    TextTower,
    lite2_preprocessing,
)
from zeroshift.encode.prompts.templates import ENSEMBLE, check_templates, fill
from zeroshift.encode.registry import get
from zeroshift.files import FileFormatError, read_tensors, write_tensors

if TYPE_CHECKING:
    import torch

__all__ = ["BRIDGE_TEMPLATES", "Bridge", "ComposedEncoder", "fit_bridge", "imagenet_prompts", "imagenet_sample", "kept"]


# From sentences to the image side: kernel ridge regression on the thousand names and weights of ImageNet's classes.
#
# The idea is DeViSE's (Frome et al., NeurIPS 2013): the weights of a classifier are places of its classes among
# pictures,
# their names have places among sentences, and a map learnt from one to the other places every other name, too.


SHARPNESS = 4.0
"""In the kernel exp(4 (cos - 1)); as in the bundled packs."""

RIDGE = 1.0
"""Lambda, added to the kernel's diagonal; as in the bundled packs."""


@dataclass(frozen=True)
class Bridge:
    """A fitted map: sentences (e) to the image side (d).

    Attributes
    ----------
    centre : (e,), mean of the sentences it was fitted on.
    anchors : (C, e), those sentences less the centre, of unit length.
    weights : (C, d), what the kernel with each anchor counts for.
    """

    centre: np.ndarray
    anchors: np.ndarray
    weights: np.ndarray

    def __call__(self, texts: np.ndarray, centre: np.ndarray | None = None) -> np.ndarray:
        """(K, d) of any length. `centre` takes the place of the bridge's own where `texts` are worded otherwise."""
        centred = texts.astype(np.float64) - (self.centre if centre is None else centre)
        return _kernel(np.asarray(normalize(centred)), self.anchors) @ self.weights


def fit_bridge(texts: np.ndarray, targets: np.ndarray) -> Bridge:
    """The bridge that carries (C, e) `texts` near (C, d) `targets`.

    >>> bridge = fit_bridge(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0], [-1.0]]))
    >>> bridge(np.array([[0.9, 0.1]])).round(3)  # (1 - exp(-8)) / (2 - exp(-8))
    array([[0.5]])
    """
    centre = texts.mean(axis=0, dtype=np.float64)
    anchors = np.asarray(normalize(texts.astype(np.float64) - centre))
    ridge = _kernel(anchors, anchors) + RIDGE * np.eye(len(anchors))
    return Bridge(centre, anchors, np.linalg.solve(ridge, targets.astype(np.float64)))


def _kernel(rows: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(SHARPNESS * (rows @ anchors.T - 1)))


# Arrays that take a while to make and are small to keep: made once, read afterwards, made again where damaged.


KIND = "composed"
SCHEMA = 1

Arrays = dict[str, np.ndarray]


def kept(cache: Path | None, settings: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
    """What `make` gives, from the file under these settings where there is a whole one; `cache` None keeps nothing."""
    if cache is None:
        return make()
    path = keyed_folder(cache, KIND, settings) / "arrays.safetensors"
    try:
        arrays, header = read_tensors(path, kind=KIND, schema=SCHEMA)
        if header.get("digest") != _digest(arrays):
            raise FileFormatError(f"{path} is damaged.")
    except (OSError, FileFormatError):
        arrays = make()
        write_tensors(path, arrays, {"kind": KIND, "schema": SCHEMA, "digest": _digest(arrays)})
    return arrays


def _digest(arrays: Arrays) -> str:
    """Of every number: safetensors finds a file that was cut short, but no number that changed."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


# What ImageNet's names are in a given wording: the sentences that fit the bridge, and those that centre others.
#
# "a photo of a cat." lies nearer to "a photo of a car." than to "the origami cat.": the wording moves every sentence
# the
# same way, which the mean over ImageNet's names in that wording takes away again.


BRIDGE_TEMPLATES = ENSEMBLE
"""The wording the bridge is fitted in: the seven templates, averaged."""

MOST_WHOLE = len(ENSEMBLE)
"""The most templates for which all thousand names are encoded; for more, the sample below."""

SAMPLE = (
    459, 206, 222, 162, 711, 814, 350, 890, 518, 264, 683, 674, 511, 391, 329, 325, 81, 201, 582, 380,
    945, 970, 813, 734, 652, 509, 25, 584, 36, 651, 583, 144, 209, 8, 467, 164, 494, 768, 388, 158,
    631, 926, 898, 84, 907, 694, 421, 954, 106, 69, 451, 973, 245, 299, 522, 762, 273, 853, 920, 334,
)  # fmt: skip
"""Sixty of ImageNet's classes: the first of NumPy's default_rng(0).permutation(1000), with which the `clip_template`
prototypes of the bundled packs were centred. Written out, because NumPy may come to draw others."""


def imagenet_sample(n_templates: int) -> tuple[str, ...]:
    """The names that say where a wording of this many templates lies.

    >>> len(imagenet_sample(1)), len(imagenet_sample(7)), len(imagenet_sample(80))
    (1000, 1000, 60)
    """
    names = class_list("imagenet").names
    return names if n_templates <= MOST_WHOLE else tuple(names[label] for label in SAMPLE)


def imagenet_prompts(templates: Sequence[str]) -> list[str]:
    """Every name in every template, name by name.

    >>> imagenet_prompts(["a photo of a {}.", "the {}."])[:3]
    ['a photo of a tench.', 'the tench.', 'a photo of a goldfish.']
    """
    return [fill(template, name) for name in imagenet_sample(len(templates)) for template in templates]


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
