"""A classifier with the interface of scikit-learn (extra `sklearn`): for pipelines, cross-validation, grid search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Self

import numpy as np

from zeroshift.installation import install_command

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        f"zeroshift.sklearn needs scikit-learn 1.6 or newer ({error}). Fix: {install_command('sklearn')}."
    ) from error

from zeroshift.arrays import Array, check_matrix, normalize, to_numpy
from zeroshift.method import Method
from zeroshift.methods.inputs import method_on_features
from zeroshift.methods.registry import get
from zeroshift.mixture import OnlineAnchoredMixture, TransductiveAnchoredMixture

__all__ = ["ZeroShiftClassifier"]

AUTO = {"fit": "anchored_mixture_transductive", "partial_fit": "anchored_mixture_online"}
"""What `method="auto"` is, by the call that learns first."""

NESTED = "method__"
"""Begins the names that `set_params` and `get_params` have for the parameters of the method."""


class _Unquoted(str):
    """A text whose representation is the text itself."""

    __repr__ = str.__str__


def _follows_streams(classifier: ZeroShiftClassifier) -> bool:
    """Whether `partial_fit` is available; a name that is unknown is reported by the call."""
    try:
        protocol = "online" if classifier.method == "auto" else get(classifier.method).protocol
    except (ValueError, TypeError, AttributeError):
        return True
    if protocol != "online":
        raise AttributeError(
            f"partial_fit is not available: {classifier.method} is {protocol}, not online. "
            "Fix: fit, or method='auto', or the name of an online method."
        )
    return True


def _checked_mapping(parameters: Any) -> Mapping[str, Any]:
    """The parameters of the method; none if nothing was given."""
    if parameters is not None and not isinstance(parameters, Mapping):
        raise TypeError(
            f"parameters must be a dict, the parameters of the method by name; got {parameters!r}. "
            "Fix: such as {'anchor_count': 2.0}."
        )
    return parameters or {}


class ZeroShiftClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A zero-shot classifier that adapts to unlabelled samples.

    `fit(X)` learns from a whole set, without labels: the `y` of cross-validation and pipelines is ignored, but names in
    it are refused if `classes` is None, because `score` would compare them with 0 to K - 1.
    `partial_fit(X)` learns from the next samples of a stream. `predict` and `predict_proba` change nothing, and take
    the samples that were learned from as well as others. Rows of `X` and prototypes are scaled to unit length. A row of
    zeros is as far from one class as from another: its probabilities are equal, and nothing is learned from it.

    Parameters
    ----------
    prototypes : array of shape (K, d), default None
        One vector per class, such as text embeddings. None takes the mean direction of the samples of each class, from
        the `y` of `fit` or of the first `partial_fit`; `y` is used for nothing else.
    classes : K labels, default None
        The labels of the prototypes, in their order; 0 to K - 1 if None. `classes_` has them sorted, as in every
        classifier of scikit-learn, and the columns of `predict_proba` are in the order of `classes_`.
    method : str, default "auto"
        A name that `zeroshift methods` lists, of a method that needs only features and prototypes. "auto" is the
        anchored mixture: `fit` uses the transductive one, `partial_fit` the online one, which continues from what `fit`
        has learned. With the name of an online method, `fit` learns from the rows in their order, and `partial_fit`
        continues; with that of a transductive method there is no `partial_fit`.
    logit_scale : float, default 100.0
        Scale of the logits; 100 for CLIP.
    parameters : dict, default None
        Other parameters of the method. `set_params(method__rounds=5)` sets a single one, and a grid search takes
        `{"method__rounds": [5, 10]}`.

    Attributes
    ----------
    classes_ : array of shape (K,)
        The labels, sorted.
    method_ : Method
        The method with what it has learned. `method_.freeze(classes_, normalize=True)` exports it.
    transduction_ : array of shape (N,)
        The labels of the last samples learned from, as the method answered when it learned from them. Some transductive
        methods answer better then than `predict` does later, because they use the neighbours of a sample in the set.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from zeroshift.sklearn import ZeroShiftClassifier
    >>> classifier = ZeroShiftClassifier(np.eye(3, 8), classes=["cat", "dog", "horse"], logit_scale=10.0)
    >>> X = np.eye(3, 8)[[0, 1, 2, 1] * 3]
    >>> classifier.fit(X).predict(X[:4])
    array(['cat', 'dog', 'horse', 'dog'], dtype='<U5')
    >>> classifier.partial_fit(X[:2]).method_
    OnlineAnchoredMixture(<prototypes 3 x 8, numpy>, logit_scale=10.0, n_seen=14)
    """

    classes_: np.ndarray
    method_: Method
    transduction_: np.ndarray

    def __init__(
        self,
        prototypes: Array | None = None,
        *,
        classes: Any = None,
        method: str = "auto",
        logit_scale: float = 100.0,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.prototypes = prototypes
        self.classes = classes
        self.method = method
        self.logit_scale = logit_scale
        self.parameters = parameters

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name; with `deep` also those of the method that were given, as `method__NAME`."""
        found: dict[str, Any] = super().get_params(deep=deep)
        if deep and isinstance(self.parameters, Mapping):
            found |= {f"{NESTED}{name}": value for name, value in self.parameters.items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; `method__NAME` sets a parameter of the method."""
        nested = {name.removeprefix(NESTED): params.pop(name) for name in list(params) if name.startswith(NESTED)}
        super().set_params(**params)
        if nested:
            self.parameters = {**_checked_mapping(self.parameters), **nested}
        return self

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from all samples at once, and forget what was learned before. `y` matters only without prototypes."""
        X, y = self._validated(X, y, reset=True)
        self._start("fit", X, y, None)
        return self._learn(X)

    def fit_predict(self, X: Any, y: Any = None) -> np.ndarray:
        """Learn from all samples at once, and return their labels, which are `transduction_` then."""
        return self.fit(X, y).transduction_

    @available_if(_follows_streams)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> Self:
        """Learn from the next samples of a stream.

        `classes` is for scikit-learn's own tools and needed only if `prototypes` is None: all labels that there are,
        which must occur in the first `y`.
        """
        begins = not hasattr(self, "method_")
        X, y = self._validated(X, y if begins else None, reset=begins)
        if begins:
            self._start("partial_fit", X, y, classes)
        elif isinstance(self.method_, TransductiveAnchoredMixture):
            self.method_ = OnlineAnchoredMixture.from_set(self.method_)
        return self._learn(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (N, K); columns are in the order of `classes_`."""
        check_is_fitted(self, "method_")
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        return self._answer(X, self.method_.predict)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each sample."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """As in scikit-learn, but with the shape of the prototypes instead of their numbers."""
        shown = copy(self)
        if self.prototypes is not None:
            shown.prototypes = _Unquoted(f"<{' x '.join(map(str, np.shape(self.prototypes)))}>")
        return str(BaseEstimator.__repr__(shown, N_CHAR_MAX))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.prototypes is None
        return tags

    def _validated(self, X: Any, y: Any, *, reset: bool) -> tuple[np.ndarray, Any]:
        """Checked features, and the labels if they are needed."""
        if self.prototypes is not None or not reset:
            self._refuse_names(y)
            return validate_data(self, X, dtype=(np.float64, np.float32), reset=reset), None
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), reset=reset)
        check_classification_targets(y)
        return X, y

    def _refuse_names(self, y: Any) -> None:
        """Refuse labels that `score` could not compare with the classes 0 to K - 1."""
        labels = [] if y is None or self.classes is not None else np.ravel(y).tolist()
        if name := next((label for label in labels if isinstance(label, str)), None):
            raise ValueError(
                f"y has names, such as {name!r}, but the classes are numbers from 0, because classes is None. "
                "Fix: classes=[...], the name of each prototype, in their order."
            )

    def _start(self, call: str, X: np.ndarray, y: Any, classes: Any) -> None:
        """Make a method that has learned nothing."""
        if not isinstance(self.method, str):
            raise TypeError(f"method must be 'auto' or the name of a method; got {self.method!r}. Fix: such as 'tda'.")
        name = AUTO[call] if self.method == "auto" else self.method
        labels, prototypes = self._given_prototypes() if y is None else self._class_means(X, y, classes)
        if prototypes.shape[1] != X.shape[1]:
            raise ValueError(
                f"X has {X.shape[1]} features, but the prototypes have {prototypes.shape[1]} (shape "
                f"{prototypes.shape}). Fix: features and prototypes of the same encoder."
            )
        parameters = _checked_mapping(self.parameters)
        order = np.argsort(labels)
        method = method_on_features(name, prototypes[order], self.logit_scale, parameters)
        self.classes_, self.method_ = labels[order], method

    def _given_prototypes(self) -> tuple[np.ndarray, np.ndarray]:
        given = self.prototypes
        given = np.asarray(given, dtype=np.float64) if isinstance(given, (list, tuple)) else given
        prototypes = normalize(check_matrix("prototypes", given, unit=False))
        labels = np.arange(len(prototypes)) if self.classes is None else np.asarray(self.classes)
        try:
            n_different = len(np.unique(labels))
        except TypeError as error:  # scikit-learn sorts labels
            raise TypeError(
                f"classes must be labels of one kind; got {self.classes!r:.80}. Fix: all texts, or all numbers."
            ) from error
        if labels.shape != (len(prototypes),) or n_different < len(labels):
            raise ValueError(
                f"classes must be {len(prototypes)} different labels, one for each prototype; got {self.classes!r}. "
                "Fix: a list in the order of the prototypes."
            )
        return labels, to_numpy(prototypes)

    def _class_means(self, X: np.ndarray, y: np.ndarray, classes: Any) -> tuple[np.ndarray, np.ndarray]:
        """The labels, and the mean direction of the samples of each."""
        given = classes if self.classes is None else self.classes
        labels = np.unique(y) if given is None else np.unique(given)
        members = labels[:, None] == np.asarray(y)[None, :]
        if not members.any(axis=1).all() or not members.any(axis=0).all():
            absent = sorted({*labels.tolist()} ^ {*np.unique(y).tolist()}, key=str)
            raise ValueError(
                f"prototypes is None, so y must have samples of every class and of no other; {absent} are in only one "
                "of classes and y. Fix: prototypes=..., or all classes in the first y."
            )
        directed = X.any(axis=1)
        sums = members[:, directed].astype(np.float64) @ normalize(X[directed]) if directed.any() else members[:, :0]
        if not np.any(sums, axis=1).all():
            raise ValueError(
                "prototypes is None, but the samples of a class have no mean direction: all are zero, or they cancel. "
                "Fix: prototypes=..., or drop the class."
            )
        return labels, normalize(sums)

    def _learn(self, X: np.ndarray) -> Self:
        self.transduction_ = self.classes_[self._answer(X, self.method_.adapt).argmax(axis=1)]
        return self

    def _answer(self, X: np.ndarray, call: Callable[[np.ndarray], Array]) -> np.ndarray:
        """Probabilities that `call` gives to rows scaled to unit length; equal ones for rows of zeros."""
        probabilities = np.full((len(X), len(self.classes_)), 1.0 / len(self.classes_), dtype=X.dtype)
        directed = X.any(axis=1)
        if directed.any():
            probabilities[directed] = call(normalize(X[directed]))
        return probabilities
