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
    FILTER_DESCRIPTION,
    METHODS,
    STREAM_DESCRIPTIONS,
    STREAMS,
    WITH_FILTER,
    WITHOUT_FILTER,
    StackedMember,
    StreamGain,
    harm_remark,
    neighbours,
    stacked_members,
)
from zeroshift.methods import create

PACKS = ("cifar10", "cifar10c_fog_5")
TABLES = {"streams": WITHOUT_FILTER, "filter": WITH_FILTER}
SUMMARIES = ("mean", "worst stream", "worst cell")


def load(name: str):
    return packs.load(name).subset(slice(0, 80))


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite.of({name: load(name) for name in PACKS})


@pytest.fixture(scope="module")
def chapter(investigated, suite):
    return investigated(EXPERIMENT, suite, orders=1)


def gains_of(chapter, title: str) -> dict:
    """The cells of a method by stream, without the summaries below them."""
    (name,) = [name for name, methods in TABLES.items() if title in [method.title for method in methods]]
    return {label: cell for label, cell in column(found(chapter, name), title).items() if label not in SUMMARIES}


@pytest.mark.parametrize("name", TABLES)
def test_every_stream_has_a_row_and_the_domains_are_those_with_the_same_prototypes(chapter, name):
    table = found(chapter, name)
    assert [row.cells[0] for row in table.rows] == [*(kind.label for kind in STREAMS), *SUMMARIES]
    assert [one.title for one in table.columns[3:]] == [method.title for method in TABLES[name]]
    assert {job.features for job in chapter.jobs} == {*PACKS, "CIFAR-10 and its shifts"}
    assert any("cifar10, cifar10c_fog_5;" in note for note in found(chapter, "streams").notes)
    across = [job for job in chapter.jobs if job.features not in PACKS]
    across = [job for job in across if isinstance(job, Trial)]
    assert {job.stream_spec.kind for job in across} == {"continual", "gradual", "mixed"}
    assert all(job.stream["domains"] == [80, 80] for job in across)


@pytest.mark.parametrize(
    ("title", "method", "parameters"),
    [
        ("TDA", "tda", {}),
        ("TDA + filter", "tda+filter", {}),
        ("Zero-shot + filter", "zero_shot+filter", {}),
        ("Anchored mixture", "anchored_mixture_online", {"order": "auto"}),
        ("Anchored mixture without filter", "anchored_mixture_online", {"order": "none"}),
    ],
)
def test_a_cell_is_the_mean_gain_of_its_runs(chapter, title, method, parameters):
    gains = []
    for name in PACKS:
        some = load(name)
        rows = class_sorted(some.labels, 0).rows
        online = create(method, some.prototypes_for(), logit_scale=some.logit_scale, **parameters)
        results = online.adapt(some.features[rows])
        right = np.mean(results.argmax(axis=1) == some.labels[rows])
        gains.append(100 * (right - some.zero_shot_accuracy()))
    assert gains_of(chapter, title)["class-sorted"].value == pytest.approx(np.mean(gains), abs=1e-6)


@pytest.mark.parametrize("name", TABLES)
def test_the_worst_stream_is_named_and_the_map_holds_the_table(chapter, name):
    table = found(chapter, name)
    (drawn,) = (finding for finding in chapter.findings if isinstance(finding, HeatMaps))
    maps = dict(zip(TABLES, drawn.maps, strict=True))
    for method in TABLES[name]:
        cells = column(table, method.title)
        mean, outcome_text, _ = (cells.pop(label) for label in SUMMARIES)
        values = [cell.value for cell in cells.values()]
        np.testing.assert_array_equal(maps[name].values[:, TABLES[name].index(method)], values)
        assert mean.value == pytest.approx(np.mean(values))
        worst = min(cells, key=lambda label: (cells[label].value, label))
        assert outcome_text.startswith(f"{worst} (")


def test_the_worst_cell_is_of_one_set_and_one_order(suite):
    """Synthetic: TDA loses five points on one of two sets, so that it does not lose in the mean."""

    def record(job):
        lost = isinstance(job, Trial) and (job.slug, job.stream["kind"], job.features) == ("tda", "bursts", "cifar10")
        return {
            "accuracy": 0.45 if lost else 0.7,
            "zero_shot_accuracy": 0.5,
            "scored": 80,
            "classes_in_a_row": 2.0,
            "imbalance": 4.0,
        }

    cells = column(found(chapter_with(EXPERIMENT, suite, record, orders=2), "streams"), "TDA")
    assert cells["worst cell"] == "bursts, cifar10 (-5.0)"
    assert cells["worst stream"] == "bursts (+7.5)"


