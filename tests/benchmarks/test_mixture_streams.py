"""The benchmark of streams: kinds of streams, sets and families, and summaries."""

from mixture_streams import CORRELATED, KINDS, METHODS, MIXTURE, ORDERS, planned_runs, summary

from zeroshift.data import packs
from zeroshift.evaluate.streams.spec import KINDS as EVERY_KIND
from zeroshift.experiments import Suite
from zeroshift.experiments.streams import stacked_members

PLACES = {"cifar10": "cifar10", "cifar10c_fog_5": "cifar10c_fog_5"}


def row(stream: str, name: str, gain: float, *, seed: int = 0, method: str = MIXTURE.title) -> dict[str, object]:
    return {"stream": stream, "set": name, "seed": seed, "method": method, "samples": 100, "gain": gain}


def test_every_kind_of_stream_is_measured():
    assert {kind.kind for kind in KINDS} == set(EVERY_KIND)
    found = {kind.parameters["concentration"] for kind in KINDS if kind.kind == "dirichlet"}
    assert found == {1.0, CORRELATED}
    assert len({kind.label for kind in KINDS}) == len(KINDS)


def test_sets_run_alone_and_families_across_domains():
    suite = Suite.of({name: packs.load(where).subset(slice(0, 80)) for name, where in PLACES.items()})
    planned = list(planned_runs(PLACES, (*suite.members, *stacked_members(suite))))
    across = {kind.label for kind in KINDS if kind.domains}
    for run in planned:
        assert (run.stream in across) is (run.set == "CIFAR-10 and its shifts")
    runs = [run.trial.key for run in planned]
    within = len(KINDS) - len(across)
    assert len(runs) == len(set(runs)) == (2 * within + len(across)) * len(METHODS) * ORDERS


def test_a_mean_is_of_sets_and_the_worst_of_all_cells():
    rows = [row("random", "a", 4.0), row("random", "a", 2.0, seed=1), row("random", "b", -0.5)]
    text = summary([*rows, row("random", "a", -7.0, method="ADAPT")])
    assert "| random | 3 | +1.2 | -0.5 (b, 0) | -7.0 | -7.0 (a, 0) |\n" in text  # no column for what was not run
    assert "The worst of all 3 cells is -0.5 (b, random, order 0)." in text
    assert "More than 1 point below zero-shot: 0 of 3 cells" in text
    assert "anchored mixture 0 of 3; ADAPT 1 of 1" in text


def test_every_run_that_misses_the_limit_is_listed():
    rows = [row("sorted", "a", -1.5), row("sorted", "a", -3.0, seed=1), row("random", "b", -1.0)]
    text = summary(rows)
    assert "More than 1 point below zero-shot: 2 of 3 cells, in 1 of 2 pairs of set and stream." in text
    assert "- sorted, a: -3.0, -1.5" in text
    assert "- random" not in text
