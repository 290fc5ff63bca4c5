"""Files of predictions contain what was computed, in every format."""

import csv
import dataclasses

import numpy as np
import pytest

from report.classified import rejects
from zeroshift import FeatureSet
from zeroshift.report.predictions import check_predictions_format, write_predictions

REJECT = np.random.default_rng(0).random(120)
REJECTS = rejects(REJECT, above=0.9)


@pytest.fixture
def comparison(comparisons):
    """Zero-shot and online alone, as `zeroshift adapt` has them."""
    return dataclasses.replace(comparisons[0], results=comparisons[0].results[:2])


def expected_rows(comparison):
    names, labels = comparison.features.class_names, comparison.features.labels
    adapted, zero_shot = comparison.results[1], comparison.baseline
    for row in range(comparison.features.n_samples):
        yield {
            "row": row,
            "prediction": "none of these" if REJECT[row] > 0.9 else names[adapted.predictions[row]],
            "probability": None if REJECT[row] > 0.9 else adapted.run.probabilities[row].max(),
            "zero_shot": names[zero_shot.predictions[row]],
            "zero_shot_probability": zero_shot.run.probabilities[row].max(),
            "reject": REJECT[row],
            "rejected": bool(REJECT[row] > 0.9),
            "best_class": names[adapted.predictions[row]],
            "best_probability": adapted.run.probabilities[row].max(),
            "label": names[labels[row]],
        }


