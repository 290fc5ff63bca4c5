"""One run: a method on a set, in one order of the samples; and its result as a record of JSON values."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from zeroshift import methods
from zeroshift._version import __version__
from zeroshift.evaluate.costs import COSTS, EncoderCounts, costs_per_image, count_calls
from zeroshift.evaluate.encoder_ref import EncoderRef
from zeroshift.evaluate.job import content_key
from zeroshift.evaluate.keys import canonical, code_digest
from zeroshift.evaluate.method_spec import COMPARISON_HINTS, MethodSpec
from zeroshift.evaluate.metrics import score_run
from zeroshift.evaluate.metrics.calibration import BINS, MOST_BINS
from zeroshift.evaluate.outcomes import record_outcomes
from zeroshift.evaluate.resources import PeakMemory, one_blas_thread, release_free_memory
from zeroshift.evaluate.stream_loop import EVERY, stream_steps
from zeroshift.evaluate.streams import Stream, StreamSpec
from zeroshift.features import FeatureSet
from zeroshift.method import Method
from zeroshift.methods import ZeroShot
from zeroshift.methods.inputs import (
    SECOND,
    TEXT,
    VIEWS,
    feature_source,
    image_input,
    name_positions,
    resolve_inputs,
    second_input,
)
from zeroshift.parameters import Number, Optional

__all__ = [
    "Split",
    "StreamInput",
    "Trial",
    "drawn_samples",
    "groups_of_rows",
    "measure_run",
    "run_trial",
    "split",
    "stream_input",
]

REQUIRED_NUMBERS = (
    "scored",
    "accuracy",
    "zero_shot_accuracy",
    "top5_accuracy",
    "zero_shot_top5_accuracy",
    "class_mean_accuracy",
    "zero_shot_class_mean_accuracy",
    "calibration_error",
    "zero_shot_calibration_error",
    "nll",
    "zero_shot_nll",
    "brier",
    "zero_shot_brier",
    "seconds",
    "setup_seconds",
)
"""Fields of every record that must be numbers."""


@dataclass(frozen=True)
class Trial:
    """A run; everything its result depends on is in its key."""

    features: str
    """Name of the set; not part of the key."""
    digest: str
    """Digest of the set: see `features_digest`."""
    prompt: str
    spec: MethodSpec
    seed: int | None
    """Seed of the order and of drawn rows; None is the stored order without draws."""
    shots: int | None
    """Labelled samples per class; None where none are given."""
    stream_spec: StreamSpec | None = None
    """The stream, where it is not all rows in random or stored order."""
    timed: bool = False
    """Whether its time matters; it then runs alone."""
    every: int | None = None
    """Rows per call of an online method; None is all of them in one call, which is fastest. Predictions differ only by
    rounding."""
    bins: int = BINS
    """Bins of the calibration error."""
    encoder: EncoderRef | None = None
    """Encoder of the features, for a method that tunes prompts."""
    class_names: tuple[str, ...] = ()
    """Class names for such a method, whose prompts use them; the digest of the set does not include them."""

    def __post_init__(self) -> None:
        if not isinstance(self.spec, MethodSpec):
            raise TypeError(f"spec must be a MethodSpec; got {self.spec!r}. Fix: MethodSpec('adapt_online').")
        Optional(Number(0, integer=True)).check("seed", self.seed)
        Optional(Number(1, integer=True)).check("shots", self.shots)
        Optional(Number(1, integer=True)).check("every", self.every)
        Number(1, MOST_BINS, integer=True).check("bins", self.bins)
        if self.stream_spec is not None and self.seed is None:
            raise ValueError(f"a run on the stream {self.stream_spec.kind} needs a seed; got None. Fix: seed=0.")
        if self.spec.tunes_text != (self.encoder is not None):
            needs, fix = ("needs", "EncoderRef.named(...)") if self.encoder is None else ("takes no", "None")
            raise ValueError(f"{self.spec.method} {needs} encoder; got {self.encoder!r}. Fix: encoder={fix}.")
        if (self.encoder is not None) != bool(self.class_names):
            needs, fix = ("needs", "features.class_names") if self.encoder is not None else ("takes no", "()")
            raise ValueError(
                f"{self.spec.method} {needs} class_names; got {self.class_names!r}. Fix: class_names={fix}."
            )

    @property
    def slug(self) -> str:
        return self.spec.method

    @property
    def code(self) -> str:
        own = code_digest(self.spec.info.cls)
        return own if self.encoder is None else own + self.encoder.code

    @cached_property
    def key(self) -> str:
        content = {
            "zeroshift": __version__,
            "code": self.code,
            "features": self.digest,
            "prompt": self.prompt,
            "method": self.spec.method,
            "given": self.spec.given,
            "settings": self.spec.settings,
            "seed": self.seed,
            "shots": self.shots,
            "stream": self.stream if self.stream_spec is None else self.stream_spec.identity,
            "timed": self.timed,
            "every": self.every,
            **({} if self.bins == BINS else {"bins": self.bins}),
            **({} if self.encoder is None else {"encoder": self.encoder.identity, "classes": self.class_names}),
        }
        return content_key(canonical(content))

    @property
    def stream(self) -> dict[str, Any]:
        """Description of the stream for the record."""
        if self.stream_spec is not None:
            return self.stream_spec.describe()
        return {"kind": "stored" if self.seed is None or not self.spec.streamed else "random"}

    def describe(self) -> dict[str, Any]:
        return {
            "features": self.features,
            "digest": self.digest,
            "prompt": self.prompt,
            "contestant": self.spec.label,
            "method": self.spec.method,
            "given": list(self.spec.given),
            "protocol": self.spec.protocol,
            "seed": self.seed,
            "shots": self.shots,
            "stream": self.stream,
            "timed": self.timed,
            "every": self.every,
            **({} if self.bins == BINS else {"bins": self.bins}),
            **self._encoder_fields,
        }

    @property
    def _encoder_fields(self) -> dict[str, Any]:
        """The encoder whose prompts are tuned; class names as a short key, because there can be thousands."""
        if self.encoder is None:
            return {}
        encoder = {**self.encoder.identity, "source": self.encoder.source}
        return {"encoder": encoder, "classes": content_key({"class_names": self.class_names})}

    def is_valid(self, record: Mapping[str, Any]) -> bool:
        peak = record.get("peak_bytes")
        # Old records have no costs.
        costs = all(_is_number(record.get(name, 0)) for name in COSTS)
        return (
            costs
            and (peak is None or _is_number(peak))
            and all(_is_number(record.get(name)) for name in REQUIRED_NUMBERS)
        )

    def run(self, features: FeatureSet) -> dict[str, Any]:
        return run_trial(self, features)

    def __str__(self) -> str:
        order = "stored order" if self.seed is None else f"seed {self.seed}"
        more = "" if self.shots is None else f", {self.shots} shots"
        more += ", timed" if self.timed else ""
        more += "" if self.every is None else f", {self.every} rows at a time"
        more += "" if self.bins == BINS else f", {self.bins} bins"
        kind = ""
        if self.stream_spec is not None:
            usual = {} if "domains" in self.stream_spec.parameters else StreamSpec(self.stream_spec.kind).describe()
            changed = [
                f" {name}={value}"
                for name, value in self.stream_spec.describe().items()
                if usual.get(name, value) != value or name == "overlap"
            ]
            kind = f" ({self.stream_spec.kind}{''.join(changed)})"
        return f"{self.spec.label} on {self.features}{kind}, {order}{more}"


def run_trial(trial: Trial, features: FeatureSet) -> dict[str, Any]:
    """Run a trial and return its record of JSON values.

    Times are of one thread, with set-up reported separately. How many rows an online method gets at a time is
    `Trial.every`. Scoring happens after the run and counts neither in its time nor in its memory.

    >>> pets = FeatureSet(np.eye(2)[[0, 1, 1]], prototypes=np.eye(2), labels=[0, 1, 0])
    >>> record = run_trial(Trial("pets", "", "default", MethodSpec("adapt_online"), seed=0, shots=None), pets)
    >>> record["scored"], round(record["accuracy"], 2), round(record["zero_shot_accuracy"], 2)
    (3, 0.67, 0.67)
    """
    if features.labels is None:
        raise ValueError(f"{trial.features} has no labels, so there is no accuracy to compare. Fix: give labels.")
    spec = trial.spec
    arranged = None
    if trial.stream_spec is not None and trial.seed is not None:
        arranged = trial.stream_spec.stream(features, seed=trial.seed, prompt=trial.prompt)
    parts = split(
        features.labels,
        seed=trial.seed,
        shuffled=spec.streamed,
        shots=trial.shots,
        validated="validation" in spec.given,
        halved="unlabelled" in spec.given,
        order=None if arranged is None else arranged.rows,
    )
    source = feature_source(features, trial.prompt)
    if trial.encoder is not None:
        if len(trial.class_names) != features.n_classes:
            raise ValueError(
                f"class_names must be those of {trial.features}, {features.n_classes}; got {len(trial.class_names)}. "
                "Fix: class_names=features.class_names."
            )
        source[TEXT] = partial(trial.encoder.text, trial.class_names, spec.prompt_words, name_positions(spec.info))
    given = {**drawn_samples(features, parts), **spec.parameters}
    arguments = resolve_inputs(spec.info, given, source, requested=spec.given, hints=COMPARISON_HINTS)
    prototypes, counts = arguments.pop("prototypes"), EncoderCounts()
    if trial.encoder is not None:
        arguments[TEXT] = count_calls(arguments[TEXT], counts)
    stream, labels = np.asarray(features.features[parts.scored]), features.labels[parts.scored]
    with one_blas_thread():
        found = measure_run(
            spec.method,
            lambda: methods.create(spec.method, prototypes, **arguments),
            stream_input(features, spec, parts.scored, stream),
            counts,
            every=trial.every,
        )
    if trial.encoder is not None and trial.encoder.identity.get("device") != "cpu":
        found["peak_bytes"] = None  # memory of another device is not measured
    probabilities = found.pop("probabilities")
    zero_shot = ZeroShot(prototypes, logit_scale=features.logit_scale).predict(stream)
    groups, names = (None, ()) if arranged is None else groups_of_rows(arranged, parts.scored, features.n_samples)
    settings = {name: arguments.get(name, value) for name, value in spec.settings.items()}
    return {
        "settings": settings,
        "n_samples": features.n_samples,
        "n_classes": features.n_classes,
        "dimension": features.dimension,
        "scored": len(labels),
        "support": 0 if parts.support is None else len(parts.support),
        "validation": 0 if parts.validation is None else len(parts.validation),
        "unlabelled": 0 if parts.unlabelled is None else len(parts.unlabelled),
        **found,
        **score_run(probabilities, zero_shot, labels, groups, names, bins=trial.bins),
        "outcomes": record_outcomes(
            parts.scored, probabilities.argmax(axis=1) == labels, zero_shot.argmax(axis=1) == labels, features.n_samples
        ),
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def drawn_samples(features: FeatureSet, parts: Split) -> dict[str, Any]:
    """The samples that are drawn from the set and given before the run, by the name of the input."""
    found: dict[str, Any] = {}
    for name, rows in (("support", parts.support), ("validation", parts.validation)):
        if rows is not None and features.labels is not None:
            found[name] = (np.asarray(features.features[rows]), features.labels[rows])
    if parts.unlabelled is not None:
        found["unlabelled"] = np.asarray(features.features[parts.unlabelled])
    return found


def groups_of_rows(stream: Stream, scored: np.ndarray, n_samples: int) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The group of every scored row, and the names of the groups."""
    if stream.groups is None:
        return None, ()
    of_row = np.full(n_samples, -1)
    of_row[stream.rows] = stream.groups
    return of_row[scored], stream.group_names


