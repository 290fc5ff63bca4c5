"""Extraction with a second encoder: its features, cache, skipped images and invalid arguments."""

from __future__ import annotations

import numpy as np
import pytest

from encode.numpy_encoder import COUNT, VANILLA, NumpyEncoder, bytes_of, image_set, run
from zeroshift.data.corruptions import Corruption
from zeroshift.encode import Views, encode_images
from zeroshift.encode.encoder import ImageEncoder
from zeroshift.features import FeatureSet


class SecondEncoder(ImageEncoder):
    """The encoder in NumPy with other weights, less dimensions, and without text."""

    family, dtype, dimension = "plain", "float32", 5
    preprocessing = NumpyEncoder.preprocessing

    def __init__(self, *, blind=False, source="lab/second", batch_size=3) -> None:
        self.inner = NumpyEncoder(blind=blind, batch_size=batch_size)
        self.inner.weights = np.random.default_rng(1).normal(size=(len(self.inner.weights), 5)).astype(np.float32)
        self.source, self.revision, self.batch_size = source, "2", batch_size

    def encode_pixels(self, batch):
        return self.inner.encode_pixels(batch)

    def _image_features(self, batch):
        raise NotImplementedError


def test_its_features_are_extra_features_named_after_it(folder, tmp_path):
    made = run(folder, second=SecondEncoder(), storage="float32")
    alone = encode_images(image_set(folder), SecondEncoder(), storage="float32", workers=0)
    assert made.second == "second"
    assert (made.computed, made.second_computed) == (COUNT, COUNT)
    np.testing.assert_allclose(made.features.extra["second"], alone.rows[:, 0], atol=1e-6)
    about = made.features.provenance["extra"]["second"]
    assert about["encoder"] == {"family": "plain", "source": "lab/second", "revision": "2", "dtype": "float32"}
    assert about["preprocessing"] == SecondEncoder.preprocessing.describe()
    made.features.save(tmp_path / "both.safetensors")
    loaded = FeatureSet.load(tmp_path / "both.safetensors", check=False)
    np.testing.assert_array_equal(loaded.extra["second"], made.features.extra["second"])


def test_the_first_encoder_is_not_affected(folder, tmp_path):
    plain, both = run(folder), run(folder, second=SecondEncoder())
    np.testing.assert_array_equal(plain.features.features, both.features.features)
    assert (plain.second, plain.second_computed, plain.features.extra) == (None, 0, {})
    assert "extra" not in plain.features.provenance


def test_both_are_cached_each_by_itself(folder, tmp_path):
    cache = tmp_path / "cache"
    run(folder, cache=cache)
    both = run(folder, encoder=NumpyEncoder(blind=True), second=SecondEncoder(), cache=cache)
    assert (both.computed, both.second_computed) == (0, COUNT)
    again = run(folder, encoder=NumpyEncoder(blind=True), second=SecondEncoder(blind=True), cache=cache)
    assert (again.computed, again.second_computed) == (0, 0)
    assert bytes_of(both, tmp_path / "1.safetensors") == bytes_of(again, tmp_path / "2.safetensors")


def test_an_interrupted_run_resumes(folder, tmp_path):
    class Stops(SecondEncoder):
        def encode_pixels(self, batch):
            if len(self.inner.batches) == 2:
                raise KeyboardInterrupt
            return super().encode_pixels(batch)

    cache = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        run(folder, second=Stops(), cache=cache)
    resumed = run(folder, encoder=NumpyEncoder(blind=True), second=SecondEncoder(), cache=cache)
    assert 0 < resumed.second_computed < COUNT
    whole = run(folder, second=SecondEncoder())
    assert bytes_of(resumed, tmp_path / "1.safetensors") == bytes_of(whole, tmp_path / "2.safetensors")


def test_both_see_the_same_corrupted_images_and_the_second_no_views(folder):
    noise = Corruption("gaussian_noise", 3, made_for=32)
    made = run(folder, second=SecondEncoder(), corruption=noise, views=Views(3), storage="float32")
    alone = encode_images(image_set(folder), SecondEncoder(), corruption=noise, storage="float32", workers=0)
    assert made.features.n_views == 3
    np.testing.assert_allclose(made.features.extra["second"], alone.rows[:, 0], atol=1e-6)


def test_images_that_cannot_be_read_are_in_neither(folder):
    (folder / "a" / "broken.png").write_bytes(b"no image")
    made = run(folder, second=SecondEncoder())
    assert [error.name for error in made.skipped] == ["a/broken.png"]
    assert made.features.n_samples == len(made.features.extra["second"]) == COUNT


def test_images_that_only_the_second_cannot_use_are_in_neither(folder):
    class Fussy(SecondEncoder):
        class Preprocessing(type(NumpyEncoder.preprocessing)):
            def __call__(self, image):
                if image.size[0] == 8:
                    raise ValueError("too narrow. Fix: none.")
                return super().__call__(image)

        preprocessing = Preprocessing(
            *(getattr(NumpyEncoder.preprocessing, n) for n in ("resize", "crop", "resample", "table"))
        )

    made, whole = run(folder, second=Fussy()), run(folder)
    narrow = [i for i, name in enumerate(whole.features.sample_names) if int(name[2:5]) % 5 == 0]
    kept = np.setdiff1d(np.arange(COUNT), narrow)
    assert len(narrow) == 3
    assert {error.name for error in made.skipped} == {whole.features.sample_names[i] for i in narrow}
    np.testing.assert_array_equal(made.features.features, whole.features.features[kept])
    np.testing.assert_array_equal(made.features.labels, whole.features.labels[kept])
    assert made.features.sample_names == tuple(whole.features.sample_names[i] for i in kept)
    assert len(made.features.extra["second"]) == len(kept)


@pytest.mark.parametrize(
    ("second", "error", "message"),
    [
        ("facebook/dinov2-base", TypeError, r"second must be an encoder of images; got 'facebook.*Fix: encode.load_im"),
        (NumpyEncoder(), ValueError, r"second is plain, the first encoder itself.*Fix: another encoder"),
    ],
)
def test_invalid_second_encoders_are_refused(folder, second, error, message):
    with pytest.raises(error, match=message):
        run(folder, encoder=NumpyEncoder(blind=True), second=second)


def test_an_encoder_without_text_cannot_be_the_first(folder):
    with pytest.raises(TypeError, match=r"encoder must be an encoder of images and text.*Fix: it can be the second"):
        run(folder, encoder=SecondEncoder(), prompts=VANILLA)


def test_progress_counts_the_images_of_both(folder):
    steps = []
    run(folder, second=SecondEncoder(), progress=lambda what, done, total: steps.append((what, done, total)))
    assert sum(done for what, done, _ in steps if what == "images") == 2 * COUNT
