"""The base class of encoders: batches, memory, unit length and types, with a synthetic family."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from encode.numpy_encoder import PREPROCESSING, noise  # noqa: E402
from zeroshift.encode.encoder import Encoder, stack_pixels  # noqa: E402

IMAGES = [noise(i, 8 + i, 12 - i) for i in range(7)]
PROMPTS = ["a b", "c", "d e f", "g", "h i", "j"]


class Linear(Encoder):
    """Pixels by a matrix; text by its letters. `room` rows fit into memory."""

    family, source, revision = "linear", "made up", "1"
    dimension, logit_scale, text_length = 5, 10.0, 4
    preprocessing = PREPROCESSING
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, room: int = 1000, batch_size: int = 4, fault: Exception | None = None) -> None:
        self.room, self.batch_size, self.text_batch_size = room, batch_size, batch_size
        self.fault = fault or RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
        self.seen: list[int] = []
        self.weights = torch.from_numpy(np.random.default_rng(0).normal(size=(108, 5)).astype(np.float32))

    def fitting(self, rows: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(rows))
        if len(rows) > self.room:
            raise self.fault
        return rows

    def _image_features(self, batch):
        assert torch.is_inference_mode_enabled()
        return self.fitting(batch[0]).flatten(1) @ self.weights

    def _text_features(self, prompts):
        letters = torch.tensor([[prompt.count(letter) + 1.0 for letter in "aceghj"[:5]] for prompt in prompts])
        return self.fitting(letters)

    def count_tokens(self, prompts):
        return [len(prompt.split()) + 2 for prompt in prompts]


def expected() -> np.ndarray:
    pixels = np.stack([PREPROCESSING.values(PREPROCESSING(image)[0]) for image in IMAGES]).astype(np.float64)
    rows = pixels.reshape(len(pixels), -1) @ Linear().weights.numpy().astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 50])
def test_features_are_unit_rows_in_the_order_given(batch_size):
    encoder = Linear(batch_size=batch_size)
    rows = encoder.encode_images(iter(IMAGES))
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, expected(), atol=1e-6)
    assert max(encoder.seen) == min(batch_size, 7)


@pytest.mark.parametrize("room", [1, 2, 3, 5])
def test_memory_that_runs_out_costs_no_row(room):
    encoder = Linear(room=room, batch_size=8)
    np.testing.assert_allclose(encoder.encode_images(IMAGES), expected(), atol=1e-6)
    assert 1 <= encoder.batch_size <= room
    tried = len(encoder.seen)
    encoder.encode_images(IMAGES)
    assert all(size <= room for size in encoder.seen[tried:])  # what did not fit is not tried again
    texts = Linear(room=room, batch_size=8).encode_texts(PROMPTS, warn=False)
    np.testing.assert_array_equal(texts, Linear().encode_texts(PROMPTS, warn=False))


def test_errors_for_a_single_item():
    with pytest.raises(MemoryError, match="not enough memory for a single item"):
        Linear(room=0).encode_images(IMAGES)
    with pytest.raises(MemoryError, match="not enough memory for a single item"):
        Linear(room=0).encode_texts(PROMPTS, warn=False)
    fault = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError) as caught:
        Linear(room=0, fault=fault).encode_images(IMAGES)
    assert caught.value is fault


def test_numbers_between_bytes():
    encoder = Linear()
    pixels = stack_pixels([PREPROCESSING(image) for image in IMAGES])[0]
    np.testing.assert_allclose(encoder.encode_pixels((pixels.astype(np.float32),)), expected(), atol=1e-6)
    mixed = encoder.encode_pixels((pixels * np.float32(0.5),))
    values = (pixels / 2 / 255 - 0.5) / 0.25
    by_hand = values.reshape(len(pixels), -1) @ encoder.weights.numpy().astype(np.float64)
    np.testing.assert_allclose(mixed, by_hand / np.linalg.norm(by_hand, axis=1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf")])
def test_zero_and_non_finite_features_are_refused(bad):
    class Broken(Linear):
        def _image_features(self, batch):
            return super()._image_features(batch) * bad

        def _text_features(self, prompts):
            return super()._text_features(prompts) * bad

    message = r"returned a zero or non-finite feature for {}. Fix: dtype='float32'"
    with pytest.raises(ValueError, match=message.format("an image")):
        Broken().encode_images(IMAGES)
    with pytest.raises(ValueError, match=message.format("a prompt")):
        Broken().encode_texts(["a"])


def test_bad_arguments():
    with pytest.raises(TypeError, match=r"got the single string 'a cat'. Fix: \[prompt\]"):
        Linear().encode_texts("a cat")
    with pytest.raises(ValueError, match="prompts is empty; at least one"):
        Linear().encode_texts([])
    assert Linear().encode_images([]).shape == (0, Linear().dimension)


def test_long_prompts_are_counted():
    encoder = Linear()
    with pytest.warns(UserWarning, match="1 of 6 prompts are longer than the 4 tokens the model reads"):
        encoder.encode_texts(PROMPTS)
    encoder.encode_texts(PROMPTS[:2])  # two words and two special tokens just fit, without a warning
    assert encoder.count_too_long(PROMPTS) == 1


def test_describe_and_repr():
    encoder = Linear()
    assert encoder.describe() == {"family": "linear", "source": "made up", "revision": "1", "dtype": "float32"}
    assert repr(encoder) == "Linear('made up', d=5, logit_scale=10)"
    means = np.array([[3.0, 0, 0, 0, 4.0], [0, 0, 2.0, 0, 0]])
    np.testing.assert_allclose(encoder.finish_prototypes(means), [[0.6, 0, 0, 0, 0.8], [0, 0, 1, 0, 0]], atol=1e-7)


def test_narrow_precision_reaches_the_model_and_not_the_caller():
    class Narrow(Linear):
        dtype = torch.bfloat16

        def _image_features(self, batch):
            assert batch[0].dtype == torch.bfloat16
            return batch[0].flatten(1) @ self.weights.to(torch.bfloat16)

    rows = Narrow().encode_images(IMAGES)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(rows, expected(), atol=0.05)
    assert Narrow().describe()["dtype"] == "bfloat16"
