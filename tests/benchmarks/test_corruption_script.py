"""Damaged files of every kind are refused or unchanged, and the script would notice if they were not."""

from corruption import run

from zeroshift import tensor_files
from zeroshift.evaluate import ledger


def test_no_damaged_file_loads_as_something_else(tmp_path):
    counted, wrong = run(800, seed=1, folder=tmp_path)
    assert wrong == []
    assert {kind for kind, _, _ in counted} == {
        "state .safetensors",
        "features .safetensors",
        "features .npz",
        "record .json",
    }


def test_without_checksums_some_would(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "_array_checksum", lambda name, array: "same")
    for module in (tensor_files, ledger):
        monkeypatch.setattr(module, "has_valid_checksum", lambda content: True)
    _, wrong = run(400, seed=1, folder=tmp_path)
    assert any("OTHER CONTENT" in line for line in wrong)
