"""Streams that are no random order: every cell is the gain of just those runs, and stacked sets are found and run."""

import numpy as np
import pytest

from experiments.tables import column, found, remarks
from zeroshift.data import packs
from zeroshift.evaluate.streams import class_sorted
from zeroshift.experiments import Investigation, Suite
from zeroshift.experiments.parts.domain_sets import StackedMember, stacked_members
from zeroshift.experiments.parts.findings import HeatMaps
from zeroshift.experiments.streams import EXPERIMENT, METHODS, STREAMS
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
    assert {job.arrangement.kind for job in across} == {"continual", "gradual", "mixed"}
    assert all(job.stream["domains"] == [80, 80] for job in across)


def test_a_cell_is_the_mean_gain_of_its_runs(chapter):
    gains = []
    for name in PACKS:
        some = load(name)
        rows = class_sorted(some.labels, 0).rows
        answers = create("tda", some.prototypes_for(), logit_scale=some.logit_scale).adapt(some.features[rows])
        right = np.mean(answers.argmax(axis=1) == some.labels[rows])
        gains.append(100 * (right - some.zero_shot_accuracy()))
    assert column(found(chapter, "streams"), "TDA")["class-sorted"].value == pytest.approx(np.mean(gains), abs=1e-6)


def test_the_worst_stream_is_named_and_the_map_holds_the_table(chapter):
    table = found(chapter, "streams")
    (drawn,) = (finding for finding in chapter.findings if isinstance(finding, HeatMaps))
    for place, title in enumerate(METHODS.values()):
        cells = column(table, title)
        told = cells.pop("worst stream")
        np.testing.assert_array_equal(drawn.maps[0].values[:, place], [cell.value for cell in cells.values()])
        worst = min(cells, key=lambda label: (cells[label].value, label))
        assert told.startswith(f"{worst} (")


def test_methods_that_do_harm_are_told(chapter):
    table = found(chapter, "streams")
    harm = [
        f"{title} on {label}"
        for title in METHODS.values()
        for label, cell in column(table, title).items()
        if label != "worst stream" and cell.value < 0
    ]
    warned = " ".join(remarks(chapter, "warning"))
    assert all(words in warned for words in harm)
    assert bool(harm) == bool(warned)


def test_without_two_sets_of_the_same_classes_there_are_no_domains():
    alone = Suite.of({name: load(name) for name in ("cifar10", "fmnist")})
    assert stacked_members(alone) == []
    planned = Investigation.of([EXPERIMENT], alone).jobs
    assert planned
    assert not {job.arrangement.kind for job in planned} & {"continual", "gradual", "mixed"}


def test_the_same_data_seen_twice_is_one_domain():
    few = load("cifar10").subset(slice(0, 40))
    twice = Suite.of({"few": few, "cifar10": load("cifar10"), "fog": load("cifar10c_fog_5")})
    (made,) = stacked_members(twice)
    assert isinstance(made, StackedMember)
    assert made.domain_names == ("cifar10", "fog")
    assert made.entry.load().n_samples == made.entry.n_samples == sum(made.domains)


def test_large_domains_are_drawn_from(monkeypatch):
    monkeypatch.setattr("zeroshift.experiments.parts.domain_sets.DOMAIN_ROWS", 30)
    (made,) = stacked_members(Suite.of({name: load(name) for name in ("cifar10", "cifar10c_fog_5")}))
    assert made.domains == (30, 30)
    assert made.entry.n_samples == 60
