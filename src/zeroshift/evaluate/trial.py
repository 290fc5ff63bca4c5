"""One run of a comparison: which set, which contestant, which random order; and its result as a plain record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
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
from zeroshift.evaluate.resources import PeakMemory, one_blas_thread, release_free_memory
from zeroshift.evaluate.stream_loop import EVERY, stream_steps
from zeroshift.evaluate.streams import Stream, StreamSpec
from zeroshift.features import FeatureSet
from zeroshift.method import Method
from zeroshift.methods import ZeroShot
from zeroshift.methods.inputs import TEXT, VIEWS, feature_source, image_input, resolve_inputs
from zeroshift.parameters import Number, Optional

__all__ = [
    "MethodInput",
    "Split",
    "Trial",
    "drawn_samples",
    "groups_of_rows",
    "measure_run",
    "method_input",
    "run_trial",
    "split",
]


# Which rows of a set a method is given beforehand, which it is scored on, and in which order.


SPLIT_DRAW = 1
"""Kept apart from the seed of the order, so that the draw does not repeat the order's random numbers."""


@dataclass(frozen=True)
class Split:
    """Row numbers; no row is in two of them."""

    scored: np.ndarray
    """In the order of the stream."""
    support: np.ndarray | None = None
    """Labelled rows given beforehand, class by class."""
    validation: np.ndarray | None = None
    """Labelled rows given beforehand to choose parameters by."""
    unlabelled: np.ndarray | None = None
    """Rows given beforehand without their labels."""


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
    """Draw from the rows with `seed`; without one, all rows in their stored order.

    Parameters
    ----------
    labels : (N,) class indices.
    seed : of the order and of the draws; the same seed gives the same rows.
    shuffled : whether the scored rows come in a random order.
    shots : labelled rows of each class to be given beforehand, never more than half of a class.
    validated : whether every other labelled row of a class is for validation: the same number of labels in all.
    halved : whether a random half of the remaining rows is given beforehand without labels.
    order : the rows that come, in this order, in place of all of them; what is given beforehand is left out of it.

    >>> parts = split(np.array([0, 0, 0, 1, 1, 1, 1, 1]), seed=0, shuffled=False, shots=2)
    >>> parts.support.tolist(), parts.scored.tolist()
    ([1, 3, 7], [0, 2, 4, 5, 6])
    """
    if seed is None:
        return Split(np.arange(len(labels)) if order is None else order)
    draw = np.random.default_rng([seed, SPLIT_DRAW])
    # The whole set is put in order and what was drawn is left out: without a draw it is the plain random order.
    if order is None:
        order = np.random.default_rng(seed).permutation(len(labels)) if shuffled else np.arange(len(labels))
    free = np.ones(len(labels), bool)
    support = validation = unlabelled = None
    if shots is not None:
        support = _support(labels, shots, draw)
        free[support] = False
        if validated:
            second = _places(labels[support]) % 2 == 1
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
    return by_class[_places(labels[by_class]) < taken[labels[by_class]]]


def _places(labels: np.ndarray) -> np.ndarray:
    """Where each row stands within its class, from 0 on, for labels in order."""
    counts = np.bincount(labels)
    return np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels]


# A method let loose on a stream: its answers, and what they took in time, memory and passes of the encoder.


WARM_UP_IMAGES = 2
"""Images with views to warm up with: what is allocated once is there after the first, and one can take seconds."""


@dataclass(frozen=True)
class MethodInput:
    """What a method is fed: rows in the order they come; or the views of all images, and which come in which order."""

    features: np.ndarray
    rows: np.ndarray | None = None

    @property
    def n_views(self) -> int:
        """Encoded for each image."""
        return 1 if self.features.ndim == 2 else int(self.features.shape[1])

    def warm_up(self, method: Method) -> None:
        """The first few, so that what happens once in a process has happened."""
        few = EVERY if self.features.ndim == 2 or method.protocol == "transductive" else WARM_UP_IMAGES
        rows = np.arange(len(self.features)) if self.rows is None else self.rows
        for _ in stream_steps(method, self.features[rows[:few]]):
            pass


def measure_run(
    make: Callable[[], Method], method_input: MethodInput, counts: EncoderCounts, *, every: int
) -> dict[str, Any]:
    """Let a new method adapt to the stream. What it is made with adds to `counts`; set-up is told apart."""
    # What is imported or allocated once a process is there before anything is counted.
    method_input.warm_up(make())
    release_free_memory()
    memory = PeakMemory()
    before, asked = memory.now(), replace(counts)
    memory.reset()
    began = time.perf_counter()
    method = make()
    setup = time.perf_counter() - began
    peak, made = memory.peak(), replace(counts)
    # Looks at the whole stream, which a method that learns row by row does not.
    steps = stream_steps(method, method_input.features, rows=method_input.rows, every=every)
    release_free_memory()
    memory.reset()
    answers = [(step.probabilities, step.seconds) for step in steps]
    peak = max(peak, memory.peak())
    probabilities = np.concatenate([probabilities for probabilities, _ in answers])
    taken = counts.since(made)
    return {
        "probabilities": probabilities,
        "seconds": sum(seconds for _, seconds in answers),
        "setup_seconds": setup,
        "setup_prompts": made.since(asked).prompts,
        "peak_bytes": max(0, peak - before) if memory.resets else None,
        **costs_per_image(
            taken, images=len(probabilities), views=method_input.n_views, steps=int(method.gradient_steps)
        ),
    }


