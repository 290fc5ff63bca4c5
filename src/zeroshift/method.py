"""The one shape of a method: parameters stored as given, features in, probabilities out, state that can be saved.

A method is a subclass of `Method` that says what it is (`name`, `protocol`, `needs`, `constraints`) and fills in four
things: `_begin` (state before any sample), `_adapt_scores`, `_predict_scores`, and `_state` / `_restore`. Checking,
conversion between libraries and devices, normalisation, cloning, printing and files are the same for all and live here.
"""

from __future__ import annotations

import copy
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np

from zeroshift import serialization as method_file
from zeroshift.arrays import Array, Home, Rows, check_matrix, is_array, is_double
from zeroshift.features.checks import blocks
from zeroshift.parameters import Constraint
from zeroshift.suggest import did_you_mean
from zeroshift.views import as_images, check_unit_views
from zeroshift.zero_shot import softmax

__all__ = ["EpisodicMethod", "Method", "ViewMethod"]

M = TypeVar("M", bound="Method")

PREDICT_ROWS = 4096
"""Rows scored together at most."""


class Method(ABC):
    """A zero-shot classifier that adapts at test time. Subclasses document what they learn and when."""

    name: ClassVar[str]
    """Name in the registry."""
    protocol: ClassVar[str]
    """`"online"` (sample by sample, see `scored`), `"episodic"` (each sample by itself, nothing remembered),
    `"transductive"` (the whole set at once) or `"few-shot"`."""
    needs: ClassVar[tuple[str, ...]] = ("prototypes",)
    """What the method takes beside features."""
    takes: ClassVar[tuple[str, ...]] = ()
    """What it can be given through calls of its own and does without, such as `"views"` of an image."""
    constraints: ClassVar[Mapping[str, Constraint]] = {}
    """What each parameter may be; see `zeroshift.parameters`."""
    array_parameters: ClassVar[tuple[str, ...]] = ("prototypes",)
    """Parameters that hold arrays."""
    model_parameters: ClassVar[tuple[str, ...]] = ()
    """Parameters that hold a model, such as the text side of an encoder. A saved state does not hold them: it says
    which they were (`identity`), and `load` is given them again."""
    reload_parameters: ClassVar[tuple[str, ...]] = ()
    """Parameters that choose how to compute, not what: they may be changed when a saved state is loaded."""
    check_exceptions: ClassVar[Mapping[str, str]] = {}
    """Checks of `zeroshift.testing.check_method` this method cannot satisfy, each with the reason."""
    example_parameters: ClassVar[Mapping[str, Any]] = {}
    """Values for parameters that have no default, for checks and listings."""
    computes_in: ClassVar[str | None] = "float64"
    """Precision features are brought to; None computes in the features' own precision, at least float32."""
    scored: ClassVar[str] = "after"
    """Whether an online method predicts a sample `"before"` or `"after"` learning from it."""
    state_size: ClassVar[str] = "not stated"
    """Numbers held on to, in K classes, d dimensions and N samples seen."""
    complexity: ClassVar[str] = "not stated"
    """What a sample, or a set, costs, in the same letters."""
    reconstructed: ClassVar[str | None] = None
    """Why the method is a reconstruction; None where it was written from its authors' code or equations."""
    from_features: ClassVar[str | None] = None
    """What is missing where the method is given features alone; None where it is whole."""
    gradient_steps: int = 0
    """Steps along a gradient taken for an image, where these are not counted by a model."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The authors' own parameters for single data sets. Never picked silently: see `preset`."""

    prototypes: Array
    n_seen: int

    def __init__(self, prototypes: Array, **parameters: Any) -> None:
        check_matrix("prototypes", prototypes)
        home = Home.of(prototypes)
        with home.computing():
            # A copy: a caller who goes on using the array must not change the classifier.
            self.prototypes = home.copy(home.bring(prototypes))
        for name, value in parameters.items():
            setattr(self, name, self.constraints[name].check(name, value) if name in self.constraints else value)
        self._validate()
        if home.library == "numpy":
            for name in self.array_parameters:
                _locked(getattr(self, name, None))
        self._fixed = self.parameter_names()
        self.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        # What was learned was learned with the parameters as they were; changing one half way would mix two methods.
        if name in self.__dict__.get("_fixed", ()):
            raise AttributeError(
                f"{name} is fixed once a {type(self).__name__} is made. "
                f"Fix: {type(self).__name__}(**{{**method.get_params(), {name!r}: ...}}) makes another."
            )
        super().__setattr__(name, value)

    def _validate(self) -> None:  # noqa: B027 (most methods have nothing to add)
        """Check what no single parameter's constraint can: how parameters fit together, and array parameters."""

    @abstractmethod
    def _begin(self) -> None:
        """Set the state as it is before any sample."""

    @abstractmethod
    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        """Learn from the rows; yield (which rows, their scores (n, K)) in order."""

    @abstractmethod
    def _predict_scores(self, features: Array) -> Array:
        """Scores (n, K) of features (n, d) with the present state, which stays as it is."""

    @abstractmethod
    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The learned state: arrays, and JSON-able values (`n_seen` is kept for you)."""

    @abstractmethod
    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Put back what `_state` gave, arrays already at home."""

    def _probabilities(self, scores: Array) -> Array:
        return softmax(scores)

    def adapt(self, features: Array) -> Array:
        """Learn from `features` and predict them, in the order `scored` says: (N, K) for (N, d), (K,) for (d,)."""
        return self._answer(features, learn=True, probabilities=True)

    def adapt_scores(self, features: Array) -> Array:
        """As `adapt`, but the raw scores before they are normalised to probabilities."""
        return self._answer(features, learn=True, probabilities=False)

    def predict(self, features: Array) -> Array:
        """Probabilities with what has been learned so far. Nothing is learned and no state changes."""
        return self._answer(features, learn=False, probabilities=True)

    def predict_scores(self, features: Array) -> Array:
        """As `predict`, but the raw scores."""
        return self._answer(features, learn=False, probabilities=False)

    def reset(self) -> None:
        """Forget everything learned."""
        self.n_seen = 0
        with Home.of(self.prototypes).computing():
            self._begin()

    def clone(self: M) -> M:
        """A new method with the same parameters that has learned nothing (`copy.deepcopy` keeps what was learned)."""
        return type(self)(**self.get_params())

    def __copy__(self: M) -> M:
        # A shallow copy would share what is learned in place, and the two would spoil each other.
        return copy.deepcopy(self)

    def get_params(self) -> dict[str, Any]:
        """The constructor's arguments; arrays as copies."""
        return {name: _copied(getattr(self, name)) for name in self.parameter_names()}

    @classmethod
    def preset(cls, dataset: str) -> dict[str, Any]:
        """The authors' parameters for one of their data sets, to be passed on: `TDA(t, **TDA.preset("dtd"))`."""
        if not cls.presets:
            raise ValueError(f"{cls.__name__} has no presets: its authors use one setting for all data.")
        if dataset not in cls.presets:
            known = ", ".join(sorted(cls.presets))
            raise ValueError(
                f"dataset must be one of {known}; got {dataset!r}. {did_you_mean(str(dataset), cls.presets)}".rstrip()
            )
        return dict(cls.presets[dataset])

    @classmethod
    def parameter_names(cls) -> tuple[str, ...]:
        return tuple(name for name in inspect.signature(cls).parameters)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and state as one safetensors file; the file at `path` is replaced whole or not at all."""
        method_file.save(self, path)

    @classmethod
    def load(
        cls: type[M],
        path: str | os.PathLike[str],
        *,
        library: str | None = None,
        device: str | None = None,
        **changes: Any,
    ) -> M:
        """A saved method, ready to go on bit for bit where it stopped.

        `library` ("numpy" or "torch") and `device` are those it was saved from unless given. `changes` may name
        parameters that choose how to compute but not what (see `reload_parameters`), such as `engine="direct"`, and
        must name the models the method computes with (see `model_parameters`), such as `text=...`.
        """
        return method_file.load(cls, path, library=library, device=device, changes=changes)

    @property
    def n_classes(self) -> int:
        return int(self.prototypes.shape[0])

    @property
    def dimension(self) -> int:
        return int(self.prototypes.shape[1])

    def __repr__(self) -> str:
        home = Home.of(self.prototypes)
        where = home.library if home.library == "numpy" else f"{home.library} {home.device}"
        parts = [f"<prototypes {self.n_classes} x {self.dimension}, {where}>"]
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name)
            if name in self.array_parameters:
                if name != "prototypes" and value is not None:
                    arrays = value if isinstance(value, tuple) else (value,)
                    parts.append(f"{name}=<{', '.join(str(tuple(array.shape)) for array in arrays)}>")
            elif value != parameter.default:
                parts.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)}, n_seen={self.n_seen})"

    def _answer(self, features: Array, *, learn: bool, probabilities: bool) -> Array:
        single = is_array(features) and len(features.shape) == 1
        matrix = features[None, :] if single else features
        # The whole input is checked before anything is learned: a bad row leaves the state as it was.
        check_matrix("features", matrix, columns=self.dimension)
        home, caller = Home.of(self.prototypes), Home.of(matrix)
        precision = "float64" if is_double(matrix) else "float32"
        rows = Rows(matrix, home, getattr(home.xp, self.computes_in or precision))
        with home.computing():
            answer = home.zeros((len(rows), self.n_classes), getattr(home.xp, precision))
            for block, scores in self._adapt_scores(rows) if learn else self._predict_blocks(rows):
                answer[block] = self._probabilities(scores) if probabilities else scores
            answer = caller.bring(answer, getattr(caller.xp, precision))
        return answer[0] if single else answer

    def _predict_blocks(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        return ((block, self._predict_scores(x)) for block, x in rows.blocks(self._predict_rows))

    @property
    def _predict_rows(self) -> int:
        """Rows scored together; a method whose scores need more work space than themselves takes fewer."""
        return PREDICT_ROWS


def _locked(value: Any) -> None:
    """What was learned was learned with these numbers: NumPy arrays (also inside a pair) cannot be written to."""
    for array in value if isinstance(value, tuple) else (value,):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False


def _copied(value: Any) -> Any:
    """Arrays (also inside a pair) copied, everything else as it is."""
    if isinstance(value, tuple) and any(hasattr(item, "shape") for item in value):
        return tuple(_copied(item) for item in value)
    return Home.of(value).copy(value) if hasattr(value, "shape") else value


# Methods that can learn from several views of an image, `adapt_views` beside `adapt`; and those that live by them.


WORK_NUMBERS = 4_000_000
"""Features or logits of views held at once: 32 MB in float64."""


class ViewMethod(Method):
    """A method that is given (V, d) views of an image, view 0 the image itself, as well as single features.

    An online subclass fills in `_adapt_view`; one that learns from several images together `_adapt_view_scores`.
    """

    takes: ClassVar[tuple[str, ...]] = ("views",)

    def _adapt_view(self, views: Array) -> Array:
        """Learn from the views (V, d) of one image; scores (K,). The image is counted by the caller."""
        raise NotImplementedError(f"{type(self).__name__} fills in neither _adapt_view nor _adapt_view_scores.")

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        """Learn from the images, (N, V, d) in all; yield (which images, their scores (n, K)) in order."""
        for block, views in images.blocks(1):
            scores = self._adapt_view(views[0])
            self.n_seen += 1
            yield block, scores[None, :]

    def adapt_views(self, views: Array) -> Array:
        """Learn from each image's views and predict it: (N, K) for (N, V, d), (K,) for (V, d) of one image."""
        return self._answer_views(views, learn=True, probabilities=True)

    def adapt_views_scores(self, views: Array) -> Array:
        """As `adapt_views`, but the raw scores."""
        return self._answer_views(views, learn=True, probabilities=False)

    def _answer_views(self, views: Array, *, learn: bool, probabilities: bool) -> Array:
        images, single = as_images(views, self.dimension)
        # All of them before anything is learned: a bad view leaves the state as it was.
        for some in blocks(images.shape[0], images.shape[1] * images.shape[2]):
            check_unit_views(images[some], some.start)
        home, caller = Home.of(self.prototypes), Home.of(images)
        precision = "float64" if is_double(images) else "float32"
        rows = Rows(images, home, getattr(home.xp, self.computes_in or precision))
        with home.computing():
            answer = home.zeros((len(rows), self.n_classes), getattr(home.xp, precision))
            for block, scores in self._adapt_view_scores(rows) if learn else self._predict_view_scores(rows):
                answer[block] = self._probabilities(scores) if probabilities else scores
            answer = caller.bring(answer, getattr(caller.xp, precision))
        return answer[0] if single else answer

    def _predict_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        """Scores of images by their views with the present state, for methods that offer it."""
        raise NotImplementedError(f"{type(self).__name__} predicts from single features only.")


