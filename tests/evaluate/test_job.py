"""Keys: the same for the same work, in whatever order and process it is described."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from zeroshift.evaluate.job import KEY_LETTERS, keyed

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
contents = st.dictionaries(st.text(), plain | st.lists(plain, max_size=3), max_size=5)


@given(contents)
def test_the_order_of_the_fields_does_not_matter(content):
    assert keyed(dict(reversed(list(content.items())))) == keyed(content)
    assert len(keyed(content)) == KEY_LETTERS


@given(contents, st.text(), st.integers())
def test_another_field_is_another_key(content, name, value):
    if content.get(name, "nothing") != value:
        assert keyed({**content, name: value}) != keyed(content)


def test_another_process_has_the_same_keys():
    code = "from zeroshift.evaluate.job import keyed; print(keyed({'seed': 0, 'given': ['a'], 'alpha': 0.9}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == keyed({"alpha": 0.9, "given": ["a"], "seed": 0})
