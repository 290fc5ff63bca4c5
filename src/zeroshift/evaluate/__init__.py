"""How well a method does: feeding it in order, metrics, and methods side by side on the same features."""

from zeroshift.evaluate.comparison import Comparison, Result, compare, mean_accuracy, zero_shot_beside
from zeroshift.evaluate.follow import Run, Step, follow, run
from zeroshift.evaluate.metrics import accuracy, class_accuracy, expected_calibration_error, running_accuracy

__all__ = [
    "Comparison",
    "Result",
    "Run",
    "Step",
    "accuracy",
    "class_accuracy",
    "compare",
    "expected_calibration_error",
    "follow",
    "mean_accuracy",
    "run",
    "running_accuracy",
    "zero_shot_beside",
]