# What a run takes out of a set: parameters that hold arrays, what a method is fed, the groups of what it sees.


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
    """The group of every scored row: what is given beforehand is no longer in the stream."""
    if stream.groups is None:
        return None, ()
    of_row = np.full(n_samples, -1)
    of_row[stream.rows] = stream.groups
    return of_row[scored], stream.group_names


def method_input(features: FeatureSet, spec: MethodSpec, scored: np.ndarray, stream: np.ndarray) -> MethodInput:
    if VIEWS not in spec.given:
        return MethodInput(stream)
    views = image_input(spec.info, features, views=True, hints=COMPARISON_HINTS)
    if np.array_equal(scored, np.arange(features.n_samples)):
        return MethodInput(views)
    # A method that is given all images at once would copy them while its memory is weighed.
    whole = spec.info.protocol == "transductive"
    return MethodInput(views[scored]) if whole else MethodInput(views, scored)


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
"""What every record holds, as a number."""


@dataclass(frozen=True)
class Trial:
    """What is run; everything its result depends on is in its key."""

    features: str
    """Name of the set; not part of the key."""
    digest: str
    """What the set holds: see `zeroshift.evaluate.keys`."""
    prompt: str
    spec: MethodSpec
    seed: int | None
    """Of the order and of the drawn rows; None is the stored order, nothing drawn."""
    shots: int | None
    """Labelled samples of a class; None where none are given."""
    stream_spec: StreamSpec | None = None
    """Which rows come, in which order, where that is not simply a random or the stored order."""
    timed: bool = False
    """Whether its time is what it is for: it is then done alone."""
    every: int = EVERY
    """Rows an online method is given at a time; more are quicker, and change its answers by rounding at most."""
    encoder: EncoderRef | None = None
    """Behind the features, for a contestant that tunes its prompts."""
    class_names: tuple[str, ...] = ()
    """In order, for such a contestant: its prompts are made of them, and the set's digest leaves them out."""

    def __post_init__(self) -> None:
        if not isinstance(self.spec, MethodSpec):
            raise TypeError(f"contestant must be a MethodSpec; got {self.spec!r}. Fix: MethodSpec('adapt_online').")
        Optional(Number(0, integer=True)).check("seed", self.seed)
        Optional(Number(1, integer=True)).check("shots", self.shots)
        Number(1, integer=True).check("every", self.every)
        if self.stream_spec is not None and self.seed is None:
            raise ValueError(
                f"a run on the stream {self.stream_spec.kind} needs a seed, which draws it; got None. Fix: seed=0."
            )
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

    @property
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
            **({} if self.encoder is None else {"encoder": self.encoder.identity, "classes": self.class_names}),
        }
        return content_key(canonical(content))

    @property
    def stream(self) -> dict[str, Any]:
        """Which rows come, in which order, as JSON holds it."""
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
            **self._prompted,
        }

    @property
    def _prompted(self) -> dict[str, Any]:
        """Whose prompts are tuned, of which classes: a thousand names would be most of a record."""
        if self.encoder is None:
            return {}
        behind = {**self.encoder.identity, "source": self.encoder.source}
        return {"encoder": behind, "classes": content_key({"class_names": self.class_names})}

    def is_valid(self, record: Mapping[str, Any]) -> bool:
        peak = record.get("peak_bytes")
        # Records from before costs were counted have none.
        costs = all(_number(record.get(name, 0)) for name in COSTS)
        return costs and (peak is None or _number(peak)) and all(_number(record.get(name)) for name in REQUIRED_NUMBERS)

    def run(self, features: FeatureSet) -> dict[str, Any]:
        return run_trial(self, features)

    def __str__(self) -> str:
        order = "stored order" if self.seed is None else f"seed {self.seed}"
        more = "" if self.shots is None else f", {self.shots} shots"
        more += ", timed" if self.timed else ""
        more += "" if self.every == EVERY else f", {self.every} rows at a time"
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

    Times are of one thread, with set-up reported separately. Online methods get a few rows at a time, see
    `stream_steps`. Scoring happens after the run and counts neither in its time nor in its memory.

    >>> pets = FeatureSet(np.eye(2)[[0, 1, 1]], prototypes=np.eye(2), labels=[0, 1, 0])
    >>> record = run_trial(Trial("pets", "", "default", MethodSpec("adapt_online"), seed=0, shots=None), pets)
    >>> record["scored"], round(record["accuracy"], 2), round(record["zero_shot_accuracy"], 2)
    (3, 0.67, 0.67)
    """
    if features.labels is None:
        raise ValueError(f"{trial.features} has no labels; there is nothing to compare by.")
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
        source[TEXT] = partial(trial.encoder.text, trial.class_names, spec.prompt_words)
    given = {**drawn_samples(features, parts), **spec.parameters}
    arguments = resolve_inputs(spec.info, given, source, requested=spec.given, hints=COMPARISON_HINTS)
    prototypes, counts = arguments.pop("prototypes"), EncoderCounts()
    if trial.encoder is not None:
        arguments[TEXT] = count_calls(arguments[TEXT], counts)
    stream, labels = np.asarray(features.features[parts.scored]), features.labels[parts.scored]
    with one_blas_thread():
        found = measure_run(
            lambda: methods.create(spec.method, prototypes, **arguments),
            method_input(features, spec, parts.scored, stream),
            counts,
            every=trial.every,
        )
    if trial.encoder is not None and trial.encoder.identity.get("device") != "cpu":
        found["peak_bytes"] = None  # the memory of another device is not weighed
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
        **score_run(probabilities, zero_shot, labels, groups, names),
    }


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
