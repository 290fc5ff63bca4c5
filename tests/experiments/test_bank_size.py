"""The sweep of the bank's size."""

import pytest

from experiments.reading import found, remarks
from zeroshift.data import packs
from zeroshift.experiments import Suite
from zeroshift.experiments.bank_size import EXPERIMENT, ONLINE, SIZES, TRANSDUCTIVE


@pytest.fixture(scope="module")
def suite():
    """One corrupted set, large enough that some banks fill."""
    return Suite.of({"fog": packs.load("cifar10c_fog_5").subset(slice(0, 500))})


@pytest.fixture(scope="module")
def chapter(investigated, suite):
    return investigated(EXPERIMENT, suite)


def test_one_sample_per_class_is_too_few_on_corrupted_images(chapter):
    (corrupted,) = found(chapter, "bank-size-online").series
    assert corrupted.label == "corruption"
    by_size = dict(zip(corrupted.x, corrupted.y, strict=True))
    assert corrupted.x == SIZES
    assert by_size[1] < by_size[ONLINE.default]
    assert all(0 < accuracy < 100 for accuracy in corrupted.y)


def test_the_papers_defaults_are_marked_in_figure_and_table(chapter):
    assert found(chapter, "bank-size-online").marked_x == 16
    assert found(chapter, "bank-size-transductive").marked_x == 6
    strong = [(row.group, row.cells[0]) for row in found(chapter, "bank-size").rows if row.strong]
    assert strong == [("online", "16 (default)"), ("transductive", "6 (default)")]


def test_what_the_paper_claims_suggests_numbers(chapter):
    claims = [text for text in remarks(chapter) if text.startswith("The paper finds")]
    assert len(claims) == 2
    assert all("corruption (" in text for text in claims)


def test_the_papers_numbers_are_those_of_the_same_size():
    assert ONLINE.paper[2]["Task 2"] == 22.95
    assert ONLINE.paper[16]["Task 2"] == 28.56
    assert TRANSDUCTIVE.paper[6]["Task 3"] == 72.43
    assert ONLINE.paper[32]["Task 1"] is None
