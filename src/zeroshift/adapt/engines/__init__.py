"""Engines: different ways to compute the same numbers. `direct` is the definition; `auto` is the one to use.

Read the modules in this order: `direct` (the equations as written); `streaming` (one sample at a time) with
`class_statistics`, `precision_simple`, `precision_dual`, `precision_primal` and `woodbury` (the statistics it updates),
and on a GPU `precision_iterated` and `cuda_graph`; `replay` (many rows together) with `insertion_schedule`,
`replay_blocks` and, on a GPU, `replay_gpu`.
`make_engine` selects the engine for a name and the settings.
"""

from __future__ import annotations

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.engines.base import EngineDiagnostics
from zeroshift.adapt.engines.direct import DirectEngine, RecomputingEngine
from zeroshift.adapt.engines.replay import AutoEngine, ReplayEngine
from zeroshift.adapt.engines.streaming import StreamingEngine
from zeroshift.adapt.statistics import AdaptSettings, Evidence
from zeroshift.arrays import Array

__all__ = ["ENGINES", "ENGINE_NAMES", "Engine", "EngineDiagnostics", "make_engine", "reason_for_direct"]

ENGINES = {"direct": DirectEngine, "streaming": StreamingEngine, "replay": ReplayEngine}
ENGINE_NAMES = ("auto", *ENGINES)

Engine = DirectEngine | StreamingEngine


def reason_for_direct(bank_size: int, iterations: int, covariance: str) -> str | None:
    """Why only `direct` supports these settings; None if every engine does."""
    if bank_size == 0:
        return "bank_size=0 changes every mean with every sample"
    if iterations > 1:
        return f"iterations={iterations} changes every mean several times per sample"
    if covariance == "per_class":
        return "covariance='per_class' needs one inverse per class"
    return None


def make_engine(
    name: str, prototypes: Array, logit_scale: float, iterations: int, settings: AdaptSettings, evidence: Evidence
) -> Engine:
    """The engine with this name. `auto` alternates between streaming and replay, or is `direct` if only that can."""
    supported = isinstance(evidence, KnowledgeBank) and iterations == 1 and not settings.per_class
    if name == "direct":
        return DirectEngine(prototypes, logit_scale, iterations, settings, evidence)
    if name == "auto" and not supported:
        return RecomputingEngine(prototypes, logit_scale, iterations, settings, evidence)
    assert isinstance(evidence, KnowledgeBank)
    engine = {"auto": AutoEngine, "streaming": StreamingEngine, "replay": ReplayEngine}[name]
    return engine(prototypes, logit_scale, settings, evidence)