def test_csv(comparison, tmp_path):
    path = tmp_path / "p.csv"
    write_predictions(path, comparison, REJECTS)
    with open(path, newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 120
    for found, expected in zip(rows, expected_rows(comparison), strict=True):
        assert list(found) == list(expected)
        for column in ("prediction", "zero_shot", "best_class", "label"):
            assert found[column] == expected[column]
        assert int(found["row"]) == expected["row"]
        assert found["rejected"] == str(expected["rejected"]).lower()
        assert (found["probability"] == "") == expected["rejected"]
        if not expected["rejected"]:
            assert float(found["probability"]) == pytest.approx(expected["probability"], rel=1e-5)
        assert float(found["best_probability"]) == pytest.approx(expected["best_probability"], rel=1e-5)
        assert float(found["reject"]) == pytest.approx(expected["reject"], rel=1e-5)
        assert float(found["zero_shot_probability"]) == pytest.approx(expected["zero_shot_probability"], rel=1e-5)


def test_parquet(comparison, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "p.parquet"
    write_predictions(path, comparison, REJECTS)
    rows = parquet.read_table(path).to_pylist()
    assert rows == list(expected_rows(comparison))


def test_npz(comparison, tmp_path):
    path = tmp_path / "p.npz"
    write_predictions(path, comparison, REJECTS)
    with np.load(path, allow_pickle=False) as archive:
        assert sorted(archive.files) == [
            "best_classes",
            "class_names",
            "labels",
            "predictions",
            "probabilities",
            "reject",
            "rejected",
            "zero_shot_predictions",
        ]
        np.testing.assert_array_equal(archive["probabilities"], comparison.results[1].run.probabilities)
        best = comparison.results[1].predictions
        np.testing.assert_array_equal(archive["best_classes"], best)
        np.testing.assert_array_equal(archive["predictions"], np.where(REJECT > 0.9, -1, best))
        np.testing.assert_array_equal(archive["rejected"], REJECT > 0.9)
        np.testing.assert_array_equal(archive["zero_shot_predictions"], comparison.baseline.predictions)
        np.testing.assert_array_equal(archive["labels"], comparison.features.labels)
        np.testing.assert_array_equal(archive["reject"], REJECT)
        assert tuple(archive["class_names"]) == comparison.features.class_names


def test_without_labels_there_is_no_label(comparison, tmp_path):
    features = comparison.features
    bare = FeatureSet(features.features, prototypes=features.prototypes_for(), class_names=features.class_names)
    comparison = dataclasses.replace(comparison, features=bare)
    write_predictions(tmp_path / "p.csv", comparison, REJECTS)
    write_predictions(tmp_path / "p.npz", comparison, REJECTS)
    header = (tmp_path / "p.csv").read_text().splitlines()[0]
    assert header == (
        "row,prediction,probability,zero_shot,zero_shot_probability,reject,rejected,best_class,best_probability"
    )
    with np.load(tmp_path / "p.npz") as archive:
        assert "labels" not in archive.files


@pytest.mark.parametrize("name", ["p.txt", "p", "p.CSV"])
def test_another_suffix_is_refused_with_the_fix(name, comparison, tmp_path):
    with pytest.raises(
        ValueError, match=rf"\.csv, \.parquet or \.npz, by the file's suffix; got '{name}'\. Fix: p\.csv"
    ):
        check_predictions_format(name)
    with pytest.raises(ValueError, match="suffix"):
        write_predictions(tmp_path / name, comparison, REJECTS)
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install .*\[parquet\]'"):
        check_predictions_format("p.parquet")
    check_predictions_format("p.csv")


def test_a_failure_leaves_nothing_behind(comparison, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("csv.writer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_predictions(tmp_path / "p.csv", comparison, REJECTS)
    assert list(tmp_path.iterdir()) == []


def test_samples_with_names_are_named(comparison, tmp_path):
    names = tuple(f"photos/{i}, of 120.jpg" for i in range(comparison.features.n_samples))
    fields = ("features", "labels", "prototypes", "class_names", "logit_scale")
    features = FeatureSet(**{field: getattr(comparison.features, field) for field in fields}, sample_names=names)
    named = dataclasses.replace(comparison, features=features)
    write_predictions(tmp_path / "p.csv", named, REJECTS)
    with open(tmp_path / "p.csv", newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert list(rows[0])[:2] == ["file", "prediction"]
    assert tuple(row["file"] for row in rows) == names
    write_predictions(tmp_path / "p.npz", named, REJECTS)
    with np.load(tmp_path / "p.npz", allow_pickle=False) as archive:
        assert tuple(archive["files"]) == names


def test_the_most_probable_classes_and_the_probability_of_each(comparison, tmp_path):
    write_predictions(tmp_path / "p.csv", comparison, REJECTS, top_k=3, per_class=True)
    with open(tmp_path / "p.csv", newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    names, probabilities = comparison.features.class_names, comparison.results[1].run.probabilities
    added = [f"top_{k}{end}" for k in (1, 2, 3) for end in ("", "_probability")] + [f"p({name})" for name in names]
    assert list(rows[0])[10:] == added
    for row, given in zip(rows, probabilities, strict=True):
        best = sorted(range(len(names)), key=lambda k: -given[k])[:3]
        assert [row[f"top_{k}"] for k in (1, 2, 3)] == [names[k] for k in best]
        shown = [float(row[f"top_{k}_probability"]) for k in (1, 2, 3)]
        assert shown == pytest.approx([given[k] for k in best], rel=1e-5)
        assert [float(row[f"p({name})"]) for name in names] == pytest.approx(given, rel=1e-5)
        assert row["top_1"] == row["best_class"]


def test_in_parquet_too(comparison, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_predictions(tmp_path / "p.parquet", comparison, REJECTS, top_k=1, per_class=True)
    table = parquet.read_table(tmp_path / "p.parquet")
    names, probabilities = comparison.features.class_names, comparison.results[1].run.probabilities
    assert table["top_1"].to_pylist() == table["best_class"].to_pylist()
    for k, name in enumerate(names):
        np.testing.assert_array_equal(table[f"p({name})"].to_numpy(), probabilities[:, k])
    assert table["rejected"].to_pylist() == (REJECT > 0.9).tolist()


def test_more_classes_than_there_are_cannot_be_written(comparison, tmp_path):
    classes = comparison.features.n_classes
    with pytest.raises(ValueError, match=rf"top_k must be at most {classes}, the number of classes; got {classes + 1}"):
        write_predictions(tmp_path / "p.csv", comparison, REJECTS, top_k=classes + 1)
    with pytest.raises(ValueError, match="top_k must be an integer of at least 0; got -1"):
        write_predictions(tmp_path / "p.csv", comparison, REJECTS, top_k=-1)
    assert list(tmp_path.iterdir()) == []


def test_a_class_of_that_name_is_not_confused_with_rejected_samples(comparison, tmp_path):
    names = ("none of these", *comparison.features.class_names[1:])
    fields = ("features", "labels", "prototypes", "logit_scale")
    features = FeatureSet(**{field: getattr(comparison.features, field) for field in fields}, class_names=names)
    named = dataclasses.replace(comparison, features=features)
    write_predictions(tmp_path / "p.csv", named, REJECTS)
    with open(tmp_path / "p.csv", newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    for row, best in zip(rows, named.results[1].predictions, strict=True):
        expected = "none of these (rejected)" if row["rejected"] == "true" else names[best]
        assert row["prediction"] == expected
    assert {row["rejected"] for row in rows if row["prediction"] == "none of these"} == {"false"}
