"""Synthetic features with the geometry of CLIP's: an image cone, a gap to the text, one shared anisotropic covariance.

An image of class k is the unit vector along sqrt(cone) m + sqrt(between) u_k + sqrt(within) n, its text prototype
that along sqrt(TEXT_CONE) m' + sqrt(1 - TEXT_CONE) (agreement u_k + sqrt(1 - agreement^2) e_k). m and m' are the
directions of the two cones, u_k is what is peculiar to the class, e_k what the text gets wrong about it, n the image's
own deviation. u, e and n share one spectrum, (i + knee)^-DECAY over the principal axes i = 1, 2, ..., which a random
rotation hides. In the geometry "clustered", part of u_k is common to a cluster of about CLUSTER_CLASSES classes.

What `describe_geometry` says about both geometries (seed 0, 10 000 samples) and about real CLIP features. Cosines
between images of different classes and of one class, of an image with its class's text and with others'; share of the
variance within classes along its first axis, and how many axes hold it; zero-shot top-1 and confidence. One cosine
between images in a thousand is negative in "clustered", none elsewhere:

features                 K     d  between  within  matched  other  top axis  axes  top-1  confidence
====================  ====  ====  =======  ======  =======  =====  ========  ====  =====  ==========
clip_like             1000   256     0.57    0.76     0.32   0.20       5 %    64   52 %        0.53
clip_like             1000   512     0.57    0.76     0.32   0.20       5 %    79   66 %        0.56
clip_like             1000  1024     0.57    0.76     0.32   0.20       4 %    94   77 %        0.61
clip_like              100   256     0.57    0.76     0.32   0.20       5 %    64   76 %        0.77
clip_like              100   512     0.57    0.76     0.32   0.20       5 %    80   83 %        0.82
clip_like              100  1024     0.57    0.76     0.32   0.20       4 %    94   90 %        0.86
clip_like               10   256     0.58    0.76     0.32   0.21       5 %    64   91 %        0.93
clip_like               10   512     0.57    0.76     0.33   0.21       5 %    79   95 %        0.95
clip_like               10  1024     0.57    0.76     0.32   0.20       4 %    94   98 %        0.97
clustered             1000   256     0.36    0.61     0.36   0.16      10 %    35   51 %        0.70
clustered             1000   512     0.36    0.60     0.36   0.16       9 %    42   60 %        0.72
clustered             1000  1024     0.36    0.60     0.36   0.16       9 %    47   66 %        0.75
clustered              100   512     0.38    0.60     0.36   0.18       9 %    41   60 %        0.81
clustered               10   512     0.41    0.60     0.36   0.21       9 %    41   86 %        0.93
dtd_vitb32              47   512     0.66    0.75     0.28   0.25       5 %    70   45 %        0.43
stanford_cars_vitb32   196   512     0.61    0.77     0.32   0.18      10 %    51   59 %        0.54
whurs19_rn50            19  1024     0.62    0.83     0.27   0.21       8 %    40   72 %        0.61
whurs19_vitb32          19   512     0.67    0.84     0.34   0.28       7 %    49   81 %        0.70

Zero-shot accuracy was set to about 65 % at K = 1000, d = 512 (64.8 to 66.4 over four seeds); elsewhere it follows from
the same constants. It rises with d because more axes separate the same classes. Real classes that are alike (cars,
textures) are harder than as many drawn at random; the cosines, which decide what an engine has to do, agree for
"clip_like". In "clustered" the bounds of `adapt.bank_term_bounds` leave most pairs of a sample and a class uncertain:
at K = 1000, d = 512, with banks of 6, the cones 93 % and the subspace 22 % (in "clip_like" 1.4 % and none).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zeroshift.features import FeatureSet
from zeroshift.files import atomic_path
from zeroshift.parameters import Choice, Number
from zeroshift.zero_shot import posterior

__all__ = ["GEOMETRIES", "BenchProblem", "ClipLike", "Geometry", "clip_like", "clip_like_file", "describe_geometry"]


@dataclass(frozen=True)
class ClipLike:
    """The constants of one geometry."""

    cone: float
    """Share of an image's squared length along the direction all images have in common: the mean cosine between images
    of different classes."""
    between: float
    """Share that is peculiar to its class: with `cone`, the mean cosine between images of one class."""
    agreement: float
    """Cosine between what is peculiar to a class in its images and in its text. Only it sets the zero-shot accuracy."""
    knee: float
    """Axes before the power law sets in: the first hold nearly equal variance, as CLIP's do."""
    cluster_share: float = 0.0
    """Share of what is peculiar to a class that it has in common with the other classes of its cluster."""

    @property
    def within(self) -> float:
        """Share that is the image's own: the trace of the shared covariance before rows are scaled to unit length."""
        return 1.0 - self.cone - self.between


