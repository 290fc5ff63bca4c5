"""The three main tables: methods, the paper's numbers, remarks."""

import re

import pytest

from experiments.fake_results import chapter_with_accuracies
from experiments.paper_sets import RN50, made_up, papers_set, shrink_catalogue
from experiments.reading import column, found, remarks
from zeroshift import methods
from zeroshift.experiments import Suite, few_shot
from zeroshift.experiments._shared.compared_methods import (
    OURS,
    PAPER_ROWS,
    SLOW,
    compared_methods,
    excluded_methods,
    method_trials,
)
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.tasks import TASKS
from zeroshift.experiments.fine_grained import EXPERIMENT
from zeroshift.experiments.natural_shift import EXPERIMENT as NATURAL_SHIFT

TEN = next(task for task in TASKS if task.id == "fine_grained").papers_sets


def half(job) -> float:
    return 0.5


def test_zero_shot_comes_first_and_adapt_last():
    online = [spec.method for spec in compared_methods("online")]
    assert online[0] == "zero_shot"
    assert [online[-1], compared_methods("transductive")[-1].method] == list(OURS.values())


def test_no_method_in_the_tables_sees_labels_and_every_other_method_is_accounted_for():
    shown = [spec for protocol in OURS for spec in compared_methods(protocol)]
    assert not any("support" in spec.given for spec in shown)
    named = {spec.method for spec in (*shown, *excluded_methods())}
    assert named == {info.name for info in methods.list_methods() if info.protocol in OURS}


def test_every_name_of_the_paper_is_that_of_a_row_of_its_tables():
    printed = {
        (row.method, row.protocol)
        for task in TASKS
        for table in task.tables.values()
        for row in paper_table(table).rows
    }
    unknown = {name for name, row in PAPER_ROWS.items() if (row.method, row.protocol) not in printed}
    ours = {"anchored_mixture_online", "anchored_mixture_transductive"}
    assert unknown == {"t3a", "ecalp", "onzeta", "pta", "freetta", "boostadapter", "histo_transclip", *ours}
    assert set(PAPER_ROWS) <= {info.name for info in methods.list_methods()}


def test_reconstructions_have_a_star_and_a_note(small_suite):
    table = found(chapter_with_accuracies(EXPERIMENT, small_suite, half), "accuracy")
    names = {row.cells[0] for row in table.rows}
    assert {"TDA", "FreeTTA*", "BCA*", "TCA*", "GDA-CLIP (without labels)*"} <= names
    notes = " ".join(table.notes)
    assert "* BCA, FreeTTA, GDA-CLIP (without labels): reconstructed, not the authors' code." in notes
    assert f"* TCA: {methods.get('tca').cls.from_features}." in notes


def test_methods_in_other_tables_exist(small_suite):
    notes = " ".join(found(chapter_with_accuracies(EXPERIMENT, small_suite, half), "accuracy").notes)
    (outcome_text,) = re.findall(r"the few-shot experiment has (.*?)\.", notes)
    assert re.split(", | and ", outcome_text) == list(few_shot.PEERS.values())


def test_methods_that_run_in_one_order_are_reported(small_suite):
    notes = " ".join(found(chapter_with_accuracies(EXPERIMENT, small_suite, half, orders=2), "accuracy").notes)
    assert "Dota, ECALP and DPE, which are slow, one order." in notes


def test_all_but_the_slow_run_in_as_many_orders_as_adapt(small_suite):
    member = small_suite.members[0]
    counts = {c.method: len(method_trials(c, member, 3)) for c in compared_methods("online")}
    once = {method for method, count in counts.items() if count == 1}
    assert once == {"zero_shot", *SLOW}
    assert {count for method, count in counts.items() if method not in once} == {3}
    assert counts["adapt_online"] == counts["t3a"] == counts["zlap_inductive"] == 3


def test_the_papers_numbers_are_next_to_its_own_sets(monkeypatch):
    shrink_catalogue(monkeypatch)
    suite = Suite.of({"textures": papers_set("dtd"), "some textures": papers_set("dtd", rows=20)})
    table = found(chapter_with_accuracies(EXPERIMENT, suite, half), "accuracy")
    whole, part = column(table, "DTD"), column(table, "dtd")
    assert whole["ADAPT (online)"].paper == pytest.approx(0.5520)
    assert whole["ADAPT (transductive)"].paper == pytest.approx(0.5686)
    assert whole["zero-shot"].paper is not None
    assert whole["T3A"].paper is None, "the paper has no row for it"
    assert paper_table("fine_grained_vitb16").number_at("DTD", method="ZLaP", protocol="online") == 48.60
    assert whole["ZLaP (inductive)"].paper is None, "ours is scored on half of the samples"
    assert whole["ZLaP"].paper == pytest.approx(0.46)
    assert all(cell.paper is None for cell in part.values())
    assert all(cell.paper is None for cell in column(table, "Avg.").values()), "the mean is of other sets"


def test_the_papers_mean_is_next_to_the_mean_of_all_its_sets(monkeypatch):
    shrink_catalogue(monkeypatch)
    chapter = chapter_with_accuracies(EXPERIMENT, Suite.of({name: papers_set(name) for name in TEN}), half)
    assert column(found(chapter, "accuracy"), "Avg.")["ADAPT (online)"].paper == pytest.approx(0.7076)
    assert not remarks(chapter, "data"), "data and prompts are the paper's"


