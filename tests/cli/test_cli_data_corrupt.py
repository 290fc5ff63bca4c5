"""`zeroshift data corrupt`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from corruption_data import sample_images
from zeroshift.data.corruptions import KINDS, Corruption


@pytest.fixture
def run(call, tmp_path):
    """Corrupt the folder `images` into `out`, both in `tmp_path`."""
    (tmp_path / "images").mkdir()
    for k, image in enumerate(sample_images(2, side=32)):
        Image.fromarray(image).save(tmp_path / "images" / f"{k}.png")

    def run(*arguments):
        return call("data", "corrupt", tmp_path / "images", "--out", tmp_path / "out", *arguments)

    return run


def folders(tmp_path):
    return sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").glob("*/*"))


def test_severity_5_is_the_default(run, tmp_path):
    done = run("--kind", "fog")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"2 copies written, 0 already there; see {tmp_path / 'out'}\n"
    assert folders(tmp_path) == ["fog/5"]
    assert run("--kind", "fog", "--quiet").stdout == ""


@pytest.mark.parametrize(
    ("given", "severities"), [("2", "2"), ("1-3", "123"), ("4-4", "4"), ("1-5", "12345"), ("all", "12345")]
)
def test_severities(run, tmp_path, given, severities):
    assert run("--kind", "contrast", "--severity", given).exit_code == 0
    assert folders(tmp_path) == [f"contrast/{severity}" for severity in severities]


@pytest.mark.parametrize("given", ["0", "6", "5-1", "1-6", "1-", "x", " "])
def test_wrong_severities(run, tmp_path, given):
    done = run("--kind", "fog", "--severity", given)
    assert done.exit_code == 2
    assert f"--severity must be 1 to 5, a range such as 1-3, or all; got {given!r}. Fix" in done.stderr
    assert not (tmp_path / "out").exists()


def test_all_kinds_as_json(run, tmp_path):
    record = json.loads(run("--kind", "all", "--severity", "1", "--seed", "7", "--json").stdout)
    assert folders(tmp_path) == sorted(f"{kind}/1" for kind in KINDS)
    assert record == {
        "out": str(tmp_path / "out"),
        "corruptions": [Corruption(kind, 1, 7).describe() for kind in KINDS],
        "images": 2,
        "written": 30,
        "present": 0,
        "failed": [],
    }


def test_severities_for_small_images(run, tmp_path):
    record = json.loads(run("--kind", "fog", "--made-for", "32", "--json").stdout)
    assert record["corruptions"] == [Corruption("fog", 5, made_for=32).describe()]
    picture = sample_images(2, side=32)[0]
    with Image.open(tmp_path / "out" / "fog" / "5" / "0.png") as made:
        np.testing.assert_array_equal(made, Corruption("fog", 5, made_for=32)(picture))
    failed = run("--kind", "fog", "--made-for", "64")
    assert failed.exit_code == 2
    assert "made_for must be 224" in failed.stderr
    assert "got 64. Fix" in failed.stderr


def test_a_second_run_resumes_and_force_starts_over(run, tmp_path):
    run("--kind", "pixelate")
    (tmp_path / "out" / "pixelate" / "5" / "1.png").unlink()
    assert "1 copies written, 1 already there" in run("--kind", "pixelate").stdout
    assert "2 copies written, 0 already there" in run("--kind", "pixelate", "--force").stdout
    failed = run("--kind", "pixelate", "--seed", "1")
    assert failed.exit_code == 2
    assert "--force" in failed.stderr


def test_unreadable_images_are_reported_at_the_end(run, tmp_path):
    (tmp_path / "images" / "x.jpg").write_bytes(b"")
    done = run("--kind", "fog")
    assert done.exit_code == 0
    assert "warning: skipped: x.jpg: is empty (0 bytes)" in done.stderr
    assert "images skipped: 1" in done.stdout
    record = json.loads(run("--kind", "fog", "--json").stdout)
    assert [failure["name"] for failure in record["failed"]] == ["x.jpg"]
    strict = run("--kind", "snow", "--strict")
    assert strict.exit_code == 2
    assert "error: x.jpg: is empty" in strict.stderr


def test_no_usable_image_at_all_is_a_failure(run, tmp_path):
    for path in (tmp_path / "images").iterdir():
        path.write_bytes(b"")
    assert run("--kind", "fog").exit_code == 1


def test_a_misspelt_name_gets_a_suggestion(run, tmp_path):
    done = run("--kind", "defocus")
    assert done.exit_code == 2
    assert "Did you mean 'defocus_blur'?" in done.stderr
    assert not (tmp_path / "out").exists()


def test_workers(run, tmp_path):
    done = run("--kind", "fog", "--workers", "1")
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "out" / "fog" / "5" / "1.png").exists()
    assert run("--kind", "fog", "--workers", "-1").exit_code == 2
