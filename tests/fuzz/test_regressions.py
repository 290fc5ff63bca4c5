"""Cases that the search has found, each with the promise it broke."""

import pytest

from fuzz.arrays import Array, feature_sets_are_valid_or_refused
from fuzz.cases import Stream
from fuzz.files import Edit, bombs_take_little_memory, forged_states_are_refused_or_work
from fuzz.parameters import parameters_work_or_are_refused


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


@pytest.mark.parametrize(
    "chosen",
    [
        ("dota", {"constant": 1.0, "epsilon": 0}),
        ("dmn", {"memory_size": 100_000}),
        ("timo", {"transferred": 2**31}),
        ("ecalp", {"n_neighbors": 2**31}),
        ("timo", {"transferred": 2**63}),
        ("b2tpt", {"text_latent": 2**63}),
    ],
)
def test_parameters_work_or_are_refused_by_name(chosen):
    """A saved state was refused: its means were longer than 1. The others were NumPy's own MemoryError."""
    parameters_work_or_are_refused(chosen, Stream(dimension=2))
