"""Extraction: features, prototypes, provenance and invalid arguments."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

from encode.numpy_encoder import (
    COUNT,
    PREPROCESSING,
    VANILLA,
    NumpyEncoder,
    bytes_of,
    image_set,
    noise,
    run,
    text_feature,
    unit,
    write_images,
)
from zeroshift.data.corruptions import Corruption
from zeroshift.data.image_set import ImageSet
from zeroshift.data.images import ImageArrays, ImageFiles
from zeroshift.encode import Prompts, Views, encode_images, extract
from zeroshift.features import FeatureSet
from zeroshift.tensor_files import read_header


def by_hand(folder, names) -> np.ndarray:
    """The encoder's own equations, one image at a time."""
    from PIL import Image

    rows = []
    for name in names:
        pixels = PREPROCESSING.values(PREPROCESSING(Image.open(folder / name).convert("RGB"))[0])
        rows.append(unit(pixels.reshape(-1).astype(np.float64) @ NumpyEncoder().weights.astype(np.float64)))
    return np.stack(rows)


class TestWhatComesOut:
    def test_features_prototypes_labels_names(self, folder):
        made = run(folder, storage="float32")
        names = image_set(folder).images.names
        np.testing.assert_allclose(made.features.features, by_hand(folder, names), atol=1e-6)
        expected = [text_feature(f"a photo of a {name}.") for name in ("cat", "dog")]
        np.testing.assert_allclose(made.features.prototypes["vanilla"], expected, atol=1e-6)
        assert made.features.sample_names == names
        assert made.features.class_names == ("cat", "dog")
        assert made.features.labels.tolist() == [0] * 6 + [1] * 5
        assert made.features.logit_scale == 50.0
        assert (made.computed, made.skipped, made.notes, made.cut_prompts) == (COUNT, (), (), {"vanilla": 0})

    @pytest.mark.parametrize("storage", ["float16", "float32"])
    def test_storage(self, folder, storage):
        made = run(folder, storage=storage).features
        assert made.features.dtype == storage
        assert made.prototypes["vanilla"].dtype == np.float32
        whole = run(folder, storage="float32").features.features
        np.testing.assert_array_equal(made.features, whole.astype(storage))

    @pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
    def test_kinds_of_files(self, tmp_path, suffix):
        names = write_images(tmp_path / "files", 5, suffix=suffix)
        made = run(tmp_path / "files", storage="float32").features
        np.testing.assert_allclose(made.features, by_hand(tmp_path / "files", names), atol=1e-6)

    def test_rows_of_an_array(self, folder, tmp_path, cache):
        pictures = np.stack([np.asarray(noise(i)) for i in range(5)])
        np.save(tmp_path / "pictures.npy", pictures)
        images = ImageSet("array", ImageArrays(tmp_path / "pictures.npy"))
        made = extract(images, NumpyEncoder(), VANILLA, class_names=["cat", "dog"], storage="float32", cache=cache)
        for i in range(5):
            noise(i).save(tmp_path / f"{i}.png")
        expected = by_hand(tmp_path, [f"{i}.png" for i in range(5)])
        np.testing.assert_allclose(made.features.features, expected, atol=1e-6)
        assert made.features.sample_names == tuple(f"pictures.npy[{i}]" for i in range(5))
        again = extract(images, NumpyEncoder(blind=True), VANILLA, class_names=["cat"], storage="float32", cache=cache)
        assert again.computed == 0

    def test_images_without_labels(self, folder):
        images = image_set(folder, labelled=False)
        with pytest.raises(ValueError, match=r"pets has no class names. Fix: pass class_names"):
            extract(images, NumpyEncoder(), VANILLA)
        made = extract(images, NumpyEncoder(), VANILLA, class_names=["frog", "horse", "cat"], workers=0).features
        assert made.labels is None
        assert made.class_names == ("frog", "horse", "cat")
        assert made.n_samples == COUNT

    def test_other_class_names_than_the_images_own_leave_no_labels(self, folder):
        assert run(folder, class_names=["frog", "horse"]).features.labels is None
        assert run(folder, class_names=["dog", "cat"]).features.labels is None
        assert run(folder, class_names=["cat", "dog"]).features.labels is not None

    @pytest.mark.parametrize("given", [None, ["missile", "cat", "missile"]])
    def test_classes_of_the_same_name(self, folder, given):
        files = image_set(folder).images
        images = ImageSet("net", files, class_names=("missile", "cat", "missile"), labels=[0, 1, 2] + [0] * 8)
        made = extract(images, NumpyEncoder(), VANILLA, class_names=given, workers=0).features
        assert made.class_names == ("missile", "cat", "missile (2)")
        assert made.labels.tolist()[:3] == [0, 1, 2]
        np.testing.assert_array_equal(made.prototypes["vanilla"][0], made.prototypes["vanilla"][2])
        np.testing.assert_allclose(made.prototypes["vanilla"][2], text_feature("a photo of a missile."), atol=1e-6)

    def test_several_prompt_modes(self, folder):
        modes = [Prompts.from_templates(["a sketch of a {}.", "one {}"]), VANILLA, Prompts.named("ensemble")]
        made = run(folder, prompts=modes)
        assert set(made.features.prompts) == {"templates", "vanilla", "ensemble"}
        assert made.features.default_prompt == "templates"
        mean = np.mean(
            [text_feature("a sketch of a dog.").astype(float), text_feature("one dog").astype(float)], axis=0
        )
        np.testing.assert_allclose(made.features.prototypes["templates"][1], unit(mean), atol=1e-6)

    def test_truncated_prompts(self, folder, cache):
        long = Prompts.from_templates(["a photo of a {} " + "very " * 9 + "good.", "{}"])
        for _ in range(2):
            with pytest.warns(UserWarning, match="2 of 4 prompts are longer than the 12 tokens"):
                made = run(folder, prompts=long, cache=cache)
            assert made.cut_prompts == {"templates": 2}
            assert made.features.provenance["prompts"]["templates"]["cut"] == 2

    def test_views(self, folder, cache):
        plain = run(folder, storage="float32")
        made = run(folder, views=Views(3), storage="float32", cache=cache)
        assert made.features.views.shape == (COUNT, 3, 8)
        np.testing.assert_array_equal(made.features.views[:, 0], made.features.features)
        np.testing.assert_allclose(made.features.features, plain.features.features, atol=1e-6)
        assert made.features.provenance["views"] == Views(3).describe()
        assert not np.allclose(made.features.views[:, 1], made.features.views[:, 2], atol=1e-3)
        mixed = run(folder, views=Views(3, augmix=True), storage="float32", cache=cache)
        np.testing.assert_allclose(mixed.features.features, plain.features.features, atol=1e-6)
        assert not np.allclose(mixed.features.views[:, 1], made.features.views[:, 1], atol=1e-3)

    def test_a_corruption(self, folder):
        noisy = Corruption("gaussian_noise", 5)
        made = run(folder, corruption=noisy)
        assert made.features.provenance["corruption"] == json.loads(json.dumps(noisy.describe()))
        assert not np.allclose(made.features.features, run(folder).features.features, atol=1e-3)
        # The same image is corrupted alike under another name, and whoever decodes it.
        shutil.move(folder / "a/000.png", folder / "a/zzz.png")
        moved = run(folder, corruption=noisy, workers=2).features
        assert moved.sample_names.index("a/zzz.png") == 5
        np.testing.assert_array_equal(moved.features[5], made.features.features[0])

    def test_progress_adds_up(self, folder, cache):
        (folder / "a/bad.png").write_bytes(b"bad")
        for _ in range(2):
            calls = []
            run(folder, cache=cache, progress=lambda what, done, total, calls=calls: calls.append((what, done, total)))
            for what, total in (("texts", 2), ("images", COUNT + 1)):
                assert sum(done for name, done, _ in calls if name == what) == total
                assert {all_of for name, _, all_of in calls if name == what} == {total}


