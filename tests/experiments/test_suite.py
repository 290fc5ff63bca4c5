"""The task of a set follows from its provenance, and the paper's numbers appear only for its own sets."""

from pathlib import Path

import numpy as np
import pytest

from experiments.paper_sets import RN50, VITB16, imagenet_c, made_up, papers_set, shrink_catalogue
from zeroshift import FeatureSet, normalize
from zeroshift.data import packs
from zeroshift.experiments import Member, Suite
from zeroshift.experiments._shared.suite import TASKS, describe_sets
from zeroshift.experiments._shared.tasks import PAPER_COLUMNS, get_task

SHARED = Path(__file__).resolve().parents[3] / "shared" / "packs"


def test_bundled_packs_have_the_right_task():
    members = {pack.name: Member.of(pack.name, packs.load(pack.name)) for pack in packs.list()}
    plain = {name: member for name, member in members.items() if not name.startswith("views")}
    assert {name: (member.task, member.corruption, member.severity) for name, member in plain.items()} == {
        "cifar10": ("natural", None, None),
        "cifar10c_defocus_blur_5": ("corruption", "defocus_blur", 5),
        "cifar10c_fog_5": ("corruption", "fog", 5),
        "cifar10c_gaussian_noise_3": ("corruption", "gaussian_noise", 3),
        "cifar10c_jpeg_compression_5": ("corruption", "jpeg_compression", 5),
        "fmnist": ("fine_grained", None, None),
    }  # fmt: skip
    assert {m.encoder for m in members.values()} == {"composed"}
    assert not any(m.from_paper or m.paper_column for m in members.values())


@pytest.mark.parametrize(
    ("data_set", "task", "column"),
    [("imagenet_a", "natural", "ImageNet-A"), ("dtd", "fine_grained", "DTD"), ("sun397", "fine_grained", "SUN397")],
)
@pytest.mark.parametrize(("source", "encoder"), [(VITB16, "CLIP ViT-B/16"), (RN50, "CLIP RN50")])
def test_the_papers_own_sets_are_known(monkeypatch, data_set, task, column, source, encoder):
    shrink_catalogue(monkeypatch)
    member = Member.of("mine", papers_set(data_set, encoder=source))
    assert (member.task, member.data_set, member.encoder) == (task, data_set, encoder)
    assert member.from_paper
    assert member.paper_column == column


@pytest.mark.parametrize(
    "features",
    [
        lambda: papers_set("dtd", rows=20),
        lambda: papers_set("dtd", encoder="google/siglip-base-patch16-224"),
        lambda: papers_set("dtd", split="train"),
        lambda: papers_set("dtd", source="folder"),
        lambda: made_up({**papers_set("imagenet").provenance, "corruption": {"kind": "fog", "severity": 5}}),
    ],
    ids=["another size", "another encoder", "another split", "not the catalogue's", "corrupted as it was encoded"],
)
def test_similar_sets_are_not_the_papers(monkeypatch, features):
    shrink_catalogue(monkeypatch)
    member = Member.of("mine", features())
    assert not member.from_paper
    assert member.paper_column is None


def test_corruption_is_recognised_from_any_source(monkeypatch):
    shrink_catalogue(monkeypatch)
    message = {**papers_set("imagenet").provenance, "corruption": {"kind": "fog", "severity": 2}}
    made = Member.of("made", made_up(message))
    published = Member.of("published", papers_set("imagenet_c", corruption="jpeg_compression", severity=5))
    assert (made.task, made.corruption, made.severity) == ("corruption", "fog", 2)
    assert (published.task, published.kind, published.paper_column) == (
        "corruption",
        "JPEG compression",
        "JPEG compression",
    )
    assert Member.of("light", papers_set("imagenet_c", corruption="fog", severity=1)).paper_column is None


def test_a_set_without_provenance_is_recognised_by_its_name():
    member = Member.of("my birds", made_up())
    assert (member.task, member.data_set, member.encoder) == ("other", "my birds", "unknown encoder")


