"""All kinds of streams by name, and `StreamSpec`: a kind with parameters, as keys and records describe it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from zeroshift.evaluate.streams import domains as domain_streams
from zeroshift.evaluate.streams import orders
from zeroshift.evaluate.streams.long_tail import CONSTRAINTS as LONG_TAIL_CONSTRAINTS
from zeroshift.evaluate.streams.long_tail import IMBALANCE, long_tail
from zeroshift.evaluate.streams.stream import Stream, checked_seed
from zeroshift.features import FeatureSet
from zeroshift.features.checks import blocks
from zeroshift.parameters import Constraint
from zeroshift.suggest import did_you_mean
from zeroshift.zero_shot import zero_shot_stats

__all__ = ["KINDS", "LABEL_PARAMETERS", "Maker", "StreamInputs", "StreamSpec", "checked_parameters", "parameters_of"]


@dataclass(frozen=True)
class StreamInputs:
    """What a stream may depend on: labels, and zero-shot predictions with one prompt mode, computed on demand."""

    features: FeatureSet
    prompt: str | None = None

    @property
    def n_rows(self) -> int:
        return self.features.n_samples

    @property
    def labels(self) -> np.ndarray:
        """(N,) true classes."""
        if self.features.labels is None:
            raise ValueError("this stream needs labels, and the set has none. Fix: kind='random', or give labels.")
        return self.features.labels

    @property
    def confidences(self) -> np.ndarray:
        """(N,) negative entropies of the zero-shot posterior (Eq. 2)."""
        return self._zero_shot_stats[0]

    @property
    def pseudo_classes(self) -> np.ndarray:
        """(N,) most probable classes of the zero-shot posterior."""
        return self._zero_shot_stats[1]

    @cached_property
    def _zero_shot_stats(self) -> tuple[np.ndarray, np.ndarray]:
        prototypes = self.features.prototypes_for(self.prompt).astype(np.float64)
        confidences, classes = np.empty(self.n_rows), np.empty(self.n_rows, int)
        for rows in blocks(self.n_rows, max(prototypes.shape)):
            found = zero_shot_stats(
                np.asarray(self.features.features[rows], np.float64), prototypes, self.features.logit_scale
            )
            confidences[rows], classes[rows] = found.confidences, found.classes
        return confidences, classes


Maker = Callable[..., Stream]
"""`maker(inputs, seed, **parameters)`."""


def _random(inputs: StreamInputs, seed: int) -> Stream:
    return orders.random_order(inputs.n_rows, seed)


def _easy_to_hard(inputs: StreamInputs, seed: int) -> Stream:
    return orders.easy_to_hard(inputs.confidences, seed)


def _hard_to_easy(inputs: StreamInputs, seed: int) -> Stream:
    return orders.hard_to_easy(inputs.confidences, seed)


def _class_sorted(inputs: StreamInputs, seed: int) -> Stream:
    return orders.class_sorted(inputs.labels, seed)


def _dirichlet(
    inputs: StreamInputs, seed: int, concentration: float = orders.CONCENTRATION, slots: int | None = None
) -> Stream:
    return orders.dirichlet(inputs.labels, seed, concentration=concentration, slots=slots)


def _few_classes(inputs: StreamInputs, seed: int, classes_per_batch: int = 2, batch_size: int = 64) -> Stream:
    return orders.few_classes(inputs.labels, seed, classes_per_batch=classes_per_batch, batch_size=batch_size)


def _bursts(inputs: StreamInputs, seed: int, mean_length: float = orders.MEAN_LENGTH) -> Stream:
    return orders.bursts(inputs.labels, seed, mean_length=mean_length)


def _recurring(inputs: StreamInputs, seed: int, rounds: int = orders.ROUNDS) -> Stream:
    return orders.recurring(inputs.labels, seed, rounds=rounds)


def _some_classes(inputs: StreamInputs, seed: int, class_share: float = orders.CLASS_SHARE) -> Stream:
    return orders.some_classes(inputs.labels, seed, class_share=class_share)


def _some_classes_sorted(inputs: StreamInputs, seed: int, class_share: float = orders.CLASS_SHARE) -> Stream:
    return orders.some_classes_sorted(inputs.labels, seed, class_share=class_share)


def _continual(inputs: StreamInputs, seed: int, domains: Sequence[int], names: Sequence[str] | None = None) -> Stream:
    return _check_length(inputs, domain_streams.continual(domains, seed, names=names))


def _gradual(
    inputs: StreamInputs, seed: int, domains: Sequence[int], names: Sequence[str] | None = None, overlap: float = 0.5
) -> Stream:
    return _check_length(inputs, domain_streams.gradual(domains, seed, overlap=overlap, names=names))


def _mixed(inputs: StreamInputs, seed: int, domains: Sequence[int], names: Sequence[str] | None = None) -> Stream:
    return _check_length(inputs, domain_streams.mixed(domains, seed, names=names))


def _long_tail(inputs: StreamInputs, seed: int, imbalance: float = IMBALANCE, most: int | None = None) -> Stream:
    return long_tail(inputs.labels, seed, imbalance=imbalance, most=most)


def _few_confident(inputs: StreamInputs, seed: int, per_class: int = 2, share: float = 0.5) -> Stream:
    return orders.few_confident(inputs.confidences, inputs.pseudo_classes, seed, per_class=per_class, share=share)


def _check_length(inputs: StreamInputs, stream: Stream) -> Stream:
    if len(stream) != inputs.n_rows:
        raise ValueError(
            f"domains add up to {len(stream)} rows, but the set has {inputs.n_rows}. Fix: the sizes as stacked."
        )
    return stream


KINDS: dict[str, Maker] = {
    "random": _random,
    "easy_to_hard": _easy_to_hard,
    "hard_to_easy": _hard_to_easy,
    "class_sorted": _class_sorted,
    "dirichlet": _dirichlet,
    "few_classes": _few_classes,
    "bursts": _bursts,
    "recurring": _recurring,
    "some_classes": _some_classes,
    "some_classes_sorted": _some_classes_sorted,
    "continual": _continual,
    "gradual": _gradual,
    "mixed": _mixed,
    "long_tail": _long_tail,
    "few_confident": _few_confident,
}
"""Every kind of stream, by name."""

CONSTRAINTS: Mapping[str, Constraint] = {**orders.CONSTRAINTS, **domain_streams.CONSTRAINTS, **LONG_TAIL_CONSTRAINTS}
"""Constraints of parameters; a name means the same in every kind."""


def parameters_of(kind: str) -> dict[str, inspect.Parameter]:
    """The parameters of a kind, without inputs and seed."""
    return dict(list(inspect.signature(KINDS[kind]).parameters.items())[2:])


def checked_parameters(kind: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Check the parameters of a kind as far as possible without a set, and add the defaults.

    >>> checked_parameters("few_classes", {"batch_size": 32.0})
    {'classes_per_batch': 2, 'batch_size': 32}
    """
    found = {name: parameters.get(name, taken.default) for name, taken in parameters_of(kind).items()}
    found = {name: CONSTRAINTS[name].check(name, value) if name in CONSTRAINTS else value
             for name, value in found.items()}  # fmt: skip
    if "domains" in found:
        sizes, names = domain_streams.checked_domains(found["domains"], found["names"])
        found |= {"domains": sizes, "names": None if found["names"] is None else list(names)}
    return found