def stream_input(features: FeatureSet, spec: MethodSpec, scored: np.ndarray, stream: np.ndarray) -> StreamInput:
    second = None
    if SECOND in spec.given:
        second = second_input(spec.info, features, hints=COMPARISON_HINTS)[1]
    if VIEWS not in spec.given:
        return StreamInput(stream, second=None if second is None else second[scored])
    views = image_input(spec.info, features, views=True, hints=COMPARISON_HINTS)
    if np.array_equal(scored, np.arange(features.n_samples)):
        return StreamInput(views, second=second)
    # A transductive method would copy the selected images while its memory is measured.
    whole = spec.info.protocol == "transductive"
    return StreamInput(views[scored]) if whole else StreamInput(views, scored, second)


WARM_UP_IMAGES = 2
"""Images with views used to warm up; each can take seconds."""


@dataclass(frozen=True)
class StreamInput:
    """What a method gets: rows in stream order; or the views of all images, and the order of the images. `second` are
    features of the same images from a second encoder, in the order of `features`."""

    features: np.ndarray
    rows: np.ndarray | None = None
    second: np.ndarray | None = None

    @property
    def n_views(self) -> int:
        """Views encoded per image."""
        return 1 if self.features.ndim == 2 else int(self.features.shape[1])

    def warm_up(self, name: str, make: Callable[[], Method]) -> None:
        """Run the first rows, so that imports and one-time allocations are not measured. In a process that has run the
        method called `name` on rows of this size, nothing is left to warm up."""
        kind = (name, self.features.shape[1:])
        if kind in _WARM:
            return
        method = make()
        few = EVERY if self.features.ndim == 2 or method.protocol == "transductive" else WARM_UP_IMAGES
        rows = np.arange(len(self.features)) if self.rows is None else self.rows
        second = None if self.second is None else self.second[rows[:few]]
        for _ in stream_steps(method, self.features[rows[:few]], second=second):
            pass
        _WARM.add(kind)


