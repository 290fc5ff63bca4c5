"""Every prompt by itself: unit rows in order, as many of each class, nothing encoded twice."""

from __future__ import annotations

import numpy as np
import pytest

from encode.plain import DIMENSION, PlainEncoder, of_text
from zeroshift.encode import encode_classes, encode_prompts

CLASSES = [["a cat", "one small cat"], ["a dog", "the dog", "dog"], ["frog", "a frog"]]


def test_a_row_for_each_prompt_and_as_many_of_each_class():
    rows = encode_prompts(PlainEncoder(), CLASSES)
    assert rows.shape == (3, 2, DIMENSION)
    expected = [[of_text(prompt) for prompt in listed[:2]] for listed in CLASSES]
    np.testing.assert_allclose(rows, expected, atol=1e-6)


def test_their_means_are_the_prototypes(tiny_encoder):
    encoder = tiny_encoder("clip")
    listed = [["a photo of a cat", "cat"], ["a photo of a dog", "dog"]]
    means = encode_prompts(encoder, listed).mean(axis=1)
    prototypes = encode_classes(encoder, listed).prototypes
    np.testing.assert_allclose(means / np.linalg.norm(means, axis=1, keepdims=True), prototypes, atol=1e-6)


def test_a_second_run_encodes_nothing(tmp_path):
    first = encode_prompts(PlainEncoder(), CLASSES, cache=tmp_path)
    second, told = PlainEncoder(), []
    np.testing.assert_array_equal(encode_prompts(second, CLASSES, cache=tmp_path, progress=told.append), first)
    assert second.prompts == []
    assert sum(told) == 6


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "prompts is empty"),
        ([["a cat"], []], r"prompts of class 1 must be a list of at least one sentence; got none\. Fix: Prompts"),
        (["cat", "dog"], "prompts of class 0 .*got the string 'cat'"),
    ],
)
def test_what_it_refuses(prompts, message):
    with pytest.raises(ValueError, match=message):
        encode_prompts(PlainEncoder(), prompts)
