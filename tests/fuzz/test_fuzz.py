"""The small budget: a fixed sequence of cases for every property. `make fuzz` searches on."""

import pytest

from fuzz.harness import PROPERTIES
from fuzz.properties import load_all

load_all()

WAITING = {
    "compared_files_give_clean_output",
    "contact_sheets_hold_no_live_markup",
    "parameters_work_or_are_refused",
    "prediction_files_hold_no_formulas",
    "reports_hold_no_live_markup",
    "tables_stay_tables",
    "commands_end_with_a_result_or_an_error",
}


# A signal may arrive between opening a file and `with`: it is then closed by the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", sorted(set(PROPERTIES) - WAITING))
def test_property(name):
    PROPERTIES[name].check()
