"""Claims compared with numbers: significant differences, ties, and the remarks."""

import pytest

from experiments.fake_results import record
from experiments.paper_sets import RN50, made_up, papers_set, shrink_catalogue
from zeroshift.experiments import Suite
from zeroshift.experiments._shared.claims import (
    ClaimEvidence,
    above_zero_shot,
    all_hold,
    effective_samples,
    gain_sign,
    higher,
    paper_reference,
    verdict,
    within,
)
from zeroshift.experiments._shared.findings import Table
from zeroshift.experiments._shared.tables import data_remark

HELD, FAILED, OPEN = (
    ClaimEvidence("online", True, "+9"),
    ClaimEvidence("transductive", False, "-9"),
    ClaimEvidence("both", None, "+0"),
)


@pytest.mark.parametrize(
    ("evidence", "kind", "text"),
    [
        ([HELD], "note", "Confirmed here: online (+9)."),
        ([FAILED], "warning", "Not confirmed here: transductive (-9)."),
        ([OPEN], "note", "Too close to call here: both (+0)."),
        ([HELD, FAILED], "warning", "Not confirmed here for transductive (-9); confirmed for online (+9)."),
        ([HELD, OPEN], "note", "Confirmed here for online (+9); too close to call for both (+0)."),
        ([OPEN, FAILED], "warning", "Not confirmed here for transductive (-9); too close to call for both (+0)."),
    ],
    ids=["held", "failed", "open", "held-failed", "held-open", "open-failed"],
)
def test_a_verdict_names_what_holds_what_does_not_and_what_is_open(evidence, kind, text):
    message = verdict("a does b", evidence)
    assert message.text == f"The paper finds that a does b. {text}"
    assert message.kind == kind


def test_without_evidence_there_is_no_verdict():
    assert verdict("a does b", []) is None


def test_a_difference_within_a_standard_error_and_a_tie_say_nothing():
    """One standard error of a difference of accuracies of about 0.5 is 1 point at 5,000 samples."""
    assert higher(0.512, 0.50, samples=5000) is True
    assert higher(0.50, 0.512, samples=5000) is False
    assert higher(0.509, 0.50, samples=5000) is None
    # All predictions are correct, and it is still a tie.
    assert higher(1.0, 1.0, samples=10) is None
    assert higher(0.532, 0.50, samples=5000, by=0.02) is True
    assert higher(0.532, 0.50, samples=5000, by=0.03) is None


def test_a_limit_is_exceeded_only_if_significant():
    assert within(0.50, 0.51, 0.01, samples=5000) is True
    assert within(0.50, 0.512, 0.01, samples=5000) is None
    assert within(0.50, 0.522, 0.01, samples=5000) is False


def test_a_small_set_makes_a_mean_unsure():
    assert effective_samples([1000, 1000]) == pytest.approx(2000)
    assert effective_samples([100, 100_000]) < 400


def test_the_sign_of_a_gain_follows_from_its_interval_and_means_from_their_error():
    assert [gain_sign(record(accuracy)) for accuracy in (0.55, 0.45, 0.5)] == [True, False, None]
    assert gain_sign({"paired": [490, 11, 10, 489]}) is None
    assert above_zero_shot([record(0.55)]) is True
    assert above_zero_shot([record(0.55), record(0.45)]) is None
    assert above_zero_shot([record(0.55), record(0.60)]) is True


def test_an_empty_result_confirms_nothing():
    assert all_hold([]) is None


def test_other_prompts_than_the_papers_are_reported(monkeypatch):
    shrink_catalogue(monkeypatch)
    names = ("imagenet", "imagenet_a", "imagenetv2", "imagenet_r", "imagenet_sketch")
    same = Suite.of({name: papers_set(name) for name in names})
    other = Suite.of({name: papers_set(name, prompts=("vanilla",)) for name in names})
    assert data_remark(same) is None
    message = data_remark(other)
    assert message.kind == "data"
    assert "ours are vanilla, its main results are of class descriptions" in message.text
    assert "not here" not in message.text
    assert data_remark(other, prompts=False) is None
    # The paper's numbers are in our table, so its own table is not shown again.
    assert not [finding for finding in paper_reference(other, "ablation_components") if isinstance(finding, Table)]


def test_a_table_of_one_set_needs_that_set_alone(monkeypatch):
    shrink_catalogue(monkeypatch)
    one = Suite.of({"imagenet": papers_set("imagenet")})
    assert paper_reference(one, "efficiency_imagenet", needs=("imagenet",)) == []
    message, table = paper_reference(one, "bank_pruning", needs=("imagenet", "imagenet_a"))
    assert message.text == "These sets of the paper's table are missing here: imagenet_a."
    assert table.reference
    assert "Some of the paper's sets are not here" in paper_reference(one, "ablation_components")[0].text
    (message, *_) = paper_reference(Suite.of({"mine": made_up()}), "efficiency_imagenet", needs=("imagenet",))
    assert "other data" in message.text
    assert "not here" not in message.text


def test_another_backbone_than_the_tables_is_reported(monkeypatch):
    shrink_catalogue(monkeypatch)
    one = Suite.of({"imagenet": papers_set("imagenet", encoder=RN50)})
    message, table = paper_reference(one, "efficiency_imagenet", needs=("imagenet",))
    assert message.text == "The paper's numbers are of CLIP ViT-B/16, ours of CLIP RN50."
    assert table.reference
