"""Views: methods with and without them, their costs, and the remarks."""

from dataclasses import replace

import pytest

from experiments.edge_cases import narrowed, scattered
from experiments.fake_results import chapter_with, record
from experiments.reading import column, found, remarks
from zeroshift import FeatureSet
from zeroshift.data import packs
from zeroshift.evaluate import Analysis
from zeroshift.experiments import Investigation, Member, Options, Suite, get
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments.views import EXPERIMENT, PAPERS, view_rows

PACK = "views_cifar10c_fog_5"
VIEWS = 16
MIXTURES = ["Anchored mixture (online)", "Anchored mixture (transductive)"]
TWICE = [
    "TDA",
    "DMN",
    "Dota",
    "BCA*",
    "PTA",
    "BoostAdapter",
    "DPE",
    "ADAPT (online)",
    "ADAPT (transductive)",
    "AWT",
    *MIXTURES,
]
NEEDING = ["MTA", "ZERO", "TPS"]


@pytest.fixture(scope="module")
def seen() -> Suite:
    return Suite.of({PACK: narrowed(PACK, 40, 12)})


def label(job) -> str:
    return "awt alone" if isinstance(job, Analysis) else job.spec.label


def accuracies(scores=None, samples: int = 1000):
    """A result for every job: the accuracy in `scores`, or a half."""
    costs = {"calibration_error": 0.1, "image_passes": 1.0, "gradient_steps": 0.0}

    def answer(job):
        accuracy = (scores or {}).get(label(job), 0.5)
        return None if accuracy is None else record(accuracy, samples=samples, **costs)

    return answer


def enough(suite: Suite, samples: int = 1000) -> Suite:
    """The same, with so many samples that ten points are significant."""
    return Suite(tuple(replace(m, dataset=replace(m.dataset, n_samples=samples)) for m in suite.members))


def test_methods_have_rows_without_and_with_views_and_costs(investigated, seen):
    chapter = investigated(EXPERIMENT, seen, orders=2)
    table = found(chapter, "views")
    passes, steps = column(table, "views encoded"), column(table, "gradient steps")
    assert set(passes) == {
        "zero-shot", *TWICE, *(f"{name}, with views" for name in (*TWICE, *NEEDING))
    }  # fmt: skip
    for name, cell in passes.items():
        assert cell.value == (VIEWS if name.endswith("with views") else 1), name
    assert {name for name, cell in steps.items() if cell.value == 1} == {"DPE", "DPE, with views", "TPS, with views"}
    assert column(table, "gain")["zero-shot"].value == 0
    assert [row.cells[0] for row in table.rows if row.strong] == ["ADAPT (online)", "ADAPT (transductive)"]
    assert {row.group for row in table.rows} == {"online", "transductive", "episodic"}
    # Time is of one run done alone; accuracies of as many orders as were asked for.
    assert column(table, "time")["TDA"].low is None
    assert column(table, "accuracy")["TDA"].low is not None
    assert column(table, "accuracy")["Dota"].low is None, "slow: one order"


def test_the_figure_holds_accuracy_against_passes(investigated, seen):
    chapter = investigated(EXPERIMENT, seen, orders=2)
    table, figure = found(chapter, "views"), found(chapter, "passes")
    drawn = {series.label: series for series in figure.series}
    assert drawn["TDA"].x == (1, VIEWS)
    shown = column(table, "accuracy")
    assert drawn["TDA"].y == pytest.approx([100 * shown[name].value for name in ("TDA", "TDA, with views")])
    assert drawn["MTA"].x == (VIEWS,)
    assert drawn["zero-shot"].x == (1,)


def test_one_run_of_each_is_timed(seen):
    rows = view_rows(seen.members[0], 3)
    assert all([job.timed for job in row.jobs] == [True] + [False] * (len(row.jobs) - 1) for row in rows)
    counts = {row.name: len(row.jobs) for row in rows}
    assert counts["TDA"] == counts["ADAPT (online), with views"] == 3
    assert counts["zero-shot"] == counts["Dota"] == counts["DPE, with views"] == counts["MTA, with views"] == 1


def test_without_views_it_says_what_to_give(small_suite):
    chapter = chapter_with(EXPERIMENT, small_suite, accuracies())
    assert not chapter.jobs
    assert any("zeroshift extract ... --views 64" in text for text in remarks(chapter))
    assert found(chapter, "paper-natural-shift-vitb16").reference


def test_the_bundled_views_join_their_own_pack_for_this_experiment_alone():
    fog = Suite.of({"cifar10c_fog_5": packs.load("cifar10c_fog_5")})
    alone = Investigation.of([get("ablation")], fog)
    both = Investigation.of([get("ablation"), EXPERIMENT], fog)
    assert {job.features for job in both.planned[1].jobs} == {PACK}
    assert [job.key for job in both.planned[0].jobs] == [job.key for job in alone.planned[0].jobs]
    other = Suite.of({"cifar10": packs.load("cifar10")})
    assert not Investigation.of([EXPERIMENT], other).jobs


