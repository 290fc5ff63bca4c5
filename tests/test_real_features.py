"""The numbers for real features in benchmarks/RESULTS.md are what the library computes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from zeroshift import (
    FeatureSet,
    OnlineADAPT,
    OnlineAnchoredMixture,
    ReleasedTransductiveADAPT,
    TransductiveADAPT,
    TransductiveAnchoredMixture,
    ZeroShot,
    methods,
)
from zeroshift.data import packs
from zeroshift.evaluate import accuracy, expected_calibration_error

ROOT = Path(__file__).parents[1]
CLIP = ROOT.parent / "shared" / "packs" / "clip"
RECORDS = json.loads((ROOT / "benchmarks" / "accuracy.json").read_text())["records"]
BUNDLED = [pack.name for pack in packs.list() if pack.n_views == 0]
CLIP_PACKS = ["dtd_test_clip_vitb32", "stanford_cars_val_clip_vitb32", "whurs19_clip_rn50", "whurs19_clip_vitb32"]

TWO_SAMPLES = 0.15
"""In percent. Another BLAS may break a near-tie among 1500 samples differently."""


def assert_equals_record(group: str, name: str, pack: FeatureSet, method) -> None:
    adapter = method(pack.prototypes_for(), logit_scale=pack.logit_scale)
    accuracy = 100 * float((adapter.adapt(pack.features).argmax(axis=1) == pack.labels).mean())
    assert accuracy == pytest.approx(RECORDS[f"{group}/{name}/{method.name}/stored"]["accuracy"], abs=TWO_SAMPLES)


@pytest.mark.parametrize("name", BUNDLED)
@pytest.mark.parametrize("method", [ZeroShot, OnlineADAPT, TransductiveADAPT], ids=lambda method: method.name)
def test_bundled_packs(name, method):
    assert_equals_record("bundled", name, packs.load(name), method)


@pytest.mark.skipif(not CLIP.is_dir(), reason=f"real CLIP features may not be redistributed; none at {CLIP}")
@pytest.mark.parametrize("name", CLIP_PACKS)
@pytest.mark.parametrize(
    "method",
    [ZeroShot, TransductiveADAPT, pytest.param(OnlineADAPT, marks=pytest.mark.slow)],
    ids=lambda method: method.name,
)
def test_clip_packs(name, method):
    assert_equals_record("clip", name, FeatureSet.load(CLIP / f"{name}.npz"), method)


@pytest.mark.parametrize("name", BUNDLED)
def test_adaptation_helps_on_every_bundled_pack(name):
    """The demo relies on this property of the features."""
    zero = RECORDS[f"bundled/{name}/zero_shot/stored"]["accuracy"]
    for method in ("adapt_online", "adapt_transductive"):
        assert RECORDS[f"bundled/{name}/{method}/stored"]["accuracy"] > zero + 2


def test_signs_of_the_cosines():
    """Unlike CLIP's, about half of the image-text cosines are negative; image-image cosines hardly ever are: the bank
    term's max(0, .) is tested by the generated streams, not by these."""
    pack = packs.load("cifar10")
    features = pack.features.astype(np.float64)
    assert 0.3 < (features @ pack.prototypes_for().T < 0).mean() < 0.7
    assert 0 < (features @ features.T < 0).mean() < 1e-4


def test_released_scores_raise_negative_logits():
    """Raw logits times a factor below one: uncertainty *raises* a negative logit. See docs/adapt.md."""
    pack = packs.load("cifar10")
    adapter = ReleasedTransductiveADAPT(pack.prototypes_for(), logit_scale=pack.logit_scale, scale=60.0)
    scores = adapter.adapt_scores(pack.features)
    logits = pack.logit_scale * pack.features.astype(np.float64) @ pack.prototypes_for().T
    negative = logits < 0
    assert negative.any()
    assert (scores[negative] >= logits[negative] - 1e-4).all()


def test_the_accuracy_page_follows_from_the_records(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for module in ("accuracy", "sections"):
        sys.modules.pop(module, None)
    import accuracy
    import sections

    assert sections.section("accuracy") == accuracy.table(RECORDS)


def test_summary_table_is_reproduced():
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    errors = []
    for name in BUNDLED:
        zero_shot, online, transductive = (
            f"{RECORDS[f'bundled/{name}/{method}/stored']['accuracy']:.1f}"
            for method in ("zero_shot", "adapt_online", "adapt_transductive")
        )
        row = rf"\| {zero_shot} \| {online} \| ([\d.]+) \| {transductive} \| ([\d.]+) \|"
        (printed,) = re.findall(row, text)
        pack = packs.load(name)
        for cls, value in zip((OnlineAnchoredMixture, TransductiveAnchoredMixture), printed, strict=True):
            answers = cls(pack.prototypes_for(), logit_scale=pack.logit_scale).adapt(pack.features)
            # Three samples: another BLAS may break near-ties differently.
            assert 100 * accuracy(answers, pack.labels) == pytest.approx(float(value), abs=0.25), name
            errors.append(100 * expected_calibration_error(answers, pack.labels))
    mean = r"\| mean calibration error \(0 is best\) \| [\d.]+ \| [\d.]+ \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|"
    (printed,) = re.findall(mean, text)
    assert [float(value) for value in printed] == pytest.approx([np.mean(errors[::2]), np.mean(errors[1::2])], abs=0.25)


@pytest.mark.parametrize("name", ["adapt_online", "adapt_transductive", "oga"])
def test_methods_declared_over_confident_are(name):
    pack = packs.load("fmnist").subset(slice(0, 500))
    adapted, zero_shot = (
        methods.create(method, pack.prototypes_for(), logit_scale=pack.logit_scale).adapt(pack.features)
        for method in (name, "zero_shot")
    )
    assert methods.get(name).cls.overconfident
    assert adapted.max(axis=1).mean() > accuracy(adapted, pack.labels) + 0.1
    errors = [expected_calibration_error(each, pack.labels) for each in (adapted, zero_shot)]
    assert errors[0] > errors[1] + 0.1
