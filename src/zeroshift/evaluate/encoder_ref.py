"""A reference to the encoder of a feature set, for methods that tune prompts: loaded once, checked against the set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift.arrays import to_numpy
from zeroshift.evaluate.keys import code_digest
from zeroshift.features import FeatureSet
from zeroshift.methods._shared.towers import PromptedText

if TYPE_CHECKING:
    from zeroshift.encode import Encoder

__all__ = ["EncoderRef", "check_fit"]

AGREEMENT = 0.5
"""Minimum mean cosine between the prototypes of a set and those of the encoder. Different prompts of one encoder agree
better; the prototypes of two encoders are unrelated."""


@dataclass(frozen=True)
class EncoderRef:
    """An encoder by name. Every process loads it once."""

    source: str
    device: str
    dtype: str
    revision: str | None = None
    """Arguments of `zeroshift.encode.load_encoder`."""
    identity: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What determines its features, including the device; part of the key of a run."""

    @classmethod
    def named(
        cls, source: str, *, device: str = "auto", dtype: str = "auto", revision: str | None = None
    ) -> EncoderRef:
        """Load the encoder and store its identity."""
        encoder = _loaded(source, device, dtype, revision).encoder
        identity = {**encoder.key(), "device": encoder.device.type}
        return cls(source, device, dtype, revision, identity)

    @property
    def code(self) -> str:
        """Digest of the code that makes text towers: see `code_digest`."""
        from zeroshift.encode import prompted_text

        return code_digest(prompted_text)

    def load(self) -> Encoder:
        return self._loaded().encoder

    def text(self, class_names: Sequence[str], words: str, position: tuple[str, ...] = ("end",)) -> PromptedText:
        """Its text tower for these classes, with the prompt `words` to tune; `position` as in `prompted_text`."""
        return self._loaded().text(tuple(class_names), words, position)

    def _loaded(self) -> _Loaded:
        return _loaded(self.source, self.device, self.dtype, self.revision)


class _Loaded:
    """An encoder and a cache of its text towers."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._texts: dict[tuple[tuple[str, ...], str, tuple[str, ...]], PromptedText] = {}

    def text(self, class_names: tuple[str, ...], words: str, position: tuple[str, ...]) -> PromptedText:
        from zeroshift.encode import prompted_text

        key = class_names, words, position
        if key not in self._texts:
            self._texts[key] = prompted_text(self.encoder, class_names, words=words, position=position)
        return self._texts[key]


@lru_cache(maxsize=1)
def _loaded(source: str, device: str, dtype: str, revision: str | None) -> _Loaded:
    """Caches one encoder only, because it can take gigabytes."""
    from zeroshift.encode import default_cache, load_encoder

    return _Loaded(load_encoder(source, device=device, dtype=dtype, revision=revision, cache=default_cache()))


def check_fit(name: str, features: FeatureSet, reference: EncoderRef, wordings: Iterable[str]) -> None:
    """Raise unless the features of the set come from this encoder: same dimension, same revision where the set names
    it, and otherwise similar prototypes for one of the `wordings`; and unless the class names differ."""
    encoder = reference.load()
    fix = "Fix: --encoder the one the features were extracted with, or leave out the methods that tune its prompts."
    if encoder.dimension != features.dimension:
        raise ValueError(
            f"{name} has features of d = {features.dimension}, the encoder {reference.source} has d = "
            f"{encoder.dimension}. {fix}"
        )
    if features.class_names == tuple(f"class {k}" for k in range(features.n_classes)):
        raise ValueError(
            f"{name} has no class names, and prompts contain them. Fix: give class_names when the set is created."
        )
    provenance = features.provenance.get("encoder")
    revision = provenance.get("revision") if isinstance(provenance, Mapping) else None
    known = isinstance(revision, str) and bool(revision)
    if known and revision != encoder.revision:
        raise ValueError(
            f"{name} was made with revision {revision} of its encoder, {reference.source} is {encoder.revision}. {fix}"
        )
    try:
        texts = [reference.text(features.class_names, words) for words in wordings]
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if known:
        return
    owns = [to_numpy(text.features(text.context)).astype(np.float64) for text in texts]
    agreement = max(
        float(np.mean(np.sum(own * matrix, axis=1))) for own in owns for matrix in features.prototypes.values()
    )
    if agreement < AGREEMENT:
        raise ValueError(
            f"{name} does not say which encoder its features come from, and its prototypes are not those of "
            f"{reference.source}: their mean cosine with its prompts of the same classes is {agreement:.2f}. {fix}"
        )
