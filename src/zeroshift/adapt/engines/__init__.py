"""Engines: different ways to compute the same numbers. `direct` is the definition; `auto` is the one to use.

Read in this order: `direct` (the equations as they stand), `streaming` (a sample at a time) with `sums`, `dual` and
`primal` (what it keeps), `replay` (many rows at once) with `timeline`, `blocks` and `solve`.
"""

from zeroshift.adapt.engines.health import Health
from zeroshift.adapt.engines.making import ENGINE_NAMES, ENGINES, Engine, make_engine, only_direct

__all__ = ["ENGINES", "ENGINE_NAMES", "Engine", "Health", "make_engine", "only_direct"]
