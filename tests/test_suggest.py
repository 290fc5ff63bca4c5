"""Suggestions: the name that was meant for a slip, nothing for another word."""

import pytest

from zeroshift import methods
from zeroshift.cli.app import COMMANDS, load_command
from zeroshift.data import packs
from zeroshift.encode.prompts import MODES
from zeroshift.experiments import list_experiments
from zeroshift.suggest import did_you_mean

METHODS = [info.name for info in methods.list_methods()]
EXPERIMENTS = [experiment.name for experiment in list_experiments()]
PACKS = [info.name for info in packs.list()]
PARAMETERS = [parameter.name for parameter in methods.get("adapt_online").parameters]
PRESETS = list(methods.get("tca").presets)
OPTIONS = [name for one in load_command("adapt").params for name in one.opts if name.startswith("--")]


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("adapt_onlin", METHODS, "adapt_online"),
        ("Adapt-Online", METHODS, "adapt_online"),
        ("adaptonline", METHODS, "adapt_online"),
        ("online_adapt", METHODS, "adapt_online"),
        ("adapt", METHODS, "adapt_online"),
        ("mixture", METHODS, "anchored_mixture_online"),
        ("anchored_mixture", METHODS, "anchored_mixture_online"),
        ("transductive", METHODS, "adapt_transductive"),
        ("tdaa", METHODS, "tda"),
        ("tad", METHODS, "tda"),
        ("trasnclip", METHODS, "transclip"),
        ("zeroshot", METHODS, "zero_shot"),
        ("tip adapter", METHODS, "tip_adapter"),
        ("ablatoin", EXPERIMENTS, "ablation"),
        ("bank_size", EXPERIMENTS, "bank-size"),
        ("alpa", EXPERIMENTS, "alpha"),
        ("natural", EXPERIMENTS, "natural-shift"),
        ("cifar", PACKS, "cifar10"),
        ("cifar11", PACKS, "cifar10"),
        ("fmnst", PACKS, "fmnist"),
        ("cifar10c_fog", PACKS, "cifar10c_fog_5"),
        ("bank_sise", PARAMETERS, "bank_size"),
        ("logitscale", PARAMETERS, "logit_scale"),
        ("alhpa", PARAMETERS, "alpha"),
        ("size", PARAMETERS, "bank_size"),
        ("alph", [parameter.name for parameter in methods.get("tda").parameters], "positive_alpha"),
        ("ensembl", MODES, "ensemble"),
        ("vanila", MODES, "vanilla"),
        ("custm", MODES, "custom"),
        ("eurosatt", PRESETS, "eurosat"),
        ("dtt", PRESETS, "dtd"),
        ("clasify", COMMANDS, "classify"),
        ("classfiy", COMMANDS, "classify"),
        ("method", COMMANDS, "methods"),
        ("--mehtod", OPTIONS, "--method"),
        ("--logit_scale", OPTIONS, "--logit-scale"),
        ("--state", OPTIONS, "--state-in"),
    ],
)
def test_a_slip_is_answered_with_the_name_that_was_meant(given, known, meant):
    assert did_you_mean(given, known) == f"Did you mean {meant!r}? "


@pytest.mark.parametrize("known", [METHODS, EXPERIMENTS, PACKS, PARAMETERS, list(MODES), PRESETS, COMMANDS, OPTIONS])
@pytest.mark.parametrize(
    "given",
    ["nonsense", "foo", "x", "a", "t", "", " ", "resnet", "hello", "banana", "svm", "knn", "README", "xyz", "lr"],
)
def test_another_word_is_answered_with_nothing(given, known):
    assert did_you_mean(given, known) == ""


@pytest.mark.parametrize(
    ("given", "known"),
    [("learning_rate", PARAMETERS), ("temperature", PARAMETERS), ("epochs", PARAMETERS), ("imagenet", PACKS),
     ("accuracy", EXPERIMENTS), ("validation", EXPERIMENTS), ("religion", PARAMETERS), ("tune", PARAMETERS),
     ("parts", COMMANDS), ("reach", COMMANDS), ("finish", PACKS), ("scale", METHODS), ("x" * 1000, ["x" * 1001]),
     ("table", EXPERIMENTS), ("dog", ["cat", "horse"]), (3, METHODS), (None, METHODS)],
)  # fmt: skip
def test_a_name_from_elsewhere_is_answered_with_nothing(given, known):
    assert did_you_mean(given, known) == ""
