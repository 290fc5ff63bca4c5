"""DPCore's coreset: prompts, each kept with the statistics of the batches it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zeroshift.arrays import Array, Home, namespace
from zeroshift.methods.parts.batch_statistics import Moments, distance
from zeroshift.zero_shot import softmax

__all__ = ["PromptCoreset"]


@dataclass(frozen=True)
class PromptCoreset:
    """Never written to: what a batch teaches makes another coreset."""

    kinds: Moments
    """(P, width) each: what the batches look like without a prompt, at first."""
    prompts: Array
    """(P, tokens, width)."""

    @classmethod
    def empty(cls, home: Home, tokens: int, width: int) -> PromptCoreset:
        nothing = home.zeros((0, width))
        return cls(Moments(nothing, nothing), home.zeros((0, tokens, width)))

    def __len__(self) -> int:
        return int(self.prompts.shape[0])

    def weights(self, found: Moments, temperature: float, std_weight: float) -> Array:
        """(P,), summing to 1: how like each element's batches one with these statistics is."""
        return softmax(-distance(found, self.kinds, std_weight) / temperature)

    def mixed(self, weights: Array) -> Array:
        """(tokens, width): the prompts, so weighed."""
        return namespace(weights).sum(weights[:, None, None] * self.prompts, axis=0)

    def followed(self, shares: Array, found: Moments, prompt: Array) -> PromptCoreset:
        """Each element moved by its share of the way to a batch and its prompt; standard deviations only grow."""
        xp = namespace(shares)
        mean, std = self.kinds
        share = shares[:, None]
        grown = xp.where(found.std > std, found.std - std, xp.zeros_like(std))
        kinds = Moments(mean + share * (found.mean - mean), std + share * grown)
        return PromptCoreset(kinds, self.prompts + share[:, :, None] * (prompt - self.prompts))

    def joined(self, found: Moments, prompt: Array, capacity: int | None) -> PromptCoreset:
        """One element more; the oldest less where there is no place for it."""
        xp = namespace(prompt)
        first = 0 if capacity is None else max(0, len(self) + 1 - capacity)
        mean, std, prompts = (
            xp.concat([kept, new[None]])[first:]
            for kept, new in zip((*self.kinds, self.prompts), (*found, prompt), strict=True)
        )
        return PromptCoreset(Moments(mean, std), prompts)

    def arrays(self) -> dict[str, Array]:
        return {"mean": self.kinds.mean, "std": self.kinds.std, "prompts": self.prompts}

    def restored(self, arrays: Mapping[str, Array]) -> PromptCoreset:
        """What `arrays` gave; refused where it is of other tokens than these, or not of one piece."""
        found = tuple(tuple(arrays[name].shape) for name in ("mean", "std", "prompts"))
        size, (tokens, width) = found[2][0], tuple(self.prompts.shape[1:])
        if found != ((size, width), (size, width), (size, tokens, width)):
            raise ValueError(f"the coreset's arrays have the shapes {found}: not prompts of {tokens} x {width}")
        return PromptCoreset(Moments(arrays["mean"], arrays["std"]), arrays["prompts"])
