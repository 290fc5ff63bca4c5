"""Few-shot: labelled samples are drawn once, never scored, and raise accuracy."""

import numpy as np
import pytest

from experiments.fake_results import chapter_with, record
from experiments.paper_sets import made_up
from experiments.reading import found, remarks
from zeroshift import OnlineADAPT
from zeroshift.data import packs
from zeroshift.evaluate import accuracy
from zeroshift.evaluate.trial import split
from zeroshift.experiments import Options, Suite
from zeroshift.experiments.few_shot import EXPERIMENT, PEERS, SHOTS, few_shot


def test_labelled_samples_raise_accuracy_over_none(investigated):
    table = found(investigated(EXPERIMENT, orders=1), "few-shot")
    for protocol in ("online", "transductive"):
        rows = {row.cells[0]: row.cells[1:] for row in table.rows if row.group == f"ADAPT, {protocol}"}
        assert list(rows) == [str(shots) for shots in SHOTS]
        assert np.mean([c.value for c in rows["16"]]) > np.mean([c.value for c in rows["0"]])


def test_the_rows_scored_do_not_change_with_the_number_given(investigated, small_suite):
    pack = small_suite.members[1].dataset.load()
    outcome_text = [
        few_shot(pack, prompt="ensemble", method="adapt_online", shots=n, most=8, seed=3) for n in (0, 2, 8)
    ]
    assert (
        len({record["zero_shot_accuracy"] for record in outcome_text})
        == len({record["scored"] for record in outcome_text})
        == 1
    )
    assert [record["support"] for record in outcome_text] == [0, 20, 80]
    assert outcome_text[0]["scored"] == 300 - 80


@pytest.mark.parametrize("shots", [1, 4])
def test_draws_are_nested_and_never_scored(shots):
    labels = packs.load("cifar10").labels
    fewer, most = (split(labels, seed=0, shuffled=True, shots=n) for n in (shots, 16))
    assert set(fewer.support) < set(most.support)
    assert not set(fewer.support) & set(most.scored)


def test_without_labelled_samples_it_is_the_plain_method():
    pack = packs.load("cifar10c_fog_5").subset(slice(0, 200))
    rows = split(pack.labels, seed=1, shuffled=True, shots=4).scored
    plain = OnlineADAPT(pack.prototypes_for("ensemble"), logit_scale=pack.logit_scale)
    expected = accuracy(plain.adapt(np.asarray(pack.features[rows])), pack.labels[rows])
    outcome_text = few_shot(pack, prompt="ensemble", method="adapt_online", shots=0, most=4, seed=1)
    assert outcome_text["accuracy"] == expected


def test_claims_are_judged(investigated):
    chapter = investigated(EXPERIMENT, orders=1)
    claims = [text for text in remarks(chapter) if text.startswith("The paper finds")]
    assert len(claims) == 3
    assert len(chapter.jobs) == 3 * (2 * len(SHOTS) + len(PEERS) * (len(SHOTS) - 1))


@pytest.mark.parametrize("method", PEERS)
def test_peers_are_scored_on_the_same_rows_and_need_labels(method, small_suite):
    pack = small_suite.members[1].dataset.load()
    outcome_text = {
        m: few_shot(pack, prompt="ensemble", method=m, shots=4, most=8, seed=3) for m in (method, "adapt_online")
    }
    assert outcome_text[method]["scored"] == outcome_text["adapt_online"]["scored"]
    assert outcome_text[method]["zero_shot_accuracy"] == outcome_text["adapt_online"]["zero_shot_accuracy"]
    assert outcome_text[method]["support"] == 40
    with pytest.raises(ValueError, match="needs labelled samples"):
        few_shot(pack, prompt="ensemble", method=method, shots=0, most=8, seed=3)


def test_timo_is_skipped_where_there_is_one_prompt_per_class(small_suite):
    methods = {job.parameters["method"] for job in EXPERIMENT.plan(Suite.of({"mine": made_up()}), Options(orders=1))}
    assert methods == {"adapt_online", "adapt_transductive", "tip_adapter", "gda_clip"}


def test_a_set_that_can_give_no_sample_away_is_skipped():
    single = made_up().subset(slice(0, 4))
    assert EXPERIMENT.plan(Suite.of({"single": single}), Options()) == []
    chapter = chapter_with(EXPERIMENT, Suite.of({"single": single}), lambda job: record(0.5))
    (message,) = remarks(chapter)
    assert "has two samples" in message
    both = Suite.of({"single": single, "whole": made_up()})
    chapter = chapter_with(EXPERIMENT, both, lambda job: record(0.5, support=0))
    assert {job.features for job in chapter.jobs} == {"whole"}
    assert "Left out, because no class has two samples: single." in remarks(chapter)


def test_tasks_are_joined_by_what_they_are(small_suite):
    """Online failed on the first task: the rest must not be compared with another task."""
    accuracies = {"cifar10": 0.10, "cifar10c_fog_5": 0.50, "fmnist": 0.50}

    def answer(job):
        online = job.parameters["method"] == "adapt_online"
        if online and job.features == "cifar10":
            return None
        return record(accuracies[job.features] - 0.2 * online, support=0)

    (message,) = [
        text for text in remarks(chapter_with(EXPERIMENT, small_suite, answer, orders=1)) if "does better" in text
    ]
    assert "Confirmed here: corruption (above at 6, below at 0 of 6 numbers of samples); fine-grained" in message
    assert "natural shift" not in message


def test_ties_and_what_failed_are_no_evidence(small_suite):
    tied = remarks(chapter_with(EXPERIMENT, small_suite, lambda job: record(0.5, support=0), orders=1))
    assert sum("Too close to call here" in text for text in tied) == 3
    assert not any("So it is" in text for text in tied)
    nothing = remarks(chapter_with(EXPERIMENT, small_suite, lambda job: None, orders=1))
    assert not any("The paper finds" in text for text in nothing)


def test_how_many_were_really_given_is_reported(investigated, small_suite):
    table = found(investigated(EXPERIMENT, orders=1), "few-shot")
    fog = small_suite.members[1]
    given = few_shot(fog.dataset.load(), prompt=fog.dataset.prompt, method="adapt_online", shots=16, most=16, seed=0)
    assert given["support"] < 160
    assert f"{fog.title} at 16 per class, {given['support']} of 160" in " ".join(table.notes)
    assert "drawn from the test set and never scored" in table.notes[0]
