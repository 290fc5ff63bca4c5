"""Table 8: the iterations are iterations, and the two are held against each other."""

import pytest

from experiments.tables import found, remarks
from zeroshift.data import packs
from zeroshift.experiments import Suite
from zeroshift.experiments.closed_form import EXPERIMENT, ITERATIONS, TOLERANCE


@pytest.fixture(scope="module")
def chapter(investigated):
    names = ("cifar10", "cifar10c_fog_5")
    return investigated(EXPERIMENT, Suite.of({name: packs.load(name).subset(slice(0, 80)) for name in names}))


def test_both_are_run_under_both_protocols(chapter):
    rows = [(row.group, row.cells[0]) for row in found(chapter, "closed-form").rows]
    assert rows == [(p, how) for p in ("online", "transductive") for how in ("iterative", "closed form")]
    assert {job.contestant.parameters["iterations"] for job in chapter.jobs} == {1, ITERATIONS}
    assert len(chapter.jobs) == len({job.key for job in chapter.jobs}) == 2 * 4


def test_the_verdict_follows_from_the_table(chapter):
    table = found(chapter, "closed-form")
    rows = {(row.group, row.cells[0]): row.cells for row in table.rows}
    lost = [
        100 * (rows[protocol, "iterative"][at].value - rows[protocol, "closed form"][at].value)
        for protocol in ("online", "transductive")
        for at in (1, 2)
    ]
    (said,) = [text for text in remarks(chapter) if "matches the iterations" in text]
    assert (said in remarks(chapter, "note")) is (max(lost) <= TOLERANCE)


def test_times_are_ratios_to_the_closed_form(chapter):
    table = found(chapter, "closed-form")
    ratios = {(row.group, row.cells[0]): row.cells[-1].value for row in table.rows}
    times = {(row.group, row.cells[0]): row.cells[-2].value for row in table.rows}
    for protocol in ("online", "transductive"):
        assert ratios[protocol, "closed form"] == 1
        expected = times[protocol, "iterative"] / times[protocol, "closed form"]
        assert ratios[protocol, "iterative"] == pytest.approx(expected)
    assert any("the paper: 3.8 times" in text for text in remarks(chapter))
