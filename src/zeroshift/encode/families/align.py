"""ALIGN: an EfficientNet and a BERT, joined by a temperature that divides."""

from __future__ import annotations

from zeroshift.encode.families.base import TransformersEncoder

__all__ = ["ALIGNEncoder"]


class ALIGNEncoder(TransformersEncoder):
    family = "align"
    model_class = "AlignModel"
    longest_prompt = 64

    def _scale_and_bias(self) -> tuple[float, float | None]:
        return 1.0 / float(self.model.temperature.detach()), None
