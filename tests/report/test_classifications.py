"""Files of predictions of named images, with any characters in the names."""

import csv

import numpy as np
import pytest

from report.classified import FILES, LABELS, NONE, REJECT, classified, rejects
from zeroshift.report.predictions import write_predictions

ODD_NAMES = ("a,b.jpg", 'say "hi".jpg', "two\nlines.jpg", "Icon\r.jpg", "=1+1.jpg", "ünï 猫.jpg")
"""What breaks a CSV file that forgets to quote; and a formula, which is a file's name all the same."""


def read(path):
    with open(path, newline="", encoding="utf-8") as handle:
        return list(csv.reader(handle))


def test_the_file_as_written(tmp_path):
    write_predictions(tmp_path / "p.csv", classified(labels=LABELS), rejects())
    assert (tmp_path / "p.csv").read_bytes() == (
        b"file,prediction,probability,zero_shot,zero_shot_probability,reject,rejected,best_class,best_probability,label\n"
        b"a.jpg,dog,0.6,cat,0.55,0.3,false,dog,0.6,dog\n"
        b"b.jpg,none of these,,cat,0.5,0.9,true,dog,0.95,cat\n"
        b"c.jpg,dog,0.8,dog,0.8,0.1,false,dog,0.8,dog\n"
        b"d.jpg,cat,0.5,horse,0.6,0.2,false,cat,0.5,cat\n"
        b"e.jpg,none of these,,cat,0.7,0.7,true,cat,0.5,cat\n"
        b"f.jpg,dog,0.99,dog,0.9,0.5,false,dog,0.99,horse\n"
    )


def test_without_labels_there_is_no_label(tmp_path):
    write_predictions(tmp_path / "p.csv", classified(), rejects())
    header, *rows = read(tmp_path / "p.csv")
    assert header[-1] == "best_probability"
    assert {len(row) for row in rows} == {9}


def test_numbers_have_six_significant_digits(tmp_path):
    write_predictions(tmp_path / "p.csv", classified(), rejects(np.full(6, 0.123456789)))
    assert [row[5] for row in read(tmp_path / "p.csv")[1:]] == ["0.123457"] * 6


def test_unusual_names_are_read_back_unchanged(tmp_path):
    classes = ('the "best", cat', "=dog", "horse\nand cart")
    write_predictions(tmp_path / "p.csv", classified(files=ODD_NAMES, classes=classes), NONE, raw_csv=True)
    _, *rows = read(tmp_path / "p.csv")
    assert tuple(row[0] for row in rows) == ODD_NAMES
    assert [row[1] for row in rows] == [classes[k] for k in (1, 1, 1, 0, 0, 1)]
    assert rows[4][0].startswith("=")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_name_that_is_not_text_is_escaped(tmp_path, suffix):
    files = ("caf\udce9.jpg", *FILES[1:])
    path = tmp_path / f"p{suffix}"
    if suffix == ".csv":
        write_predictions(path, classified(files=files), NONE)
        found = read(path)[1][0]
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        write_predictions(path, classified(files=files), NONE)
        found = parquet.read_table(path)["file"][0].as_py()
    assert found == r"caf\udce9.jpg"


def test_parquet_holds_the_same_at_full_precision(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    reject = REJECT / 3
    write_predictions(tmp_path / "p.parquet", classified(files=ODD_NAMES, labels=LABELS), rejects(reject))
    rows = parquet.read_table(tmp_path / "p.parquet").to_pylist()
    assert tuple(row["file"] for row in rows) == ODD_NAMES
    assert [row["reject"] for row in rows] == reject.tolist()
    assert rows[0] == {
        "file": "a,b.jpg",
        "prediction": "dog",
        "probability": 0.6,
        "zero_shot": "cat",
        "zero_shot_probability": 0.55,
        "reject": reject[0],
        "rejected": False,
        "best_class": "dog",
        "best_probability": 0.6,
        "label": "dog",
    }


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (rejects(REJECT[:5]), ValueError, "rejects must be about the 6 samples of the comparison; got 5. Fix"),
        (REJECT, TypeError, r"rejects must be a zeroshift.reject.Rejects; got ndarray. Fix: Rejects.of"),
    ],
)
def test_rejects_are_those_of_the_samples(given, error, message, tmp_path):
    with pytest.raises(error, match=message):
        write_predictions(tmp_path / "p.csv", classified(), given)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_old_file(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    (tmp_path / "p.csv").write_text("old")
    monkeypatch.setattr("csv.writer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_predictions(tmp_path / "p.csv", classified(), rejects())
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_column_of_a_class_is_no_formula(tmp_path):
    comparison = classified(classes=("=cat", "\x1b[31mdog", "horse"))
    write_predictions(tmp_path / "p.csv", comparison, NONE, per_class=True)
    header = read(tmp_path / "p.csv")[0]
    assert header[-3:] == ["p(=cat)", r"p(\x1b[31mdog)", "p(horse)"]
    write_predictions(tmp_path / "raw.csv", comparison, NONE, per_class=True, raw_csv=True)
    assert read(tmp_path / "raw.csv")[0][-2] == "p(\x1b[31mdog)"
