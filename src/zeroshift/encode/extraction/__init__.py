"""Feature extraction: images and class names become a `FeatureSet`, cached by content; interrupted runs resume."""

from zeroshift.encode.extraction.extract import Extraction, encode_images, extract
from zeroshift.encode.extraction.store import default_cache
from zeroshift.encode.extraction.text import ClassTexts, encode_classes, encode_prompts

__all__ = ["ClassTexts", "Extraction", "default_cache", "encode_classes", "encode_images", "encode_prompts", "extract"]
