"""Cases that the search has found, each with the promise it broke."""

import pytest

from fuzz.arrays import Array, feature_sets_are_valid_or_refused
from fuzz.files import Edit, bombs_take_little_memory, forged_states_are_refused_or_work


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("class_names", Array((3,), "torch", "float64", "meta")),
        ("sample_names", Array((5,), "torch", "float64", "sparse")),
        ("sample_names", Array((5,), "object", "float64", "type")),
        ("logit_scale", Array((), "torch", "float64", "meta")),
        ("features", Array((5, 4), "numpy", ">f8")),
    ],
)
def test_values_of_other_types_are_refused_by_name(field, value):
    """torch's own error came out."""
    feature_sets_are_valid_or_refused((field, value))


def test_numbers_as_class_names_are_not_listed():
    """A 64 kB archive took 512 MB: every number became a Python object before its type was checked."""
    bombs_take_little_memory(64, "as stored", "class_names.npy")


def test_models_of_a_state_must_be_an_object():
    forged_states_are_refused_or_work("histpt", Edit(92, "replace", "-1"), [])
