"""DynaPrompt's buffer: prompts as residuals of one set of words, and which of them was used when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, is_array, namespace, to_numpy

__all__ = ["PromptBuffer", "checked_residuals"]


class PromptBuffer(NamedTuple):
    """Never changed: an image makes another one."""

    residuals: Array
    """(M, n, width): prompt i is the words plus `residuals[i]`."""
    order: tuple[int, ...]
    """The prompts' numbers, the least recently used first."""
    uses: tuple[int, ...]
    """How often each was chosen since it was last begun anew."""
    chosen: tuple[int, ...]
    """Those chosen for the last image."""
    head: Array
    """(K, d): the mean of the text features of those, which answers as the mean of their logits."""

    def renewed(self) -> PromptBuffer:
        """Where all were used, the least recently used begins anew, at the words themselves.

        A single prompt is never given up: it is tuned on and on.
        """
        if len(self.uses) == 1 or 0 in self.uses:
            return self
        first = self.order[0]
        residuals = Home.of(self.residuals).copy(self.residuals)
        residuals[first, ...] = 0.0
        uses = tuple(0 if i == first else n for i, n in enumerate(self.uses))
        return self._replace(residuals=residuals, uses=uses)

    def used(self, chosen: Sequence[int], residuals: Array, head: Array) -> PromptBuffer:
        """After an image that chose these, in their order; one chosen twice counts twice."""
        order, uses = list(self.order), list(self.uses)
        for i in chosen:
            order.remove(i)
            order.append(i)
            uses[i] += 1
        return PromptBuffer(residuals, tuple(order), tuple(uses), tuple(chosen), head)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        values = {"order": list(self.order), "uses": list(self.uses), "chosen": list(self.chosen)}
        return {"residuals": self.residuals, "head": self.head}, values

    def restored(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> PromptBuffer:
        """What `state` gave; ValueError where it is not that of a buffer of this size."""
        order, uses, chosen = (tuple(int(n) for n in values[name]) for name in ("order", "uses", "chosen"))
        numbers = range(len(self.order))
        if sorted(order) != list(numbers):
            raise ValueError(f"the order {order} does not name each of {len(numbers)} prompts once")
        if len(uses) != len(numbers) or min(uses) < 0 or not set(chosen) <= set(numbers):
            raise ValueError(f"uses {uses} and chosen {chosen} do not fit {len(numbers)} prompts")
        for name, own in (("residuals", self.residuals), ("head", self.head)):
            if arrays[name].shape != own.shape:
                raise ValueError(f"{name} has the shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}")
        return PromptBuffer(arrays["residuals"], order, uses, chosen, arrays["head"])


def checked_residuals(residuals: Any, shape: tuple[int, ...], home: Home) -> Array:
    """Residuals a user brings, (M, n, width), copied to where the method is."""
    if not is_array(residuals) or not namespace(residuals).isdtype(residuals.dtype, "real floating"):
        what = residuals.dtype if is_array(residuals) else type(residuals).__name__
        raise TypeError(
            f"residuals must be an array or tensor of floating-point numbers of shape {shape}; got {what}. "
            "Fix: numpy.asarray(residuals, dtype='float32')."
        )
    if tuple(residuals.shape) != shape:
        raise ValueError(
            f"residuals must have the shape (n_prompts, words, width) = {shape}; got {tuple(residuals.shape)}. "
            f"Fix: numpy.zeros({shape}) is what the prompts begin with otherwise."
        )
    if not np.isfinite(to_numpy(residuals)).all():
        raise ValueError("residuals holds NaN or infinity. Fix: drop or recompute them.")
    with home.computing():
        return home.copy(home.bring(residuals))
