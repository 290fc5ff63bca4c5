"""Invalid arguments of the runner: messages with argument, value and fix."""

import pytest

from zeroshift.evaluate import Ledger, MethodSpec, Trial, run_jobs
from zeroshift.evaluate.results import collect


def trial(spec=None, seed=0, shots=None, **changes):
    return Trial("pets", "digest", "default", spec or MethodSpec("zero_shot"), seed, shots, **changes)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: trial("zero_shot"), TypeError, r"spec must be a MethodSpec; got 'zero_shot'\. Fix: MethodSpec"),
        (lambda: trial(seed=-1), ValueError, "seed must be None or an integer of at least 0; got -1"),
        (lambda: trial(seed=1.5), ValueError, "seed must be None or an integer"),
        (lambda: trial(shots=0), ValueError, "shots must be None or an integer of at least 1; got 0"),
        (lambda: trial(every=0), ValueError, "every must be None or an integer of at least 1; got 0"),
        (lambda: Ledger(5), TypeError, r"folder must be the name of a folder; got 5\. Fix: Ledger"),
        (lambda: Ledger(""), TypeError, "folder must be the name of a folder; got ''"),
        (lambda: list(run_jobs([], {}, "runs")), TypeError, r"ledger must be a Ledger; got str\. Fix: Ledger"),
        (lambda: collect("runs"), TypeError, r"folders must be a list of folders; got 'runs'\. Fix: \['runs'\]"),
    ],
    ids=range(9),
)
def test_refused(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


def test_processes_below_none(tmp_path):
    with pytest.raises(ValueError, match="processes must be an integer of at least 0; got -1"):
        list(run_jobs([], {}, Ledger(tmp_path), processes=-1))


def test_a_set_without_a_loader_is_named(tmp_path):
    (outcome,) = run_jobs([trial()], {}, Ledger(tmp_path))
    assert "loaders has no function for pets (digest digest). Fix: loaders={dataset.digest" in outcome.error
