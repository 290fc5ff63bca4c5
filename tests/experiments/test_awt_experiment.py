"""Table 19: AWT with and without views, and the remarks."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.edge_cases import narrowed, scattered
from experiments.fake_results import chapter_with, record
from experiments.paper_sets import papers_set, shrink_catalogue
from experiments.reading import column, found, remarks
from zeroshift import FeatureSet
from zeroshift.evaluate import Analysis, MethodSpec, Trial
from zeroshift.evaluate.trial import run_trial
from zeroshift.experiments import Suite
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.views import awt_alone
from zeroshift.experiments.awt import EXPERIMENT, SETS

PACK = "views_cifar10c_fog_5"


@pytest.fixture(scope="module")
def suite() -> Suite:
    """The same pictures without and with views, and others."""
    return Suite.of({name: narrowed(name, 60, 12) for name in ("cifar10", "cifar10c_fog_5", PACK)})


def accuracies(**scores):
    def answer(job):
        accuracy = scores.get("alone" if isinstance(job, Analysis) else job.spec.method, 0.5)
        return None if accuracy is None else record(accuracy)

    return answer


def enough(suite: Suite) -> Suite:
    return Suite(tuple(replace(m, dataset=replace(m.dataset, n_samples=1000)) for m in suite.members))


def test_awt_alone_is_awt_on_sets_of_one_view():
    plain = narrowed("cifar10c_fog_5", 200, 24)
    single = FeatureSet(
        None,
        views=np.asarray(plain.features)[:, None, :],
        prototypes=plain.prototypes,
        labels=plain.labels,
        logit_scale=plain.logit_scale,
        default_prompt=plain.default_prompt,
    )
    trial = Trial("single", "", plain.default_prompt, MethodSpec("awt"), seed=None, shots=None)
    ours, theirs = awt_alone(plain, prompt=plain.default_prompt), run_trial(trial, single)
    for name in ("accuracy", "nll", "calibration_error", "zero_shot_accuracy", "image_passes", "gradient_steps"):
        assert ours[name] == pytest.approx(theirs[name], abs=1e-12), name
    assert ours["nll"] != pytest.approx(ours["zero_shot_nll"]), "it weighs prompts"


def test_one_row_per_set_and_awt_if_there_are_views(investigated, suite):
    table = found(investigated(EXPERIMENT, suite, orders=1), "awt")
    place = [col.title for col in table.columns].index("AWT")
    assert [row.cells[0] for row in table.rows if row.cells[place] is not None] == [suite.members[2].title]
    assert all(row.cells[1] is not None and row.cells[2] is not None for row in table.rows)


def test_the_mean_counts_the_same_pictures_once(suite):
    scores = {suite.members[0].name: 0.6, suite.members[1].name: 0.4, suite.members[2].name: 0.9}
    table = found(chapter_with(EXPERIMENT, suite, lambda job: record(scores[job.features])), "awt")
    (mean,) = [row for row in table.rows if row.strong]
    assert mean.cells[0] == "mean of 2 sets"
    assert mean.cells[1].value == pytest.approx(0.5)
    assert any("once" in note for note in table.notes)


@pytest.mark.parametrize(
    ("alone", "message"), [(0.3, "Confirmed here"), (0.5, "Too close to call here"), (0.7, "Not confirmed here")]
)
def test_awt_with_and_without_views(suite, alone, message):
    chapter = chapter_with(EXPERIMENT, enough(suite), accuracies(alone=alone))
    (text,) = [text for text in remarks(chapter) if "AWT is less accurate without views" in text]
    assert f"{message}: " in text
    assert chapter.findings[1].kind == ("warning" if message == "Not confirmed here" else "note")


def test_adapt_is_compared_with_both(suite):
    texts = remarks(chapter_with(EXPERIMENT, enough(suite), accuracies(adapt_online=0.6, alone=0.4, awt=0.8)))
    (without,) = [text for text in texts if "ADAPT (online) is more accurate than AWT without views" in text]
    (with_views,) = [text for text in texts if "ADAPT (online) does well" in text]
    assert "Confirmed here" in without
    assert "ADAPT (online) 60.0%, AWT* 40.0%" in without
    assert "Not confirmed here" in with_views
    assert "ADAPT (online) 60.0%, AWT 80.0%" in with_views


def test_failed_runs_are_not_compared(suite):
    texts = remarks(chapter_with(EXPERIMENT, suite, accuracies(alone=None)))
    assert not any("without views. " in text or "less accurate" in text for text in texts)


def test_sets_of_one_prompt_are_skipped():
    chapter = chapter_with(EXPERIMENT, Suite.of({"mine": scattered(3, 4, prompts=("only",))}), accuracies())
    assert not chapter.jobs
    assert any(text.endswith("one prompt per class: mine.") for text in remarks(chapter))


def test_without_views_it_says_what_to_give(small_suite):
    texts = remarks(chapter_with(EXPERIMENT, small_suite, accuracies()))
    assert any("zeroshift extract ... --views 64" in text for text in texts)


def test_the_papers_numbers_are_next_to_adapt_on_its_own_sets(monkeypatch):
    shrink_catalogue(monkeypatch)
    sets = {name: papers_set(name, prompts=("descriptions", "vanilla")) for name in SETS}
    table = found(chapter_with(EXPERIMENT, Suite.of(sets), accuracies()), "awt")
    printed = paper_table("awt_comparison")
    for title in ("ADAPT (online)", "ADAPT (transductive)"):
        cells, protocol = column(table, title), title[7:-1]
        assert cells["dtd"].paper == pytest.approx(printed.number_at("DTD", method="ADAPT", protocol=protocol) / 100)
        mean = printed.number_at("Avg.", method="ADAPT", protocol=protocol) / 100
        assert cells[f"mean of {len(SETS)} sets"].paper == pytest.approx(mean)
    assert all(cell.paper is None for cell in column(table, "AWT*").values()), "ours weighs other prompts"


def test_a_mean_of_other_sets_has_no_number_of_the_paper(monkeypatch):
    shrink_catalogue(monkeypatch)
    sets = {name: papers_set(name, prompts=("descriptions", "vanilla")) for name in SETS[:3]}
    table = found(chapter_with(EXPERIMENT, Suite.of(sets), accuracies()), "awt")
    assert column(table, "ADAPT (online)")["mean of 3 sets"].paper is None


def test_labels_are_needed():
    plain = scattered(2, 3)
    with pytest.raises(ValueError, match="needs labels"):
        awt_alone(FeatureSet(plain.features, prototypes=plain.prototypes), prompt="vanilla")
