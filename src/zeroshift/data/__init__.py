"""Data to try things on, and to measure with."""

from zeroshift.data import packs

__all__ = ["packs"]
