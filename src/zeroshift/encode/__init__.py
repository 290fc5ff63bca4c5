"""Images and text to features: encoders, prompts, views, extraction.

>>> from zeroshift import encode
>>> [family.name for family in encode.list_families()][:3]
['clip', 'siglip', 'siglip2']
"""

from zeroshift.encode.encoder import Encoder
from zeroshift.encode.extraction import (
    Extraction,
    default_cache,
    encode_classes,
    encode_images,
    encode_prompts,
    extract,
)
from zeroshift.encode.prompts import MODES, Prompts, parse_class_names, read_descriptions, read_templates
from zeroshift.encode.registry import DEFAULT_ENCODER, list_families
from zeroshift.encode.registry import load as load_encoder
from zeroshift.encode.views import Views

__all__ = [
    "DEFAULT_ENCODER",
    "MODES",
    "Encoder",
    "Extraction",
    "Prompts",
    "Views",
    "default_cache",
    "encode_classes",
    "encode_images",
    "encode_prompts",
    "extract",
    "list_families",
    "load_encoder",
    "parse_class_names",
    "read_descriptions",
    "read_templates",
]
