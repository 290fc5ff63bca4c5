"""Rejected samples in `adapt` and `classify`: columns, summary, page, segments; and more columns on request."""

from __future__ import annotations

import csv
import html
import json

import numpy as np
import pytest

from pet_images import record
from zeroshift import FeatureSet, TransductiveAnchoredMixture, normalize
from zeroshift.reject import RejectRule, class_distances

NAMES = ("cat", "dog", "fish", "bird")


def rows_of(path) -> list[dict]:
    with open(path, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


@pytest.fixture
def strangers() -> FeatureSet:
    """80 samples of four classes, then 20 in other directions."""
    rng = np.random.default_rng(3)
    centres = np.eye(24)[:4]
    members = normalize(centres[np.arange(80) % 4] + 0.1 * rng.normal(size=(80, 24)))
    others = normalize(np.eye(24)[4:][np.arange(20)] + 0.1 * rng.normal(size=(20, 24)))
    return FeatureSet(np.concatenate([members, others]), prototypes=centres, class_names=NAMES, logit_scale=20.0)


@pytest.fixture
def file(strangers, tmp_path):
    strangers.save(tmp_path / "set.safetensors")
    return tmp_path / "set.safetensors"


@pytest.mark.parametrize("method", ["anchored_mixture_transductive", "anchored_mixture_online", "adapt_online", "tda"])
def test_strangers_are_none_of_these_whatever_the_method(call, file, tmp_path, method):
    summary = json.loads(call("adapt", file, "--out", tmp_path / "p.csv", "--method", method, "--json").stdout)
    rows = rows_of(tmp_path / "p.csv")
    assert [row["rejected"] for row in rows] == ["false"] * 80 + ["true"] * 20
    assert {(row["prediction"], row["probability"]) for row in rows[80:]} == {("none of these", "")}
    assert all(row["best_class"] in NAMES and 0 < float(row["best_probability"]) <= 1 for row in rows)
    assert all(row["prediction"] == row["best_class"] for row in rows[:80])
    assert all(row["probability"] == row["best_probability"] for row in rows[:80])
    assert (summary["rejected"], summary["rejected_label"]) == (20, "none of these")
    assert sum(summary["counts"].values()) == 80


def test_scores_and_cut_are_those_of_the_python_interface(call, strangers, file, tmp_path):
    summary = json.loads(call("adapt", file, "--out", tmp_path / "p.npz", "--json").stdout)
    distances = class_distances(strangers.features, strangers.prototypes_for())
    rule = RejectRule.fit(distances)
    with np.load(tmp_path / "p.npz") as archive:
        np.testing.assert_array_equal(archive["reject"], rule.scores(distances))
        np.testing.assert_array_equal(archive["rejected"], rule.rejected(distances))
        np.testing.assert_array_equal(archive["predictions"] == -1, archive["rejected"])
        method = TransductiveAnchoredMixture(strangers.prototypes_for(), logit_scale=20.0)
        np.testing.assert_array_equal(archive["best_classes"], method.adapt(strangers.features).argmax(axis=1))
    assert summary["reject_above"] == 0.5
    assert summary["reject_cut"] == rule.cut
    assert summary["reject_typical"] == rule.typical


@pytest.mark.parametrize(("above", "count"), [("none", 0), ("NONE", 0), ("1", 0), ("0.5", 20), ("0", 100)])
def test_reject_above(call, file, tmp_path, above, count):
    command = ("adapt", file, "--out", tmp_path / "p.csv", "--reject-above", above)
    assert json.loads(call(*command, "--json").stdout)["rejected"] == count
    rows = rows_of(tmp_path / "p.csv")
    assert sum(row["rejected"] == "true" for row in rows) == count
    assert len({row["reject"] for row in rows}) > 50  # the score is written in any case
    shown = call(*command, "--force", env={"COLUMNS": "160"}).stdout
    assert (f"rejected     {count} of 100: none of these" in shown) == (above not in ("none", "NONE", "1"))


def test_the_summary_says_how_many_more_look_doubtful(call, tmp_path):
    command = ("adapt", "pack:cifar10", "--out", tmp_path / "p.csv")
    summary = json.loads(call(*command, "--json").stdout)
    scores = [float(row["reject"]) for row in rows_of(tmp_path / "p.csv") if row["rejected"] == "false"]
    assert summary["doubtful"] == sum(score > 0.3 for score in scores) > 50
    assert summary["doubtful_above"] == 0.3
    words = " ".join(call(*command, "--force", env={"COLUMNS": "200"}).stdout.split())
    found = f"{summary['rejected']} of 1,500: none of these; {summary['doubtful']} more look doubtful"
    assert f"{found}, with a reject score above 0.3 (--reject-above changes it)" in words
    for nothing_more in ("0.3", "0.1"):
        again = call(*command, "--force", "--reject-above", nothing_more, "--json")
        assert json.loads(again.stdout)["doubtful"] == 0
    assert "doubtful" not in call(*command, "--force", "--reject-above", "0.3").stdout


def test_a_smaller_number_rejects_more(call, file, tmp_path):
    counts = []
    for above in ("0.9", "0.5", "0.2", "0.05"):
        done = call("adapt", file, "--out", tmp_path / f"{above}.csv", "--reject-above", above, "--json")
        counts.append(json.loads(done.stdout)["rejected"])
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_a_class_of_that_name(call, strangers, tmp_path):
    named = FeatureSet(
        strangers.features, prototypes=strangers.prototypes_for(), class_names=("None of these", *NAMES[1:]),
        logit_scale=20.0,
    )  # fmt: skip
    named.save(tmp_path / "named.safetensors")
    done = call("adapt", tmp_path / "named.safetensors", "--out", tmp_path / "p.csv", "--json")
    summary = json.loads(done.stdout)
    assert (summary["rejected"], summary["rejected_label"]) == (20, "none of these (rejected)")
    assert summary["counts"]["None of these"] == 20
    assert {row["prediction"] for row in rows_of(tmp_path / "p.csv")[80:]} == {"none of these (rejected)"}


def test_the_most_probable_classes_and_one_column_per_class(call, file, tmp_path):
    assert call("adapt", file, "--out", tmp_path / "p.csv", "--top-k", 2, "--per-class").exit_code == 0
    first, *_ = rows = rows_of(tmp_path / "p.csv")
    assert list(first)[9:] == [
        "top_1", "top_1_probability", "top_2", "top_2_probability", *(f"p({name})" for name in NAMES),
    ]  # fmt: skip
    for row in rows:
        probabilities = {name: float(row[f"p({name})"]) for name in NAMES}
        best = sorted(NAMES, key=lambda name: -probabilities[name])[:2]
        assert [row["top_1"], row["top_2"]] == best
        assert float(row["top_2_probability"]) == probabilities[best[1]]
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--reject-above", "1.5"], "--reject-above must be a number from 0 to 1, or none; got '1.5'. Fix"),
        (["--reject-above", "-0.1"], "--reject-above must be a number from 0 to 1, or none; got '-0.1'. Fix"),
        (["--reject-above", "nan"], "--reject-above must be a number from 0 to 1, or none; got 'nan'. Fix"),
        (["--reject-above", "half"], "--reject-above must be a number from 0 to 1, or none; got 'half'. Fix"),
        (["--top-k", "5"], "--top-k must be at most 4, the number of classes; got 5. Fix: 4"),
        (["--top-k", "0"], "--top-k must be at least 1; got 0. Fix"),
        (["--top-k", "-2"], "--top-k must be at least 1; got -2. Fix"),
        (["--top-k", "1", "--out", "p.npz"], "--top-k is for .csv and .parquet; a .npz file always has"),
        (["--per-class", "--out", "p.npz"], "--per-class is for .csv and .parquet; a .npz file always has"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_computed(call, file, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    out = [] if "--out" in options else ["--out", "p.csv"]
    done = call("adapt", file, *out, *options)
    assert (done.exit_code, message in " ".join(done.stderr.split())) == (2, True), done.stderr
    assert not list(tmp_path.glob("p.*"))


# Images.


@pytest.fixture
def folder(tmp_path):
    """Thirty pictures of noise."""
    pytest.importorskip("transformers")
    from encode.numpy_encoder import noise

    (tmp_path / "heap").mkdir()
    for seed in range(30):
        noise(seed, 32, 24).save(tmp_path / "heap" / f"{seed:02}.png")
    return tmp_path / "heap"


def test_classify_writes_the_same_in_table_summary_and_page(call, folder, model, tmp_path):
    command = ("classify", folder, "--encoder", model, "--classes", "cat,dog,horse", "--out", tmp_path / "p.csv")
    summary = record(call(*command, "--reject-above", "0.06", "--top-k", 3, "--per-class", "--json"))
    rows = rows_of(tmp_path / "p.csv")
    rejected = [row["file"] for row in rows if row["prediction"] == "none of these"]
    assert 0 < len(rejected) == summary["rejected"] < 30
    assert all((float(row["reject"]) > 0.06) == (row["rejected"] == "true") for row in rows)
    assert sum(summary["counts"].values()) == 30 - len(rejected)
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    section = page.split("<bdi>none of these</bdi></h3>")[1].split('<div class="group"')[0]
    assert section.count("<li ") == section.count("data-rejected") == len(rejected)
    assert all(f">{file}</p>" in section for file in rejected)
    assert page.count("<li data-class") == page.count("data:image/jpeg") == 30
    assert "--reject-above 0.06</code>" in html.unescape(page)
    shown = call(*command, "--reject-above", "0.06", "--force", env={"COLUMNS": "160"}).stdout
    words = " ".join(shown.split())
    assert f"{len(rejected)} none of these method" in words
    assert f"rejected {len(rejected)} of 30: none of these (--reject-above changes it)" in words


def test_classify_with_nothing_rejected(call, folder, model, tmp_path):
    command = ("classify", folder, "--encoder", model, "--classes", "cat,dog", "--out", tmp_path / "p.csv")
    assert record(call(*command, "--reject-above", "none", "--json"))["rejected"] == 0
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "data-rejected" not in page
    assert "it is rejected" not in page


def test_wrong_options_of_classify_come_before_the_model(call, folder, tmp_path, monkeypatch):
    def loads(*_, **__):
        raise AssertionError("loaded a model before everything was checked")

    monkeypatch.setattr("zeroshift.cli._encoder_options.load_when_needed", loads)
    monkeypatch.chdir(tmp_path)
    for options, message in (
        (["--top-k", 3], "--top-k must be at most 2, the number of classes; got 3"),
        (["--reject-above", 2], "--reject-above must be a number from 0 to 1"),
    ):
        done = call("classify", folder, "--classes", "cat,dog", *options)
        assert (done.exit_code, message in done.stderr) == (2, True)


def test_frames_that_show_none_of_the_classes_are_segments(call, folder, model, tmp_path):
    names = "cat,dog,horse,fish,bird,frog,ship,truck"  # so many that there are more than 20 segments
    command = ("classify", folder, "--encoder", model, "--stream", "--classes", names, "--out", tmp_path / "p.csv",
               "--method", "zero_shot")  # fmt: skip
    summary = record(call(*command, "--fps", 2, "--reject-above", "0.05", "--json"))
    rows, segments = rows_of(tmp_path / "p.csv"), rows_of(tmp_path / "p.segments.csv")
    labels = [row["prediction"] for row in rows]
    runs = [i for i, label in enumerate(labels) if i == 0 or label != labels[i - 1]]
    assert [segment["label"] for segment in segments] == [labels[i] for i in runs]
    none = [segment for segment in segments if segment["label"] == "none of these"]
    assert none
    assert {segment["probability"] for segment in none} == {""}
    assert [one["probability"] for one in summary["segments"] if one["label"] == "none of these"] == [None] * len(none)
    assert "none of these" in (tmp_path / "p.html").read_text().split('<svg class="timeline"')[1].split("</svg>")[0]
    shown = call(*command, "--reject-above", "0.05", "--force", env={"COLUMNS": "120"}).stdout
    assert f"{len(none)} of them none of these" in " ".join(shown.split())