def test_means_are_compared_only_on_the_papers_sets(monkeypatch):
    shrink_catalogue(monkeypatch)
    natural = get_task("natural")
    sets = {name: papers_set(name) for name in natural.papers_sets}
    assert Suite.of(sets).paper_backbone(natural) == "CLIP ViT-B/16"
    assert Suite.of({**sets, "imagenet": papers_set("imagenet", rows=20)}).paper_backbone(natural) is None
    assert Suite.of({**sets, "imagenet": papers_set("imagenet", encoder=RN50)}).paper_backbone(natural) is None
    del sets["imagenet_r"]
    assert Suite.of(sets).paper_backbone(natural) is None


def test_means_of_corruption_are_of_all_kinds_at_severity_five(monkeypatch):
    shrink_catalogue(monkeypatch)
    corruption = get_task("corruption")
    assert Suite.of(imagenet_c(encoder=RN50)).paper_backbone(corruption) == "CLIP RN50"
    assert Suite.of(imagenet_c((4,))).paper_backbone(corruption) is None
    assert Suite.of(imagenet_c((4, 5))).paper_backbone(corruption) is None
    assert Suite.of(imagenet_c(kinds=("fog", "snow"))).paper_backbone(corruption) is None


def test_sets_are_found_by_task_and_by_encoder(small_suite):
    assert [task.paper for task in small_suite.tasks] == ["Task 1", "Task 2", "Task 3"]
    assert [member.name for member in small_suite.of_task("corruption")] == ["cifar10c_fog_5"]
    both = Suite((*small_suite.members, Member.of("other", made_up({"encoder": "CLIP RN50"}))))
    assert both.encoders == ["composed", "CLIP RN50"]
    assert [[member.name for member in part.members] for part in both.by_encoder][1] == ["other"]
    assert len(both) == 4


def test_sets_are_reported_briefly(small_suite):
    assert describe_sets(small_suite.members) == "CIFAR-10, Fashion-MNIST; CIFAR-10 under fog of severity 5"


def test_every_set_of_the_three_tasks_has_a_column_in_its_table():
    from zeroshift.experiments._shared.paper import paper_table

    for task in TASKS:
        for table in task.tables.values():
            columns = set(paper_table(table).columns)
            assert columns >= {PAPER_COLUMNS[name] for name in task.papers_sets if name != "imagenet_c"}


@pytest.mark.skipif(not (SHARED / "clip").is_dir(), reason=f"{SHARED}/clip is not on this machine")
@pytest.mark.parametrize(
    ("path", "task", "encoder"),
    [
        ("clip/whurs19_clip_rn50.npz", "other", "CLIP RN50"),
        ("clip/dtd_test_clip_vitb32.npz", "other", "CLIP ViT-B/32"),
        ("eval/pacs_sketch.npz", "natural", "composed"),
    ],
)
def test_packs_from_elsewhere_are_never_taken_for_the_papers(path, task, encoder):
    member = Member.of(Path(path).stem, FeatureSet.load(SHARED / path, check=False))
    assert (member.task, member.encoder, member.from_paper) == (task, encoder, False)


def test_sets_without_provenance_are_matched_by_labels():
    rng = np.random.default_rng(0)

    def made(encoder, labels, **given):
        features = normalize(rng.normal(size=(len(labels), 4)))
        prototypes = normalize(rng.normal(size=(3, 4)))
        return FeatureSet(features, prototypes=prototypes, labels=labels, provenance={"encoder": encoder}, **given)

    first = Member.of("a", made("CLIP RN50", [0, 1, 2, 2]))
    assert first.subject == Member.of("b", made("CLIP ViT-B/32", [0, 1, 2, 2])).subject
    assert first.subject != Member.of("b", made("CLIP ViT-B/32", [0, 1, 2, 1])).subject
    assert first.subject != Member.of("b", made("CLIP ViT-B/32", [0, 1, 2, 2], class_names=list("xyz"))).subject


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ([made_up], "sets must be a mapping from names to feature sets; got list"),
        ({"pets": 1}, r"pets must be a FeatureSet; got int\. Fix: FeatureSet"),
        ({"": None}, "the name of a set must be text, and not empty; got ''"),
    ],
    ids=["list", "number", "no name"],
)
def test_invalid_sets_are_rejected(sets, words):
    with pytest.raises((TypeError, ValueError), match=words):
        Suite.of(sets)
