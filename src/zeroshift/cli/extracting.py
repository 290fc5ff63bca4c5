"""What `zeroshift extract` says at the end, for people and for programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeroshift.encode.extraction import Extraction
from zeroshift.report.tables import summary_table
from zeroshift.report.words import counted, percent

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["extraction_record", "extraction_table"]


def extraction_record(extraction: Extraction, out: Path) -> dict[str, Any]:
    return {
        "out": str(out),
        **extraction.features.summary(),
        "computed": extraction.computed,
        "skipped": [{"image": error.name, "why": error.what, "fix": error.fix} for error in extraction.skipped],
        "notes": [{"image": name, "note": note} for name, note in extraction.notes],
        "cut_prompts": dict(extraction.cut_prompts),
    }


def extraction_table(extraction: Extraction, out: Path) -> Table:
    features = extraction.features
    encoder = features.provenance["encoder"]
    count, computed = features.n_samples, extraction.computed
    entries = {
        "images": f"{count}, of which {computed} had to be encoded" if computed < count else str(count),
        "classes": str(features.n_classes),
        "encoder": f"{encoder['source']} ({encoder['family']}), d = {features.dimension}",
        "prompts": ", ".join(features.prompts),
    }
    if features.n_views:
        entries["views"] = f"{features.n_views} of each image"
    if extraction.skipped:
        entries["left out"] = counted(len(extraction.skipped), "image") + " that cannot be read"
    if features.labels is not None:
        entries["zero-shot"] = f"{percent(features.zero_shot_accuracy())}% ({features.default_prompt})"
    entries["features"] = str(out)
    return summary_table(entries)
