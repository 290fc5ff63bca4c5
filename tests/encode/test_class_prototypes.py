"""Prototypes and single prompt features: normalised means, caching, and order."""

from __future__ import annotations

import numpy as np
import pytest

from encode.numpy_encoder import DIMENSION, NumpyEncoder, text_feature
from zeroshift.encode import encode_classes, encode_prompts
from zeroshift.encode.extraction import text

CLASSES = [["a cat", "one small cat"], ["a dog"], ["frog", "a frog", "the frog"]]


def by_hand(classes) -> np.ndarray:
    means = np.stack([np.mean([text_feature(p).astype(np.float64) for p in listed], axis=0) for listed in classes])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


@pytest.mark.parametrize("cached", [False, True])
def test_prototypes_are_unit_means_of_unit_vectors(tmp_path, cached):
    cache = tmp_path if cached else None
    made = encode_classes(NumpyEncoder(), CLASSES, cache=cache)
    assert made.prototypes.shape == (3, DIMENSION)
    assert made.prototypes.dtype == np.float32
    np.testing.assert_allclose(made.prototypes, by_hand(CLASSES), rtol=0, atol=1e-6)
    assert (made.n_prompts, made.n_cut) == (6, 0)


def test_prototypes_of_a_real_model(tiny_encoder):
    encoder = tiny_encoder("siglip")
    rows = [encoder.encode_texts(listed).astype(np.float64).mean(axis=0) for listed in CLASSES]
    expected = [row / np.linalg.norm(row) for row in rows]
    np.testing.assert_allclose(encode_classes(encoder, CLASSES).prototypes, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cached", [False, True])
def test_the_same_prompts_are_encoded_once(tmp_path, cached):
    encoder, counts, listed = NumpyEncoder(), [], [CLASSES[0], CLASSES[1], CLASSES[0]]
    made = encode_classes(encoder, listed, cache=tmp_path if cached else None, progress=counts.append)
    assert sum(counts) == 3
    assert encoder.prompts == ["a cat", "one small cat", "a dog"]
    np.testing.assert_array_equal(made.prototypes[0], made.prototypes[2])
    assert made.n_prompts == 5


def test_where_one_prompt_ends_is_a_part_of_the_key():
    made = encode_classes(NumpyEncoder(), [["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"]])
    np.testing.assert_allclose(made.prototypes, by_hand([["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"]]), atol=1e-6)


def test_a_second_run_encodes_nothing(tmp_path):
    first = encode_classes(NumpyEncoder(), CLASSES, cache=tmp_path)
    second = NumpyEncoder()
    again = encode_classes(second, [CLASSES[2], CLASSES[0]], cache=tmp_path)
    assert second.prompts == []
    np.testing.assert_array_equal(again.prototypes, first.prototypes[[2, 0]])
    # Another encoder has a folder of its own.
    other = NumpyEncoder(revision="2")
    encode_classes(other, CLASSES, cache=tmp_path)
    assert len(other.prompts) == 6


def test_truncated_prompts_give_a_warning_in_every_run(tmp_path):
    classes = [["a cat", "cat " * 20], ["dog " * 11], ["dog " * 10]]  # 22, 13 and 12 tokens with the signs; 12 are read
    for encoder in (NumpyEncoder(), NumpyEncoder()):
        with pytest.warns(UserWarning, match="2 of 4 prompts are longer than the 12 tokens the model reads"):
            made = encode_classes(encoder, classes, cache=tmp_path)
        assert made.n_cut == 2
    assert encoder.prompts == []


def test_truncated_prompts_of_a_real_model(tiny_encoder, tmp_path):
    for _ in range(2):
        with pytest.warns(UserWarning, match="1 of 2 prompts are longer than the 24 tokens"):
            encode_classes(tiny_encoder("clip"), [["cat " * 40], ["dog"]], cache=tmp_path)


def test_many_classes_are_taken_one_at_a_time(monkeypatch, tmp_path):
    monkeypatch.setattr(text, "PART_PROMPTS", 10)
    encoder, ahead = NumpyEncoder(), []

    def classes():
        for k in range(25):
            ahead.append(2 * k - len(encoder.prompts))
            yield [f"a photo of {k}", f"a sketch of {k}"]

    counts = []
    made = encode_classes(encoder, classes(), cache=tmp_path, progress=counts.append)
    assert max(ahead) < 10  # no more wait than are encoded together
    expected = by_hand([[f"a photo of {k}", f"a sketch of {k}"] for k in range(25)])
    np.testing.assert_allclose(made.prototypes, expected, atol=1e-6)
    assert sum(counts) == 25
    assert len(list(tmp_path.glob("text/*/part-*"))) == 5


def test_an_interrupted_run_keeps_finished_parts(monkeypatch, tmp_path):
    monkeypatch.setattr(text, "PART_PROMPTS", 10)
    every = [[f"a photo of {k}", f"a sketch of {k}"] for k in range(25)]

    def stops():
        yield from every[:13]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_classes(NumpyEncoder(), stops(), cache=tmp_path)
    again, counts = NumpyEncoder(), []
    made = encode_classes(again, every, cache=tmp_path, progress=counts.append)
    assert again.prompts == [prompt for listed in every[10:] for prompt in listed]
    assert sum(counts) == 25
    np.testing.assert_array_equal(made.prototypes, encode_classes(NumpyEncoder(), every).prototypes)


def test_bad_input():
    with pytest.raises(ValueError, match="prompts of class 1 are empty; every class needs at least one"):
        encode_classes(NumpyEncoder(), [["a"], []])
    with pytest.raises(ValueError, match="prompts is empty; at least one class"):
        encode_classes(NumpyEncoder(), [])


def test_an_encoder_may_average_before_the_shared_space():
    class Composed(NumpyEncoder):
        def encode_texts(self, prompts, *, warn=True):
            return super().encode_texts(prompts)[:, :3]

        def finish_prototypes(self, means, templates=None):
            return super().finish_prototypes(np.pad(means, ((0, 0), (0, DIMENSION - 3))))

    made = encode_classes(Composed(), CLASSES).prototypes
    means = np.stack([np.mean([text_feature(p)[:3].astype(np.float64) for p in listed], axis=0) for listed in CLASSES])
    np.testing.assert_allclose(made[:, :3], means / np.linalg.norm(means, axis=1, keepdims=True), atol=1e-6)
    assert not made[:, 3:].any()


UNEQUAL_CLASSES = [["a cat", "one small cat"], ["a dog", "the dog", "dog"], ["frog", "a frog"]]


def test_a_row_for_each_prompt_and_as_many_of_each_class():
    rows = encode_prompts(NumpyEncoder(), UNEQUAL_CLASSES)
    assert rows.shape == (3, 2, DIMENSION)
    expected = [[text_feature(prompt) for prompt in listed[:2]] for listed in UNEQUAL_CLASSES]
    np.testing.assert_allclose(rows, expected, atol=1e-6)


def test_their_means_are_the_prototypes(tiny_encoder):
    encoder = tiny_encoder("clip")
    listed = [["a photo of a cat", "cat"], ["a photo of a dog", "dog"]]
    means = encode_prompts(encoder, listed).mean(axis=1)
    prototypes = encode_classes(encoder, listed).prototypes
    np.testing.assert_allclose(means / np.linalg.norm(means, axis=1, keepdims=True), prototypes, atol=1e-6)


def test_a_second_run_encodes_no_single_prompts(tmp_path):
    first = encode_prompts(NumpyEncoder(), UNEQUAL_CLASSES, cache=tmp_path)
    second, counts = NumpyEncoder(), []
    np.testing.assert_array_equal(
        encode_prompts(second, UNEQUAL_CLASSES, cache=tmp_path, progress=counts.append), first
    )
    assert second.prompts == []
    assert sum(counts) == 6


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "prompts is empty"),
        ([["a cat"], []], r"prompts of class 1 must be a list of at least one sentence; got none\. Fix: Prompts"),
        (["cat", "dog"], "prompts of class 0 .*got the string 'cat'"),
    ],
)
def test_invalid_arguments(prompts, message):
    with pytest.raises(ValueError, match=message):
        encode_prompts(NumpyEncoder(), prompts)
