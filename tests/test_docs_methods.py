"""docs/methods.md: the table follows from the registry, and every method states its costs."""

import re
from pathlib import Path

import pytest

from zeroshift.method import registered_methods
from zeroshift.methods import list_methods
from zeroshift.report.listings import methods_markdown

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"

BUILT_IN = [method for method in list_methods() if method.name in registered_methods()]


def test_the_table_follows_from_the_registry():
    found = re.search(r"<!-- methods -->\n(.*?)\n<!-- /methods -->", PAGE.read_text(), re.DOTALL)
    assert found is not None
    assert found.group(1).strip() == methods_markdown(BUILT_IN), "Fix: zeroshift methods --markdown"


@pytest.mark.parametrize("method", BUILT_IN, ids=lambda method: method.name)
def test_every_method_states_its_costs(method):
    for cost in (method.state_size, method.complexity):
        assert "not stated" not in cost


def test_methods_with_growing_state_document_it():
    for method in BUILT_IN:
        if "memory_is_bounded" in method.cls.check_exceptions:
            assert "N" in method.state_size
            assert "grows" in f"{method.summary} {method.state_size}", method.name
