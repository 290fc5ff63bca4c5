"""A look at features: what its key hangs on, and what its record says."""

from dataclasses import replace

import pytest

from evaluate import looks
from zeroshift import FeatureSet
from zeroshift.evaluate import Analysis, Entry, Ledger, run_jobs


@pytest.fixture
def look(clusters):
    entry = Entry.of("clusters", clusters)
    return Analysis("clusters", entry.digest, entry.prompt, looks.counts, {"times": 2})


def test_the_key_hangs_on_what_the_answer_does(look):
    others = [
        replace(look, digest="other"),
        replace(look, prompt="other"),
        replace(look, function=looks.nothing),
        replace(look, parameters={"times": 3}),
        replace(look, parameters={}),
        replace(look, timed=True),
    ]
    assert len({look.key, *(other.key for other in others)}) == 1 + len(others)
    assert replace(look, features="another name").key == look.key


def test_the_record_holds_the_baseline_of_the_same_features(look, clusters):
    found = look.do(clusters)
    assert found["zero_shot_accuracy"] == clusters.zero_shot_accuracy()
    assert found["rows"] == 300
    bare = FeatureSet(clusters.features, prototypes=clusters.prototypes)
    assert look.do(bare)["zero_shot_accuracy"] is None
    assert str(look) == "counts times=2 on clusters"


def test_a_record_of_another_analysis_is_damaged(look, clusters, tmp_path):
    ledger = Ledger(tmp_path)
    list(run_jobs([look], {look.digest: lambda: clusters}, ledger))
    path = ledger.path(look)
    path.write_text(path.read_text().replace('"analysis": "counts"', '"analysis": "another"'))
    assert ledger.read(look) is None
    assert ledger.damaged == [path]