def test_the_bundled_views_are_not_added_to_given_views(seen):
    fog = Member.of("cifar10c_fog_5", packs.load("cifar10c_fog_5"))
    investigation = Investigation.of([EXPERIMENT], Suite((fog, *seen.members)), Options(orders=1))
    assert {job.digest for job in investigation.jobs} == {seen.members[0].dataset.digest}


@pytest.mark.parametrize(
    ("mta", "message", "kind"),
    [(0.5, "Confirmed here", "note"), (0.7, "Too close to call here", "note"), (0.8, "Not confirmed here", "warning")],
    ids=["lower", "equal", "higher"],
)
def test_adapt_without_views_is_compared_with_the_best_with_views(seen, mta, message, kind):
    scores = {"adapt_online": 0.7, "adapt_transductive": 0.7, "mta": mta}
    chapter = chapter_with(EXPERIMENT, enough(seen), accuracies(scores))
    (text,) = [text for text in remarks(chapter, kind) if "ADAPT does well without views" in text]
    assert f"{message}: " in text
    assert "ADAPT (online) 70.0%" in text


def test_where_a_rival_failed_nothing_is_concluded(seen):
    chapter = chapter_with(EXPERIMENT, enough(seen), accuracies({"adapt_online": 0.9, "zero": None}))
    assert not any("does well" in text for text in remarks(chapter))
    assert column(found(chapter, "views"), "accuracy")["ZERO, with views"] is None


def test_what_views_change_is_reported_both_ways(seen):
    scores = {"tda": 0.5, "tda+views": 0.7, "dmn": 0.7, "dmn+views": 0.5, "awt alone": 0.5, "awt": 0.51}
    (text,) = [t for t in remarks(chapter_with(EXPERIMENT, enough(seen), accuracies(scores))) if "instead of one" in t]
    assert "raise accuracy for TDA (+20.0 points); lower accuracy for DMN (-20.0 points)" in text
    assert "AWT (+1.0 points)" in text.split("too little difference to say for")[1]


def test_skipped_methods_are_named_with_the_reason(seen):
    (text,) = [t for t in remarks(chapter_with(EXPERIMENT, seen, accuracies())) if t.startswith("Left out")]
    for name in ("tpt", "ctpt", "difftpt", "dynaprompt", "b2tpt"):
        assert f" {name}" in text.split("(needs the encoder")[0], name
    assert "ratta (needs 5 descriptions per class to retrieve anything, but there are 3 prompt modes)" in text


def test_with_enough_prompts_ratta_runs_on_half_and_is_not_compared():
    plain = scattered(3, 12, prompts=("a", "b", "c", "d", "e"))
    held = FeatureSet(
        None, views=plain.features[:, None, :].repeat(2, axis=1), prototypes=plain.prototypes, labels=plain.labels
    )
    scores = {"adapt_online": 0.9, "adapt_transductive": 0.9, "ratta": 1.0}
    chapter = chapter_with(EXPERIMENT, enough(Suite.of({"mine": held})), accuracies(scores))
    assert [row.cells[0] for row in found(chapter, "views").rows if "half" in row.group] == ["RA-TTA, with views"]
    assert any("Confirmed here" in text for text in remarks(chapter))


def test_the_papers_numbers_are_next_to_rows_with_the_same_inputs(seen):
    (member,) = seen.members
    papers = replace(
        member, from_paper=True, data_set="imagenet_a", task="natural", encoder="CLIP ViT-B/16", corruption=None
    )
    cells = column(found(chapter_with(EXPERIMENT, Suite((papers,)), accuracies()), "views"), "accuracy")
    printed = {name: cell.paper for name, cell in cells.items() if cell.paper is not None}
    assert printed == pytest.approx(
        {
            "zero-shot": 0.4779, "ADAPT (online)": 0.6332, "ADAPT (transductive)": 0.6377,
            "MTA, with views": 0.5806, "ZERO, with views": 0.5961, "TPS, with views": 0.5921,
        }
    )  # fmt: skip


def test_several_sets_have_a_table_and_a_figure_each(seen):
    (member,) = seen.members
    other = replace(member, dataset=replace(member.dataset, name="other", digest="other", title="other"))
    chapter = chapter_with(EXPERIMENT, Suite((member, other)), accuracies())
    assert [found(chapter, name).name for name in ("views-1", "passes-1", "views-2", "passes-2")]


def test_the_papers_rows_are_those_of_methods_with_views(seen):
    chapter = chapter_with(EXPERIMENT, seen, accuracies())
    shown = {
        row.cells[0]
        for table in ("natural-shift", "corruption", "fine-grained")
        for row in found(chapter, f"paper-{table}-vitb16").rows
    }
    assert shown == set(PAPERS)
    assert len(found(chapter, "paper-natural-shift-vitb16").rows) < len(paper_table("natural_shift_vitb16").rows)
