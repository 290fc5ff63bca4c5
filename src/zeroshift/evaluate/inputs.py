"""What a comparison can give a method from a set or an encoder beside it, and what it cannot, in words."""

from __future__ import annotations

from zeroshift.methods import MethodInfo

__all__ = ["ENCODER", "GIVEN", "HELD", "LACKING", "TEXT", "VIEWS", "VISION", "fillable", "needed"]

GIVEN = ("prompts", "support", "validation", "unlabelled")
"""Array parameters a comparison can fill from a labelled set. `validation` comes out of the labelled samples a method
is given: nothing is tuned on rows that are scored."""

VIEWS, ENCODER = "views", "encoder"
"""What some sets hold, and what may be given beside them."""

TEXT, VISION = "text", "vision"
"""Model parameters: the two sides of an encoder, see `zeroshift.methods._shared.towers`."""

HELD = ("features", "prototypes")
"""What every set holds."""

LACKING = {
    VIEWS: "several views of each image. Fix: zeroshift extract --views 64",
    ENCODER: "the encoder the features come from, to tune its prompts. Fix: --encoder SOURCE",
    VISION: "the images themselves, where a comparison has features",
}
"""What a plain set does not hold, in words, and how to come by it."""


def needed(info: MethodInfo) -> set[str]:
    """What it cannot do without."""
    return {parameter.name for parameter in info.parameters if parameter.required}.union(info.needs)


def fillable(info: MethodInfo) -> tuple[str, ...]:
    """What a set can give it: those of its parameters that hold arrays, and views."""
    names = {parameter.name for parameter in info.parameters}
    views = (VIEWS,) if VIEWS in (*info.needs, *info.takes) else ()
    return (*(name for name in GIVEN if name in names), *views)
