"""Prototypes: the mean of unit vectors, scaled to unit length; each class once, also over several runs."""

from __future__ import annotations

import numpy as np
import pytest

from encode.plain import DIMENSION, PlainEncoder, of_text
from zeroshift.encode.extraction import text
from zeroshift.encode.extraction.text import encode_classes

CLASSES = [["a cat", "one small cat"], ["a dog"], ["frog", "a frog", "the frog"]]


def by_hand(classes) -> np.ndarray:
    means = np.stack([np.mean([of_text(p).astype(np.float64) for p in listed], axis=0) for listed in classes])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


@pytest.mark.parametrize("cached", [False, True])
def test_prototypes_are_unit_means_of_unit_vectors(tmp_path, cached):
    cache = tmp_path if cached else None
    made = encode_classes(PlainEncoder(), CLASSES, cache=cache)
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
    encoder, told, listed = PlainEncoder(), [], [CLASSES[0], CLASSES[1], CLASSES[0]]
    made = encode_classes(encoder, listed, cache=tmp_path if cached else None, progress=told.append)
    assert sum(told) == 3
    assert encoder.prompts == ["a cat", "one small cat", "a dog"]
    np.testing.assert_array_equal(made.prototypes[0], made.prototypes[2])
    assert made.n_prompts == 5


def test_where_one_prompt_ends_is_a_part_of_the_key():
    made = encode_classes(PlainEncoder(), [["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"]])
    np.testing.assert_allclose(made.prototypes, by_hand([["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"]]), atol=1e-6)


def test_a_second_run_encodes_nothing(tmp_path):
    first = encode_classes(PlainEncoder(), CLASSES, cache=tmp_path)
    second = PlainEncoder()
    again = encode_classes(second, [CLASSES[2], CLASSES[0]], cache=tmp_path)
    assert second.prompts == []
    np.testing.assert_array_equal(again.prototypes, first.prototypes[[2, 0]])
    # Another encoder has a folder of its own.
    other = PlainEncoder(revision="2")
    encode_classes(other, CLASSES, cache=tmp_path)
    assert len(other.prompts) == 6


def test_prompts_that_are_cut_are_told_in_every_run(tmp_path):
    classes = [["a cat", "cat " * 20], ["dog " * 11], ["dog " * 10]]  # 22, 13 and 12 tokens with the signs; 12 are read
    for encoder in (PlainEncoder(), PlainEncoder()):
        with pytest.warns(UserWarning, match="2 of 4 prompts are longer than the 12 tokens the model reads"):
            made = encode_classes(encoder, classes, cache=tmp_path)
        assert made.n_cut == 2
    assert encoder.prompts == []


def test_prompts_that_are_cut_are_told_of_a_real_model_too(tiny_encoder, tmp_path):
    for _ in range(2):
        with pytest.warns(UserWarning, match="1 of 2 prompts are longer than the 24 tokens"):
            encode_classes(tiny_encoder("clip"), [["cat " * 40], ["dog"]], cache=tmp_path)


def test_many_classes_are_taken_one_at_a_time(monkeypatch, tmp_path):
    monkeypatch.setattr(text, "PART_PROMPTS", 10)
    encoder, ahead = PlainEncoder(), []

    def classes():
        for k in range(25):
            ahead.append(2 * k - len(encoder.prompts))
            yield [f"a photo of {k}", f"a sketch of {k}"]

    told = []
    made = encode_classes(encoder, classes(), cache=tmp_path, progress=told.append)
    assert max(ahead) < 10  # no more wait than are encoded together
    expected = by_hand([[f"a photo of {k}", f"a sketch of {k}"] for k in range(25)])
    np.testing.assert_allclose(made.prototypes, expected, atol=1e-6)
    assert sum(told) == 25
    assert len(list(tmp_path.glob("text/*/part-*"))) == 5


def test_a_run_that_stops_keeps_the_parts_it_had(monkeypatch, tmp_path):
    monkeypatch.setattr(text, "PART_PROMPTS", 10)
    every = [[f"a photo of {k}", f"a sketch of {k}"] for k in range(25)]

    def stops():
        yield from every[:13]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_classes(PlainEncoder(), stops(), cache=tmp_path)
    again, told = PlainEncoder(), []
    made = encode_classes(again, every, cache=tmp_path, progress=told.append)
    assert again.prompts == [prompt for listed in every[10:] for prompt in listed]
    assert sum(told) == 25
    np.testing.assert_array_equal(made.prototypes, encode_classes(PlainEncoder(), every).prototypes)


def test_bad_input():
    with pytest.raises(ValueError, match="prompts of class 1 are empty; every class needs at least one"):
        encode_classes(PlainEncoder(), [["a"], []])
    with pytest.raises(ValueError, match="prompts is empty; at least one class"):
        encode_classes(PlainEncoder(), [])


def test_an_encoder_may_average_before_the_shared_space():
    class Composed(PlainEncoder):
        def encode_texts(self, prompts, *, warn=True):
            return super().encode_texts(prompts)[:, :3]

        def finish_prototypes(self, means, templates=None):
            return super().finish_prototypes(np.pad(means, ((0, 0), (0, DIMENSION - 3))))

    made = encode_classes(Composed(), CLASSES).prototypes
    means = np.stack([np.mean([of_text(p)[:3].astype(np.float64) for p in listed], axis=0) for listed in CLASSES])
    np.testing.assert_allclose(made[:, :3], means / np.linalg.norm(means, axis=1, keepdims=True), atol=1e-6)
    assert not made[:, 3:].any()
