"""Several sets as one, its domains one on the other: what the streams over domains run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from zeroshift.features import FeatureSet

__all__ = ["stackable", "stacked"]


def stacked(sets: Mapping[str, FeatureSet] | Sequence[FeatureSet]) -> FeatureSet:
    """One set of all rows, in the order given. Classes, prototypes and logit scale must be the same in all.

    Sets given by name are called so in the provenance, which also says how many rows each has; of their own provenances
    it keeps what they agree on. Views are left out.

    >>> a = FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[0, 1])
    >>> both = stacked({"clean": a, "again": a.subset([1])})
    >>> both.labels.tolist(), both.provenance["domains"]
    ([0, 1, 1], [{'name': 'clean', 'samples': 2}, {'name': 'again', 'samples': 1}])
    """
    by_name = dict(sets) if isinstance(sets, Mapping) else {f"domain {i}": one for i, one in enumerate(sets)}
    if not by_name:
        raise ValueError("sets is empty; there is nothing to stack. Fix: give at least one set.")
    first_name, first = next(iter(by_name.items()))
    for name, one in by_name.items():
        if reason := _difference(first, one):
            raise ValueError(
                f"{name!r} cannot be stacked on {first_name!r}: {reason}. Fix: encode both with the same encoder, "
                "classes and prompts, labelled both or neither."
            )
    everyone = list(by_name.values())
    labels = [one.labels for one in everyone if one.labels is not None]
    names = [one.sample_names for one in everyone if one.sample_names is not None]
    return FeatureSet(
        np.concatenate([one.features for one in everyone]),
        prototypes=first.prototypes,
        labels=np.concatenate(labels) if labels else None,
        class_names=first.class_names,
        logit_scale=first.logit_scale,
        default_prompt=first.default_prompt,
        sample_names=[name for some in names for name in some] if len(names) == len(everyone) else None,
        provenance={
            **{key: value for key, value in first.provenance.items() if _agreed(key, value, everyone)},
            "domains": [{"name": name, "samples": one.n_samples} for name, one in by_name.items()],
        },
    )


def stackable(first: FeatureSet, second: FeatureSet) -> bool:
    """Whether both have the same classes, prototypes and logit scale, and both or neither have labels."""
    return not _difference(first, second)


def _difference(first: FeatureSet, second: FeatureSet) -> str:
    """What forbids stacking, in words; empty where nothing does."""
    if second.dimension != first.dimension:
        return f"its features have dimension {second.dimension}, not {first.dimension}"
    if second.class_names != first.class_names:
        return f"its {second.n_classes} class names are not the same, in the same order, as the {first.n_classes}"
    if second.prompts != first.prompts or second.default_prompt != first.default_prompt:
        return f"its prompt modes ({', '.join(second.prompts)}) or its default are not {', '.join(first.prompts)}"
    for mode, matrix in first.prototypes.items():
        if not np.array_equal(second.prototypes[mode], matrix):
            return f"its prototypes of the prompt mode {mode!r} are others"
    if second.logit_scale != first.logit_scale:
        return f"its logit scale is {second.logit_scale:g}, not {first.logit_scale:g}"
    if (second.labels is None) != (first.labels is None):
        return "only one of them has labels"
    return ""


def _agreed(key: str, value: object, everyone: Sequence[FeatureSet]) -> bool:
    return all(key in one.provenance and one.provenance[key] == value for one in everyone)
