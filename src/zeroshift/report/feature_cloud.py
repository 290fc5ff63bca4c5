"""A drawing of real features: three classes of a set in a plane, before and after adaptation.

The plane contains the three text prototypes, up to a shift. Zero-shot compares the cosines with the prototypes, and the
part of a feature outside the plane adds the same number to all three. So the plane shows everything zero-shot looks at,
and its three regions are exact. The Gaussians of the adapted method have all dimensions; the drawing shows their shadow
on the plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift import methods
from zeroshift.evaluate import Comparison
from zeroshift.report.formatting import method_label, percent, points
from zeroshift.report.style import CLASS_COLOURS, INK, TEXT, annotate, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FeatureCloud", "cloud_after", "cloud_before", "cloud_figure", "cloud_of"]

WIDTH = 3.6
"""Inches of one panel; its height follows from the samples."""

TALLEST = 1.2
"""Largest height of a panel, as a multiple of its width."""

SHADE = 0.17
"""Opacity of a class's region."""

MARGIN = 0.06
"""Space around the points, as a fraction of their range."""

ARROW = 0.3
"""Length of the arrow to a text prototype, as a fraction of the width of the picture."""

CIRCLE = np.stack([np.cos(np.linspace(0, 2 * np.pi, 73)), np.sin(np.linspace(0, 2 * np.pi, 73))], axis=1)


@dataclass(frozen=True)
class FeatureCloud:
    """The samples of three classes in the plane of their text prototypes, classified among these three."""

    title: str
    method: str
    class_names: tuple[str, ...]
    samples: np.ndarray
    """(n, 2)."""
    labels: np.ndarray
    """(n,) true classes, from 0 to 2."""
    before: np.ndarray
    after: np.ndarray
    """(n,) classes predicted by zero-shot and by the method."""
    prototypes: np.ndarray
    means: np.ndarray
    """(3, 2)."""
    covariance: np.ndarray
    """(2, 2)."""

    @property
    def accuracies(self) -> tuple[float, float]:
        return float(np.mean(self.before == self.labels)), float(np.mean(self.after == self.labels))

    @property
    def agreement(self) -> float:
        """Share of the samples that lie in the region of the class the method predicts."""
        return float(np.mean(_nearest(self.samples, self.means, self.covariance) == self.after))

    @property
    def headline(self) -> str:
        before, after = self.accuracies
        moved = int(np.count_nonzero(self.before != self.after))
        return f"{moved} of {len(self.labels)} labels change, accuracy {points(100 * (after - before))} points"

    @property
    def caption(self) -> str:
        before, after = self.accuracies
        names = ", ".join(self.class_names)
        method = method_label(self.method)
        return (
            f"{len(self.labels)} samples of {self.title}, of the three classes ({names}) between which {method} moves "
            "most labels, classified among these three. Each dot is a feature, in the colour of its predicted class; "
            "wrong ones are crosses. Projection: the plane through the three text prototypes, which lie outside the "
            "picture where the arrows point. Zero-shot uses nothing but this plane, so its regions are exact "
            f"({percent(before)}% right). After adaptation ({percent(after)}% right) each class is a Gaussian around "
            "its mean (diamond; the ellipse is one standard deviation), and its region is where this Gaussian, seen in "
            f"the plane, is nearest. The method uses all dimensions: {percent(self.agreement)}% of its predictions "
            "agree with these regions."
        )


def cloud_of(comparison: Comparison, method: str) -> FeatureCloud | None:
    """The cloud of the three classes between which `method` moved most labels; chosen without true labels.

    The method runs again on the samples of these classes alone. None where a set has no labels, fewer than three
    classes, or no two dimensions to draw.
    """
    features = comparison.features
    if features.labels is None or features.n_classes < 3:
        return None
    before, after = comparison.baseline.predictions, comparison.result(method).predictions
    moved = np.zeros((features.n_classes, features.n_classes))
    np.add.at(moved, (before, after), 1)
    chosen = max(combinations(range(features.n_classes), 3), key=lambda c: moved[np.ix_(c, c)].sum() - _trace(moved, c))
    rows = np.isin(features.labels, chosen)
    x = np.asarray(features.features, dtype=np.float64)[rows]
    prototypes = np.asarray(features.prototypes_for(), dtype=np.float64)[list(chosen)]
    if len(x) < 3 or np.linalg.matrix_rank(prototypes[1:] - prototypes[0]) < 2:
        return None
    adapter: Any = methods.create(method, prototypes, logit_scale=features.logit_scale)
    predicted = adapter.adapt(x).argmax(axis=1)
    plane = np.linalg.qr((prototypes[1:] - prototypes[0]).T)[0]
    spread = np.linalg.pinv(np.asarray(adapter.precision_matrix))
    return FeatureCloud(
        title=comparison.title,
        method=method,
        class_names=tuple(features.class_names[k] for k in chosen),
        samples=x @ plane,
        labels=np.searchsorted(chosen, np.asarray(features.labels)[rows]),
        before=(x @ prototypes.T).argmax(axis=1),
        after=predicted,
        prototypes=prototypes @ plane,
        means=np.asarray(adapter.means) @ plane,
        covariance=plane.T @ spread @ plane,
    )


def _trace(moved: np.ndarray, classes: tuple[int, ...]) -> float:
    return float(sum(moved[k, k] for k in classes))