_WARM: set[tuple[str, tuple[int, ...]]] = set()
"""What this process has run: names of methods, and the size of what they got for an image."""


def measure_run(
    name: str,
    make: Callable[[], Method],
    stream_input: StreamInput,
    counts: EncoderCounts,
    *,
    every: int | None,
) -> dict[str, Any]:
    """Create the method called `name`, let it adapt to the stream, and measure both: time, memory, and calls of the
    encoder."""
    stream_input.warm_up(name, make)
    release_free_memory()
    memory = PeakMemory()
    before, counts_before = memory.now(), replace(counts)
    memory.reset()
    start = time.perf_counter()
    method = make()
    setup_seconds = time.perf_counter() - start
    peak, counts_after_setup = memory.peak(), replace(counts)
    # Validates the whole stream, which must not count as memory of an online method.
    given = stream_input
    steps = stream_steps(method, given.features, rows=given.rows, every=every, second=given.second)
    release_free_memory()
    memory.reset()
    results = [(step.probabilities, step.seconds) for step in steps]
    peak = max(peak, memory.peak())
    probabilities = np.concatenate([probabilities for probabilities, _ in results])
    run_counts = counts.since(counts_after_setup)
    return {
        "probabilities": probabilities,
        "seconds": sum(seconds for _, seconds in results),
        "setup_seconds": setup_seconds,
        "setup_prompts": counts_after_setup.since(counts_before).prompts,
        "peak_bytes": max(0, peak - before) if memory.resets else None,
        **costs_per_image(
            run_counts, images=len(probabilities), views=stream_input.n_views, steps=int(method.gradient_steps)
        ),
    }


