"""Files of predictions of named images, with any characters in the names."""

import csv

import numpy as np
import pytest

from report.classified import FILES, LABELS, REJECT, classified
from zeroshift.report.predictions import write_predictions

ODD_NAMES = ("a,b.jpg", 'say "hi".jpg', "two\nlines.jpg", "Icon\r.jpg", "=1+1.jpg", "ünï 猫.jpg")
"""What breaks a CSV file that forgets to quote; and a formula, which is a file's name all the same."""


def read(path):
    with open(path, newline="", encoding="utf-8") as handle:
        return list(csv.reader(handle))


def test_the_file_as_written(tmp_path):
    write_predictions(tmp_path / "p.csv", classified(labels=LABELS), REJECT)
    assert (tmp_path / "p.csv").read_bytes() == (
        b"file,prediction,probability,zero_shot,zero_shot_probability,reject,label\n"
        b"a.jpg,dog,0.6,cat,0.55,0.3,dog\n"
        b"b.jpg,dog,0.95,cat,0.5,0.9,cat\n"
        b"c.jpg,dog,0.8,dog,0.8,0.1,dog\n"
        b"d.jpg,cat,0.5,horse,0.6,0.2,cat\n"
        b"e.jpg,cat,0.5,cat,0.7,0.7,cat\n"
        b"f.jpg,dog,0.99,dog,0.9,0.5,horse\n"
    )


def test_without_labels_there_is_no_label(tmp_path):
    write_predictions(tmp_path / "p.csv", classified(), REJECT)
    header, *rows = read(tmp_path / "p.csv")
    assert header[-1] == "reject"
    assert {len(row) for row in rows} == {6}


def test_numbers_have_six_significant_digits(tmp_path):
    write_predictions(tmp_path / "p.csv", classified(), np.full(6, -1234.56789))
    assert [row[5] for row in read(tmp_path / "p.csv")[1:]] == ["-1234.57"] * 6


def test_unusual_names_are_read_back_unchanged(tmp_path):
    classes = ('the "best", cat', "=dog", "horse\nand cart")
    write_predictions(tmp_path / "p.csv", classified(files=ODD_NAMES, classes=classes), REJECT, raw_csv=True)
    _, *rows = read(tmp_path / "p.csv")
    assert tuple(row[0] for row in rows) == ODD_NAMES
    assert [row[1] for row in rows] == [classes[k] for k in (1, 1, 1, 0, 0, 1)]
    assert rows[4][0].startswith("=")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_name_that_is_not_text_is_escaped(tmp_path, suffix):
    files = ("caf\udce9.jpg", *FILES[1:])
    path = tmp_path / f"p{suffix}"
    if suffix == ".csv":
        write_predictions(path, classified(files=files), REJECT)
        found = read(path)[1][0]
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        write_predictions(path, classified(files=files), REJECT)
        found = parquet.read_table(path)["file"][0].as_py()
    assert found == r"caf\udce9.jpg"


def test_parquet_holds_the_same_at_full_precision(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    reject = REJECT / 3
    write_predictions(tmp_path / "p.parquet", classified(files=ODD_NAMES, labels=LABELS), reject)
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
        "label": "dog",
    }


@pytest.mark.parametrize(
    ("reject", "message"),
    [
        (REJECT[:5], r"vector of 6 floating-point scores.*got shape \(5,\) of float64.*Fix"),
        (REJECT[:, None], r"got shape \(6, 1\)"),
        (np.arange(6), "of int64"),
        (np.where(np.arange(6) == 4, np.nan, REJECT), "reject must be finite; got nan for image 4. Fix"),
    ],
)
def test_reject_is_one_finite_score_per_image(reject, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        write_predictions(tmp_path / "p.csv", classified(), reject)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_old_file(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    (tmp_path / "p.csv").write_text("old")
    monkeypatch.setattr("csv.writer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_predictions(tmp_path / "p.csv", classified(), REJECT)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
