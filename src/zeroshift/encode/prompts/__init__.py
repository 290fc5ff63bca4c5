"""From class names to the sentences a text encoder reads: modes, templates, descriptions."""

from zeroshift.encode.prompts.class_names import clean, parse_class_names
from zeroshift.encode.prompts.descriptions import check_descriptions, read_descriptions
from zeroshift.encode.prompts.prompts import AWT_TEMPLATES, MODES, Mode, Prompts, awt_prompts, get_mode
from zeroshift.encode.prompts.templates import read_templates

__all__ = [
    "AWT_TEMPLATES",
    "MODES",
    "Mode",
    "Prompts",
    "awt_prompts",
    "check_descriptions",
    "clean",
    "get_mode",
    "parse_class_names",
    "read_descriptions",
    "read_templates",
]
