"""A classifier with the interface of river (extra `river`), for single samples and for data frames."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.installation import install_command

try:
    from river import base
    from river.utils import dataframe
except ImportError as error:
    raise ImportError(
        f"zeroshift.river needs river 0.26 or newer ({error}). Fix: {install_command('river')}."
    ) from error

from zeroshift.arrays import Array, normalize
from zeroshift.methods.inputs import method_on_features
from zeroshift.methods.registry import get

__all__ = ["ZeroShiftClassifier"]


class ZeroShiftClassifier(base.MiniBatchClassifier):
    """An online method as a river classifier. `learn_one` ignores the label; `predict_proba_one` changes nothing.
    `learn_many`, `predict_proba_many` and `predict_many` do the same for the rows of a data frame.

    A sample is a dictionary of features. Those that it lacks count as 0, those that the prototypes lack are ignored,
    and the rest is scaled to unit length. If nothing but zeros remains, all classes are equally probable, and nothing
    is learned. Answers do not use the order of the stream: for that, use the method itself
    (`zeroshift.methods.create`) and `adapt`.

    Parameters
    ----------
    prototypes : array of shape (K, d)
        One unit-length vector per class, such as text embeddings.
    classes : K labels
        Of the prototypes, in their order.
    method : str
        The name of an online method that needs only features and prototypes.
    logit_scale : float
        Scale of the logits; 100 for CLIP.
    features : d names, default None
        The name of each column of the prototypes. None means 0 to d - 1, the names of `river.stream.iter_array`, or
        "0" to "d - 1", as in files.
    parameters : dict, default None
        Other parameters of the method.

    Examples
    --------
    >>> from river import metrics, stream
    >>> from zeroshift.river import ZeroShiftClassifier
    >>> model = ZeroShiftClassifier(np.eye(2), ["cat", "dog"], logit_scale=5.0)
    >>> metric = metrics.Accuracy()
    >>> for x, y in stream.iter_array(np.array([[0.8, 0.6], [0.6, 0.8]]), np.array(["cat", "dog"])):
    ...     metric.update(y, model.predict_one(x))
    ...     model.learn_one(x)
    >>> metric, {name: round(p, 3) for name, p in model.predict_proba_one({0: 0.8, 1: 0.6}).items()}
    (Accuracy: 100.00%, {'cat': 0.731, 'dog': 0.269})
    """

    def __init__(
        self,
        prototypes: Array,
        classes: Sequence[Hashable],
        method: str = "anchored_mixture_online",
        logit_scale: float = 100.0,
        features: Sequence[Hashable] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.prototypes = prototypes
        self.classes = classes
        self.method = method
        self.logit_scale = logit_scale
        self.features = features
        self.parameters = parameters
        if get(method).protocol != "online":
            raise ValueError(
                f"method must be online; {method} is {get(method).protocol}. Fix: such as 'anchored_mixture_online'."
            )
        self.learner = method_on_features(method, prototypes, logit_scale, parameters or {})
        """The method, with what it has learned."""
        self._labels = _checked_names("classes", classes, self.learner.n_classes, "prototypes")
        names = range(self.learner.dimension) if features is None else features
        self._texts = tuple(map(str, names)) if features is None else None
        self._names = _checked_names("features", names, self.learner.dimension, "columns of the prototypes")

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"prototypes": np.eye(2), "classes": [False, True]}

    @property
    def _multiclass(self) -> bool:
        return len(self._labels) > 2

    def learn_one(self, x: dict[Any, Any], y: Any = None) -> None:
        """Learn from a sample. The label `y` is ignored."""
        row = self._row(x)
        if row is not None:
            self.learner.adapt(row)

    def learn_many(self, X: Any, y: Any = None) -> None:
        """Learn from the rows of a data frame, in their order. The labels `y` are ignored."""
        rows = self._rows(_checked_frame(X))
        if rows.any():
            self.learner.adapt(normalize(rows[rows.any(axis=1)]))

    def predict_proba_many(self, X: Any) -> Any:
        """A data frame of the same kind, with the probability of each class in the column of its label."""
        frame = _checked_frame(X)
        columns = self._probabilities(frame).T
        return dataframe.to_native_frame(dict(zip(self._labels, columns, strict=True)), like=frame)

    def predict_many(self, X: Any) -> Any:
        """The most probable label of each row, as a series of the same kind."""
        frame = _checked_frame(X)
        labels = [self._labels[k] for k in self._probabilities(frame).argmax(axis=1)]
        return dataframe.to_native_series(labels, name=None, like=frame)

    def predict_proba_one(self, x: dict[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """The probability of each class, by its label."""
        row = self._row(x)
        n = len(self._labels)
        probabilities = [1 / n] * n if row is None else self.learner.predict(row).tolist()
        return dict(zip(self._labels, probabilities, strict=True))

    def _row(self, x: Mapping[Any, Any]) -> np.ndarray | None:
        """The features of unit length (d,); None if they are all zero."""
        if not isinstance(x, Mapping):
            raise TypeError(f"x must be a dictionary of features; got {type(x).__name__}. Fix: dict(enumerate(x)).")
        values = [x.get(name, 0.0) for name in self._names_in(x)]
        try:
            row = np.array(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"x must have a number for each feature; {error}. Fix: leave out the features that have none."
            ) from error
        if row.any():
            return np.asarray(normalize(row))
        self._refuse_strangers("x", x)
        return None

    def _rows(self, frame: Any) -> np.ndarray:
        """The features of each row of a data frame (n, d), not scaled."""
        places = {name: place for place, name in enumerate(frame.columns)}
        names = self._names_in(places)
        known = [column for column, name in enumerate(names) if name in places]
        if not known:
            self._refuse_strangers("X", places)
        rows = np.zeros((len(frame), len(names)))
        try:
            rows[:, known] = dataframe.to_numpy(frame[:, [places[names[column]] for column in known]])
        except (TypeError, ValueError) as error:
            raise TypeError(f"X must have a number for each feature; {error}. Fix: drop other columns.") from error
        return rows

    def _probabilities(self, frame: Any) -> np.ndarray:
        rows = self._rows(frame)
        probabilities = np.full((len(rows), len(self._labels)), 1 / len(self._labels))
        if rows.any():
            directed = rows.any(axis=1)
            probabilities[directed] = self.learner.predict(normalize(rows[directed]))
        return probabilities

    def _names_in(self, found: Mapping[Any, Any]) -> tuple[Any, ...]:
        """The names of the features as `found` has them: the numbers from 0 may be texts."""
        if self._texts is None or any(name in found for name in self._names):
            return self._names
        return self._texts

    def _refuse_strangers(self, argument: str, found: Mapping[Any, Any]) -> None:
        if found and not any(name in found for name in self._names_in(found)):
            raise ValueError(
                f"{argument} has none of the features {self._names[0]!r}, {self._names[-1]!r}, ...; its own are "
                f"{list(found)[:3]!r}, ... Fix: features=[...], the name of each column of the prototypes."
            )


def _checked_frame(given: Any) -> Any:
    try:
        return dataframe.into_frame(given)
    except TypeError as error:
        raise TypeError(
            f"X must be a data frame of pandas, polars or pyarrow; got {type(given).__name__}. "
            "Fix: pandas.DataFrame(X), or learn_one and predict_proba_one for dictionaries."
        ) from error


def _checked_names(argument: str, given: Any, count: int, of: str) -> tuple[Any, ...]:
    if isinstance(given, str):
        raise TypeError(f"{argument} must be a list of names; got {given!r}. Fix: a list in the order of the {of}.")
    names = tuple(given.tolist() if isinstance(given, np.ndarray) else given)
    if len(names) != count or len(set(names)) < count:
        raise ValueError(
            f"{argument} must be {count} different names, one for each of the {of}; got {len(names)}, "
            f"{len(set(names))} of them different. Fix: a list in the order of the {of}."
        )
    return names
