"""Analyses of features: their keys and their records."""

import sys
import types
from dataclasses import replace
from functools import partial

import pytest

from evaluate import analyses
from zeroshift import FeatureSet
from zeroshift.evaluate import Analysis, DatasetRef, Ledger, run_jobs


@pytest.fixture
def look(clusters):
    dataset = DatasetRef.of("clusters", clusters)
    return Analysis("clusters", dataset.digest, dataset.prompt, analyses.counts, {"times": 2})


def test_the_key_depends_on_what_the_result_depends_on(look):
    others = [
        replace(look, digest="other"),
        replace(look, prompt="other"),
        replace(look, function=analyses.nothing),
        replace(look, parameters={"times": 3}),
        replace(look, parameters={}),
        replace(look, timed=True),
    ]
    assert len({look.key, *(other.key for other in others)}) == 1 + len(others)
    assert replace(look, features="another name").key == look.key


def test_the_settings_of_an_analysis_are_part_of_its_key(look):
    assert look.describe()["function"] == f"{analyses.__name__}.counts"
    assert (look.describe()["timed"], replace(look, timed=True).describe()["timed"]) == (False, True)
    assert replace(look, parameters={"times": 2.0}).key == look.key


def test_the_record_holds_the_baseline_of_the_same_features(look, clusters):
    found = look.run(clusters)
    assert found["zero_shot_accuracy"] == clusters.zero_shot_accuracy()
    assert found["rows"] == 300
    bare = FeatureSet(clusters.features, prototypes=clusters.prototypes)
    assert look.run(bare)["zero_shot_accuracy"] is None
    assert str(look) == "counts times=2 on clusters, prompts default"


def test_a_record_of_another_analysis_is_damaged(look, clusters, tmp_path):
    ledger = Ledger(tmp_path)
    list(run_jobs([look], {look.digest: lambda: clusters}, ledger))
    path = ledger.path(look)
    path.write_text(path.read_text().replace('"analysis": "counts"', '"analysis": "another"'))
    assert ledger.read(look) is None
    assert ledger.damaged == [path]


def within(times):
    def closure(features, *, prompt):
        return {"times": times}

    return closure


class Looker:
    def look(self, features, *, prompt):
        return {}

    def __call__(self, features, *, prompt):
        return {}


IMPORTED = "function must be a function that can be imported by its name; got "

WRONG = {
    "lambda": (
        {"function": lambda features, *, prompt: {}},
        IMPORTED + "<lambda> of .*a lambda.*Fix: define it",
    ),
    "closure": ({"function": within(2)}, IMPORTED + "within.<locals>.closure of .*Fix: .*go into parameters"),
    "partial": (
        {"function": partial(analyses.counts, times=2)},
        IMPORTED + "a functools.partial.*Fix: .*into parameters",
    ),
    "object": ({"function": Looker()}, IMPORTED + "a Looker, which has none. Fix: define it"),
    "method": ({"function": Looker().look}, IMPORTED + "Looker.look of .*Fix: define it"),
    "None": ({"function": None}, "function must be a function .*; got None. Fix: function=f"),
    "a name": (
        {"function": "analyses.counts"},
        "function must be a function .*; got 'analyses.counts'. Fix: function=f",
    ),
    "no parameters": ({"parameters": None}, "parameters must be a mapping .*; got None. Fix: parameters={}"),
    "parameters by place": ({"parameters": {0: 2}}, "parameters must be a mapping .*; got {0: 2}. Fix"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_functions_without_a_name_are_rejected_at_creation(look, change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        replace(look, **change)


def test_functions_of_the_script_that_is_run_are_rejected(look, monkeypatch):
    # All scripts are called __main__, workers cannot import it, and its code is in no key.
    script = types.ModuleType("__main__")
    exec("def counts(features, *, prompt):\n    return {}", script.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", script)
    with pytest.raises(
        ValueError, match=IMPORTED + "counts of the running script or notebook, .*Fix: .*module of its own"
    ):
        replace(look, function=script.counts)


def test_functions_of_a_dynamic_module_are_rejected(look, monkeypatch):
    made_up = types.ModuleType("made_up")
    exec("def counts(features, *, prompt):\n    return {}", made_up.__dict__)
    monkeypatch.setitem(sys.modules, "made_up", made_up)
    with pytest.raises(ValueError, match=IMPORTED + "counts of made_up"):
        replace(look, function=made_up.counts)
