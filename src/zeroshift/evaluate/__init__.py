"""Evaluating methods: streams, metrics, comparisons on one set, and many runs that are recorded and can be resumed."""

from zeroshift.evaluate.comparison import Comparison, Result, compare, mean_accuracy, zero_shot_baseline
from zeroshift.evaluate.encoder_ref import EncoderRef
from zeroshift.evaluate.job import Analysis, Job
from zeroshift.evaluate.ledger import Ledger
from zeroshift.evaluate.method_spec import MethodSpec, list_method_specs
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
from zeroshift.evaluate.plan import DatasetRef, Plan, Skipped, describe_skipped, plan_comparison, run_plan
from zeroshift.evaluate.runner import JobOutcome, run_jobs
from zeroshift.evaluate.stream_loop import StreamRun, StreamStep, run_stream, stream_steps
from zeroshift.evaluate.streams import Stream, StreamSpec
from zeroshift.evaluate.summary import ComparisonSummary, MethodSummary, Spread, summarize
from zeroshift.evaluate.trial import Trial

__all__ = [
    "Analysis",
    "Comparison",
    "ComparisonSummary",
    "DatasetRef",
    "EncoderRef",
    "Job",
    "JobOutcome",
    "Ledger",
    "MethodSpec",
    "MethodSummary",
    "Plan",
    "Result",
    "Scorecard",
    "Skipped",
    "Spread",
    "Stream",
    "StreamRun",
    "StreamSpec",
    "StreamStep",
    "Trial",
    "accuracy",
    "auroc",
    "brier_score",
    "class_accuracy",
    "compare",
    "describe_skipped",
    "expected_calibration_error",
    "false_positive_rate",
    "gain_interval",
    "list_method_specs",
    "mean_accuracy",
    "negative_log_likelihood",
    "plan_comparison",
    "run_jobs",
    "run_plan",
    "run_stream",
    "running_accuracy",
    "stream_steps",
    "summarize",
    "top_k_accuracy",
    "worst_share",
    "zero_shot_baseline",
]
