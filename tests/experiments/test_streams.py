"""Non-i.i.d. streams: every cell is the mean gain of its runs; combined sets."""

import numpy as np
import pytest

from experiments.edge_cases import in_two_encoders, scattered
from experiments.fake_results import chapter_with, nothing
from experiments.reading import column, found, remarks
from zeroshift.data import packs
from zeroshift.evaluate import Trial
from zeroshift.evaluate.streams import class_sorted, few_classes
from zeroshift.experiments import Investigation, Options, Suite
from zeroshift.experiments._shared.findings import HeatMaps
from zeroshift.experiments.streams import (
    EXPERIMENT,
    METHODS,
    OURS,
    STREAM_DESCRIPTIONS,
    STREAMS,
    StackedMember,
    StreamGain,
    harm_remark,
    neighbours,
    stacked_members,
)
from zeroshift.methods import create

PACKS = ("cifar10", "cifar10c_fog_5")


def load(name: str):
    return packs.load(name).subset(slice(0, 80))


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite.of({name: load(name) for name in PACKS})


@pytest.fixture(scope="module")
def chapter(investigated, suite):
    return investigated(EXPERIMENT, suite, orders=1)


def test_every_stream_has_a_row_and_the_domains_are_those_with_the_same_prototypes(chapter):
    table = found(chapter, "streams")
    assert [row.cells[0] for row in table.rows] == [*(kind.label for kind in STREAMS), "worst stream"]
    assert {job.features for job in chapter.jobs} == {*PACKS, "CIFAR-10 and its shifts"}
    assert any("cifar10, cifar10c_fog_5;" in note for note in table.notes)
    across = [job for job in chapter.jobs if job.features not in PACKS]
    across = [job for job in across if isinstance(job, Trial)]
    assert {job.stream_spec.kind for job in across} == {"continual", "gradual", "mixed"}
    assert all(job.stream["domains"] == [80, 80] for job in across)


def test_a_cell_is_the_mean_gain_of_its_runs(chapter):
    gains = []
    for name in PACKS:
        some = load(name)
        rows = class_sorted(some.labels, 0).rows
        results = create("tda", some.prototypes_for(), logit_scale=some.logit_scale).adapt(some.features[rows])
        right = np.mean(results.argmax(axis=1) == some.labels[rows])
        gains.append(100 * (right - some.zero_shot_accuracy()))
    assert column(found(chapter, "streams"), "TDA")["class-sorted"].value == pytest.approx(np.mean(gains), abs=1e-6)


def test_the_worst_stream_is_named_and_the_map_holds_the_table(chapter):
    table = found(chapter, "streams")
    (drawn,) = (finding for finding in chapter.findings if isinstance(finding, HeatMaps))
    for place, title in enumerate(METHODS.values()):
        cells = column(table, title)
        outcome_text = cells.pop("worst stream")
        np.testing.assert_array_equal(drawn.maps[0].values[:, place], [cell.value for cell in cells.values()])
        worst = min(cells, key=lambda label: (cells[label].value, label))
        assert outcome_text.startswith(f"{worst} (")


def test_the_worst_stream_of_both_of_ours_is_reported(suite):
    """Synthetic: ADAPT loses most on sorted classes; the mixture gains equally, but least in a random order."""

    def record(job):
        kind = job.stream["kind"] if isinstance(job, Trial) else ""
        lost = 0.1 if (getattr(job, "slug", ""), kind) == ("adapt_online", "class_sorted") else 0.0
        least = 0.15 if (getattr(job, "slug", ""), kind) == ("anchored_mixture_online", "random") else 0.0
        return {
            "accuracy": 0.7 - lost - least,
            "zero_shot_accuracy": 0.5,
            "scored": 80,
            "classes_in_a_row": 2.0,
            "imbalance": 4.0,
        }

    outcome_text = remarks(chapter_with(EXPERIMENT, suite, record, orders=2))
    assert "ADAPT gains +20.0 points in a random order and +10.0 on its worst stream (class-sorted)." in outcome_text
    assert "Anchored mixture gains least, +5.0 points, in a random order." in outcome_text


def test_both_of_ours_run_in_all_orders_and_the_peers_in_one(suite):
    planned = [job for job in EXPERIMENT.plan(suite, Options(orders=3)) if isinstance(job, Trial)]
    seeds = {method: {job.seed for job in planned if job.slug == method} for method in METHODS}
    assert seeds == {method: {0, 1, 2} if method in OURS else {0} for method in METHODS}


def test_properties_of_streams_are_measured(chapter):
    classes = column(found(chapter, "streams"), "Classes")
    assert classes["class-sorted"].value < classes["random"].value == 10
    some = load("cifar10")
    near = [
        neighbours(some, prompt=some.default_prompt, seed=0, kind=kind, parameters={}, window=16)["classes_in_a_row"]
        for kind in ("class_sorted", "dirichlet", "random")
    ]
    assert near[0] < near[1] < near[2]
    outcome_text = neighbours(some, prompt=some.default_prompt, seed=0, kind="few_classes", parameters={})
    first = some.labels[few_classes(some.labels, 0).rows][:64]
    assert outcome_text["classes_in_a_row"] == len(set(first.tolist()))  # 80 rows are one window and a rest
    tail = neighbours(some, prompt=some.default_prompt, seed=0, kind="long_tail", parameters={"imbalance": 50.0})
    smallest = np.bincount(some.labels).min()
    assert tail["imbalance"] == smallest < 50
    assert tail["scored"] < 80
    assert tail["zero_shot_accuracy"] != some.zero_shot_accuracy()
    (note,) = [note for note in found(chapter, "streams").notes if "long tail" in note]
    assert "up to 50 times" in note
    assert f"Long tails here: {smallest}:1" in note


