"""Streams: in which order, and which of them, samples come. Seeded, and made of row numbers alone."""

from zeroshift.evaluate.streams.arrangement import Arrangement
from zeroshift.evaluate.streams.clues import Clues
from zeroshift.evaluate.streams.correlated import dirichlet, few_classes
from zeroshift.evaluate.streams.domains import continual, gradual, mixed
from zeroshift.evaluate.streams.few_confident import few_confident
from zeroshift.evaluate.streams.kinds import KINDS
from zeroshift.evaluate.streams.long_tail import long_tail, long_tail_counts
from zeroshift.evaluate.streams.noise import EarlyNoise, early_noise
from zeroshift.evaluate.streams.orders import class_sorted, easy_to_hard, hard_to_easy, random_order
from zeroshift.evaluate.streams.stacked import stackable, stacked
from zeroshift.evaluate.streams.stream import Stream

__all__ = [
    "KINDS",
    "Arrangement",
    "Clues",
    "EarlyNoise",
    "Stream",
    "class_sorted",
    "continual",
    "dirichlet",
    "early_noise",
    "easy_to_hard",
    "few_classes",
    "few_confident",
    "gradual",
    "hard_to_easy",
    "long_tail",
    "long_tail_counts",
    "mixed",
    "random_order",
    "stackable",
    "stacked",
]
