"""Streams: in which order, and which of them, samples come. Seeded, and made of row numbers alone."""

from zeroshift.evaluate.streams.arrangement import KINDS, Arrangement
from zeroshift.evaluate.streams.clues import Clues
from zeroshift.evaluate.streams.orders import random_order
from zeroshift.evaluate.streams.stream import Stream

__all__ = ["KINDS", "Arrangement", "Clues", "Stream", "random_order"]
