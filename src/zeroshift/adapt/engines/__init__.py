"""Engines: different ways to compute the same numbers. `direct` is the definition; `auto` is the one to use."""

from __future__ import annotations

from zeroshift.adapt.engines.direct import DirectEngine

__all__ = ["ENGINES", "ENGINE_NAMES", "DirectEngine", "engine_class"]

ENGINES = {"direct": DirectEngine}
ENGINE_NAMES = ("auto", *ENGINES)


def engine_class(name: str) -> type[DirectEngine]:
    """The engine a name stands for; `auto` is the fastest exact one there is, today `direct`."""
    return ENGINES["direct" if name == "auto" else name]
