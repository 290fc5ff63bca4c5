"""Several prompts of each class, as a method's parameter: checked, and brought to where it keeps its state."""

from __future__ import annotations

from typing import Any

from zeroshift.arrays import Array, Home, check_matrix, is_array

__all__ = ["checked_prompts"]


def checked_prompts(prompts: Any, prototypes: Array) -> Array:
    """Unit embeddings (K, P, d), P prompts of each of the prototypes' classes; copied."""
    classes, dimension = prototypes.shape
    shape = f"(K, P, d) = ({classes}, P, {dimension})"
    if not is_array(prompts):
        raise TypeError(f"prompts must be an array of shape {shape}; got {type(prompts).__name__}.")
    if len(prompts.shape) != 3 or prompts.shape[0] != classes or prompts.shape[2] != dimension or 0 in prompts.shape:
        raise ValueError(
            f"prompts must have the shape {shape}: P embeddings for each prototype, in the same order; got "
            f"{tuple(prompts.shape)}. Fix: prototypes[:, None, :] for one prompt a class."
        )
    for k in range(classes):
        check_matrix(f"prompts[{k}]", prompts[k])
    home = Home.of(prototypes)
    return home.copy(home.bring(prompts))
