"""A classification worked out by hand: six images of three classes, every probability chosen."""

import numpy as np

from zeroshift import FeatureSet
from zeroshift.evaluate import Comparison, Result, StreamRun
from zeroshift.reject import RejectRule, Rejects

CLASSES = ("cat", "dog", "horse")
FILES = ("a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg", "f.jpg")
BEFORE = [
    [0.55, 0.40, 0.05],
    [0.50, 0.30, 0.20],
    [0.10, 0.80, 0.10],
    [0.20, 0.20, 0.60],
    [0.70, 0.20, 0.10],
    [0.05, 0.90, 0.05],
]
AFTER = [
    [0.30, 0.60, 0.10],  # cat to dog: dog gains 0.20
    [0.05, 0.95, 0.00],  # cat to dog: dog gains 0.65
    [0.10, 0.80, 0.10],
    [0.50, 0.25, 0.25],  # horse to cat: cat gains 0.30
    [0.50, 0.30, 0.20],
    [0.00, 0.99, 0.01],
]
REJECT = np.array([0.3, 0.9, 0.1, 0.2, 0.7, 0.5])
"""Of b.jpg and e.jpg above 0.5."""
LABELS = [1, 0, 1, 0, 0, 2]


def rejects(scores=REJECT, above=0.5):
    """What `Rejects.of` would have found for other distances, and more of them; with `above=1`, nothing is rejected."""
    scores = np.asarray(scores, float)
    return Rejects(RejectRule(0.2, 0.6, 50), above, scores, scores > above)


NONE = rejects(above=1.0)
"""Nothing is rejected."""


def result(method, probabilities, labels):
    probabilities = np.array(probabilities)
    predictions = probabilities.argmax(axis=1)
    run = StreamRun(probabilities, seconds=1.0, rows_seen=np.array([len(probabilities)]), bank_history=None)
    correct = None if labels is None else predictions == np.array(labels)
    return Result(method, {}, run, predictions, correct, None, None, None)


def classified(before=BEFORE, after=AFTER, *, files=FILES, classes=CLASSES, labels=None, provenance=None):
    features = FeatureSet(
        np.tile(np.eye(len(classes))[0], (len(before), 1)),
        prototypes=np.eye(len(classes)),
        labels=labels,
        class_names=classes,
        sample_names=files,
        provenance=provenance,
    )
    results = (result("zero_shot", before, labels), result("adapt_online", after, labels))
    return Comparison("folder", features, results)
