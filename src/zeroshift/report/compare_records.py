"""The comparison as plain dictionaries, for JSON: full precision, accuracies as fractions, gains in points."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from zeroshift import __version__
from zeroshift.evaluate import Standing, Standings

__all__ = ["compare_record"]


def compare_record(standings: Standings) -> dict[str, Any]:
    plan = standings.plan
    return {
        "zeroshift": __version__,
        "orders": plan.orders,
        "shots": plan.shots,
        "encoder": None if plan.encoder is None else {**plan.encoder.identity, "source": plan.encoder.source},
        "sets": [
            {
                "name": entry.name,
                "digest": entry.digest,
                "prompt": entry.prompt,
                "n_samples": entry.n_samples,
                "n_classes": entry.n_classes,
                "dimension": entry.dimension,
                "n_views": entry.n_views,
                "methods": [_standing(standing) for standing in standings.by_set[entry.name]],
            }
            for entry in plan.entries
        ],
        "mean": [{**_standing(standing), "sets": list(standing.sets)} for standing in standings.overall],
        "left_out": [
            {
                "method": left.contestant.label,
                "set": None if left.entry is None else left.entry.name,
                "reason": left.reason,
            }
            for left in plan.left_out
        ],
        "failed": [{"run": str(outcome.job), "error": outcome.error} for outcome in standings.failed],
        "runs": [_short(record) for record in standings.records],
    }


def _short(record: dict[str, Any]) -> dict[str, Any]:
    """Without what figures are drawn from, which is most of it; the ledger's files have it."""
    return {name: value for name, value in record.items() if name != "detail"}


def _standing(standing: Standing) -> dict[str, Any]:
    return {
        "method": standing.contestant.label,
        "protocol": standing.contestant.protocol,
        "runs": standing.runs,
        "accuracy": asdict(standing.accuracy),
        "gain": asdict(standing.gain),
        "calibration_error": standing.calibration_error,
        "microseconds": standing.microseconds,
        "setup_seconds": standing.setup_seconds,
        "peak_bytes": standing.peak_bytes,
        **standing.costs,
        "setup_prompts": standing.setup_prompts,
    }
