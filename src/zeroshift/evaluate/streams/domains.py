"""Several sets stacked into one, and streams over their domains: one after another, blended, or mixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from zeroshift.arrays import is_array, to_numpy
from zeroshift.evaluate.streams.stream import Stream, checked_seed
from zeroshift.features import FeatureSet
from zeroshift.parameters import Constraint, Number

__all__ = [
    "CONSTRAINTS",
    "can_stack",
    "checked_domains",
    "continual",
    "domain_names",
    "gradual",
    "mixed",
    "stack_datasets",
]

CONSTRAINTS: dict[str, Constraint] = {"overlap": Number(0, 1)}


def continual(domains: Sequence[int], seed: int, *, names: Sequence[str] | None = None) -> Stream:
    """One domain after the other, in stacked order; random order within each.

    Parameters
    ----------
    domains : number of rows of each domain, in stacked order.
    seed : seed of the order.
    names : names of the domains; by default "domain 0", "domain 1", ...

    >>> stream = continual([2, 3], seed=0, names=["clean", "fog"])
    >>> stream.groups.tolist(), stream.group_names
    ([0, 0, 1, 1, 1], ('clean', 'fog'))
    """
    return gradual(domains, seed, overlap=0.0, names=names)


def gradual(domains: Sequence[int], seed: int, *, overlap: float = 0.5, names: Sequence[str] | None = None) -> Stream:
    """Like `continual`, but neighbouring domains blend into each other around each border.

    `overlap` is the length of the transition as a fraction of the smaller domain: 0 is an abrupt change, 1 reaches from
    the middle of one domain to the middle of the next. During the transition the probability of the next domain rises
    linearly from 0 to 1.

    >>> gradual([6, 6], seed=0, overlap=1.0).groups.tolist()
    [0, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1]
    """
    sizes, group_names = checked_domains(domains, names)
    overlap = float(CONSTRAINTS["overlap"].check("overlap", overlap))
    draw = np.random.default_rng(checked_seed(seed))
    # Half the overlap with the previous and with the next domain.
    halves = [0.0, *(overlap * min(pair) / 2 for pair in pairwise(sizes)), 0.0]
    times, start = [], 0
    for place, size in enumerate(sizes):
        # One random time in each of `size` equal intervals, so that the blend is even.
        spread = draw.permutation(size) + draw.random(size)
        times.append(start + _blended(spread, size, halves[place], halves[place + 1]))
        start += size
    rows = np.argsort(np.concatenate(times), kind="stable")
    return Stream(rows, np.repeat(np.arange(len(sizes)), sizes)[rows], group_names)


def mixed(domains: Sequence[int], seed: int, *, names: Sequence[str] | None = None) -> Stream:
    """All domains shuffled together.

    >>> mixed([2, 3], seed=0).groups.tolist()
    [1, 1, 1, 0, 0]
    """
    sizes, group_names = checked_domains(domains, names)
    rows = np.random.default_rng(checked_seed(seed)).permutation(sum(sizes))
    return Stream(rows, np.repeat(np.arange(len(sizes)), sizes)[rows], group_names)


def _blended(times: np.ndarray, size: int, before: float, after: float) -> np.ndarray:
    """Move uniform times over [0, size) so that their density ramps linearly over [-before, before] and at the end.

    The ramps of neighbouring domains add up to one.
    """
    early = 2 * np.sqrt(before * times) - before
    late = size + after - 2 * np.sqrt(after * (size - times))
    return np.where(times < before, early, np.where(size - times < after, late, times))


def domain_names(described: Mapping[str, Any]) -> list[str]:
    """Names of the domains in the output of `StreamSpec.describe`; empty for streams without domains.

    >>> domain_names({"kind": "mixed", "domains": [2, 3], "names": None})
    ['domain 0', 'domain 1']
    """
    return list(described.get("names") or [f"domain {i}" for i in range(len(described.get("domains") or ()))])


def checked_domains(domains: Sequence[int], names: Sequence[str] | None) -> tuple[list[int], tuple[str, ...]]:
    """Check sizes and names; missing names are generated."""
    if is_array(domains):
        domains = to_numpy(domains).tolist()
    if isinstance(domains, (str, bytes)) or not isinstance(domains, Sequence) or len(domains) == 0:
        raise TypeError(f"domains must be a list of sizes, one per domain; got {domains!r}. Fix: domains=[500, 500].")
    sizes = [int(Number(1, integer=True).check(f"domains[{i}]", size)) for i, size in enumerate(domains)]
    if names is None:
        return sizes, tuple(domain_names({"domains": sizes}))
    if isinstance(names, (str, bytes)) or len(names) != len(sizes) or len(set(names)) != len(names):
        raise ValueError(f"names must be {len(sizes)} different names, one per domain; got {names!r}. Fix: names=None.")
    return sizes, tuple(map(str, names))


def stack_datasets(sets: Mapping[str, FeatureSet] | Sequence[FeatureSet]) -> FeatureSet:
    """One set with the rows of all sets. They must have the same classes, prototypes and logit scale.

    The provenance lists the names and sizes of the sets, and keeps what their provenances have in common. Extra
    features that all sets have, with the same dimension, are kept. Views are dropped.

    >>> a = FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[0, 1])
    >>> both = stack_datasets({"clean": a, "again": a.subset([1])})
    >>> both.labels.tolist(), both.provenance["domains"]
    ([0, 1, 1], [{'name': 'clean', 'samples': 2}, {'name': 'again', 'samples': 1}])
    """
    by_name = dict(sets) if isinstance(sets, Mapping) else {f"domain {i}": one for i, one in enumerate(sets)}
    if not by_name:
        raise ValueError("sets is empty. Fix: give at least one set.")
    first_name, first = next(iter(by_name.items()))
    for name, one in by_name.items():
        if reason := _difference(first, one):
            raise ValueError(
                f"{name!r} cannot be stacked on {first_name!r}: {reason}. Fix: encode both with the same encoder, "
                "classes and prompts, labelled both or neither."
            )
    all_sets = list(by_name.values())
    labels = [one.labels for one in all_sets if one.labels is not None]
    names = [one.sample_names for one in all_sets if one.sample_names is not None]
    return FeatureSet(
        np.concatenate([one.features for one in all_sets]),
        prototypes=first.prototypes,
        labels=np.concatenate(labels) if labels else None,
        class_names=first.class_names,
        logit_scale=first.logit_scale,
        default_prompt=first.default_prompt,
        sample_names=[name for some in names for name in some] if len(names) == len(all_sets) else None,
        extra={
            name: np.concatenate([one.extra[name] for one in all_sets])
            for name, rows in first.extra.items()
            if all(name in one.extra and one.extra[name].shape[1] == rows.shape[1] for one in all_sets)
        },
        provenance={
            **{key: value for key, value in first.provenance.items() if _is_common(key, value, all_sets)},
            "domains": [{"name": name, "samples": one.n_samples} for name, one in by_name.items()],
        },
    )


def can_stack(first: FeatureSet, second: FeatureSet) -> bool:
    """Whether both have the same classes, prototypes and logit scale, and both or neither have labels."""
    return not _difference(first, second)


def _difference(first: FeatureSet, second: FeatureSet) -> str:
    """Why two sets cannot be stacked; empty where they can."""
    if second.dimension != first.dimension:
        return f"its features have dimension {second.dimension}, not {first.dimension}"
    if second.class_names != first.class_names:
        return f"its {second.n_classes} class names are not the same, in the same order, as the {first.n_classes}"
    if second.prompts != first.prompts or second.default_prompt != first.default_prompt:
        return f"its prompt modes ({', '.join(second.prompts)}) or its default are not {', '.join(first.prompts)}"
    for mode, matrix in first.prototypes.items():
        if not np.array_equal(second.prototypes[mode], matrix):
            return f"its prototypes of the prompt mode {mode!r} differ"
    if second.logit_scale != first.logit_scale:
        return f"its logit scale is {second.logit_scale:g}, not {first.logit_scale:g}"
    if (second.labels is None) != (first.labels is None):
        return "only one of them has labels"
    return ""


def _is_common(key: str, value: object, all_sets: Sequence[FeatureSet]) -> bool:
    return all(key in one.provenance and one.provenance[key] == value for one in all_sets)
