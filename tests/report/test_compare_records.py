"""The comparison as JSON, without the curves of figures."""

import json

import numpy as np

from zeroshift import FeatureSet, normalize
from zeroshift.evaluate import DatasetRef, Ledger, MethodSpec, plan_comparison, run_plan, summarize
from zeroshift.report.compare_tables import compare_record


def test_records_of_runs_have_no_curves(tmp_path):
    rng = np.random.default_rng(0)
    pets = FeatureSet(normalize(rng.normal(size=(40, 6))), prototypes=np.eye(6)[:4], labels=np.arange(40) % 4)
    planned = plan_comparison([DatasetRef.of("pets", pets)], [MethodSpec("zero_shot")], orders=1)
    summary = summarize(planned, list(run_plan(planned, Ledger(tmp_path))))
    record = compare_record(summary)
    (run,) = record["runs"]
    assert "detail" not in run
    assert run["nll"] > 0
    assert run["paired"][1:3] == [0, 0]  # zero-shot compared with itself
    assert "detail" in summary.records[0]  # the file of the run has it
    json.dumps(record, allow_nan=False)
