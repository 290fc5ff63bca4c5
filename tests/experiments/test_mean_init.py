"""Table 7: every mode starts from its own prototypes."""

import pytest

from experiments.fake_results import chapter_with_accuracies
from experiments.paper_sets import RN50, first_rows, made_up, papers_set, shrink_catalogue
from experiments.reading import found, remarks
from zeroshift.experiments import Suite
from zeroshift.experiments._shared.prompt_modes import PAPERS_MODES, mode_title
from zeroshift.experiments._shared.tasks import get_task
from zeroshift.experiments.mean_init import EXPERIMENT

ENCODERS = ("clip-vit-b-16", "clip-rn50")


@pytest.fixture(scope="module")
def two_sets() -> Suite:
    return first_rows(("cifar10c_fog_5", "fmnist"), 150)


def rows_of(table, group: str) -> dict[str, tuple]:
    return {str(row.cells[0]): row.cells[1:] for row in table.rows if row.group == group}


def test_each_mode_really_gets_its_own_prototypes(investigated, two_sets):
    table = found(investigated(EXPERIMENT, two_sets), "mean-init")
    zero_shot = rows_of(table, "zero-shot")
    fashion = two_sets.members[1].dataset.load()
    expected = {mode_title(mode): fashion.zero_shot_accuracy(mode) for mode in fashion.prompts}
    assert len(set(expected.values())) > 1, "or it would not matter which were taken"
    assert {mode: cells[1].value for mode, cells in zero_shot.items()} == pytest.approx(expected)


def test_transductive_adapt_gains_from_every_start(investigated, two_sets):
    table = found(investigated(EXPERIMENT, two_sets), "mean-init")
    before, after = rows_of(table, "zero-shot"), rows_of(table, "ADAPT transductive")
    assert list(after) == ["Vanilla", "Ensemble", "CLIP Template"]
    for mode in after:
        assert after[mode][0].value > before[mode][0].value


def test_missing_modes_are_named_with_the_fix(investigated, two_sets):
    text = next(text for text in remarks(investigated(EXPERIMENT, two_sets)) if "no prototypes" in text)
    assert "GPT & Ensemble (descriptions_ensemble)" in text
    assert "--descriptions" in text
    assert "Vanilla (" not in text


def test_a_mode_that_some_sets_lack_leaves_their_task_empty(small_suite):
    both = made_up({"encoder": "EfficientNet-Lite2", "data_set": "pacs_photo"}, prompts=("vanilla", "mine"))
    suite = Suite((*small_suite.members, *Suite.of({"photo": both}).members))
    chapter = chapter_with_accuracies(EXPERIMENT, suite, lambda job: 0.5)
    rows = rows_of(found(chapter, "mean-init"), "zero-shot")
    assert rows["Ensemble"][0] is None, "CIFAR-10 has it, the photographs do not"
    assert rows["Vanilla"][0] is not None
    assert rows["mine"] == (None, None, None)
    assert any("Ensemble (ensemble; not in photo)" in text for text in remarks(chapter))


def test_the_papers_numbers_are_next_to_the_same_mode(monkeypatch):
    shrink_catalogue(monkeypatch)
    names = get_task("natural").papers_sets
    suite = Suite.of({name: papers_set(name, prompts=PAPERS_MODES) for name in names})
    chapter = chapter_with_accuracies(EXPERIMENT, suite, lambda job: 0.5)
    table = found(chapter, "mean-init")
    online, whole = rows_of(table, "ADAPT online"), rows_of(table, "ADAPT transductive")
    assert online["GPT"][0].paper == pytest.approx(0.6653)
    assert online["GPT & CLIP Template"][0].paper == pytest.approx(0.6658)
    assert whole["Vanilla"][0].paper == pytest.approx(0.6553)
    assert not any("no prototypes" in text for text in remarks(chapter))


def test_each_encoder_has_a_table(monkeypatch):
    shrink_catalogue(monkeypatch)
    sets = {"a": papers_set("dtd"), "b": papers_set("dtd", encoder=RN50, prompts=("vanilla",))}
    chapter = chapter_with_accuracies(EXPERIMENT, Suite.of(sets), lambda job: 0.5)
    titles = {name: [row.cells[0] for row in found(chapter, f"mean-init-{name}").rows[:1]] for name in ENCODERS}
    assert titles == {"clip-vit-b-16": ["GPT"], "clip-rn50": ["Vanilla"]}
