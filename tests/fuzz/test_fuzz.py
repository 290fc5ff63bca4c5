"""The small budget: a fixed sequence of cases for every property. `make fuzz` searches on."""

import pytest

from fuzz.harness import PROPERTIES
from fuzz.properties import load_all

load_all()


# A signal may arrive between opening a file and `with`: it is then closed by the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", sorted(PROPERTIES))
def test_property(name, request):
    PROPERTIES[name].check(0.5 if "not slow" in request.config.option.markexpr else 1.0)
