"""The pages in benchmarks/results follow from the records in the repository."""

import json
from pathlib import Path

import pytest
import sections
import tuning

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load_record(name):
    return json.loads((BENCHMARKS / name).read_text())


def test_towers():
    pytest.importorskip("transformers")
    import towers

    assert sections.section("tuning-towers") == towers.time_table(load_record("towers.json"))


def test_tuning():
    assert sections.section("tuning") == tuning.memory_table(load_record("tuning.json"))
    assert sections.section("tuning-cuda") == tuning.cost_table(load_record("tuning_cuda.json"))


def test_trained_prompts():
    pytest.importorskip("transformers")
    import trained_prompts

    record = load_record("trained_prompts.json")
    assert sections.section("trained-prompts") == trained_prompts.training_table(record)
    assert all(row["ratio"] <= 1.5 for row in record["methods"].values())


def test_extraction():
    import extraction

    row = extraction.table([load_record("extraction_cuda.json")]).splitlines()[2]
    assert row in sections.section("extraction").splitlines()


def test_a_section_without_marks_is_an_error():
    with pytest.raises(LookupError, match="<!-- no-such-section -->"):
        sections.section("no-such-section")


def test_replacing_a_section_changes_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(sections, "PAGES", tmp_path)
    (tmp_path / "a.md").write_text("before\n<!-- one -->\nold\n<!-- /one -->\nafter\n")
    (tmp_path / "b.md").write_text("<!-- two -->\n2\n<!-- /two -->\n")
    sections.replace_section("one", "new\nlines")
    assert (tmp_path / "a.md").read_text() == "before\n<!-- one -->\nnew\nlines\n<!-- /one -->\nafter\n"
    assert (tmp_path / "b.md").read_text() == "<!-- two -->\n2\n<!-- /two -->\n"
