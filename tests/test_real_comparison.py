"""The comparison in benchmarks/results follows from its records and is reproduced on one bundled pack."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from zeroshift import methods
from zeroshift.data import packs
from zeroshift.evaluate.method_spec import list_method_specs
from zeroshift.evaluate.trial import Trial, run_trial

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
RECORDS = json.loads((BENCHMARKS / "compare.json").read_text())
SUMMARY = BENCHMARKS / "RESULTS.md"
COMPARISON = BENCHMARKS / "results" / "comparison.md"

PACK = "cifar10c_jpeg_compression_5"
SHOTS = 4
SLOW = {"ecalp", "ecalp+support", "dota", "frolic"}
"""They take several seconds each."""

THREE_SAMPLES = 0.25
"""In percent. Another BLAS may break near-ties among 1500 samples differently."""

COMPARED = [spec for spec in list_method_specs() if spec.label in RECORDS[PACK]]
"""Methods with a record; a new method needs none."""


def test_every_recorded_method_exists_and_was_run_on_every_pack():
    assert {spec.label for spec in COMPARED} == set(RECORDS[PACK])
    assert all(set(methods) == set(RECORDS[PACK]) for methods in RECORDS.values())
    assert len(RECORDS) == 14


@pytest.mark.parametrize(
    "spec",
    [pytest.param(spec, id=spec.label, marks=[pytest.mark.slow] if spec.label in SLOW else []) for spec in COMPARED],
)
def test_the_first_run_equals_its_record(spec):
    once = not (spec.streamed or spec.drawn)
    shots = SHOTS if "support" in spec.given else None
    trial = Trial(PACK, "", "ensemble", spec, None if once else 0, shots)
    accuracy = 100 * run_trial(trial, packs.load(PACK))["accuracy"]
    recorded = RECORDS[PACK][spec.label]["stored" if once else "seed 0"]
    assert accuracy == pytest.approx(recorded, abs=THREE_SAMPLES)


def test_the_means_in_the_results_follow_from_the_records():
    section = re.search(r"<!-- compare -->(.*?)<!-- /compare -->", COMPARISON.read_text(), re.DOTALL)
    rows = dict(
        re.findall(r"^\| `([^`]+)` \| (?:online|transductive|few-shot) \| 14 \| ([\d.]+) ", section[1], re.MULTILINE)
    )
    assert len(rows) == len(COMPARED)
    for label, printed in rows.items():
        runs = [list(methods[label.rstrip("*")].values()) for methods in RECORDS.values()]
        assert float(printed) == pytest.approx(np.mean([np.mean(values) for values in runs]), abs=0.051), label


def test_summary_table_is_the_mean_of_the_records():
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", SUMMARY.read_text(), re.MULTILINE)
    assert len(rows) == 17
    for label, mean_of_all, mean_of_clip in rows:
        means = {name: np.mean(list(methods[label].values())) for name, methods in RECORDS.items()}
        assert float(mean_of_all) == pytest.approx(np.mean(list(means.values())), abs=0.051), label
        of_clip = [mean for name, mean in means.items() if "_clip_" in name]
        assert float(mean_of_clip) == pytest.approx(np.mean(of_clip), abs=0.051), label


def test_conclusions_of_the_summary_hold():
    """benchmarks/RESULTS.md: which method is ahead where, and which calibration error is largest."""

    def mean(label, which=""):
        return np.mean([np.mean(list(methods[label].values())) for name, methods in RECORDS.items() if which in name])

    plain = [spec for spec in COMPARED if spec.protocol != "few-shot"]
    online = {c.label: mean(c.label) for c in plain if c.protocol == "online"}
    transductive = {c.label: mean(c.label) for c in plain if c.protocol == "transductive"}
    few_shot = {c.label: mean(c.label) for c in COMPARED if c.protocol == "few-shot"}
    for ranked, ours, others in (
        (online, "anchored_mixture_online", {"adapt_online", "t3a"}),
        (transductive, "anchored_mixture_transductive", {"adapt_transductive"}),
    ):
        order = sorted(ranked, key=ranked.get)
        assert order[-1] == ours
        assert set(order[-1 - len(others) : -1]) == others
        assert max(ranked, key=lambda label: mean(label, "_clip_")) == ours
    assert max(few_shot, key=few_shot.get) == "anchored_mixture_transductive+support"
    published = [label for label in few_shot if not label.startswith("anchored")]
    assert max(published, key=few_shot.get) == "timo"
    assert mean("dpe", "_clip_") > mean("oga", "_clip_") > mean("adapt_online", "_clip_")
    for label in ("transclip", "stata", "gda_pseudo"):
        assert mean(label, "_clip_") > mean("adapt_transductive", "_clip_")
    results = COMPARISON.read_text()
    errors = re.findall(r"^\| `([^`]+)` \| [\w-]+ \| 14 \|(?:[^|]*\|){3} ([\d.]+) \|", results, re.MULTILINE)
    assert len(errors) == len(COMPARED)
    assert max(errors, key=lambda row: float(row[1]))[0] == "adapt_online"
    without_labels = {label: float(error) for label, error in errors if label in {*online, *transductive}}
    assert min(without_labels, key=without_labels.get) == "anchored_mixture_transductive"
    ahead = {
        protocol: {
            name
            for name, methods in RECORDS.items()
            if np.mean(list(methods[f"adapt_{protocol}"].values()))
            > np.mean(list(methods[f"anchored_mixture_{protocol}"].values()))
        }
        for protocol in ("online", "transductive")
    }
    assert ahead["online"] == {"cifar10c_defocus_blur_5", "pacs_cartoon", "pacs_photo"}
    assert ahead["transductive"] == {
        "cifar10c_defocus_blur_5", "cifar10c_gaussian_noise_3", "fmnist", "pacs_sketch",
    }  # fmt: skip


def test_methods_are_declared_over_confident_where_their_calibration_error_says_so():
    """`Method.overconfident`: ten points or more above zero-shot. Another table has the methods that need views."""
    errors: dict[str, float] = {}
    for page in (BENCHMARKS / "results" / "views.md", COMPARISON):
        rows = re.findall(
            r"^\| `(\w+)\*?` \| [\w-]+ \| \d+ \|(?:[^|]*\|){3} ([\d.]+) \|", page.read_text(), re.MULTILINE
        )
        found = {name: float(error) for name, error in rows}
        errors |= {name: error - found["zero_shot"] for name, error in found.items()}
    assert len(errors) > 30
    declared = {name for name in errors if methods.get(name).cls.overconfident}
    assert declared == {name for name, error in errors.items() if error >= 10}
