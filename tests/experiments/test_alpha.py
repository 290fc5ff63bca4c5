"""The sweep of alpha."""

import pytest

from experiments.reading import found, remarks
from zeroshift.data import packs
from zeroshift.experiments import Options, Suite
from zeroshift.experiments._shared.trials import runs
from zeroshift.experiments.alpha import ALPHAS, EXPERIMENT


@pytest.fixture(scope="module")
def suite():
    """One corrupted set, large enough that some banks fill."""
    return Suite.of({"fog": packs.load("cifar10c_fog_5").subset(slice(0, 300))})


@pytest.fixture(scope="module")
def chapter(investigated, suite):
    return investigated(EXPERIMENT, suite)


def test_with_alpha_0_the_means_stay_at_the_prototypes(chapter, suite):
    table = found(chapter, "alpha")
    (fog,) = suite.members
    (fixed,) = runs(fog, "adapt_online", 1, {"update_mean": False})
    accuracy = fixed.run(fog.dataset.load())["accuracy"]
    (row,) = [row for row in table.rows if row.group == "online" and row.cells[0] == "0"]
    assert row.cells[1].value == pytest.approx(accuracy)
    (default,) = [row for row in table.rows if row.group == "online" and row.strong]
    assert default.cells[0] == "0.9 (default)"
    assert default.cells[1].value > row.cells[1].value


def test_every_alpha_is_run_once_per_set_and_protocol(chapter, suite):
    assert len(chapter.jobs) == len({job.key for job in chapter.jobs}) == len(ALPHAS) * 2
    assert len(EXPERIMENT.plan(suite, Options(orders=5))) == len(chapter.jobs)
    assert [found(chapter, f"alpha-{name}").marked_x for name in ("online", "transductive")] == [0.9, 0.9]
    assert sum(text.startswith("The paper finds") for text in remarks(chapter)) == 2
