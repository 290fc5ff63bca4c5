"""Method specifications are checked when they are created, and equal ones have equal names."""

import pytest

from evaluate import fake_methods
from zeroshift.evaluate import DatasetRef, MethodSpec, Trial

WRONG = {
    "method": (lambda: MethodSpec("adapt_onlin"), "no method is called 'adapt_onlin'. Did you mean 'adapt_online'"),
    "no method": (lambda: MethodSpec(None), "method must be the name of a method; got None. Fix: method="),
    "a list": (lambda: MethodSpec(["tda"]), r"method must be the name of a method; got \['tda'\]. Fix"),
    "parameter": (
        lambda: MethodSpec("adapt_online", {"bank_siz": 4}),
        "adapt_online has no parameter 'bank_siz'. Did you mean 'bank_size'.*It takes: .*bank_size",
    ),
    "no name": (lambda: MethodSpec("adapt_online", {1: 4}), "adapt_online has no parameter 1. It takes: "),
    "value": (
        lambda: MethodSpec("adapt_online", {"bank_size": -4}),
        "bank_size of adapt_online must be an integer of at least 0; got -4. Fix: leave it out for 16",
    ),
    "kind of value": (
        lambda: MethodSpec("adapt_online", {"bank_size": "4"}),
        "bank_size of adapt_online must be an integer .*; got '4'. Fix: leave it out",
    ),
    "no mapping": (lambda: MethodSpec("tda", [("a", 1)]), "parameters must be a mapping .*; got .*Fix: parameters={}"),
    "no parameters": (lambda: MethodSpec("tda", None), "parameters must be a mapping .*; got None. Fix: parameters={}"),
    "also": (
        lambda: MethodSpec("adapt_online", also=("suport",)),
        r"also: adapt_online takes no suport. Did you mean 'support'.*Fix: also=\('support', ",
    ),
    "nothing more": (
        lambda: MethodSpec("zero_shot", also=("support",)),
        r"also: zero_shot takes no support. It takes features alone. Fix: also=\(\)",
    ),
    "also a word": (
        lambda: MethodSpec("adapt_online", also="support"),
        r"also must be a tuple .*; got 'support'. Fix: also=\('support',\)",
    ),
    "also None": (lambda: MethodSpec("adapt_online", also=None), "also must be a tuple .*; got None. Fix: also="),
    "named also": (
        lambda: MethodSpec.named("adapt_online+suport"),
        "^adapt_online takes no suport. Did you mean",
    ),
    "named parameter": (lambda: MethodSpec.named("tda", {"alph": 1}), "tda has no parameter 'alph'. Did you mean"),
    "named None": (lambda: MethodSpec.named(None), "text must be the name of a method; got None. Fix"),
}


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG)
def test_wrong_names_and_values_are_rejected_at_once(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize(
    ("method", "also", "label"),
    [
        ("adapt_online", ("support",), "adapt_online+support"),
        ("adapt_online", ["support"], "adapt_online+support"),
        ("adapt_online", ("support", "support"), "adapt_online+support"),
        ("gda_clip", ("support",), "gda_clip"),
    ],
    ids=["a tuple", "a list", "twice", "given anyway"],
)
def test_one_name_for_one_thing(method, also, label):
    spec = MethodSpec(method, also=also)
    assert spec.label == label
    assert spec == MethodSpec.named(label)


def test_other_labels_have_other_keys(clusters):
    digest = DatasetRef.of("clusters", clusters).digest
    both = [MethodSpec("adapt_online"), MethodSpec("adapt_online", also=("support",))]
    trials = [Trial("clusters", digest, "default", spec, 0, 2) for spec in both]
    assert trials[0].key != trials[1].key


def test_a_spec_does_not_change_with_the_callers_objects():
    parameters = {"bank_size": 4}
    spec = MethodSpec("adapt_online", parameters)
    parameters["bank_siz"] = 5
    assert spec.parameters == {"bank_size": 4}


def test_plug_in_methods_are_checked_too(monkeypatch):
    fake_methods.register(monkeypatch)
    assert MethodSpec("tuned", {"scale": 1.0}).settings["scale"] == 1.0
    with pytest.raises(ValueError, match=r"scale of tuned must be a number of at least 0; got -1.$"):
        MethodSpec("tuned", {"scale": -1})
    with pytest.raises(ValueError, match="no method is called 'tda'"):
        MethodSpec("tda")
