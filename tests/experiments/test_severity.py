"""Table 20: each column holds just the sets of its severity."""

import pytest

from experiments.fake_results import chapter_with_accuracies
from experiments.paper_sets import ROWS, first_rows, imagenet_c, made_up, shrink_catalogue
from experiments.reading import column, found, remarks
from zeroshift.experiments import Suite
from zeroshift.experiments._shared.findings import Lines
from zeroshift.experiments.severity import EXPERIMENT

NAMES = ("cifar10c_fog_5", "cifar10c_gaussian_noise_3", "cifar10c_jpeg_compression_5")


@pytest.fixture(scope="module")
def corrupted() -> Suite:
    return first_rows(NAMES, 200)


def test_columns_are_the_means_of_their_own_sets(investigated, corrupted):
    table = found(investigated(EXPERIMENT, corrupted), "severity")
    sets = {member.name: member.dataset.load().zero_shot_accuracy() for member in corrupted.members}
    assert column(table, "Severity 3")["zero-shot"].value == pytest.approx(sets[NAMES[1]])
    assert column(table, "Severity 5")["zero-shot"].value == pytest.approx((sets[NAMES[0]] + sets[NAMES[2]]) / 2)
    assert [col.title for col in table.columns[1:]] == ["Severity 3", "Severity 5"]


def test_transductive_adapt_gains_at_both(investigated, corrupted):
    table = found(investigated(EXPERIMENT, corrupted), "severity")
    for title in ("Severity 3", "Severity 5"):
        cells = column(table, title)
        assert cells["ADAPT (transductive)"].value > cells["zero-shot"].value


def test_other_kinds_in_other_columns_are_remarked_and_no_line_is_drawn(investigated, corrupted):
    chapter = investigated(EXPERIMENT, corrupted)
    assert any("different kinds of corruption" in text for text in remarks(chapter))
    assert not any(isinstance(finding, Lines) for finding in chapter.findings)


def test_imagenet_c_gets_the_papers_numbers_and_a_line(monkeypatch):
    shrink_catalogue(monkeypatch)
    chapter = chapter_with_accuracies(EXPERIMENT, Suite.of(imagenet_c((1, 3))), lambda job: 0.5)
    table = found(chapter, "severity")
    assert column(table, "Severity 1")["TDA"].paper == pytest.approx(0.6042)
    assert column(table, "Severity 3")["ADAPT (transductive)"].paper == pytest.approx(0.4968)
    assert found(chapter, "severity-curve").series[0].x == (1.0, 3.0)
    gain = column(found(chapter, "severity-gain"), "Severity 1")["ADAPT (transductive)"]
    assert (gain.value, gain.paper) == pytest.approx((0.0, 62.04 - 59.68))
    assert not remarks(chapter, "data")
    assert not remarks(chapter, "warning"), "a tie is not a loss"


def test_the_question_is_judged_severity_by_severity(monkeypatch):
    shrink_catalogue(monkeypatch)
    sets = imagenet_c((1, 5), kinds=("fog", "snow", "frost"), rows=ROWS)
    scores = {("adapt_online", 5): 0.2, ("adapt_transductive", 1): 0.8, ("adapt_transductive", 5): 0.8}
    scores |= {("tda", 1): 0.2, ("tda", 5): None}

    def accuracy(job):
        return scores.get((job.spec.method, int(job.features[-1])), 0.5)

    chapter = chapter_with_accuracies(EXPERIMENT, Suite.of(sets), accuracy)
    gains = found(chapter, "severity-gain")
    assert column(gains, "Severity 5")["ADAPT (online)"].value == pytest.approx(-30)
    (zero_shot,) = [text for text in remarks(chapter, "warning") if "above zero-shot at every severity" in text]
    assert "Not confirmed here for online, severity 5 (-30.0 points)" in zero_shot
    assert "transductive, severity 1 (+30.0 points); transductive, severity 5" in zero_shot
    assert "too close to call for online, severity 1" in zero_shot
    (tda,) = [text for text in remarks(chapter) if "outperforms TDA at all severities" in text]
    assert "severity 1 (+30.0 points)" in tda
    assert "severity 5" not in tda, "TDA failed there"


def test_some_kinds_are_not_the_papers_mean(monkeypatch):
    shrink_catalogue(monkeypatch)
    chapter = chapter_with_accuracies(EXPERIMENT, Suite.of(imagenet_c((5,), kinds=("fog", "snow"))), lambda job: 0.5)
    assert all(cell.paper is None for cell in column(found(chapter, "severity"), "Severity 5").values())
    assert remarks(chapter, "data")


def test_without_corrupted_sets_it_says_what_to_give():
    chapter = chapter_with_accuracies(EXPERIMENT, Suite.of({"mine": made_up()}), lambda job: 0.5)
    assert not chapter.jobs
    assert any("--severity" in text for text in remarks(chapter))
