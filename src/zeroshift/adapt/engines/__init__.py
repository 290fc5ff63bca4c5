"""Engines: different ways to compute the same numbers. `direct` is the definition; `auto` is the one to use.

Read in this order: `direct` (the equations as they stand), `streaming` (a sample at a time) with `sums`, `dual` and
`primal` (what it keeps), `replay` (many rows at once) with `timeline`, `blocks` and `solve`.
"""

from __future__ import annotations

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.engines.base import EngineDiagnostics
from zeroshift.adapt.engines.direct import DirectEngine
from zeroshift.adapt.engines.replay import AutoEngine, ReplayEngine
from zeroshift.adapt.engines.streaming import StreamingEngine
from zeroshift.adapt.statistics import AdaptSettings, Evidence
from zeroshift.arrays import Array

__all__ = ["ENGINES", "ENGINE_NAMES", "Engine", "EngineDiagnostics", "make_engine", "reason_for_direct"]


# Which engine a name stands for, and which settings leave no choice.


ENGINES = {"direct": DirectEngine, "streaming": StreamingEngine, "replay": ReplayEngine}
ENGINE_NAMES = ("auto", *ENGINES)

Engine = DirectEngine | StreamingEngine


def reason_for_direct(bank_size: int, iterations: int, covariance: str) -> str | None:
    """Why only `direct` can compute with these settings; None where every engine can."""
    if bank_size == 0:
        return "bank_size=0 moves every mean with every sample"
    if iterations > 1:
        return f"iterations={iterations} moves every mean several times a sample"
    if covariance == "per_class":
        return "covariance='per_class' keeps one inverse a class"
    return None


def make_engine(
    name: str, prototypes: Array, logit_scale: float, iterations: int, rule: AdaptSettings, evidence: Evidence
) -> Engine:
    """The engine a name stands for; `auto` is streaming or replay by turns, or `direct` where only that can."""
    follows = isinstance(evidence, KnowledgeBank) and iterations == 1 and not rule.per_class
    if name == "direct" or (name == "auto" and not follows):
        return DirectEngine(prototypes, logit_scale, iterations, rule, evidence)
    assert isinstance(evidence, KnowledgeBank)
    engine = {"auto": AutoEngine, "streaming": StreamingEngine, "replay": ReplayEngine}[name]
    return engine(prototypes, logit_scale, rule, evidence)
