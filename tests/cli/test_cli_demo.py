"""`zeroshift demo` on the smallest pack: the numbers, the report, the figures."""

import json
import re

import pytest

from zeroshift import methods
from zeroshift.cli._inputs import pack_names
from zeroshift.cli.demo import METHODS
from zeroshift.data import packs

PACK = "views_cifar10c_fog_5"


@pytest.fixture(scope="module")
def expected():
    """Accuracies by the library's own calls."""
    pack = packs.load(PACK)
    found = {}
    for name in METHODS:
        method = methods.create(name, pack.prototypes_for(), logit_scale=pack.logit_scale)
        found[name] = float((method.adapt(pack.features).argmax(axis=1) == pack.labels).mean())
    return found


def test_the_default_is_every_pack_without_views():
    assert pack_names(None) == [pack.name for pack in packs.list() if pack.n_views == 0]
    assert len(pack_names(None)) == 6
    assert pack_names(" fmnist,cifar10, fmnist ") == ["fmnist", "cifar10"]


def test_table_report_and_figures(call, expected, tmp_path):
    folders = ["--out", tmp_path / "out", "--figures", tmp_path / "figures"]
    done = call("demo", "--packs", PACK, *folders, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.stderr
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for accuracy in expected.values():
        assert f"{100 * accuracy:.1f}" in done.stdout
        assert f"{100 * accuracy:.1f}" in page
    assert {"adapt_online", "adapt_transductive", "anchored_mixture_online", "anchored_mixture_transductive"} < {
        *expected
    }
    gain = 100 * (expected["adapt_transductive"] - expected["zero_shot"])
    assert f"({gain:+.1f})" in done.stdout
    assert done.stdout.count("calibration error") == 3  # in two tables, each with zero-shot, and in the words below
    assert len(re.findall(r"<p>calibration error [\d.]+%</p>", page)) == len(expected)
    assert "not CLIP" in done.stdout
    assert "a composed dual encoder, not CLIP" in page
    assert "The logit scale of the bundled packs, 25, was calibrated by their makers on CIFAR-10 labels." in page
    assert f"zeroshift demo --packs {PACK}" in page
    assert page.count("<svg") == 5  # bars, two of the feature cloud, two of the set
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".png", ".svg"}


def test_json_alone_on_stdout(call, expected, tmp_path):
    done = call("demo", "--packs", PACK, "--out", tmp_path, "--json")
    record = json.loads(done.stdout)
    (pack,) = record["packs"]
    assert pack["name"] == PACK
    assert {entry["method"]: entry["accuracy"] for entry in pack["methods"]} == pytest.approx(expected)
    gain = 100 * (expected["adapt_transductive"] - expected["zero_shot"])
    assert record["mean"]["adapt_transductive"]["gain"] == pytest.approx(gain)
    errors = {entry["method"]: entry["calibration_error"] for entry in pack["methods"]}
    assert {name: mean["calibration_error"] for name, mean in record["mean"].items()} == pytest.approx(errors)
    assert record["report"] == str(tmp_path / "report.html")
    assert "not CLIP" in done.stderr


def test_a_second_run_replaces_the_report_with_the_same_figures(call, tmp_path):
    def figures():
        assert call("demo", "--packs", PACK, "--out", tmp_path).exit_code == 0
        return re.findall(r"<svg.*?</svg>", (tmp_path / "report.html").read_text(encoding="utf-8"), flags=re.DOTALL)

    first = figures()
    assert len(first) == 5
    assert figures() == first
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_report_that_is_not_ours_is_not_replaced(call, tmp_path):
    (tmp_path / "report.html").write_text("mine")
    done = call("demo", "--packs", PACK, "--out", tmp_path)
    assert done.exit_code == 2
    assert "not a report of zeroshift" in done.stderr
    assert (tmp_path / "report.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("packs_option", "message"), [("cifar11", "Did you mean 'cifar10'?"), (" , ", "--packs names no pack")]
)
def test_unknown_packs_are_an_error_before_a_folder_is_created(call, tmp_path, packs_option, message):
    done = call("demo", "--packs", packs_option, "--out", tmp_path / "new")
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_file_in_place_of_the_folder(call, tmp_path):
    (tmp_path / "out").write_text("")
    done = call("demo", "--packs", PACK, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "is a file, not a folder" in done.stderr


def test_existing_figures_are_replaced_only_with_force(call, tmp_path):
    figures = tmp_path / "figures"
    figures.mkdir()
    (figures / "accuracy.png").write_text("mine")
    command = ["demo", "--packs", PACK, "--out", tmp_path / "out", "--figures", figures]
    failed = call(*command)
    assert failed.exit_code == 2
    assert f"{figures / 'accuracy.png'} exists. Fix: pass --force" in failed.stderr
    assert (figures / "accuracy.png").read_text() == "mine"
    assert not (tmp_path / "out").exists()
    assert call(*command, "--force").exit_code == 0
    assert (figures / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_folders_are_checked_before_anything_is_computed(call, tmp_path, monkeypatch):
    def read_only(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("zeroshift.cli.demo.compare_methods", lambda *_: pytest.fail("computed"))
    done = call("demo", "--packs", PACK, "--out", tmp_path / ("x" * 300))
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "cannot be created (File name too long). Fix: name another folder." in done.stderr
    done = call("demo", "--packs", PACK, "--out", tmp_path, "--figures", tmp_path / ("x" * 300))
    assert "cannot be created (File name too long). Fix: name another folder." in done.stderr
    monkeypatch.setattr("zeroshift.files.open", read_only, raising=False)
    done = call("demo", "--packs", PACK, "--out", tmp_path)
    assert done.exit_code == 2
    assert f"{tmp_path / 'report.html'} cannot be written (Permission denied)" in done.stderr


def test_open_launches_the_report(call, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("typer.launch", opened.append)
    call("demo", "--packs", PACK, "--out", tmp_path, "--open")
    assert opened == [(tmp_path / "report.html").as_uri()]


def test_the_name_of_a_page_is_refused_as_a_folder(call, tmp_path):
    done = call("demo", "--packs", "cifar10", "--out", tmp_path / "d.html")
    assert done.exit_code == 2
    assert f"d.html is the name of a page; the name of a folder is needed. Fix: {tmp_path / 'd'}." in done.stderr
    assert not (tmp_path / "d.html").exists()
