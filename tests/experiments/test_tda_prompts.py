"""Table 18: TDA and ADAPT start from the same prototypes."""

import pytest

from experiments.fake_results import chapter_with_accuracies
from experiments.paper_sets import first_rows, papers_set, shrink_catalogue
from experiments.reading import found, remarks
from zeroshift import methods
from zeroshift.experiments import Suite
from zeroshift.experiments._shared.prompt_modes import PAPERS_MODES
from zeroshift.experiments._shared.tasks import get_task
from zeroshift.experiments.tda_prompts import EXPERIMENT


@pytest.fixture(scope="module")
def two_sets() -> Suite:
    return first_rows(("cifar10c_fog_5", "fmnist"), 150)


def cell(table, group: str, label: str, title: str):
    place = [col.title for col in table.columns].index(title)
    return next(row.cells[place] for row in table.rows if row.group.startswith(group) and row.cells[0] == label)


@pytest.mark.parametrize(("mode", "title"), [("vanilla", "Vanilla"), ("clip_template", "CLIP Template")])
def test_both_get_the_prototypes_of_the_mode(investigated, two_sets, mode, title):
    """What a run of the method itself gives, on these prototypes and in the order of seed 0."""
    import numpy as np

    table = found(investigated(EXPERIMENT, two_sets), "same-prompts")
    fashion = two_sets.members[1].dataset.load()
    order = np.random.default_rng(0).permutation(fashion.n_samples)
    for method, label in (("tda", "TDA"), ("adapt_transductive", "ADAPT (transductive)")):
        rows = order if method == "tda" else np.arange(fashion.n_samples)
        made = methods.create(method, fashion.prototypes_for(mode), logit_scale=fashion.logit_scale)
        predicted = made.adapt(fashion.features[rows]).argmax(axis=1)
        expected = float(np.mean(predicted == fashion.labels[rows]))
        assert cell(table, "Task 3", label, title).value == pytest.approx(expected)


def test_every_run_names_its_mode(investigated, two_sets):
    chapter = investigated(EXPERIMENT, two_sets)
    pairs = {(job.spec.method, job.prompt) for job in chapter.jobs}
    assert pairs == {(m, p) for m in ("tda", "adapt_online", "adapt_transductive") for p in two_sets.members[0].prompts}


def test_transductive_adapt_is_ahead_under_fog(investigated, two_sets):
    lead = found(investigated(EXPERIMENT, two_sets), "lead")
    for title in ("Vanilla", "Ensemble", "CLIP Template"):
        assert cell(lead, "Task 2", "ADAPT (transductive) - TDA", title).value > 0


@pytest.mark.parametrize(("tda", "kind"), [(0.4, "note"), (0.6, "warning"), (0.51, "note")])
def test_where_tda_is_ahead_it_is_a_warning(small_suite, tda, kind):
    chapter = chapter_with_accuracies(EXPERIMENT, small_suite, lambda job: tda if job.spec.method == "tda" else 0.5)
    assert cell(found(chapter, "lead"), "Task 1", "ADAPT (online) - TDA", "Vanilla").value == pytest.approx(
        100 * (0.5 - tda)
    )
    assert bool(remarks(chapter, "warning")) == (kind == "warning")
    (message,) = [text for text in remarks(chapter, kind) if "ahead of TDA under each of its 6 prompt modes" in text]
    assert message.endswith("Of these 6 modes 3 could be compared here.")
    assert ("Too close to call here" in message) == (tda == 0.51)
    assert message.count("ADAPT (online), natural shift (in points") == 1
    assert f"{100 * (0.5 - tda):+.1f} with Vanilla, {100 * (0.5 - tda):+.1f} with Ensemble" in message


def test_modes_in_which_runs_failed_are_not_counted(small_suite):
    failed = ("vanilla", "ensemble")
    chapter = chapter_with_accuracies(EXPERIMENT, small_suite, lambda job: None if job.prompt in failed else 0.5)
    assert any("Of these 6 modes 1 could be compared here." in text for text in remarks(chapter))
    nothing = chapter_with_accuracies(EXPERIMENT, small_suite, lambda job: None)
    assert not any("ahead of TDA" in text for text in remarks(nothing))


def test_the_papers_differences_are_next_to_ours(monkeypatch):
    shrink_catalogue(monkeypatch)
    names = get_task("natural").papers_sets
    chapter = chapter_with_accuracies(
        EXPERIMENT, Suite.of({n: papers_set(n, prompts=PAPERS_MODES) for n in names}), lambda job: 0.5
    )
    assert cell(found(chapter, "same-prompts"), "Task 1", "TDA", "Vanilla").paper == pytest.approx(0.6392)
    assert cell(found(chapter, "lead"), "Task 1", "ADAPT (online) - TDA", "Vanilla").paper == pytest.approx(0.78)
    assert not any("could be compared here" in text for text in remarks(chapter)), "all six are"