GEOMETRIES = {
    "clip_like": ClipLike(cone=0.57, between=0.19, agreement=0.55, knee=6.0),
    "clustered": ClipLike(cone=0.35, between=0.25, agreement=0.8, knee=2.0, cluster_share=0.5),
}
"""By name. "clip_like" is fitted to CLIP's features. "clustered" is harder for the engines: images share less, classes
come in clusters, and a few axes hold most of the variance, so that cosines are often close to zero and sometimes
negative, and bounds on them prove little."""

CLUSTER_CLASSES = 25
"""Classes per cluster, on average."""

TEXT_CONE = 0.75
"""Share of a prototype's squared length along the direction all prototypes have in common."""

CONES_COSINE = 0.31
"""Cosine between the directions of the two cones; far from 1, which is the modality gap. With both cones' shares it
makes the mean cosine between an image and the text of another class: sqrt(0.57 * 0.75) * 0.31 = 0.2."""

DECAY = 1.2
"""Exponent of the power law by which variance falls off over the principal axes."""

LOGIT_SCALE = 100.0
"""As in CLIP."""

CHUNK_ROWS = 8192
"""Images generated at a time; the result does not depend on it."""

SMALLEST_DIMENSION = 8


class BenchProblem(NamedTuple):
    """A problem: features (N, d) and prototypes (K, d) in float32 of unit length, labels (N,), logit scale."""

    features: np.ndarray
    prototypes: np.ndarray
    labels: np.ndarray
    logit_scale: float

    @classmethod
    def of(cls, features: FeatureSet) -> BenchProblem:
        """Real features as a problem; labels are -1 if there are none."""
        labels = np.full(features.n_samples, -1) if features.labels is None else features.labels
        return cls(features.features, features.prototypes_for(), labels, features.logit_scale)


def clip_like(
    classes: int = 1000, dimension: int = 512, samples: int = 5000, *, seed: int = 0, geometry: str = "clip_like"
) -> BenchProblem:
    """A problem in memory, with one of `GEOMETRIES`.

    The same seed gives the same problem, and a longer stream begins with the shorter one.

    >>> problem = clip_like(classes=10, dimension=64, samples=500)
    >>> problem.features.shape, problem.features.dtype, problem.prototypes.shape
    ((500, 64), dtype('float32'), (10, 64))
    """
    generator = _ClipLikeGenerator(classes, dimension, samples, seed, geometry)
    features = np.empty((generator.samples, generator.dimension), np.float32)
    for rows, block in generator.images():
        features[rows] = block
    return BenchProblem(features, generator.prototypes, generator.labels, LOGIT_SCALE)


def clip_like_file(
    path: str | os.PathLike[str],
    classes: int = 1000,
    dimension: int = 512,
    samples: int = 5000,
    *,
    seed: int = 0,
    geometry: str = "clip_like",
) -> BenchProblem:
    """The same problem, its features written to an .npy file chunk by chunk and memory-mapped from there."""
    generator = _ClipLikeGenerator(classes, dimension, samples, seed, geometry)
    with atomic_path(path) as temporary:
        shape = (generator.samples, generator.dimension)
        mapped = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=shape)
        for rows, block in generator.images():
            mapped[rows] = block
        mapped.flush()
        del mapped
    return BenchProblem(np.load(path, mmap_mode="r"), generator.prototypes, generator.labels, LOGIT_SCALE)