def _nearest(at: np.ndarray, means: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """The class whose Gaussian has the highest density at each point."""
    away = at[:, None] - means
    return np.einsum("nkd,de,nke->nk", away, np.linalg.inv(covariance), away).argmin(axis=1)


def cloud_before(cloud: FeatureCloud) -> Figure:
    """The samples in the regions of zero-shot, for the page."""
    figure = new_figure(WIDTH, _height(cloud))
    _draw_before(figure.add_subplot(), cloud)
    return figure


def cloud_after(cloud: FeatureCloud) -> Figure:
    """The samples in the regions of the adapted Gaussians, for the page."""
    figure = new_figure(WIDTH, _height(cloud))
    _draw_after(figure.add_subplot(), cloud)
    return figure


def _height(cloud: FeatureCloud) -> float:
    wide, tall = np.ptp(cloud.samples, axis=0)
    return WIDTH * min(TALLEST, float(tall / wide))


def cloud_figure(cloud: FeatureCloud) -> Figure:
    """Both panels next to each other, with titles, for a file."""
    figure = new_figure(2 * WIDTH, _height(cloud) + 0.25)
    left, right = figure.subplots(1, 2)
    _draw_before(left, cloud, halo=True)
    _draw_after(right, cloud, halo=True)
    before, after = (percent(accuracy) for accuracy in cloud.accuracies)
    for axes, title in (
        (left, f"Zero-shot: {before}% right"),
        (right, f"{method_label(cloud.method)}: {after}% right"),
    ):
        axes.set_title(title, loc="left", fontsize=TEXT + 1, color=INK, parse_math=False)
    return figure


def _draw_before(axes: Axes, cloud: FeatureCloud, *, halo: bool = False) -> None:
    # Scores of zero-shot in the plane, less a number that is the same for all classes.
    _draw(axes, cloud, cloud.before, cloud.prototypes, np.zeros(3))
    left, right = axes.get_xlim()
    length = ARROW * (right - left)
    for k, prototype in enumerate(cloud.prototypes):
        end = length * prototype / np.linalg.norm(prototype)
        axes.annotate(
            "",
            end,
            (0, 0),
            arrowprops={
                "arrowstyle": "-|>",
                "color": INK,
                "linewidth": 1.2,
                "mutation_scale": 9,
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )
        _name(axes, end, f"text: {cloud.class_names[k]}", above=end[1] >= 0, halo=halo)


def _draw_after(axes: Axes, cloud: FeatureCloud, *, halo: bool = False) -> None:
    # The density of a Gaussian with a shared covariance, less what all classes have in common, is linear.
    slopes = cloud.means @ np.linalg.inv(cloud.covariance)
    _draw(axes, cloud, cloud.after, slopes, -0.5 * np.sum(slopes * cloud.means, axis=1))
    ellipse = CIRCLE @ np.linalg.cholesky(cloud.covariance).T
    for k, mean in enumerate(cloud.means):
        axes.plot(*(mean + ellipse).T, color=INK, linewidth=1.0)
        axes.plot(
            *mean, marker="D", markersize=6, markerfacecolor=CLASS_COLOURS[k], markeredgecolor=INK, markeredgewidth=1.2
        )
        _name(axes, mean + np.array([0.0, ellipse[:, 1].max()]), cloud.class_names[k], above=True, halo=halo)


def _draw(axes: Axes, cloud: FeatureCloud, predicted: np.ndarray, slopes: np.ndarray, offsets: np.ndarray) -> None:
    """Regions of the largest of three linear functions, and the samples."""
    low, high = cloud.samples.min(axis=0), cloud.samples.max(axis=0)
    low, high = low - MARGIN * (high - low), high + MARGIN * (high - low)
    corners = np.array([low, (high[0], low[1]), high, (low[0], high[1])])
    for k in range(3):
        region = corners
        for other in range(3):
            if other != k and len(region):
                region = _clip(region, slopes[k] - slopes[other], offsets[k] - offsets[other])
        if len(region):
            axes.fill(*region.T, color=CLASS_COLOURS[k], alpha=SHADE, linewidth=0)
        mine = predicted == k
        right = mine & (cloud.labels == k)
        axes.plot(*cloud.samples[right].T, linestyle="", marker="o", markersize=2.6, color=CLASS_COLOURS[k], mew=0)
        axes.plot(
            *cloud.samples[mine & ~right].T, linestyle="", marker="X", markersize=5, markerfacecolor=CLASS_COLOURS[k],
            markeredgecolor=INK, markeredgewidth=0.4,
        )  # fmt: skip
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
    axes.set_aspect("equal")
    axes.set_facecolor("none")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(color=INK, alpha=0.5, linewidth=0.7)


def _clip(polygon: np.ndarray, normal: np.ndarray, offset: float) -> np.ndarray:
    """The part of a convex polygon in which normal . x + offset is not negative.

    >>> square = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    >>> _clip(square, np.array([1.0, 0.0]), -0.5).tolist()
    [[0.5, 0.0], [1.0, 0.0], [1.0, 1.0], [0.5, 1.0]]
    """
    heights = polygon @ normal + offset
    kept: list[np.ndarray] = []
    for here, there, a, b in zip(polygon, np.roll(polygon, -1, axis=0), heights, np.roll(heights, -1), strict=True):
        if a >= 0:
            kept.append(here)
        if a * b < 0:
            kept.append(here + a / (a - b) * (there - here))
    return np.array(kept)


def _name(axes: Axes, at: np.ndarray, text: str, *, above: bool, halo: bool) -> None:
    """`text` above or below a point; with a white edge in a file, which a page draws in its own colour."""
    from matplotlib.patheffects import withStroke

    annotate(
        axes, (float(at[0]), float(at[1])), text, xytext=(0, 4 if above else -4), ha="center",
        va="bottom" if above else "top", fontweight="bold",
        path_effects=[withStroke(linewidth=2.5, foreground="white")] if halo else None,
    )  # fmt: skip
