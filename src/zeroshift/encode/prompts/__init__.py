"""Prompts for class names: prompt modes, templates and descriptions."""

from zeroshift.encode.prompts.prompts import AWT_TEMPLATES, MODES, PromptMode, Prompts, awt_prompts, get_mode
from zeroshift.encode.prompts.templates import read_templates
from zeroshift.encode.prompts.user_text import check_descriptions, clean_name, parse_class_names, read_descriptions

__all__ = [
    "AWT_TEMPLATES",
    "MODES",
    "PromptMode",
    "Prompts",
    "awt_prompts",
    "check_descriptions",
    "clean_name",
    "get_mode",
    "parse_class_names",
    "read_descriptions",
    "read_templates",
]
