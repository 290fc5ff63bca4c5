"""How well a method does: feeding it in order, metrics, methods side by side, and many runs that can be resumed."""

from zeroshift.evaluate.aggregate import Spread, Standing, Standings, gather
from zeroshift.evaluate.comparison import Comparison, Result, compare, mean_accuracy, zero_shot_beside
from zeroshift.evaluate.encoders import EncoderBehind
from zeroshift.evaluate.job import Analysis, Job
from zeroshift.evaluate.ledger import Ledger
from zeroshift.evaluate.method_spec import Contestant, contestants
from zeroshift.evaluate.metrics import Scorecard, worst_share
from zeroshift.evaluate.metrics.functions import (
    accuracy,
    auroc,
    brier_score,
    class_accuracy,
    expected_calibration_error,
    false_positive_rate,
    negative_log_likelihood,
    running_accuracy,
    top_k_accuracy,
)
from zeroshift.evaluate.metrics.gain import gain_interval
from zeroshift.evaluate.plan import Entry, LeftOut, Plan, contest, plan, told
from zeroshift.evaluate.runner import Outcome, run_jobs
from zeroshift.evaluate.stream_loop import Run, Step, follow, run
from zeroshift.evaluate.streams import Arrangement, Stream
from zeroshift.evaluate.trial import Trial

__all__ = [
    "Analysis",
    "Arrangement",
    "Comparison",
    "Contestant",
    "EncoderBehind",
    "Entry",
    "Job",
    "Ledger",
    "LeftOut",
    "Outcome",
    "Plan",
    "Result",
    "Run",
    "Scorecard",
    "Spread",
    "Standing",
    "Standings",
    "Step",
    "Stream",
    "Trial",
    "accuracy",
    "auroc",
    "brier_score",
    "class_accuracy",
    "compare",
    "contest",
    "contestants",
    "expected_calibration_error",
    "false_positive_rate",
    "follow",
    "gain_interval",
    "gather",
    "mean_accuracy",
    "negative_log_likelihood",
    "plan",
    "run",
    "run_jobs",
    "running_accuracy",
    "told",
    "top_k_accuracy",
    "worst_share",
    "zero_shot_beside",
]
