"""A feature set as it takes part in a comparison: known by what it holds, loaded where and when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from zeroshift.evaluate.digest import digest
from zeroshift.features import FeatureSet

__all__ = ["Entry"]


@dataclass(frozen=True)
class Entry:
    """A labelled set under a name of its own."""

    name: str
    digest: str
    load: Callable[[], FeatureSet]
    """Picklable, because other processes load it too."""
    prompt: str
    """The prompt mode whose prototypes every method starts from."""
    n_samples: int
    n_classes: int
    dimension: int
    n_prompts: int
    """Prompt modes: as many prompts of each class can be given to methods that weigh several."""
    n_views: int
    """Views of each image, the image itself included; 0 where the set has none."""
    spare: int
    """Samples the largest class can give away and keep as many: 0 where no class has two."""
    fewest: int
    """Samples of the smallest class, of those that have any."""
    title: str
    encoder: str
    """What the set says about the encoder it comes from; empty where it says nothing."""
    hints: tuple[str, ...]
    """See `FeatureSet.hints`."""
    class_names: tuple[str, ...]
    """By class index: records hold indices alone."""

    @classmethod
    def of(
        cls, name: str, features: FeatureSet, prompt: str | None = None, load: Callable[[], FeatureSet] | None = None
    ) -> Entry:
        """From a set; with `load`, a function that gets it again, the set itself is only looked at and not kept.

        >>> pets = FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[0, 1])
        >>> Entry.of("pets", pets).n_classes
        2
        """
        if features.labels is None:
            raise ValueError(
                f"{name} has no labels: there is nothing to compare methods by. "
                "Fix: give labels when the set is made; `zeroshift adapt` needs none."
            )
        try:
            features.prototypes_for(prompt)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        counts = np.bincount(features.labels)
        return cls(
            name=name,
            digest=digest(features),
            load=partial(_itself, features) if load is None else load,
            prompt=features.default_prompt if prompt is None else prompt,
            n_samples=features.n_samples,
            n_classes=features.n_classes,
            dimension=features.dimension,
            n_prompts=len(features.prompts),
            n_views=features.n_views,
            spare=int(counts.max()) // 2,
            fewest=int(counts[counts > 0].min()),
            title=str(features.provenance.get("title", name)),
            encoder=_statement(features.provenance.get("encoder")),
            hints=tuple(features.hints(prompt)),
            class_names=tuple(features.class_names),
        )


def _statement(encoder: object) -> str:
    return str(encoder.get("statement", "")) if isinstance(encoder, Mapping) else ""


def _itself(features: FeatureSet) -> FeatureSet:
    return features