class TestProvenance:
    def test_describe_and_repr(self, folder):
        images, encoder = image_set(folder), NumpyEncoder()
        provenance = run(folder).features.provenance
        assert provenance["made_by"] == "zeroshift extract"
        assert provenance["images"]["name"] == "pets"
        assert provenance["file_list_hash"] == images.hash()
        assert provenance["encoder"] == {**encoder.describe(), "logit_bias": None}
        assert provenance["encoder"]["revision"] == "1"
        assert provenance["preprocessing"] == PREPROCESSING.describe()
        assert provenance["prompts"]["vanilla"]["hash"] == VANILLA.hash(["cat", "dog"])
        assert provenance["prompts"]["vanilla"]["templates"] == ["a photo of a {}."]
        assert provenance["skipped"] == []
        assert "views" not in provenance

    # The second's own image processor is called in the worker.
    @pytest.mark.parametrize(("family", "workers"), [("clip", 0), pytest.param("siglip2", 1, marks=pytest.mark.slow)])
    def test_no_path_of_this_machine_is_in_the_file(self, folder, tmp_path, tiny_encoder, tiny_folder, family, workers):
        (folder / "b/bad.png").write_bytes(b"bad")
        made = run(folder, encoder=tiny_encoder(family), cache=tmp_path / "cache", views=Views(2), workers=workers)
        made.features.save(tmp_path / "set.safetensors")
        header = json.dumps(read_header(tmp_path / "set.safetensors", kind="features", schema=2))
        content = (tmp_path / "set.safetensors").read_bytes()
        for path in (tmp_path, tiny_folder(family).parent, os.path.expanduser("~")):
            assert str(path) not in header
            assert str(path).encode() not in content
        assert json.loads(header)["provenance"]["skipped"] == ["b/bad.png"]
        loaded = FeatureSet.load(tmp_path / "set.safetensors")
        assert loaded.provenance == made.features.provenance
        assert loaded.sample_names == made.features.sample_names