def test_sets_in_the_order_of_the_paper(monkeypatch):
    shrink_catalogue(monkeypatch)
    suite = Suite.of({name: papers_set(name) for name in ("ucf101", "dtd", "fgvc_aircraft")})
    titles = [col.title for col in found(chapter_with_accuracies(EXPERIMENT, suite, half), "accuracy").columns]
    assert titles == ["method", "Aircraft", "DTD", "UCF101", "Avg."]


def test_each_encoder_has_a_table_and_the_numbers_of_its_own(monkeypatch):
    shrink_catalogue(monkeypatch)
    suite = Suite.of({"a": papers_set("dtd"), "b": papers_set("dtd", encoder=RN50)})
    chapter = chapter_with_accuracies(EXPERIMENT, suite, half)
    numbers = [
        column(found(chapter, name), "DTD")["ADAPT (online)"].paper
        for name in ("accuracy-clip-vit-b-16", "accuracy-clip-rn50")
    ]
    printed = [
        paper_table(f"fine_grained_{name}").number_at("DTD", method="ADAPT", protocol="online")
        for name in ("vitb16", "rn50")
    ]
    assert numbers == pytest.approx([number / 100 for number in printed])
    assert found(chapter, "paper-fine-grained-rn50-clip-rn50").reference
    assert found(chapter, "paper-fine-grained-vitb16-clip-vit-b-16").reference


def test_other_prompts_than_the_papers_are_reported(monkeypatch):
    shrink_catalogue(monkeypatch)
    chapter = chapter_with_accuracies(EXPERIMENT, Suite.of({"dtd": papers_set("dtd", prompts=("vanilla",))}), half)
    assert any("prompts are not" in text for text in remarks(chapter, "data"))


@pytest.mark.parametrize(
    ("adapt", "tda", "kind", "message"),
    [
        (0.7, 0.6, "note", "On Fashion-MNIST ADAPT is the best of the online methods (70.0%; next is TDA with 60.0%)."),
        (0.6, 0.7, "note", "the highest of the online methods is TDA with 70.0%; ADAPT has 60.0%. In the paper"),
        (0.70, 0.71, "note", "ADAPT (70.0%) and the best other online method, TDA (71.0%), are too close"),
        (0.71, 0.70, "note", "ADAPT (71.0%) and the best other online method, TDA (70.0%), are too close"),
        (0.51, 0.7, "note", "ADAPT is too close to zero-shot (50.0%)"),
        (0.4, 0.7, "warning", "below the zero-shot classifier"),
    ],
)
def test_it_says_who_leads_and_warns_only_below_zero_shot(small_suite, adapt, tda, kind, message):
    """On 300 samples a point is less than one standard error."""
    scores = {"adapt_online": adapt, "tda": tda}
    chapter = chapter_with_accuracies(EXPERIMENT, small_suite, lambda job: scores.get(job.spec.method, 0.5))
    assert any(message in text for text in remarks(chapter, kind))
    assert len(remarks(chapter, "warning")) == (kind == "warning")


def test_no_method_is_called_the_best_where_a_rival_failed(small_suite):
    scores = {"adapt_online": 0.9, "bca": None, "dmn": None}
    texts = remarks(chapter_with_accuracies(EXPERIMENT, small_suite, lambda job: scores.get(job.spec.method, 0.5)))
    (online,) = [text for text in texts if "online ADAPT has 90.0%" in text]
    assert "BCA" in online
    assert "DMN" in online
    assert not any("the best of the online" in text for text in texts)


def test_where_adapt_failed_nothing_is_reported_of_it(small_suite):
    scores = {"adapt_online": None}
    texts = remarks(
        chapter_with_accuracies(EXPERIMENT, small_suite, lambda job: scores.get(job.spec.method, 0.5)), "note"
    )
    assert not any("online method" in text for text in texts)


def test_users_own_sets_have_no_paper_numbers():
    suite = Suite.of({"mine": made_up(rows=400), "yours": made_up(rows=400, seed=1)})
    chapter = chapter_with_accuracies(
        NATURAL_SHIFT, suite, lambda job: 0.3 if job.spec.method.startswith("adapt") else 0.5
    )
    message = [text for text in remarks(chapter) if "the highest of the online methods" in text]
    assert message
    assert "On the mean of 2 sets" in message[0]
    assert not any("In the paper" in text for text in message)


def test_a_method_scored_on_other_samples_is_not_compared(small_suite):
    chapter = chapter_with_accuracies(
        EXPERIMENT, small_suite, lambda job: 0.9 if job.spec.method == "zlap_inductive" else 0.5
    )
    assert not any("ZLaP" in text for text in remarks(chapter))
    assert not column(found(chapter, "accuracy"), "Avg.")["ZLaP (inductive)"].best


def test_without_sets_of_its_task_it_says_what_to_give():
    chapter = chapter_with_accuracies(EXPERIMENT, Suite.of({"mine": made_up()}), half)
    assert not chapter.jobs
    assert any("--data ROOT" in text for text in remarks(chapter))
    assert found(chapter, "paper-fine-grained-vitb16").reference


def test_a_run_that_failed_leaves_its_cell_empty(small_suite):
    from zeroshift.evaluate import JobOutcome
    from zeroshift.experiments import Investigation, Options

    investigation = Investigation.of([EXPERIMENT], small_suite, Options(orders=1))
    outcomes = [
        JobOutcome(job, None, "out of memory", False)
        if job.spec.method == "stata"
        else JobOutcome(job, {"accuracy": 0.5}, None, False)
        for job in investigation.jobs
    ]
    (chapter,) = investigation.chapters(outcomes)
    cells = column(found(chapter, "accuracy"), "Avg.")
    assert cells["StatA"] is None
    assert cells["ZLaP"].value == 0.5
    assert len(chapter.failed) == 1
