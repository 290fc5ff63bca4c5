"""The comparison as tables, Markdown and a page: equal numbers, and names with any characters."""

import re

import numpy as np
import pytest

from zeroshift.evaluate import DatasetRef, JobOutcome, MethodSpec, plan_comparison, summarize
from zeroshift.evaluate.outcomes import record_outcomes
from zeroshift.report.compare_page import headline, page_context, render_page, write_page
from zeroshift.report.compare_tables import compare_markdown, compare_record, compare_table, remarks, set_tables
from zeroshift.report.page import is_report


def record(trial, *, jobs=1):
    return {
        "accuracy": 0.7 + 0.01 * (trial.seed or 0),
        "zero_shot_accuracy": 0.75 if trial.spec.method == "adapt_online" else 0.5,
        "calibration_error": 0.123,
        "scored": 100,
        "seconds": 0.1,
        "setup_seconds": 0.002,
        "peak_bytes": 3_400_000,
        "jobs": jobs,
        "machine": "an <abacus>",
    }


@pytest.fixture
def summary(comparisons):
    """Two sets whose names break what forgets to escape; one run fails."""
    names = ["a <b>|_c_", "plain"]
    datasets = [DatasetRef.of(name, comparison.features) for name, comparison in zip(names, comparisons, strict=True)]
    specs = [MethodSpec.named(name) for name in ("adapt_online", "adapt_transductive", "adapt_online+support")]
    specs.append(MethodSpec("adapt_released_online"))
    planned = plan_comparison(datasets, specs, orders=2)
    outcomes = [JobOutcome(trial, record(trial), None, recorded=False) for trial in planned.trials]
    broken = next(place for place, trial in enumerate(planned.trials) if trial.seed is None)
    outcomes[broken] = JobOutcome(planned.trials[broken], None, "ValueError: <no>", recorded=False)
    return summarize(planned, outcomes)


def test_the_page_holds_every_number_and_escapes_every_name(summary):
    page = render_page(summary)
    assert re.search(r"<h1[^>]*>[^<]*adapt_online \N{MINUS SIGN}4.5.*points on 2 sets</h1>", page)
    for text in ("71", "70.5", "\N{MINUS SIGN}4.5", "12.3", "1,000", "3.4"):
        assert text in page, text
    assert "a &lt;b&gt;|_c_" in page
    assert "an &lt;abacus&gt;" in page
    assert "ValueError: &lt;no&gt;" in page
    assert "<b>|" not in page
    assert "1 of 2 sets" in page
    assert "adapt_released_online: needs scale" in page
    assert page.count("<svg") == 1
    assert ".few-shot { --colour" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert page == render_page(summary)


def test_the_page_is_recognised_as_a_report(summary, tmp_path):
    write_page(tmp_path / "compare.html", summary)
    assert is_report(tmp_path / "compare.html")


def test_markdown_keeps_its_columns_for_any_name(summary):
    text = compare_markdown(summary)
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) == 3
    for lines in tables:
        assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert "| `adapt_online` | online | 2 | 70.5 | -4.5 | -5.0 to -4.0 | 12.3 | 1,000 | 2 | 3.4 |" in text
    assert "| `adapt_transductive` | transductive | 1 of 2 |" in text
    assert "70.5 (70.0 to 71.0)" in text
    assert "Failed: adapt_transductive on" in text


def test_one_set_needs_no_table_of_sets(comparisons):
    planned = plan_comparison([DatasetRef.of("only", comparisons[0].features)], [MethodSpec("zero_shot")], orders=1)
    outcomes = [JobOutcome(trial, record(trial), None, recorded=False) for trial in planned.trials]
    text = compare_markdown(summarize(planned, outcomes))
    assert text.count("\n| ---") == 1
    assert "one random order or draw (seed 0)" in text


def test_the_notes_explain_the_numbers(summary):
    text = " ".join(remarks(summary))
    assert "2 random orders or draws (seeds 0 to 1)" in text
    assert "4 labelled samples per class" in text
    assert "fewer sets" in text
    assert "at a time" not in text
    summary.records[0]["jobs"] = 8
    assert "Some runs were made 8 at a time" in " ".join(remarks(summary))


def test_a_table_for_each_set(summary):
    first, second = set_tables(summary)
    assert first.title.startswith("a <b>|_c_: 120 samples, 4 classes")
    assert len(second.rows) == len(first.rows) + 1  # the method that failed on the first


