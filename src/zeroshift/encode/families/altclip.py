"""AltCLIP: CLIP's image tower with a multilingual text tower."""

from __future__ import annotations

from zeroshift.encode.families.base import TransformersEncoder

__all__ = ["AltCLIPEncoder"]


class AltCLIPEncoder(TransformersEncoder):
    family = "altclip"
    model_class = "AltCLIPModel"

    def _text_length(self) -> int:
        # XLM-RoBERTa numbers positions from the padding index on: two of them are never reached.
        configured = self.model.config.text_config
        return min(super()._text_length(), configured.max_position_embeddings - configured.pad_token_id - 1)