class TestTheSameBytes:
    def test_with_fresh_caches_with_and_without_workers_and_with_none(self, folder, tmp_path, tiny_encoder):
        encoder = tiny_encoder("clip")
        files = [
            bytes_of(run(folder, encoder=encoder, **options), tmp_path / f"{i}.safetensors")
            for i, options in enumerate(
                [
                    {"cache": tmp_path / "one"},
                    {"cache": tmp_path / "two"},
                    {"cache": tmp_path / "two"},  # from the cache
                    {"cache": tmp_path / "three", "workers": 2},
                    {},
                    {"workers": 1},
                ]
            )
        ]
        assert set(files) == {files[0]}

    def test_views(self, folder, tmp_path):
        options = {"views": Views(3, augmix=True), "encoder": NumpyEncoder(batch_dependent=True)}
        one = bytes_of(run(folder, **options), tmp_path / "one.safetensors")
        assert one == bytes_of(run(folder, workers=2, cache=tmp_path / "c", **options), tmp_path / "two.safetensors")
        assert one == bytes_of(run(folder, cache=tmp_path / "c", **options), tmp_path / "three.safetensors")

    def test_batches_are_full_across_images(self, folder):
        encoder = NumpyEncoder(batch_size=4)
        run(folder, encoder=encoder, views=Views(3), shard_rows=1000)
        assert encoder.batches == [4] * 8 + [1]


class TestBadArguments:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"on_error": "ignore"}, "on_error must be .*skip.*stop.*ignore"),
            ({"storage": "float64"}, "storage must be .*float16.*float32.*float64"),
            ({"shard_rows": 0}, "shard_rows must be .*0"),
            ({"workers": -1}, "workers must be .*-1"),
            ({"prompts": []}, "prompts is empty; at least one prompt mode"),
            ({"prompts": [VANILLA, VANILLA]}, "prompts must differ in their mode; got vanilla, vanilla. Fix: keep one"),
            ({"class_names": ["cat", "dog", "cat"]}, "class_names must differ from each other; repeated: 'cat'"),
            ({"class_names": ["cat", " "]}, r"class_names\[1\] is empty"),
            ({"class_names": "cat,dog"}, "class_names must be a sequence of names; got the single string 'cat,dog'"),
        ],
    )
    def test_are_refused_before_anything_is_computed(self, folder, options, message):
        encoder = NumpyEncoder(blind=True)
        with pytest.raises((TypeError, ValueError), match=message):
            run(folder, encoder=encoder, **options)
        assert encoder.prompts == []

    def test_descriptions_that_are_missing(self, folder):
        described = Prompts.named("descriptions", template="a {}.", descriptions={"cat": ["It purrs."]})
        encoder = NumpyEncoder(blind=True)
        with pytest.raises(ValueError, match="dog"):
            run(folder, encoder=encoder, prompts=[VANILLA, described])
        assert encoder.prompts == []

    def test_no_images(self, tmp_path):
        with pytest.raises(ValueError, match="none has no images; at least one is needed"):
            extract(ImageSet("none", ImageFiles(tmp_path, ()), ("cat",)), NumpyEncoder(), VANILLA)


def test_only_the_image_encoder(folder, cache):
    outcome = encode_images(image_set(folder), NumpyEncoder(), views=Views(2), cache=cache, workers=0, shard_rows=4)
    assert outcome.indices == list(range(COUNT))
    assert outcome.rows.shape == (COUNT, 2, 8)
    assert outcome.rows.dtype == np.float16
    np.testing.assert_array_equal(outcome.rows, run(folder, views=Views(2), cache=cache).features.views)
