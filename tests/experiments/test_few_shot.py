"""Labelled samples: drawn once, never scored, and worth something."""

import numpy as np
import pytest

from experiments.tables import found, remarks
from zeroshift import OnlineADAPT
from zeroshift.data import packs
from zeroshift.evaluate import accuracy
from zeroshift.evaluate.split import split
from zeroshift.experiments.few_shot import EXPERIMENT, SHOTS
from zeroshift.experiments.parts.shots import few_shot


def test_labelled_samples_raise_accuracy_over_none(investigated):
    table = found(investigated(EXPERIMENT, orders=1), "few-shot")
    for protocol in ("online", "transductive"):
        rows = {row.cells[0]: row.cells[1:] for row in table.rows if row.group == protocol}
        assert list(rows) == [str(shots) for shots in SHOTS]
        assert np.mean([c.value for c in rows["16"]]) > np.mean([c.value for c in rows["0"]])


def test_the_rows_scored_do_not_change_with_the_number_given(investigated, small_suite):
    pack = small_suite.members[1].entry.load()
    told = [few_shot(pack, prompt="ensemble", method="adapt_online", shots=n, most=8, seed=3) for n in (0, 2, 8)]
    assert len({record["zero_shot_accuracy"] for record in told}) == len({record["scored"] for record in told}) == 1
    assert [record["support"] for record in told] == [0, 20, 80]
    assert told[0]["scored"] == 300 - 80


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
    told = few_shot(pack, prompt="ensemble", method="adapt_online", shots=0, most=4, seed=1)
    assert told["accuracy"] == expected


def test_claims_are_answered(investigated):
    chapter = investigated(EXPERIMENT, orders=1)
    claims = [text for text in remarks(chapter) if text.startswith("The paper finds")]
    assert len(claims) == 3
    assert len(chapter.jobs) == 3 * 2 * len(SHOTS)