def test_the_worst_stream_of_both_of_ours_is_reported(suite):
    """Synthetic: ADAPT loses most on sorted classes; the mixture gains equally, but least in a random order."""

    def record(job):
        kind, method = (job.stream["kind"], job.slug) if isinstance(job, Trial) else ("", "")
        lost = 0.1 if (method, kind) == ("adapt_online", "class_sorted") else 0.0
        least = 0.15 if (method, kind) == ("anchored_mixture_online", "random") else 0.0
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


def test_the_mixture_runs_in_all_orders_and_the_others_in_one(suite):
    planned = [job for job in EXPERIMENT.plan(suite, Options(orders=3)) if isinstance(job, Trial)]
    seeds: dict[str, set[int]] = {}
    for job in planned:
        seeds.setdefault(job.spec.label, set()).add(job.seed)
    mixture = ("anchored_mixture_online", "anchored_mixture_online order=none")
    others = [name + more for name in ("adapt_online", "tda", "dmn", "oga") for more in ("", "+filter")]
    assert set(seeds) == {*mixture, *others, "zero_shot+filter"}
    assert all(seen == ({0, 1, 2} if label in mixture else {0}) for label, seen in seeds.items())


def test_what_the_filter_changes_is_put_into_words(suite):
    """Synthetic: the filter adds eight points, but not in a random order, where it costs one."""

    def record(job):
        filtered = isinstance(job, Trial) and "+filter" in job.spec.label
        random = isinstance(job, Trial) and job.stream["kind"] == "random"
        return {
            "accuracy": 0.6 + filtered * (-0.01 if random else 0.08),
            "zero_shot_accuracy": 0.5,
            "scored": 80,
            "classes_in_a_row": 2.0,
            "imbalance": 4.0,
        }

    chapter = chapter_with(EXPERIMENT, suite, record, orders=1)
    mean = 10 + (8 * (len(STREAMS) - 1) - 1) / len(STREAMS)
    (text,) = [text for text in remarks(chapter) if "without and with the filter" in text]
    assert f"Zero-shot +0.0 and {mean:+.1f} (+0.0 and +9.0); ADAPT +10.0 and {mean:+.1f} (+10.0 and +9.0)" in text
    assert "Anchored mixture +10.0 and +10.0 (+10.0 and +10.0)" in text
    assert "order='none'" in FILTER_DESCRIPTION
    assert found(chapter, "filter").notes == (FILTER_DESCRIPTION,)


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


@pytest.mark.parametrize(("orders", "words"), [(1, "All runs are in one order."), (3, "Anchored mixture in 3 orders")])
def test_the_note_says_how_many_orders_there_were(suite, orders, words):
    record = {"accuracy": 0.6, "zero_shot_accuracy": 0.5, "scored": 80, "classes_in_a_row": 2.0, "imbalance": 4.0}
    table = found(chapter_with(EXPERIMENT, suite, lambda job: record, orders=orders), "streams")
    assert words in table.notes[0]


def test_the_concentration_of_a_correlated_stream_is_that_in_all():
    (correlated,) = [kind for kind in STREAMS if kind.label == "correlated"]
    assert correlated.parameters == {"concentration": 1.0}
    assert "with total concentration 1," in STREAM_DESCRIPTIONS


def test_methods_that_do_harm_are_reported(chapter):
    harm = [
        f"{method.title} on {label} ({cell.value:+.1f})"
        for method in METHODS
        for label, cell in gains_of(chapter, method.title).items()
        if cell.value <= -0.1
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
        if isinstance(job, Trial) and (job.spec.label, job.stream["kind"]) == ("tda", "class_sorted"):
            return None
        return {"accuracy": 0.9, "zero_shot_accuracy": 0.5, "scored": 80, "classes_in_a_row": 2.0, "imbalance": 4.0}

    chapter = chapter_with(EXPERIMENT, suite, record, orders=1)
    cells = column(found(chapter, "streams"), "TDA")
    assert cells["class-sorted"] is None
    assert [cells[label] for label in SUMMARIES] == [None, None, None]
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
