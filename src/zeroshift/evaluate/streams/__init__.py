"""Streams: which rows of a set a method sees, in which order. Reproducible from a seed."""

from zeroshift.evaluate.streams.domains import can_stack, continual, gradual, mixed, stack_datasets
from zeroshift.evaluate.streams.long_tail import EarlyNoise, early_noise, long_tail, long_tail_counts
from zeroshift.evaluate.streams.orders import (
    bursts,
    class_sorted,
    dirichlet,
    easy_to_hard,
    few_classes,
    few_confident,
    hard_to_easy,
    random_order,
    recurring,
    some_classes,
    some_classes_sorted,
)
from zeroshift.evaluate.streams.spec import KINDS, StreamInputs, StreamSpec
from zeroshift.evaluate.streams.stream import Stream

__all__ = [
    "KINDS",
    "EarlyNoise",
    "Stream",
    "StreamInputs",
    "StreamSpec",
    "bursts",
    "can_stack",
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
    "recurring",
    "some_classes",
    "some_classes_sorted",
    "stack_datasets",
]
