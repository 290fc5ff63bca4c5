"""The paper's numbers are as printed, and missing ones are missing."""

import numpy as np
import pytest

from zeroshift.experiments._shared.paper import paper_table, paper_tables

PRINTED_OTHERWISE = {("corruption_vitb16", "ADAPT", "transductive")}
"""Its fifteen numbers have the mean 30.43; the paper prints 30.29 here and wherever it repeats the mean."""


def test_all_tables_of_numbers_are_there():
    assert {table.number for table in paper_tables().values()} == set(range(1, 24))


@pytest.mark.parametrize(
    "name", ["natural_shift_vitb16", "fine_grained_vitb16", "corruption_vitb16", "corruption_rn50"]
)
def test_printed_means_are_the_means_of_the_printed_numbers(name):
    """Guards the transcription: a wrong digit would move the mean of its row."""
    table = paper_table(name)
    sets = [column for column in table.columns if not column.endswith("Avg.")]
    off = {
        (row.method, row.protocol): abs(np.mean([row.number(column) for column in sets]) - row.number("Avg."))
        for row in table.rows
    }
    for (method, protocol), difference in off.items():
        if method in ("CLIP", "TDA", "ADAPT"):
            allowed = 0.02 if (name, method, protocol) not in PRINTED_OTHERWISE else 0.14
            assert difference < allowed, (method, protocol, difference)


def test_rows_are_found_by_what_is_wanted_and_only_then():
    table = paper_table("corruption_severity")
    assert table.number_at("Severity 1", method="ADAPT", protocol="transductive") == 62.04
    assert table.number_at("Severity 1", method="ADAPT", protocol="batch") is None
    assert table.number_at("Severity 9", method="CLIP") is None
    assert table.row(colour="red") is None


def test_a_dash_is_a_missing_number():
    assert paper_table("efficiency_imagenet").number_at("Gain (%)", method="CLIP") is None


def test_a_wrong_name_suggests_the_right_one():
    with pytest.raises(ValueError, match="natural_shift_vitb16"):
        paper_table("natural_shift_vitb61")


def test_the_two_tables_of_severity_five_agree():
    corruption, severity = paper_table("corruption_vitb16"), paper_table("corruption_severity")
    for wanted in ({"method": "ADAPT", "protocol": "online"}, {"method": "ADAPT", "protocol": "transductive"}):
        assert corruption.number_at("Avg.", **wanted) == severity.number_at("Severity 5", **wanted)


def test_an_unknown_table_suggests_all_there_are():
    with pytest.raises(ValueError, match=r"no table of the paper is called 'x'\. Fix: one of method_comparison, "):
        paper_table("x")