class EpisodicMethod(ViewMethod):
    """A method for which every image is an episode of its own: it adapts to the image's views, answers, and forgets.

    Nothing is learned from one image for the next, so `predict` answers as `adapt` does, which only counts. A single
    feature is an image with one view. A subclass fills in `_episodes`.
    """

    protocol = "episodic"
    needs: ClassVar[tuple[str, ...]] = ("prototypes", "views")
    takes: ClassVar[tuple[str, ...]] = ()
    state_size = "K d, the prototypes"

    @abstractmethod
    def _episodes(self, views: Array) -> Array:
        """Scores (B, K) of B images with V views each, (B, V, d): each image's from its own views alone."""

    def predict_views(self, views: Array) -> Array:
        """As `adapt_views`, uncounted."""
        return self._answer_views(views, learn=False, probabilities=True)

    def predict_views_scores(self, views: Array) -> Array:
        """As `predict_views`, but the raw scores."""
        return self._answer_views(views, learn=False, probabilities=False)

    def _images_at_once(self, n_views: int) -> int:
        """Images worked on together; a method that needs more space than views and logits themselves takes fewer."""
        return max(1, WORK_NUMBERS // (n_views * max(self.dimension, self.n_classes)))

    def _begin(self) -> None:
        pass

    def _predict_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        n_views = images[:1].shape[1]
        return ((block, self._episodes(views)) for block, views in images.blocks(self._images_at_once(n_views)))

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        for block, scores in self._predict_view_scores(images):
            self.n_seen += scores.shape[0]
            yield block, scores

    def _predict_scores(self, features: Array) -> Array:
        return self._episodes(features[:, None, :])

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, scores in self._predict_blocks(rows):
            self.n_seen += scores.shape[0]
            yield block, scores

    @property
    def _predict_rows(self) -> int:
        return min(super()._predict_rows, self._images_at_once(1))

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {}, {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        pass
