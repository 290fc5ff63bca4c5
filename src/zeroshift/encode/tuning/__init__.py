"""Encoders with tunable prompts, for prompt-tuning methods: see docs/methods.md."""

from zeroshift.encode.tuning.text import ContextText, find_context, prompted_text
from zeroshift.encode.tuning.vision import prompted_vision

__all__ = ["ContextText", "find_context", "prompted_text", "prompted_vision"]
