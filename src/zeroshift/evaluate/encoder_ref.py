"""The encoder behind a set of features, for methods that tune its prompts: named, loaded once, checked against sets."""

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
"""Least mean cosine of a class's prototype in the set with the encoder's own: prompts that say otherwise of a class
agree better than that, and two encoders' spaces have nothing in common."""


@dataclass(frozen=True)
class EncoderRef:
    """An encoder by name: what a run keeps of it. Every process loads it once."""

    source: str
    device: str
    dtype: str
    revision: str | None = None
    """What was asked for, as `zeroshift.encode.load_encoder` takes it."""
    identity: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What decides its features, where it runs among them: a part of the key of a run."""

    @classmethod
    def named(
        cls, source: str, *, device: str = "auto", dtype: str = "auto", revision: str | None = None
    ) -> EncoderRef:
        """Load it, to know which it is."""
        encoder = _loaded(source, device, dtype, revision).encoder
        identity = {**encoder.key(), "device": encoder.device.type}
        return cls(source, device, dtype, revision, identity)

    @property
    def code(self) -> str:
        """The code that makes text sides: see `zeroshift.evaluate.keys`."""
        from zeroshift.encode import prompted_text

        return code_digest(prompted_text)

    def load(self) -> Encoder:
        return self._loaded().encoder

    def text(self, class_names: Sequence[str], words: str) -> PromptedText:
        """Its text side for these classes, with `words` to tune."""
        return self._loaded().text(tuple(class_names), words)

    def _loaded(self) -> _Loaded:
        return _loaded(self.source, self.device, self.dtype, self.revision)


class _Loaded:
    """An encoder and the text sides made of it, which go when it goes."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._texts: dict[tuple[tuple[str, ...], str], PromptedText] = {}

    def text(self, class_names: tuple[str, ...], words: str) -> PromptedText:
        from zeroshift.encode import prompted_text

        if (class_names, words) not in self._texts:
            self._texts[class_names, words] = prompted_text(self.encoder, class_names, words=words)
        return self._texts[class_names, words]


@lru_cache(maxsize=1)
def _loaded(source: str, device: str, dtype: str, revision: str | None) -> _Loaded:
    """The last one only: a second encoder takes the place of the first, which may be gigabytes."""
    from zeroshift.encode import default_cache, load_encoder

    return _Loaded(load_encoder(source, device=device, dtype=dtype, revision=revision, cache=default_cache()))


def check_fit(name: str, features: FeatureSet, behind: EncoderRef, wordings: Iterable[str]) -> None:
    """Refuse an encoder that the set's features do not come from: another d, another revision where the set says its
    own, and else prototypes that are nowhere near its own in one of the `wordings`; and names it cannot tell apart."""
    encoder = behind.load()
    fix = "Fix: --encoder the one the features were extracted with, or leave out the methods that tune its prompts."
    if encoder.dimension != features.dimension:
        raise ValueError(
            f"{name} has features of d = {features.dimension}, the encoder {behind.source} has d = "
            f"{encoder.dimension}. {fix}"
        )
    if features.class_names == tuple(f"class {k}" for k in range(features.n_classes)):
        raise ValueError(
            f"{name} does not say what its classes are called, and prompts are made of their names. "
            "Fix: class_names when the set is made."
        )
    said = features.provenance.get("encoder")
    revision = said.get("revision") if isinstance(said, Mapping) else None
    known = isinstance(revision, str) and bool(revision)
    if known and revision != encoder.revision:
        raise ValueError(
            f"{name} was made with revision {revision} of its encoder, {behind.source} is {encoder.revision}. {fix}"
        )
    try:
        texts = [behind.text(features.class_names, words) for words in wordings]
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
            f"{behind.source}: their mean cosine with its prompts of the same classes is {agreement:.2f}. {fix}"
        )