SPLIT_DRAW = 1
"""Second seed of the draws, so that they do not repeat the random numbers of the order."""


@dataclass(frozen=True)
class Split:
    """Disjoint sets of row numbers."""

    scored: np.ndarray
    """Rows to predict, in stream order."""
    support: np.ndarray | None = None
    """Labelled rows given before the run, class by class."""
    validation: np.ndarray | None = None
    """Labelled rows given before the run to tune parameters."""
    unlabelled: np.ndarray | None = None
    """Rows given before the run without labels."""


def split(
    labels: np.ndarray,
    *,
    seed: int | None,
    shuffled: bool,
    shots: int | None = None,
    validated: bool = False,
    halved: bool = False,
    order: np.ndarray | None = None,
) -> Split:
    """Draw support, validation and unlabelled rows with `seed`; without a seed, all rows are scored in stored order.

    Parameters
    ----------
    labels : (N,) class indices.
    seed : seed of the order and of the draws.
    shuffled : whether the scored rows are in random order.
    shots : labelled rows per class, at most half of each class.
    validated : whether every second labelled row of a class is for validation; the number of labels stays the same.
    halved : whether a random half of the remaining rows is given without labels.
    order : rows of the stream in order, instead of all rows; drawn rows are removed from it.

    >>> parts = split(np.array([0, 0, 0, 1, 1, 1, 1, 1]), seed=0, shuffled=False, shots=2)
    >>> parts.support.tolist(), parts.scored.tolist()
    ([1, 3, 7], [0, 2, 4, 5, 6])
    """
    if seed is None:
        return Split(np.arange(len(labels)) if order is None else order)
    draw = np.random.default_rng([seed, SPLIT_DRAW])
    # The whole set is ordered first and drawn rows are removed, so that the order does not depend on the draws.
    if order is None:
        order = np.random.default_rng(seed).permutation(len(labels)) if shuffled else np.arange(len(labels))
    free = np.ones(len(labels), bool)
    support = validation = unlabelled = None
    if shots is not None:
        support = _support(labels, shots, draw)
        free[support] = False
        if validated:
            second = _index_within_class(labels[support]) % 2 == 1
            support, validation = support[~second], support[second]
    if halved:
        left = draw.permutation(np.flatnonzero(free))
        unlabelled = np.sort(left[: len(left) // 2])
        free[unlabelled] = False
    return Split(order[free[order]], support, validation, unlabelled)


def _support(labels: np.ndarray, shots: int, draw: np.random.Generator) -> np.ndarray:
    mixed = draw.permutation(len(labels))
    by_class = mixed[np.argsort(labels[mixed], kind="stable")]
    taken = np.minimum(shots, np.bincount(labels) // 2)
    return by_class[_index_within_class(labels[by_class]) < taken[labels[by_class]]]


def _index_within_class(labels: np.ndarray) -> np.ndarray:
    """Position of each row within its class, for sorted labels."""
    counts = np.bincount(labels)
    return np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels]
