"""MetaCLIP 2: CLIP's form with a worldwide, multilingual tokenizer. (The first MetaCLIP is of the family clip.)"""

from __future__ import annotations

from zeroshift.encode.families.base import TransformersEncoder

__all__ = ["MetaCLIPEncoder"]


class MetaCLIPEncoder(TransformersEncoder):
    family = "metaclip"
    model_class = "MetaClip2Model"
