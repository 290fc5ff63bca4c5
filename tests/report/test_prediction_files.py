"""Files of predictions contain what was computed, in every format."""

import csv
import dataclasses

import numpy as np
import pytest

from zeroshift import FeatureSet
from zeroshift.report.predictions import check_predictions_format, write_predictions

REJECT = np.random.default_rng(0).random(120)


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
            "prediction": names[adapted.predictions[row]],
            "probability": adapted.run.probabilities[row].max(),
            "zero_shot": names[zero_shot.predictions[row]],
            "zero_shot_probability": zero_shot.run.probabilities[row].max(),
            "reject": REJECT[row],
            "label": names[labels[row]],
        }


def test_csv(comparison, tmp_path):
    path = tmp_path / "p.csv"
    write_predictions(path, comparison, REJECT)
    with open(path, newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 120
    for found, expected in zip(rows, expected_rows(comparison), strict=True):
        assert list(found) == list(expected)
        for column in ("prediction", "zero_shot", "label"):
            assert found[column] == expected[column]
        assert int(found["row"]) == expected["row"]
        assert float(found["probability"]) == pytest.approx(expected["probability"], rel=1e-5)
        assert float(found["reject"]) == pytest.approx(expected["reject"], rel=1e-5)
        assert float(found["zero_shot_probability"]) == pytest.approx(expected["zero_shot_probability"], rel=1e-5)


def test_parquet(comparison, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "p.parquet"
    write_predictions(path, comparison, REJECT)
    rows = parquet.read_table(path).to_pylist()
    assert rows == list(expected_rows(comparison))


def test_npz(comparison, tmp_path):
    path = tmp_path / "p.npz"
    write_predictions(path, comparison, REJECT)
    with np.load(path, allow_pickle=False) as archive:
        assert sorted(archive.files) == [
            "class_names",
            "labels",
            "predictions",
            "probabilities",
            "reject",
            "zero_shot_predictions",
        ]
        np.testing.assert_array_equal(archive["probabilities"], comparison.results[1].run.probabilities)
        np.testing.assert_array_equal(archive["predictions"], comparison.results[1].predictions)
        np.testing.assert_array_equal(archive["zero_shot_predictions"], comparison.baseline.predictions)
        np.testing.assert_array_equal(archive["labels"], comparison.features.labels)
        np.testing.assert_array_equal(archive["reject"], REJECT)
        assert tuple(archive["class_names"]) == comparison.features.class_names


def test_without_labels_there_is_no_label(comparison, tmp_path):
    features = comparison.features
    bare = FeatureSet(features.features, prototypes=features.prototypes_for(), class_names=features.class_names)
    comparison = dataclasses.replace(comparison, features=bare)
    write_predictions(tmp_path / "p.csv", comparison, REJECT)
    write_predictions(tmp_path / "p.npz", comparison, REJECT)
    header = (tmp_path / "p.csv").read_text().splitlines()[0]
    assert header == "row,prediction,probability,zero_shot,zero_shot_probability,reject"
    with np.load(tmp_path / "p.npz") as archive:
        assert "labels" not in archive.files


@pytest.mark.parametrize("name", ["p.txt", "p", "p.CSV"])
def test_another_suffix_is_refused_with_the_fix(name, comparison, tmp_path):
    with pytest.raises(
        ValueError, match=rf"\.csv, \.parquet or \.npz, by the file's suffix; got '{name}'\. Fix: p\.csv"
    ):
        check_predictions_format(name)
    with pytest.raises(ValueError, match="suffix"):
        write_predictions(tmp_path / name, comparison, REJECT)
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'zeroshift\[parquet\]'"):
        check_predictions_format("p.parquet")
    check_predictions_format("p.csv")


def test_a_failure_leaves_nothing_behind(comparison, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("csv.writer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_predictions(tmp_path / "p.csv", comparison, REJECT)
    assert list(tmp_path.iterdir()) == []


def test_samples_with_names_are_named(comparison, tmp_path):
    names = tuple(f"photos/{i}, of 120.jpg" for i in range(comparison.features.n_samples))
    fields = ("features", "labels", "prototypes", "class_names", "logit_scale")
    features = FeatureSet(**{field: getattr(comparison.features, field) for field in fields}, sample_names=names)
    named = dataclasses.replace(comparison, features=features)
    write_predictions(tmp_path / "p.csv", named, REJECT)
    with open(tmp_path / "p.csv", newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert list(rows[0])[:2] == ["file", "prediction"]
    assert tuple(row["file"] for row in rows) == names
    write_predictions(tmp_path / "p.npz", named, REJECT)
    with np.load(tmp_path / "p.npz", allow_pickle=False) as archive:
        assert tuple(archive["files"]) == names
