"""Several views of an image: their entropies, which of them to keep, and the mean of those as the image's feature.

The functions work on NumPy arrays and torch tensors alike. `zeroshift.encode.views` creates the views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from zeroshift import zero_shot
from zeroshift.arrays import Array, Backend, Rows, as_floats, check_matrix, is_double, namespace, to_numpy
from zeroshift.arrays import normalize as unit_rows
from zeroshift.features.checks import blocks
from zeroshift.parameters import Choice, Number
from zeroshift.zero_shot import Observation, confidence, log_softmax, pseudo_class

__all__ = [
    "AveragedRows",
    "AveragedViews",
    "as_images",
    "average_views",
    "check_unit_views",
    "entropy",
    "images_per_block",
    "marginal_entropy",
    "observe_views",
    "select_lowest_entropy",
]


RATIO = 0.1
"""The fraction of views kept, as in TPT and in the released code of ADAPT: 6 of 64."""

MODES = Choice(("online", "transductive"))

WORK_NUMBERS = 4_000_000
"""Features or logits of views in memory together: 32 MB in float64."""

CANCELLED = 1e-6
"""A mean of unit vectors shorter than this is rounding: they cancel each other."""

ONE_VIEW = 1e-9
"""A ratio so small that one view is kept."""


class AveragedViews(NamedTuple):
    """The mean of each image's most confident views; without the axis N for a single image."""

    features: Array
    """(N, d), means of unit vectors: shorter than 1 unless normalised."""
    logits: Array
    """(N, K), means of the views' logits."""
    probabilities: Array
    """(N, K)."""
    entropy: Array
    """(N,), of `probabilities`."""


def entropy(logits: Array) -> Array:
    """Entropy in nats of the softmax over the last axis: 0 if certain, log K if uniform; never NaN for finite logits.

    >>> import numpy as np
    >>> entropy(np.array([[4.0, 3.0], [0.0, 0.0], [0.0, 5000.0]])).round(4)
    array([0.5822, 0.6931, 0. ])
    """
    logits = as_floats("logits", logits)
    if not logits.shape or not logits.shape[-1]:
        raise ValueError(
            f"logits must have classes along its last axis; got shape {tuple(logits.shape)}. Fix: (..., K)."
        )
    return _entropy(log_softmax(_wide(logits)))


def marginal_entropy(logits: Array) -> Array:
    """Entropy of the mean of the views' softmaxes, for (V, K) or (N, V, K): the loss of TPT.

    Two views that are certain of different classes have entropy 0 each, and log 2 together:

    >>> import numpy as np
    >>> round(float(marginal_entropy(np.array([[50.0, 0.0], [0.0, 50.0]]))), 4)
    0.6931
    """
    logits = _check_shape("logits", logits, "K")
    return _entropy(_log_mean_posterior(_wide(logits)))


def select_lowest_entropy(logits: Array, ratio: float = RATIO) -> Array:
    """Indices of the views with the lowest entropy, lowest first; of two equal ones the earlier first.

    Parameters
    ----------
    logits : (V, K) of one image, or (N, V, K).
    ratio : the fraction kept: int(V * ratio) views, at least one.

    Returns
    -------
    (n,) or (N, n) integers.

    >>> import numpy as np
    >>> select_lowest_entropy(np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 3.0]]), ratio=0.5)
    array([1, 3])
    """
    logits = _check_shape("logits", logits, "K")
    ratio = _check_ratio(ratio)
    xp = namespace(logits)
    if not bool(xp.all(xp.isfinite(logits))):
        raise ValueError("logits contains NaN or infinity, which cannot be ordered. Fix: recompute them.")
    order = xp.argsort(entropy(logits), axis=-1, stable=True)
    return order[..., : max(int(logits.shape[-2] * ratio), 1)]