LABEL_PARAMETERS = ("names",)
"""Parameters that only name things and do not change the stream."""

DOMAINS_HINT = (
    " It is the number of rows of each domain, in the order of the set. Fix: stack_datasets([first, second]) makes one "
    "set of several; then {'domains': [first.n_samples, second.n_samples]}."
)
"""Explanation of `domains`, the only parameter without a default."""


@dataclass(frozen=True)
class StreamSpec:
    """A kind of stream and its parameters, applicable to any set.

    `kind` is one of `KINDS`, each a function of `zeroshift.evaluate.streams` with the parameters it takes: random
    (`random_order`), easy_to_hard, hard_to_easy, class_sorted, dirichlet, few_classes, bursts, recurring, some_classes,
    some_classes_sorted, long_tail, few_confident; and continual, gradual and mixed over the output of `stack_datasets`,
    with `domains` as the number of rows of each set.

    >>> import numpy as np
    >>> pets = FeatureSet(np.eye(2)[[0, 1, 1]], prototypes=np.eye(2), labels=[0, 1, 1])
    >>> StreamSpec("random").stream(pets, seed=0).rows.tolist()
    [2, 0, 1]
    """

    kind: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            guess = did_you_mean(self.kind, KINDS)
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {self.kind!r}. {guess}".rstrip())
        known = parameters_of(self.kind)
        for name in self.parameters:
            if name not in known:
                offer = f"It takes {', '.join(known)}." if known else "It takes none."
                raise ValueError(
                    f"the stream {self.kind} has no parameter {name!r}. {did_you_mean(name, known)}{offer}"
                )
        for name, parameter in known.items():
            if parameter.default is inspect.Parameter.empty and name not in self.parameters:
                raise ValueError(
                    f"the stream {self.kind} needs the parameter {name!r}, which is missing.{DOMAINS_HINT}"
                )
        checked_parameters(self.kind, self.parameters)

    def describe(self) -> dict[str, Any]:
        """Kind and parameters as JSON, including defaults.

        >>> StreamSpec("long_tail", {"imbalance": 20}).describe()
        {'kind': 'long_tail', 'imbalance': 20.0, 'most': None}
        """
        return {"kind": self.kind, **checked_parameters(self.kind, self.parameters)}

    @property
    def identity(self) -> dict[str, Any]:
        """What the stream depends on, without the names of its domains."""
        return {name: value for name, value in self.describe().items() if name not in LABEL_PARAMETERS}

    def stream(self, features: FeatureSet, *, seed: int, prompt: str | None = None) -> Stream:
        """The stream of a set for a seed."""
        return KINDS[self.kind](StreamInputs(features, prompt), checked_seed(seed), **self.parameters)
