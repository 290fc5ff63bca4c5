"""Sets on which an experiment runs in seconds, and a fixture that runs experiments on them."""

import pytest

from zeroshift.data import packs
from zeroshift.evaluate import Ledger
from zeroshift.experiments import Investigation, Options, Suite

PACKS = ("cifar10", "cifar10c_fog_5", "fmnist")


@pytest.fixture(scope="session")
def small_suite() -> Suite:
    """One set of each task, 300 samples each."""
    return Suite.of({name: packs.load(name).subset(slice(0, 300)) for name in PACKS})


@pytest.fixture(autouse=True, scope="module")
def _untimed(untimed_runs):
    """No experiment is judged by its time or memory here."""


@pytest.fixture(scope="session")
def investigated(tmp_path_factory, small_suite):
    """`investigated(experiment)`: its chapter on the small sets or on `suite`; no job runs twice."""
    folder = tmp_path_factory.mktemp("runs")

    def investigated(experiment, suite=small_suite, **options):
        investigation = Investigation.of([experiment], suite, Options(**options))
        outcomes = list(investigation.run(Ledger(folder)))
        assert not [outcome.error for outcome in outcomes if outcome.error]
        (chapter,) = investigation.chapters(outcomes)
        return chapter

    return investigated
