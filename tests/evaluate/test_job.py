"""Keys of jobs are equal for equal work, in any order of the fields and in any process."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeroshift.evaluate.job import KEY_LETTERS, content_key

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
contents = st.dictionaries(st.text(), plain | st.lists(plain, max_size=3), max_size=5)


@given(contents)
def test_the_order_of_the_fields_does_not_matter(content):
    assert content_key(dict(reversed(list(content.items())))) == content_key(content)
    assert len(content_key(content)) == KEY_LETTERS


@given(contents, st.text(), st.integers())
def test_another_field_is_another_key(content, name, value):
    if content.get(name, "nothing") != value:
        assert content_key({**content, name: value}) != content_key(content)


def test_another_process_has_the_same_keys():
    code = (
        "from zeroshift.evaluate.job import content_key; print(content_key({'seed': 0, 'given': ['a'], 'alpha': 0.9}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == content_key({"alpha": 0.9, "given": ["a"], "seed": 0})


def test_arrays_count_whole_and_numbers_of_numpy_are_numbers():
    """A long array's repr leaves out its middle."""
    first, second = np.zeros((100, 20)), np.zeros((100, 20))
    second[50, 10] = 1.0
    assert content_key({"support": (first, [0])}) != content_key({"support": (second, [0])})
    assert content_key({"support": first}) == content_key({"support": np.zeros((100, 20))})
    assert content_key({"support": first}) != content_key({"support": first.astype(np.float32)})
    assert content_key({"alpha": np.float64(0.5), "seed": np.int64(3)}) == content_key({"alpha": 0.5, "seed": 3})


def test_values_without_a_stable_form_are_rejected():
    with pytest.raises(TypeError, match=r"a object cannot be part of a key; .* Fix: numbers"):
        content_key({"given": object()})
