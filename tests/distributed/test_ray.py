"""The Ray executor, on a cluster that is started here."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from zeroshift import TransductiveAnchoredMixture
from zeroshift.distributed import FeatureShards, adapt
from zeroshift.testing import make_problem


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_same_bits_as_local(tmp_path):
    pytest.importorskip("ray")
    features, prototypes, _ = make_problem(classes=7, dimension=24, samples=900)
    np.save(tmp_path / "0.npy", features[:500])
    np.save(tmp_path / "1.npy", features[500:])
    shards = FeatureShards.open(tmp_path)
    answers, handler = [], signal.getsignal(signal.SIGTERM)
    for on in ("local:0", "ray"):
        made = TransductiveAnchoredMixture(prototypes, logit_scale=20.0)
        adapt(made, shards, on=on, task_rows=100)
        answers.append(made.predict(features))
    assert np.array_equal(*answers)
    assert signal.getsignal(signal.SIGTERM) is handler  # Ray's own would end commands with another exit code
