"""The comparison as JSON: everything but what only figures are drawn from."""

import json

import numpy as np

from zeroshift import FeatureSet, normalize
from zeroshift.evaluate import Contestant, Entry, Ledger, contest, gather, plan
from zeroshift.report.compare_tables import compare_record


def test_runs_are_told_without_their_curves(tmp_path):
    rng = np.random.default_rng(0)
    pets = FeatureSet(normalize(rng.normal(size=(40, 6))), prototypes=np.eye(6)[:4], labels=np.arange(40) % 4)
    planned = plan([Entry.of("pets", pets)], [Contestant("zero_shot")], orders=1)
    standings = gather(planned, list(contest(planned, Ledger(tmp_path))))
    record = compare_record(standings)
    (run,) = record["runs"]
    assert "detail" not in run
    assert run["nll"] > 0
    assert run["paired"][1:3] == [0, 0]  # zero-shot beside itself
    assert "detail" in standings.records[0]  # the file of the run has it
    json.dumps(record, allow_nan=False)