def average_views(
    views: Array,
    prototypes: Array,
    logit_scale: float,
    *,
    ratio: float = RATIO,
    mode: str = "online",
    normalize: bool = False,
) -> AveragedViews:
    """The mean of each image's most confident views: the input of ADAPT's released code for ImageNet-A, -R, -Sketch
    and V2.

    The features and the logits of the views with the lowest entropy are averaged. For half precision, computation and
    result are in float32.

    Parameters
    ----------
    views : (N, V, d) unit features, or (V, d) of one image. They are read a few images at a time, so `views` may be a
        memory-mapped file larger than memory.
    prototypes : (K, d) unit rows.
    logit_scale : s in softmax(s t.x).
    ratio : the fraction of views kept, see `select_lowest_entropy`.
    mode : how the probabilities are computed. The released online code takes the mean of the kept views' softmaxes, its
        transductive code the softmax of their mean logits. Features and logits are the same in both.
    normalize : scale the averaged features to unit length, which the methods of this library need. The released code
        does not. Logits and probabilities are means over unit views and do not change.

    >>> import numpy as np
    >>> views = np.array([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> one = average_views(views, np.eye(2), 5.0, ratio=0.5)
    >>> one.features, one.logits, one.probabilities  # views 1 and 3 are the most confident, and contradict each other
    (array([0.5, 0.5]), array([2.5, 2.5]), array([0.5, 0.5]))
    """
    ratio, mode = _check_ratio(ratio), MODES.check("mode", mode)
    logit_scale = Number(0, above=True).check("logit_scale", logit_scale)
    prototypes = check_matrix("prototypes", prototypes)
    many, single = as_images(views, prototypes.shape[1])
    n_images, n_views, dimension = many.shape
    backend = Backend.of(many)
    parts = []
    with backend.computing():
        prototypes = backend.asarray(prototypes)
        for images in blocks(n_images, n_views * max(dimension, prototypes.shape[0])):
            block = many[images]
            check_unit_views(block, images.start)
            parts.append(_averaged(backend.asarray(block), prototypes, logit_scale, ratio, mode))
        features, *others = (backend.xp.concat(arrays) for arrays in zip(*parts, strict=True))
    if normalize:
        features = unit_rows(features)
    joined = AveragedViews(features, *others)
    return AveragedViews(*(array[0] for array in joined)) if single else joined


def observe_views(views: Array, prototypes: Array, logit_scale: float, ratio: float) -> Observation:
    """The mean of an image's most confident views (V, d), with their mean prediction: one sample."""
    one = _averaged(views[None, ...], prototypes, logit_scale, ratio, "online")
    return Observation(one.features, one.logits, one.probabilities, pseudo_class(one.logits), one.entropy)


def _averaged(views: Array, prototypes: Array, logit_scale: float, ratio: float, mode: str) -> AveragedViews:
    xp = namespace(views)
    logits = zero_shot.logits(views, prototypes, logit_scale)
    kept = select_lowest_entropy(logits, ratio)
    images = xp.arange(views.shape[0], device=Backend.of(views).device)[:, None]
    views, logits = views[images, kept], logits[images, kept]
    mean = xp.mean(logits, axis=1)
    log_y = _log_mean_posterior(logits) if mode == "online" else log_softmax(mean)
    return AveragedViews(xp.mean(views, axis=1), mean, xp.exp(log_y), _entropy(log_y))


def _log_mean_posterior(logits: Array) -> Array:
    """Logarithm of the mean over views of their softmaxes; computed from logarithms, so that none becomes log 0."""
    xp = namespace(logits)
    log_y = log_softmax(logits)
    highest = xp.max(log_y, axis=-2, keepdims=True)
    return xp.log(xp.mean(xp.exp(log_y - highest), axis=-2)) + highest[..., 0, :]


def _entropy(log_y: Array) -> Array:
    return abs(confidence(log_y))  # not -confidence: a certain view has entropy 0, not -0


def _wide(logits: Array) -> Array:
    """In float32 at least. Unlike `Backend.asarray`, this keeps torch's graph, which TPT needs for gradients."""
    xp = namespace(logits)
    return xp.astype(logits, xp.float64 if is_double(logits) else xp.float32, copy=False)


def _check_ratio(ratio: float) -> float:
    return float(Number(0, 1, above=True).check("ratio", ratio))


