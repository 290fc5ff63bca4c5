"""Random views of many-dimensional samples in few dimensions: some of the coordinates, or some directions; and truly
normal samples as a yardstick."""

from __future__ import annotations

import numpy as np

__all__ = ["KINDS", "projected"]

KINDS = ("coordinates", "directions", "normal")


def projected(samples: np.ndarray, kind: str, d: int, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """`repeats` random projections (R, n, d) of samples (n, D).

    kind : "coordinates", d of the D coordinates without replacement, which is what the paper does; or "directions",
        d orthonormal directions, every subspace as likely as any other; or "normal", no view of the samples at all but
        as many normal ones: what a test answers where its hypothesis holds, at this size.

    >>> rng = np.random.default_rng(0)
    >>> projected(np.eye(5), "coordinates", 2, repeats=3, rng=rng).sum(axis=(1, 2))
    array([2., 2., 2.])
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}.")
    width = samples.shape[1]
    if kind == "coordinates":
        chosen = np.argsort(rng.random((repeats, width)), axis=1)[:, :d]
        return samples[:, chosen].transpose(1, 0, 2)
    if kind == "normal":
        return rng.standard_normal((repeats, len(samples), d))
    bases, _ = np.linalg.qr(rng.standard_normal((repeats, width, d)))
    return np.matmul(samples, bases)
