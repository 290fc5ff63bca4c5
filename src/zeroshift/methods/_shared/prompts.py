"""Checks for the parameter `prompts`: several prompt embeddings per class."""

from __future__ import annotations

import warnings
from typing import Any

from zeroshift.arrays import Array, Backend, UnitLengthError, as_floats, check_matrix, is_array, namespace, to_numpy

__all__ = ["checked_prompts"]

FEW = 0.3
"""If the prompts of a smaller fraction of classes are nearest to their own prototype, the order is probably wrong."""

TIE = 1e-6


def checked_prompts(prompts: Any, prototypes: Array) -> Array:
    """A checked copy of unit embeddings (K, P, d), P prompts per class, in the library of the prototypes."""
    classes, dimension = prototypes.shape
    shape = f"(K, P, d) = ({classes}, P, {dimension})"
    if not is_array(prompts):
        raise TypeError(
            f"prompts must be an array of shape {shape}; got {type(prompts).__name__}. Fix: a feature set's "
            "prompts_of_each_class(), or zeroshift.encode.encode_prompts."
        )
    prompts = as_floats("prompts", prompts)
    if len(prompts.shape) != 3 or prompts.shape[0] != classes or prompts.shape[2] != dimension or 0 in prompts.shape:
        raise ValueError(
            f"prompts must have the shape {shape}: P embeddings for each prototype, in the same order; got "
            f"{tuple(prompts.shape)}. Fix: prototypes[:, None, :] for one prompt per class."
        )
    for k in range(classes):
        try:
            check_matrix(f"prompts[{k}]", prompts[k])
        except UnitLengthError as error:
            problem = str(error).partition(" Fix:")[0]
            raise UnitLengthError(
                f"{problem} Fix: prompts /= numpy.linalg.norm(prompts, axis=-1, keepdims=True)."
            ) from None
    backend = Backend.of(prototypes)
    with backend.computing():
        copied = backend.copy(backend.asarray(prompts))
        _warn_if_misordered(copied, prototypes)
    return copied


def _warn_if_misordered(prompts: Array, prototypes: Array) -> None:
    """Prompts in another order than the prototypes pass all checks of shapes but make every prediction wrong."""
    xp = namespace(prompts)
    cosines = to_numpy(xp.mean(prompts, axis=1) @ Backend.of(prompts).asarray(prototypes, prompts.dtype).T)
    own = (cosines.diagonal() >= cosines.max(axis=1) - TIE).mean()
    if own < FEW:
        warnings.warn(
            f"the prompts of {1 - own:.0%} of the classes are nearer to another class's prototype than to their own. "
            "Fix: check that prompts is (K, P, d) with the classes in the order of the prototypes.",
            UserWarning,
            stacklevel=5,
        )
