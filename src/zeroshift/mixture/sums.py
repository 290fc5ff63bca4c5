"""Everything the mixture keeps about the samples: sums. Two shards are merged by adding their sums."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.linalg import add_half_product
from zeroshift.mixture.temperature import N_TEMPERATURES
from zeroshift.state_checks import check_range

__all__ = ["SetSums", "Sums", "column_count"]

NOT_NEGATIVE = ("counts", "posteriors", "squares", "confidences", "agreement", "first_posteriors", "second_posteriors")

MANY_CLASSES, CERTAIN_SHARE = 256, 0.25
"""Classes, and share of rows with a certain label, from which certain labels are added up by themselves."""

BAND_CLASSES = 64
"""Classes whose certain labels are added up together."""

FROM_LABELS = (
    *("counts", "weighted", "confidences", "second_weighted"),
    *("agreement", "first_posteriors", "second_posteriors"),
)
"""Sums that follow from the labels of the samples, or from answers."""


@dataclass(frozen=True)
class Sums:
    """Sums over samples x_i with soft labels q_i and zero-shot posteriors y_i; float64, and never changed in place.

    v_i are the features of a second encoder, of dimension e. Without one, e = 0.
    """

    counts: Array
    """(K,) sum of q_i."""
    weighted: Array
    """(K, d) sum of q_i x_i^T."""
    scatter: Array
    """(d, d) sum of x_i x_i^T."""
    total: Array
    """(d,) sum of x_i."""
    posteriors: Array
    """(K,) sum of y_i."""
    squares: Array
    """(K,) sum of y_i^2, by class."""
    confidences: Array
    """(1 + N_TEMPERATURES,) sum of the reference posterior's probability of the labels given, and of the confidence of
    the answers at each temperature. See `temperature.py`."""
    second_weighted: Array
    """(K, e) sum of q_i v_i^T."""
    second_anchors: Array
    """(K, e) sum of y_i v_i^T."""
    second_scatter: Array
    """(e, e) sum of v_i v_i^T."""
    second_total: Array
    """(e,) sum of v_i."""
    agreement: Array
    """(3,) number of samples that both encoders judged; sum of p_i.r_i and of |p_i|^2, with p_i the posterior from the
    first encoder alone and r_i that from the second one's Gaussians alone."""
    first_posteriors: Array
    """(K,) sum of p_i."""
    second_posteriors: Array
    """(K,) sum of r_i."""

    @classmethod
    def zeros(cls, backend: Backend, classes: int, dimension: int, second: int = 0) -> Sums:
        shapes = {
            "counts": (classes,),
            "weighted": (classes, dimension),
            "scatter": (dimension, dimension),
            "total": (dimension,),
            "posteriors": (classes,),
            "squares": (classes,),
            "confidences": (1 + N_TEMPERATURES,),
            "second_weighted": (classes, second),
            "second_anchors": (classes, second),
            "second_scatter": (second, second),
            "second_total": (second,),
            "agreement": (3,),
            "first_posteriors": (classes,),
            "second_posteriors": (classes,),
        }
        return cls(**{name: backend.zeros(shape) for name, shape in shapes.items()})

    @classmethod
    def from_labelled(cls, features: Array, labels: np.ndarray, classes: int) -> Sums:
        """Samples whose classes are known. They are not part of the stream."""
        backend, d = Backend.of(features), features.shape[1]
        q = backend.zeros((features.shape[0], classes))
        q[backend.index(np.arange(len(labels))), backend.index(labels)] = 1.0
        return cls.zeros(backend, classes, d).add_samples(features, q)

    @property
    def n_samples(self) -> float:
        """Samples of the stream; fewer than were added if old ones are forgotten."""
        return float(Backend.of(self.posteriors).xp.sum(self.posteriors))

    @property
    def second_dimension(self) -> int:
        return int(self.second_total.shape[0])

    def add_samples(self, features: Array, soft_labels: Array, second: Array | None = None) -> Sums:
        """With these samples in the sums that the classes are estimated from."""
        xp = Backend.of(features).xp
        added = self.add_labels(features, soft_labels, second)._replace(
            scatter=self.scatter + features.T @ features,
            total=self.total + xp.sum(features, axis=0),
        )
        if second is None:
            return added
        return added._replace(
            second_scatter=self.second_scatter + second.T @ second,
            second_total=self.second_total + xp.sum(second, axis=0),
        )

    def add_labels(self, features: Array, soft_labels: Array, second: Array | None = None) -> Sums:
        """With soft labels of samples whose features are in the sums already."""
        xp = Backend.of(features).xp
        added = self._replace(
            counts=self.counts + xp.sum(soft_labels, axis=0),
            weighted=self.weighted + soft_labels.T @ features,
        )
        if second is None:
            return added
        return added._replace(second_weighted=self.second_weighted + soft_labels.T @ second)

    def with_labels(self, **changes: Array) -> Sums:
        """The sums that do not depend on the labels of the samples, or as they are changed."""
        xp = Backend.of(self.counts).xp
        zeros = {name: xp.zeros_like(getattr(self, name)) for name in FROM_LABELS if name not in changes}
        return self._replace(**zeros, **changes)

    def add_posteriors(self, posteriors: Array, second: Array | None = None) -> Sums:
        """With zero-shot posteriors (n, K) of the stream."""
        xp = Backend.of(posteriors).xp
        added = self._replace(
            posteriors=self.posteriors + xp.sum(posteriors, axis=0),
            squares=self.squares + xp.sum(posteriors * posteriors, axis=0),
        )
        return added if second is None else added._replace(second_anchors=self.second_anchors + posteriors.T @ second)

    def add_confidences(self, confidences: Array) -> Sums:
        """With the rows (n, 1 + N_TEMPERATURES) of samples that were predicted."""
        xp = Backend.of(confidences).xp
        return self._replace(confidences=self.confidences + xp.sum(confidences, axis=0))

    def add_agreement(self, first: Array, second: Array) -> Sums:
        """With posteriors (n, K) of the same samples from the first encoder and from the second one's Gaussians."""
        backend = Backend.of(first)
        xp, added = backend.xp, backend.zeros((3,))
        added[0], added[1], added[2] = first.shape[0], xp.sum(first * second), xp.sum(first * first)
        return self._replace(
            agreement=self.agreement + added,
            first_posteriors=self.first_posteriors + xp.sum(first, axis=0),
            second_posteriors=self.second_posteriors + xp.sum(second, axis=0),
        )

    def faded(self, factor: float) -> Sums:
        """The sums with every sample weighted by `factor`, as old ones are when samples are forgotten."""
        return Sums(**{name: array * factor for name, array in self.arrays().items()})

    def __add__(self, other: Sums) -> Sums:
        backend = Backend.of(self.counts)
        mine, theirs = self, other
        if self.second_dimension != other.second_dimension:
            if not other.n_samples:  # labelled samples, or a stream that has not begun
                theirs = other._with_second(self.second_dimension)
            elif not self.n_samples:
                mine = self._with_second(other.second_dimension)
            else:
                raise ValueError(
                    f"one stream had {self.second_dimension} columns of a second encoder, the other "
                    f"{other.second_dimension}. Fix: second=... from the same encoder for both, or for neither."
                )
        arrays = theirs.arrays().items()
        return Sums(
            **{name: getattr(mine, name) + backend.asarray(array, backend.xp.float64) for name, array in arrays}
        )

    def _with_second(self, dimension: int) -> Sums:
        """The sums with zeros for a second encoder."""
        zeros = self._zeros(dimension).arrays()
        return self._replace(**{name: array for name, array in zeros.items() if name.startswith("second_")})

    def arrays(self) -> dict[str, Array]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self.arrays(), {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> Sums:
        """New sums from saved arrays, which must have the shapes of these; a second encoder may have any dimension."""
        e = int(arrays["second_total"].shape[0]) if len(arrays["second_total"].shape) == 1 else 0
        expected = self._zeros(e)
        for name, array in expected.arrays().items():
            if tuple(arrays[name].shape) != tuple(array.shape):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {tuple(array.shape)}")
        for name in NOT_NEGATIVE:
            check_range(name, arrays[name], 0)
        restored = Sums(**{name: arrays[name] for name in self.arrays()})
        restored._check_counts()
        return restored

    def _check_counts(self) -> None:
        """ValueError if the sums are not over the same samples."""
        n, judged = self.n_samples, float(self.agreement[0])
        for name, array, low, high in (
            ("the sum of counts", self.counts, n, n),
            ("the sum of first_posteriors", self.first_posteriors, judged, judged),
            ("the sum of second_posteriors", self.second_posteriors, judged, judged),
        ):
            check_range(name, float(Backend.of(array).xp.sum(array)), low, high)
        check_range("squares", self.squares, 0, n)
        check_range("confidences", self.confidences, 0, n)
        check_range("agreement", self.agreement, 0, n)

    def _zeros(self, second: int) -> Sums:
        classes, dimension = self.weighted.shape
        return Sums.zeros(Backend.of(self.counts), classes, dimension, second)

    def _replace(self, **arrays: Array) -> Sums:
        return Sums(**{**self.arrays(), **arrays})


def column_count(dimension: int) -> int:
    """Columns of a chunk (`scoring.new_columns`): the features and three more, rounded up to a multiple of 8, as
    products like it."""
    return -(-(dimension + 3) // 8) * 8


class SetSums:
    """Sums over the rows of a set, added up in place, chunk by chunk.

    Features are given relative to an origin near them, in columns of which the one after the features is 1
    (`statistics.new_columns`). A product over a chunk may then be float32: what it loses is small relative to the
    spread of the features. The sums are float64.
    """

    def __init__(
        self, earlier: Sums, origin: Array, second_origin: Array | None, typical_posterior: Array | None
    ) -> None:
        self._earlier = earlier
        """Sums of an earlier round over the same rows, for what does not depend on labels and is not added here."""
        self._origin, self._second_origin = origin, second_origin
        self._typical = typical_posterior
        """(K,) mean zero-shot posterior of some rows; only `add_features` needs it."""
        self._sums: dict[str, Array] = {}
        self._products: dict[str, Array] = {}
        """Memory for products, used again for every chunk."""
        self._half_sums: tuple[Array, Array] | None = None
        """Sums of soft labels times features, and of soft labels, by `add_half_labels`."""
        self._rows = 0

    @property
    def origins(self) -> tuple[Array, Array | None]:
        """Near the features of the first encoder, and near those of the second."""
        return self._origin, self._second_origin

    def numbers(self) -> dict[str, np.ndarray]:
        """What was added up, as NumPy arrays, to be sent to another process."""
        sums = self._with_half_sums()
        return {name: _transferred(numbers) for name, numbers in sums.items()} | {"rows": np.array(self._rows)}

    def add_numbers(self, numbers: Mapping[str, np.ndarray]) -> SetSums:
        """These sums, with what `numbers` returned for other rows of the same set."""
        backend = Backend.of(self._origin)
        for name, array in numbers.items():
            if name == "rows":
                self._rows += int(array)
            else:
                self._add(name, backend.asarray(array, backend.xp.float64))
        return self

    def add(self, other: SetSums) -> SetSums:
        """These sums, with those over other rows of the same set."""
        for name, numbers in other._with_half_sums().items():
            self._add(name, numbers)
        self._rows += other._rows
        return self

    def _add_product(self, name: str, left: Array, right: Array) -> None:
        """Add left^T right."""
        out = self._products.get(name)
        self._products[name] = product = Backend.of(left).xp.matmul(left.T, right, out=out)
        self._add(name, product)

    def _add(self, name: str, numbers: Array) -> None:
        if name in self._sums:
            self._sums[name] += numbers
        else:
            backend = Backend.of(numbers)
            self._sums[name] = backend.xp.astype(numbers, backend.xp.float64, copy=True)

    def add_labels(self, columns: Array, soft_labels: Array, second: Array | None) -> None:
        """The soft labels (n, K) of a chunk."""
        self._rows += columns.shape[0]
        if isinstance(columns, np.ndarray) and soft_labels.shape[1] >= MANY_CLASSES and "labels" in self._sums:
            columns, soft_labels = self._add_certain(columns, soft_labels) if second is None else (columns, soft_labels)
        self._add_product("labels", soft_labels, columns)
        if second is not None:
            self._add_product("second_weighted", soft_labels, second)

    def add_half_labels(self, rows: Array, soft_labels: Array) -> None:
        """The soft labels (n, K) of a chunk on a GPU, whose features relative to the origin are prepared for products
        of halves."""
        self._rows += rows.shape[0]
        backend = Backend.of(self._origin)
        if self._half_sums is None:
            shape = soft_labels.shape[1], self._origin.shape[0]
            self._half_sums = backend.zeros(shape), backend.zeros(shape[:1])
        weighted, counts = self._half_sums
        add_half_product(weighted, soft_labels, rows)
        counts += backend.xp.sum(soft_labels, axis=0)

    def _with_half_sums(self) -> dict[str, Array]:
        """All sums; those of `add_half_labels` as the columns of `add_labels`."""
        if self._half_sums is not None:
            (weighted, counts), self._half_sums = self._half_sums, None
            classes, d = weighted.shape
            columns = Backend.of(weighted).zeros((classes, column_count(d)))
            columns[:, :d], columns[:, d] = weighted, counts
            self._add("labels", columns)
        return self._sums

    def _add_certain(self, columns: np.ndarray, soft_labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add the rows whose label is 1 but for rounding, class by class, and return the others. A mixture is certain
        of most samples, so that this saves most of a product."""
        labels = soft_labels.argmax(axis=1)
        is_certain = soft_labels[np.arange(len(labels)), labels] == 1.0
        certain = np.flatnonzero(is_certain)
        if len(certain) < CERTAIN_SHARE * len(labels):
            return columns, soft_labels
        certain = certain[np.argsort(labels[certain], kind="stable")]
        labels, rows = labels[certain], columns[certain]
        # Sorted by class, a band of classes has a band of rows, whose labels are the entries 1 of a small matrix.
        bands = np.arange(0, soft_labels.shape[1] + BAND_CLASSES, BAND_CLASSES)
        limits = np.searchsorted(labels, bands)
        for start, first, last in zip(bands[:-1], limits[:-1], limits[1:], strict=True):
            if first < last:
                band = self._sums["labels"][start : start + BAND_CLASSES]
                ones = (labels[first:last, None] == np.arange(start, start + len(band))).astype(rows.dtype)
                band += ones.T @ rows[first:last]
        others = np.flatnonzero(~is_certain)
        return columns[others], soft_labels[others]

    def add_features(self, columns: Array, posteriors: Array, second: Array | None) -> None:
        """What does not depend on labels: features, and zero-shot posteriors (n, K), which are overwritten.

        Posteriors are added up relative to a typical one, because their variance is needed.
        """
        xp = Backend.of(columns).xp
        self._add_product("features", columns, columns)
        if second is not None:
            self._add_product("second_scatter", second, second)
            self._add("second_total", xp.sum(second, axis=0))
            self._add_product("second_anchors", posteriors, second)
        ones = xp.ones_like(columns[:, 0])
        posteriors -= self._typical
        self._add("posteriors", ones @ posteriors)
        posteriors *= posteriors
        self._add("squares", ones @ posteriors)

    def add_confidences(self, confidences: Array) -> None:
        xp = Backend.of(confidences).xp
        self._add("confidences", xp.sum(confidences, axis=0, dtype=xp.float64))

    def add_agreement(self, first: Array, second: Array) -> None:
        """Posteriors (n, K) of the same samples from each encoder."""
        xp = Backend.of(first).xp
        for name, numbers in (("products", first * second), ("first_squares", first * first)):
            self._add(name, xp.sum(numbers, dtype=xp.float64))
        self._add("first_posteriors", xp.sum(first, axis=0, dtype=xp.float64))
        self._add("second_posteriors", xp.sum(second, axis=0, dtype=xp.float64))

    def result(self) -> Sums:
        """The sums over all rows."""
        added, earlier, origin, rows = self._with_half_sums(), self._earlier, self._origin, self._rows
        xp, d = Backend.of(origin).xp, origin.shape[0]
        # The soft labels of a row add up to 1 but for rounding; thresholds on the number of samples see no rounding.
        exact = rows / xp.sum(added["labels"][:, d])
        counts = added["labels"][:, d] * exact
        weighted = added["labels"][:, :d] * exact
        weighted += counts[:, None] * origin
        changes = {"counts": counts, "weighted": weighted}
        if "confidences" in added:
            changes["confidences"] = added["confidences"]
        if "features" in added:
            changes |= self._from_features()
        if "second_weighted" in added:
            changes["second_weighted"] = added["second_weighted"] * exact + counts[:, None] * self._second_origin
        if "products" in added:
            scale = {name: rows / xp.sum(added[name]) for name in ("first_posteriors", "second_posteriors")}
            changes |= {name: added[name] * factor for name, factor in scale.items()}
            number = xp.ones_like(added["products"]) * rows
            changes["agreement"] = xp.stack([number, added["products"], added["first_squares"]])
        return earlier.with_labels(**changes)

    def _from_features(self) -> dict[str, Array]:
        added, origin, rows, mean = self._sums, self._origin, self._rows, self._typical
        xp, d = Backend.of(origin).xp, origin.shape[0]
        mean = xp.astype(mean, xp.float64)
        posteriors = added["posteriors"] + rows * mean
        found = {
            **_moved(added["features"][:d, :d], added["features"][:d, d], origin, rows),
            "posteriors": posteriors * (rows / xp.sum(posteriors)),
            "squares": added["squares"] + mean * (2.0 * added["posteriors"] + rows * mean),
        }
        if self._second_origin is not None:
            moved = _moved(added["second_scatter"], added["second_total"], self._second_origin, rows)
            found |= {f"second_{name}": array for name, array in moved.items()}
            found["second_anchors"] = added["second_anchors"] + posteriors[:, None] * self._second_origin
        return found


def _transferred(array: Array) -> np.ndarray:
    """As `to_numpy`; from a GPU through page-locked memory, which is several times as fast."""
    if not Backend.of(array).on_gpu:
        return to_numpy(array)
    torch = sys.modules["torch"]
    here = torch.empty(array.shape, dtype=array.dtype, pin_memory=True)
    return np.asarray(here.copy_(array).numpy())


def _moved(scatter: Array, total: Array, origin: Array, rows: int) -> dict[str, Array]:
    """Scatter and total of features, from those of features relative to an origin."""
    cross = total[:, None] * origin
    moved = scatter + cross
    moved += cross.T
    moved += rows * (origin[:, None] * origin)
    return {"scatter": moved, "total": total + rows * origin}
