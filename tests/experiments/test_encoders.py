"""Encoders are compared only on sets that all of them have."""

from pathlib import Path

import pytest

from experiments.fake_results import chapter_with_accuracies
from experiments.paper_sets import RN50, ROWS, first_rows, made_up, papers_set, shrink_catalogue
from experiments.reading import column, found, remarks
from zeroshift import FeatureSet
from zeroshift.experiments import Suite
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.tasks import get_task
from zeroshift.experiments.encoders import EXPERIMENT

CLIP = Path(__file__).resolve().parents[3] / "shared" / "packs" / "clip"


def seen(data_set: str, encoder: str, seed: int, rows: int = ROWS) -> FeatureSet:
    return made_up({"data_set": data_set, "encoder": encoder}, rows=rows, seed=seed)


def test_only_shared_sets_count(investigated):
    suite = Suite.of({"a": seen("birds", "A", 1), "b": seen("birds", "B", 2), "c": seen("fish", "B", 3)})
    chapter = investigated(EXPERIMENT, suite, orders=2)
    assert {job.features for job in chapter.jobs} == {"a", "b"}
    table = found(chapter, "encoders")
    for member in suite.members[:2]:
        accuracy = member.dataset.load().zero_shot_accuracy()
        assert column(table, "zero-shot")[member.encoder].value == pytest.approx(accuracy)


def test_one_encoder_is_shown_and_what_is_needed_is_reported(investigated):
    chapter = investigated(EXPERIMENT, first_rows(("cifar10", "cifar10c_fog_5"), 120), orders=1)
    table = found(chapter, "encoders")
    gains = {row.group: row.cells[-1].value for row in table.rows}
    assert set(gains) == {"natural shift", "corruption", "all sets"}
    assert gains["corruption"] > 0
    assert any("--encoder" in text for text in remarks(chapter))
    assert len(found(chapter, "encoder-bars").bars) == 3


def test_encoders_without_a_common_set_are_reported():
    suite = Suite.of({"a": seen("birds", "A", 1), "b": seen("fish", "B", 2)})
    chapter = chapter_with_accuracies(EXPERIMENT, suite, lambda job: 0.5)
    assert not chapter.jobs
    assert any("same data" in text for text in remarks(chapter))


def test_gains_are_over_the_same_encoder_and_a_loss_is_a_warning():
    suite = Suite.of({"a": seen("birds", "A", 1, 400), "b": seen("birds", "B", 2, 400)})
    scores = {("a", "zero_shot"): 0.5, ("b", "zero_shot"): 0.8, ("a", "adapt_online"): 0.6}
    chapter = chapter_with_accuracies(EXPERIMENT, suite, lambda job: scores.get((job.features, job.spec.method), 0.7))
    gains = column(found(chapter, "encoders"), "online gain")
    assert (gains["A"].value, gains["B"].value) == pytest.approx((10, -10))
    (warning,) = remarks(chapter, "warning")
    against, holds = warning.split("; confirmed for ")
    assert "B, other sets, ADAPT (online) (-10.0 points)" in against
    assert "A, other sets, ADAPT (online) (+10.0 points)" in holds


@pytest.mark.parametrize(("adapt", "kind"), [(0.3, "warning"), (0.7, "note"), (0.51, "note")])
def test_a_loss_with_one_encoder_is_reported_too(adapt, kind):
    suite = Suite.of({"a": seen("birds", "A", 1, 400)})
    chapter = chapter_with_accuracies(EXPERIMENT, suite, lambda job: 0.5 if job.spec.method == "zero_shot" else adapt)
    (message,) = [text for text in remarks(chapter, kind) if "gains over zero-shot with every encoder" in text]
    assert ("Too close to call" in message) == (adapt == 0.51)


def test_all_encoders_are_analysed_together():
    assert EXPERIMENT.mixes_encoders


def test_the_papers_means_are_next_to_its_sets(monkeypatch):
    shrink_catalogue(monkeypatch)
    names = get_task("natural").papers_sets
    sets = {f"{name} {encoder}": papers_set(name, encoder=encoder) for name in names for encoder in (RN50, "mine")}
    table = found(chapter_with_accuracies(EXPERIMENT, Suite.of(sets), lambda job: 0.5), "encoders")
    printed = paper_table("natural_shift_rn50").number_at("Avg.", method="ADAPT", protocol="transductive")
    cells = column(table, "ADAPT (transductive)")
    assert cells["CLIP RN50"].paper == pytest.approx(printed / 100)
    assert cells["mine"].paper is None


@pytest.mark.skipif(not CLIP.is_dir(), reason=f"{CLIP} is not on this machine")
def test_real_encoders_side_by_side(investigated):
    """CLIP's ViT-B/32 and RN50 on WHU-RS19: ADAPT gains with both."""
    sets = {}
    for name in ("whurs19_clip_rn50", "whurs19_clip_vitb32"):
        file = FeatureSet.load(CLIP / f"{name}.npz", check=False).subset(slice(0, None, 4))
        sets[name] = FeatureSet(
            file.features,
            prototypes=file.prototypes_for(),
            labels=file.labels,
            logit_scale=file.logit_scale,
            provenance={"data_set": "whurs19", "encoder": file.provenance["encoder"]},
        )
    gains = column(found(investigated(EXPERIMENT, Suite.of(sets), orders=1), "encoders"), "transductive gain")
    assert set(gains) == {"CLIP RN50", "CLIP ViT-B/32"}
    assert all(gain.value > 0 for gain in gains.values())
