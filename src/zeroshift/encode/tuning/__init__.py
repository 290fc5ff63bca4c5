"""Encoders whose prompts can be tuned, for the methods that do: see docs/methods.md."""

from zeroshift.encode.tuning.text import ContextText

__all__ = ["ContextText"]
