"""Encoders: features from images and text, prompts, views, extraction, and methods that run on images.

>>> from zeroshift import encode
>>> [family.name for family in encode.list_families()][:3]
['clip', 'siglip', 'siglip2']
"""

from zeroshift.encode.encoder import Encoder, ImageEncoder
from zeroshift.encode.extraction import (
    Extraction,
    default_cache,
    encode_classes,
    encode_images,
    encode_prompts,
    extract,
)
from zeroshift.encode.methods import make_method
from zeroshift.encode.pipeline import Pipeline
from zeroshift.encode.prompts import MODES, Prompts, parse_class_names, read_descriptions, read_templates
from zeroshift.encode.recorded import load_when_needed
from zeroshift.encode.registry import DEFAULT_ENCODER, list_families, load_image_encoder
from zeroshift.encode.registry import load as load_encoder
from zeroshift.encode.tuning import prompted_text, prompted_vision
from zeroshift.encode.tuning.deep_prompts import deep_prompts
from zeroshift.encode.tuning.maple import load_maple, maple_statistics
from zeroshift.encode.views import Views

__all__ = [
    "DEFAULT_ENCODER",
    "MODES",
    "Encoder",
    "Extraction",
    "ImageEncoder",
    "Pipeline",
    "Prompts",
    "Views",
    "deep_prompts",
    "default_cache",
    "encode_classes",
    "encode_images",
    "encode_prompts",
    "extract",
    "list_families",
    "load_encoder",
    "load_image_encoder",
    "load_maple",
    "load_when_needed",
    "make_method",
    "maple_statistics",
    "parse_class_names",
    "prompted_text",
    "prompted_vision",
    "read_descriptions",
    "read_templates",
]