class _ClipLikeGenerator:
    """Prototypes and labels; images are generated by `images`."""

    def __init__(self, classes: int, dimension: int, samples: int, seed: int, geometry: str) -> None:
        self._geometry = GEOMETRIES[Choice(tuple(GEOMETRIES)).check("geometry", geometry)]
        classes = int(Number(1, integer=True).check("classes", classes))
        self.dimension = int(Number(SMALLEST_DIMENSION, integer=True).check("dimension", dimension))
        self.samples = int(Number(1, integer=True).check("samples", samples))
        # Separate random streams, so that more samples change neither the classes nor the samples before them.
        axes_seed, classes_seed, labels_seed, self._images_seed = np.random.SeedSequence(seed).spawn(4)
        rotation, _ = np.linalg.qr(np.random.default_rng(axes_seed).normal(size=(dimension, dimension)))
        self._image_cone, apart, self._axes = rotation[0], rotation[1], rotation[2:]
        text_cone = CONES_COSINE * self._image_cone + np.sqrt(1 - CONES_COSINE**2) * apart
        spectrum = (np.arange(1, dimension - 1) + self._geometry.knee) ** -DECAY
        self._deviations = np.sqrt(spectrum / spectrum.sum())
        rng = np.random.default_rng(classes_seed)
        own = _unit(rng.normal(size=(classes, dimension - 2)) * self._deviations)
        wrong = _unit(rng.normal(size=(classes, dimension - 2)) * self._deviations)
        if self._geometry.cluster_share > 0:
            own = self._clustered(own, rng)
        agreement = self._geometry.agreement
        described = agreement * own + np.sqrt(1 - agreement**2) * wrong
        prototypes = np.sqrt(TEXT_CONE) * text_cone + np.sqrt(1 - TEXT_CONE) * (described @ self._axes)
        self.prototypes = _unit(prototypes).astype(np.float32)
        self.labels = np.random.default_rng(labels_seed).integers(classes, size=self.samples)
        cone, between = np.sqrt(self._geometry.cone), np.sqrt(self._geometry.between)
        self._centres = (cone * self._image_cone + between * (own @ self._axes)).astype(np.float32)

    def _clustered(self, own: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """What is peculiar to the classes, of which a share is common to their cluster."""
        clusters = max(2, len(own) // CLUSTER_CLASSES)
        common = _unit(rng.normal(size=(clusters, own.shape[1])) * self._deviations)
        share = self._geometry.cluster_share
        return _unit(np.sqrt(share) * common[rng.integers(clusters, size=len(own))] + np.sqrt(1 - share) * own)

    def images(self) -> Iterator[tuple[slice, np.ndarray]]:
        """(rows, features) in order, in float32 throughout."""
        rng = np.random.default_rng(self._images_seed)
        spread = (np.sqrt(self._geometry.within) * self._deviations[:, None] * self._axes).astype(np.float32)
        for start in range(0, self.samples, CHUNK_ROWS):
            rows = slice(start, min(start + CHUNK_ROWS, self.samples))
            noise = rng.standard_normal((rows.stop - start, self.dimension - 2), dtype=np.float32)
            yield rows, _unit(self._centres[self.labels[rows]] + noise @ spread)


def _unit(rows: np.ndarray) -> np.ndarray:
    lengths: np.ndarray = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / lengths


ROWS = 1500
"""Images compared with each other; drawn at random if there are more."""


@dataclass(frozen=True)
class Geometry:
    between: float
    """Mean cosine of two images of different classes."""
    within: float
    """Mean cosine of two images of one class."""
    negative: float
    """Share of image pairs with a negative cosine: what the bank term's max(0, .) would act on."""
    matched: float
    """Mean cosine of an image and the text of its class."""
    unmatched: float
    """Mean cosine of an image and the text of another class."""
    top_axis: float
    """Share of the variance within classes along its first principal axis."""
    axes: float
    """Axes that hold that variance, as (sum of variances)^2 / sum of their squares."""
    accuracy: float
    """Zero-shot top-1."""
    confidence: float
    """Mean of the largest zero-shot probability."""


def describe_geometry(problem: BenchProblem) -> Geometry:
    features, prototypes = problem.features.astype(np.float64), problem.prototypes.astype(np.float64)
    labels = problem.labels
    some = np.sort(np.random.default_rng(0).permutation(len(features))[:ROWS])
    x, y = features[some], labels[some]
    images, texts = x @ x.T, x @ prototypes.T
    same = y[:, None] == y
    pairs = ~np.eye(len(x), dtype=bool)
    own = np.zeros(texts.shape, dtype=bool)
    own[np.arange(len(x)), y] = True
    z = posterior(x, prototypes, problem.logit_scale)
    variances = _within_variances(features, labels)
    return Geometry(
        between=float(images[~same].mean()),
        within=float(images[same & pairs].mean()),
        negative=float((images < 0).mean()),
        matched=float(texts[own].mean()),
        unmatched=float(texts[~own].mean()),
        top_axis=float(variances.max() / variances.sum()),
        axes=float(variances.sum() ** 2 / (variances**2).sum()),
        accuracy=float(((features @ prototypes.T).argmax(axis=1) == labels).mean()),
        confidence=float(z.max(axis=1).mean()),
    )


def _within_variances(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Variances along the principal axes of the features after each class's mean is subtracted."""
    _, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), features.shape[1]))
    np.add.at(sums, place, features)
    centred = features - (sums / counts[:, None])[place]
    return np.linalg.eigvalsh(centred.T @ centred / len(features))