def _check_shape(name: str, value: Array, last: str, *, empty: bool = False) -> Array:
    array = as_floats(name, value)
    if len(array.shape) not in (2, 3) or 0 in (array.shape[-2:] if empty else array.shape):
        raise ValueError(
            f"{name} must have the shape (N, V, {last}), or (V, {last}) for one image, without empty axes; "
            f"got {tuple(array.shape)}. Fix: with one view per image, pass {name}[:, None, :]."
        )
    return array


def as_images(views: Array, dimension: int, *, empty: bool = False) -> tuple[Array, bool]:
    """Views as (N, V, d), and whether they were a single image (V, d); ValueError if d is not `dimension`. N may be 0
    if `empty`."""
    views = _check_shape("views", views, "d", empty=empty)
    if views.shape[-1] != dimension:
        raise ValueError(
            f"views has d = {views.shape[-1]}, but the prototypes have d = {dimension}. "
            "Fix: take views and prototypes from the same encoder."
        )
    single = len(views.shape) == 2
    return (views[None, ...] if single else views), single


def check_unit_views(views: Array, start: int) -> None:
    """Check all rows together; if that fails, one image at a time, so that the error names the image."""
    try:
        check_matrix("views", views.reshape(-1, views.shape[-1]))
    except ValueError:
        for image in range(views.shape[0]):
            check_matrix(f"views[{start + image}]", views[image])
        raise


def images_per_block(images: Rows, prototypes: Array) -> int:
    """How many images are processed together, so that their views and logits fit into memory."""
    return max(1, WORK_NUMBERS // (images[:1].shape[1] * max(prototypes.shape)))


class AveragedRows(Rows):
    """Images (N, V, d) as one feature (N, d) each, computed on access, a few images at a time.

    Parameters
    ----------
    images : the views, unit features.
    prototypes, logit_scale, ratio : which views are averaged, see `average_views`.
    unit : scale the means to unit length. If only one view is kept it is not scaled, so that an image with one view is
        that view bit for bit. If the kept views cancel each other, the most confident one is used.
    """

    def __init__(self, images: Rows, prototypes: Array, logit_scale: float, ratio: float, *, unit: bool) -> None:
        self._images = images
        self._prototypes = prototypes
        self._logit_scale = logit_scale
        self._ratio = ratio
        self._normalise = unit and int(images[:1].shape[1] * ratio) > 1
        self._block_size = images_per_block(images, prototypes)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(len(self))
        return self._gather(start, stop, self._images.__getitem__)

    def blocks(self, size: int, *, reuse: bool = False, within: slice | None = None) -> Iterator[tuple[slice, Array]]:
        return super().blocks(
            size, within=within
        )  # an average is a new array every time, so there is no memory to reuse

    def take(self, rows: Array) -> Array:
        numbers = to_numpy(rows)
        return self._gather(0, len(numbers), lambda block: self._images.take(numbers[block]))

    def materialize(self) -> Rows:
        """All averages in memory, for callers that read the rows more than once."""
        backend = Backend.of(self._prototypes)
        features = backend.zeros((len(self), self._prototypes.shape[1]))
        for block, averages in self.blocks(self._block_size):
            features[block] = averages
        return Rows(features, backend, features.dtype)

    def _gather(self, start: int, stop: int, views: Callable[[slice], Array]) -> Array:
        starts = range(start, stop, self._block_size)
        parts = [self._average(views(slice(a, min(a + self._block_size, stop)))) for a in starts]
        return parts[0] if len(parts) == 1 else namespace(*parts).concat(parts)

    def _average(self, views: Array) -> Array:
        mean = average_views(views, self._prototypes, self._logit_scale, ratio=self._ratio).features
        if not self._normalise:
            return mean
        xp = namespace(mean)
        lengths = xp.linalg.vector_norm(mean, axis=1, keepdims=True)
        cancelled = lengths < CANCELLED
        if bool(xp.any(cancelled)):
            single = average_views(views, self._prototypes, self._logit_scale, ratio=ONE_VIEW).features
            mean, lengths = xp.where(cancelled, single, mean), xp.where(cancelled, xp.ones_like(lengths), lengths)
        return mean / lengths
