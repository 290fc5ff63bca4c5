"""What a feature set says about its origin, in the words of the experiments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zeroshift.data import catalogue
from zeroshift.experiments.parts.tasks import OTHER_BACKBONE, PAPERS_BACKBONE, TASKS

__all__ = ["BACKBONES", "corruption_of", "data_set_of", "encoder_of", "is_papers"]

BACKBONES = {
    "openai/clip-vit-base-patch16": PAPERS_BACKBONE,
    "open_clip:vit-b-16/openai": PAPERS_BACKBONE,
    "open_clip:vit-b-16-quickgelu/openai": PAPERS_BACKBONE,
    "openai/clip-vit-base-patch32": "CLIP ViT-B/32",
    "openai/clip-vit-large-patch14": "CLIP ViT-L/14",
    "open_clip:rn50/openai": OTHER_BACKBONE,
    "open_clip:rn50-quickgelu/openai": OTHER_BACKBONE,
    "rn50": OTHER_BACKBONE,
}
"""What the paper, or the field, calls a model, by the name it is loaded under, in lower case."""


def data_set_of(said: Mapping[str, Any], name: str) -> str:
    """Id in the catalogue, or what the set says it was made from, or else its own name."""
    images = said.get("images", {})
    if "data_set" in images:
        return str(images["data_set"])
    made_from = said.get("data_set", said.get("dataset", name))
    return str(made_from["name"] if isinstance(made_from, Mapping) else made_from)


def corruption_of(said: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Kind and severity.

    >>> corruption_of({"corruption": "JPEG compression", "severity": 5})
    ('jpeg_compression', 5)
    >>> corruption_of({"images": {"corruption": "fog", "severity": 3}}), corruption_of({"corruption": None})
    (('fog', 3), (None, None))
    """
    # A catalogue set is corrupted on the disk; any other may have been as it was encoded.
    images = said.get("images", {})
    told = said.get("corruption") or images.get("corruption")
    severity = said.get("severity") or images.get("severity")
    if isinstance(told, Mapping):
        told, severity = told["kind"], told["severity"]
    if not told:
        return None, None
    return str(told).lower().replace(" ", "_"), None if severity is None else int(severity)


def encoder_of(said: Mapping[str, Any]) -> str:
    """The backbone as the paper calls it, "composed", or whatever the set says.

    >>> encoder_of({"encoder": {"source": "openai/clip-vit-base-patch16"}}), encoder_of({"encoder": "CLIP RN50"})
    ('CLIP ViT-B/16', 'CLIP RN50')
    """
    encoder = said.get("encoder")
    if isinstance(encoder, Mapping):
        if str(encoder.get("statement", "")).startswith("a composed") or encoder.get("family") == "composed":
            return "composed"
        source = str(encoder.get("source", "unknown encoder"))
        return BACKBONES.get(source.lower(), source)
    text = str(encoder or "unknown encoder")
    return "composed" if text.startswith("EfficientNet-Lite2") else text


def is_papers(said: Mapping[str, Any], n_samples: int) -> bool:
    """Whether these are the paper's own images, all of them, as they are on the disk, seen by one of its backbones."""
    images = said.get("images", {})
    if images.get("source") != "catalogue" or images.get("split") != "test":
        return False
    # What is corrupted as it is encoded is not what was published, whichever images it is made from.
    if said.get("corruption"):
        return False
    whole = catalogue.get(str(images["data_set"])).counts["test"] == n_samples
    return whole and encoder_of(said) in TASKS[0].tables