@pytest.mark.parametrize(
    ("orders", "words"), [(1, "All runs are in one order."), (3, "ADAPT and Anchored mixture in 3 orders")]
)
def test_the_note_says_how_many_orders_there_were(suite, orders, words):
    record = {"accuracy": 0.6, "zero_shot_accuracy": 0.5, "scored": 80, "classes_in_a_row": 2.0, "imbalance": 4.0}
    table = found(chapter_with(EXPERIMENT, suite, lambda job: record, orders=orders), "streams")
    assert words in table.notes[0]


def test_the_concentration_of_a_correlated_stream_is_that_in_all():
    (correlated,) = [kind for kind in STREAMS if kind.label == "correlated"]
    assert correlated.parameters == {"concentration": 1.0}
    assert "with total concentration 1," in STREAM_DESCRIPTIONS


def test_methods_that_do_harm_are_reported(chapter):
    table = found(chapter, "streams")
    harm = [
        f"{title} on {label} ({cell.value:+.1f})"
        for title in METHODS.values()
        for label, cell in column(table, title).items()
        if label != "worst stream" and cell.value <= -0.1
    ]
    outcome_text = " ".join(remarks(chapter))
    assert harm
    assert all(words in outcome_text for words in harm)


@pytest.mark.parametrize(
    ("gain", "kind", "words"),
    [
        (-20.0, "warning", "Below zero-shot, in points: TDA on random (-20.0)."),
        (-2.0, "note", "too close to call: TDA on random (-2.0)."),
        (0.0, "note", "Of 1 gains none is below zero; 0 are above it"),
        (20.0, "note", "Of 1 gains none is below zero; 1 are above it"),
    ],
    ids=["lost", "close", "tie", "gained"],
)
def test_a_loss_is_reported_only_if_significant(gain, kind, words):
    remark = harm_remark([StreamGain("TDA on random", gain, 0.5, [100])])
    assert remark.kind == kind
    assert words in remark.text


def test_streams_that_failed_are_neither_the_worst_nor_harmless(suite):
    def record(job):
        if isinstance(job, Trial) and (job.slug, job.stream["kind"]) == ("tda", "class_sorted"):
            return None
        return {"accuracy": 0.9, "zero_shot_accuracy": 0.5, "scored": 80, "classes_in_a_row": 2.0, "imbalance": 4.0}

    chapter = chapter_with(EXPERIMENT, suite, record, orders=1)
    cells = column(found(chapter, "streams"), "TDA")
    assert cells["class-sorted"] is None
    assert cells["worst stream"] is None
    assert "No gain, because a run failed: TDA on class-sorted." in remarks(chapter, "warning")
    assert remarks(chapter_with(EXPERIMENT, suite, nothing)) == [
        "Some run of every method failed on every stream, so there is no gain to report."
    ]


def test_every_encoder_has_its_own_table_and_combined_sets():
    investigation = Investigation.of([EXPERIMENT], Suite.of(in_two_encoders()), Options(orders=1))
    (planned,) = investigation.planned
    made = [[m for m in part.members if isinstance(m, StackedMember)] for part in planned.suites]
    assert [[m.domain_names for m in those] for those in made] == [[], [("clean b", "fog b")]]
    assert made[1][0].encoder == "CLIP ViT-B/16"


def test_a_combined_set_has_the_encoder_of_its_domains():
    encoder = {"source": "openai/clip-vit-base-patch16"}
    sets = {"clean": scattered(4, 8, encoder=encoder), "fog": scattered(4, 9, encoder={**encoder, "device": "cuda"})}
    (made,) = stacked_members(Suite.of(sets))
    assert made.encoder == "CLIP ViT-B/16"


def test_without_two_sets_of_the_same_classes_there_are_no_domains():
    alone = Suite.of({name: load(name) for name in ("cifar10", "fmnist")})
    assert stacked_members(alone) == []
    planned = Investigation.of([EXPERIMENT], alone).jobs
    kinds = {job.stream_spec.kind for job in planned if isinstance(job, Trial)}
    assert "class_sorted" in kinds
    assert not kinds & {"continual", "gradual", "mixed"}


def test_duplicate_data_is_one_domain():
    few = load("cifar10").subset(slice(0, 40))
    twice = Suite.of({"few": few, "cifar10": load("cifar10"), "fog": load("cifar10c_fog_5")})
    (made,) = stacked_members(twice)
    assert isinstance(made, StackedMember)
    assert made.domain_names == ("cifar10", "fog")
    assert made.dataset.load().n_samples == made.dataset.n_samples == sum(made.domains)


def test_large_domains_are_subsampled(monkeypatch):
    monkeypatch.setattr("zeroshift.experiments.streams.DOMAIN_ROWS", 30)
    (made,) = stacked_members(Suite.of({name: load(name) for name in ("cifar10", "cifar10c_fog_5")}))
    assert made.domains == (30, 30)
    assert made.dataset.n_samples == 60