def one_order(comparisons, *methods):
    specs = [MethodSpec(method) for method in methods]
    planned = plan_comparison([DatasetRef.of("only", comparisons[0].features)], specs, orders=1)
    outcomes = [JobOutcome(trial, record(trial), None, recorded=False) for trial in planned.trials]
    return summarize(planned, outcomes)


def test_the_title_states_the_gains(comparisons):
    assert headline(one_order(comparisons, "zero_shot", "adapt_online")) == "adapt_online -5.0 points on Set A-1"
    assert headline(one_order(comparisons, "zero_shot")) == "zero_shot 70.0% on Set A-1"
    many = one_order(comparisons, "adapt_online", "tda", "dmn", "t3a")
    best = "online tda, +20.0 points"
    assert headline(many) == f"3 of 4 methods gain on Set A-1; most accurate: {best}"  # nothing is known of ties


RIGHT = {"zero_shot": 50, "tda": 70, "dmn": 71, "adapt_online": 80, "zlap": 85, "transclip": 85, "gda_pseudo": 84}
"""How many of 120 samples a method is right about: the first ones."""


@pytest.fixture
def tied(comparisons):
    """Records with outcomes: tda is right wherever dmn is, except once; zlap and transclip are right about the same."""
    specs = [MethodSpec(method) for method in RIGHT] + [MethodSpec("tip_adapter")]
    planned = plan_comparison([DatasetRef.of("only", comparisons[0].features)], specs, orders=1)

    def job(trial):
        rows = np.arange(120)
        right = [rows < RIGHT.get(trial.spec.method, 75), rows < RIGHT["zero_shot"]]
        shares = {"accuracy": right[0].mean(), "zero_shot_accuracy": right[1].mean()}
        outcomes = record_outcomes(rows, *right, 120)
        return JobOutcome(trial, {**record(trial), **shares, "outcomes": outcomes}, None, recorded=False)

    return summarize(planned, [job(trial) for trial in planned.trials], baseline="dmn")


def test_the_title_names_ties_within_each_group(tied):
    assert headline(tied) == (
        "7 of 7 methods gain on Set A-1; most accurate: online adapt_online, +25.0; transductive zlap and 2 others, "
        "+29.2; few-shot tip_adapter, +20.8 points"
    )


def test_ties_and_differences_are_in_every_table(tied):
    columns = compare_table(tied).columns
    at = {column.title: place for place, column in enumerate(columns)}
    cells = {str(row.cells[0]): [str(cell) for cell in row.cells] for row in compare_table(tied).rows}
    places = {name: row[at["to best"]] for name, row in cells.items()}
    assert places == {
        "zero_shot": "-25.0", "tda": "-8.3", "dmn": "-7.5", "adapt_online": "best", "zlap": "best", "transclip": "tied",
        "gda_pseudo*": "tied", "tip_adapter": "",
    }  # fmt: skip
    assert cells["tda"][at["over dmn"]].startswith("-0.8 (-2.5 to ")
    page, text = render_page(tied), compare_markdown(tied)
    for shown in (page.replace("\N{MINUS SIGN}", "-"), text):
        assert "paired over the samples of each set" in shown
        assert "gda_pseudo*" in shown
    assert "<td>tied<small>" in page
    found = {method["method"]: method for method in compare_record(tied)["mean"]}
    assert found["tda"]["to_baseline"]["points"] == pytest.approx(-100 / 120)
    assert found["zlap"]["to_baseline"]["to"] == "dmn"  # across groups, because it was asked for
    assert found["transclip"]["to_best"] == {"to": "zlap", "points": 0.0, "low": 0.0, "high": 0.0}
    assert found["gda_pseudo"]["caveat"] == "reconstructed, not the authors' code"
    low, high = found["tda"]["gain_interval"]
    assert low < 100 * 20 / 120 < high


def test_one_order_has_no_range_and_no_caption_about_it(comparisons):
    found = page_context(one_order(comparisons, "zero_shot", "adapt_online"))
    assert "Range" not in [column["title"] for column in found["columns"]]
    assert "thin line" not in found["gains_caption"]
    assert "over the sets" not in found["gains_caption"] + found["numbers_caption"]


def test_several_orders_have_a_range_and_a_caption_about_it(summary):
    found = page_context(summary)
    assert "Range" in [column["title"] for column in found["columns"]]
    assert "thin line is the range over the orders" in found["gains_caption"]
    assert found["matrix_title"] == "On 2 of 2 sets, some method loses to zero-shot"
    assert found["missing_title"] == "1 run failed and some methods left out"
