"""Extraction with a cache: nothing is computed twice, and unusable images are skipped."""

from __future__ import annotations

import os
import shutil
import time

import numpy as np
import pytest
from PIL import Image

from encode.numpy_encoder import (
    COUNT,
    PREPROCESSING,
    VANILLA,
    NumpyEncoder,
    age,
    bytes_of,
    image_set,
    noise,
    run,
    write_images,
)
from zeroshift.data.corruptions import Corruption
from zeroshift.data.image_set import ImageSet
from zeroshift.data.images import ImageFiles
from zeroshift.encode import Views, extract
from zeroshift.encode.encoder import UNKNOWN_REVISION
from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table
from zeroshift.tensor_files import read_tensors, write_tensors


class TestNothingTwice:
    def test_new_class_names_run_only_the_text_encoder(self, folder, cache):
        first = run(folder, cache=cache)
        blind = NumpyEncoder(blind=True)
        made = run(folder, encoder=blind, cache=cache, class_names=["frog", "cat"])
        assert made.computed == 0
        assert blind.prompts == ["a photo of a frog."]  # the cat is known
        np.testing.assert_array_equal(made.features.features, first.features.features)

    def test_a_real_model_is_not_called_again(self, folder, cache, tiny_encoder, monkeypatch):
        encoder = tiny_encoder("siglip")
        run(folder, encoder=encoder, cache=cache)

        def refuses(*_):
            raise AssertionError("the image side must not run")

        monkeypatch.setattr(type(encoder), "_image_features", refuses)
        assert run(folder, encoder=encoder, cache=cache, class_names=["horse"]).computed == 0

    def test_known_files_are_not_even_read(self, folder, cache, monkeypatch):
        run(folder, cache=cache)

        def refuses(*_):
            raise AssertionError("must not be read")

        monkeypatch.setattr(ImageFiles, "read", refuses)
        assert run(folder, encoder=NumpyEncoder(blind=True), cache=cache).computed == 0

    def test_one_more_image_is_one_more(self, folder, cache):
        run(folder, cache=cache)
        write_images(folder, 1, first=COUNT)
        made = run(folder, cache=cache, storage="float16")
        assert made.computed == 1
        np.testing.assert_allclose(made.features.features, run(folder).features.features, atol=1e-3)

    def test_a_changed_image_is_one(self, folder, cache):
        run(folder, cache=cache)
        noise(77, 12, 8).save(folder / "a/000.png")
        made = run(folder, cache=cache)
        assert made.computed == 1
        np.testing.assert_array_equal(made.features.features, run(folder).features.features)

    def test_a_file_changed_within_its_size_and_second(self, folder, cache):
        """The modification time of a file that was just written is not reliable."""
        bmp, soon = folder / "a/young.bmp", int(time.time()) + 1000
        noise(50, 9, 9).save(bmp)
        age(bmp, soon)
        run(folder, cache=cache)
        noise(51, 9, 9).save(bmp)
        age(bmp, soon)
        assert run(folder, cache=cache).computed == 1

    def test_a_folder_moved_and_files_renamed(self, folder, cache, tmp_path):
        first = run(folder, cache=cache)
        moved = tmp_path / "elsewhere" / "animals"
        moved.parent.mkdir()
        shutil.move(folder, moved)
        shutil.move(moved / "a/000.png", moved / "a/zz.png")
        made = run(moved, encoder=NumpyEncoder(blind=True), cache=cache)
        assert made.computed == 0
        assert made.features.sample_names[5] == "a/zz.png"
        np.testing.assert_array_equal(made.features.features[5], first.features.features[0])

    def test_equal_images_are_encoded_once(self, folder, cache):
        shutil.copy(folder / "a/000.png", folder / "a/zz.png")  # in another shard
        shutil.copy(folder / "a/000.png", folder / "a/000b.png")  # in the same
        encoder = NumpyEncoder()
        made = run(folder, encoder=encoder, cache=cache)
        assert made.computed == COUNT == sum(encoder.batches)
        assert made.features.n_samples == COUNT + 2
        rows = [made.features.sample_names.index(name) for name in ("a/000.png", "a/000b.png", "a/zz.png")]
        assert len(np.unique(made.features.features[rows], axis=0)) == 1

    @pytest.mark.parametrize(
        "change",
        [
            {"views": Views(2)},
            {"views": Views(2, seed=1)},
            {"corruption": Corruption("fog", 3)},
            {"corruption": Corruption("fog", 4)},
            {"storage": "float32"},
            {"encoder": NumpyEncoder(revision="2")},
        ],
        ids=["views", "seed", "corruption", "severity", "storage", "revision"],
    )
    def test_whatever_decides_features_is_in_the_key(self, folder, cache, change):
        run(folder, cache=cache)
        run(folder, cache=cache, views=Views(2, seed=2))
        run(folder, cache=cache, corruption=Corruption("fog", 5))
        assert run(folder, cache=cache, **change).computed == COUNT
        assert run(folder, cache=cache, **change).computed == 0

    @pytest.mark.parametrize(
        ("attribute", "value"),
        [
            ("dtype", "bfloat16"),
            ("revision", "another"),
            ("family", "another"),
            (
                "preprocessing",
                PixelPreprocessing(("exact", 6, 6), None, "bicubic", affine_table([0.5] * 3, [0.25] * 3)),
            ),
        ],
    )
    def test_so_is_whatever_the_encoder_is(self, folder, cache, attribute, value):
        run(folder, cache=cache)
        other = NumpyEncoder()
        setattr(other, attribute, value)
        assert run(folder, cache=cache, encoder=other).computed == COUNT

    def test_but_not_what_it_is_called(self, folder, cache):
        run(folder, cache=cache)
        other = NumpyEncoder()
        other.source = "another"
        made = run(folder, cache=cache, encoder=other)
        assert made.computed == 0
        assert made.features.provenance["encoder"]["source"] == "another"
        nameless = NumpyEncoder()
        nameless.revision = UNKNOWN_REVISION  # then its name is all there is to tell it by
        assert run(folder, cache=cache, encoder=nameless).computed == COUNT

    def test_swapped_files_are_detected(self, tmp_path, cache):
        """Of one size and one time, as copies with their times kept are."""
        (tmp_path / "two").mkdir()
        one, two = tmp_path / "two/a.bmp", tmp_path / "two/b.bmp"
        for path, seed in ((one, 1), (two, 2)):
            noise(seed, 20, 20).save(path)
            os.utime(path, (10**9, 10**9))
        images = image_set(tmp_path / "two", labelled=False)
        before = extract(images, NumpyEncoder(), VANILLA, class_names=["cat", "dog"], cache=cache).features.features
        one.rename(tmp_path / "aside")
        two.rename(one)
        (tmp_path / "aside").rename(two)
        made = extract(images, NumpyEncoder(), VANILLA, class_names=["cat", "dog"], cache=cache)
        np.testing.assert_array_equal(made.features.features, before[::-1])
        assert made.computed == 0

    @pytest.mark.parametrize("side", ["images", "text"])
    def test_a_part_in_which_a_bit_turned_is_computed_again(self, folder, cache, tmp_path, side):
        first = bytes_of(run(folder, cache=cache), tmp_path / "one.safetensors")
        part = sorted(cache.glob(f"{side}/*/part-*"))[0]
        row = read_tensors(part, kind="part", schema=2)[0]["rows"][0].tobytes()
        content = bytearray(part.read_bytes())
        content[bytes(content).index(row) + 1] ^= 1
        part.write_bytes(content)
        with pytest.warns(UserWarning, match="is damaged and is computed again"):
            again = run(folder, cache=cache)
        assert bytes_of(again, tmp_path / "two.safetensors") == first
        assert run(folder, cache=cache).computed == 0

    def test_a_part_of_a_newer_zeroshift_is_not_deleted(self, folder, cache):
        run(folder, cache=cache)
        part = sorted(cache.glob("images/*/part-*"))[0]
        newer = part.with_name("part-newer.safetensors")
        write_tensors(newer, {"rows": np.zeros((1, 2))}, {"kind": "part", "schema": 99})
        assert run(folder, cache=cache).computed == 0
        assert newer.exists()

    def test_orientation_is_part_of_the_key(self, folder, cache):
        run(folder, cache=cache)
        images = image_set(folder)
        turned = ImageSet("pets", ImageFiles(folder, images.images.names, upright=True), ("cat", "dog"))
        assert extract(turned, NumpyEncoder(), VANILLA, cache=cache, workers=0).computed == COUNT

    def test_a_damaged_part_is_computed_again(self, folder, cache, tmp_path):
        first = bytes_of(run(folder, cache=cache), tmp_path / "one.safetensors")
        part = sorted(cache.glob("images/*/part-*"))[0]
        part.write_bytes(part.read_bytes()[:-5])
        with pytest.warns(UserWarning, match="is damaged and is computed again"):
            made = run(folder, cache=cache)
        assert 3 <= made.computed <= 4
        assert bytes_of(made, tmp_path / "two.safetensors") == first

    @pytest.mark.parametrize("failing", [1, 2, 3, 4, 5])
    def test_a_batch_that_fails_spoils_nothing(self, folder, cache, tmp_path, failing):
        """The next batches, and the end of the shard, wait in line already when one fails."""

        class Fails(NumpyEncoder):
            def encode_pixels(self, batch):
                time.sleep(0.02)
                if len(self.batches) + 1 == failing:
                    raise ValueError("the device is gone")
                return super().encode_pixels(batch)

        with pytest.raises(ValueError, match="the device is gone"):
            run(folder, encoder=Fails(batch_size=2), cache=cache)
        whole_shards = (failing - 1) // 2
        assert len(list(cache.glob("images/*/part-*"))) == whole_shards
        made = run(folder, encoder=NumpyEncoder(batch_size=2), cache=cache)
        assert made.computed == COUNT - 4 * whole_shards
        fresh = bytes_of(run(folder, encoder=NumpyEncoder(batch_size=2)), tmp_path / "fresh.safetensors")
        assert bytes_of(made, tmp_path / "made.safetensors") == fresh

    def test_without_a_cache_nothing_remains(self, folder, tmp_path, monkeypatch):
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
        (tmp_path / "tmp").mkdir()
        monkeypatch.setattr("tempfile.tempdir", None)
        run(folder)
        assert list((tmp_path / "tmp").iterdir()) == []


class TestImagesThatCannotBeUsed:
    @pytest.fixture(autouse=True)
    def bad(self, folder):
        (folder / "a/001.png").write_bytes(b"no picture")
        content = (folder / "b/001.png").read_bytes()
        (folder / "b/0010.png").write_bytes(content[: len(content) // 2])
        for name in ("a/001.png", "b/0010.png"):
            age(folder / name)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_are_left_out_and_listed(self, folder, cache, workers):
        for expected in (COUNT, 0):
            made = run(folder, cache=cache, workers=workers)
            assert [error.name for error in made.skipped] == ["a/001.png", "b/0010.png"]
            assert made.computed == expected
            assert made.features.n_samples == COUNT
            assert made.features.labels.tolist() == [0] * 6 + [1] * 5
            assert "a/001.png" not in made.features.sample_names
            assert made.features.provenance["skipped"] == ["a/001.png", "b/0010.png"]
            kept = [i for i, name in enumerate(image_set(folder).images.names) if name in made.features.sample_names]
            assert made.features.provenance["file_list_hash"] == image_set(folder).subset(kept).hash()

    @pytest.mark.parametrize("workers", [0, 2])
    def test_or_stop_the_run_at_the_first(self, folder, workers):
        with pytest.raises(ValueError, match=r"^a/001.png: .*Fix: "):
            run(folder, on_error="stop", workers=workers)

    def test_missing_files_too(self, folder):
        names = (*image_set(folder).images.names, "gone.png")
        images = ImageSet("pets", ImageFiles(folder, names), ("cat", "dog"))
        made = extract(images, NumpyEncoder(), VANILLA, workers=0)
        assert [error.name for error in made.skipped] == ["a/001.png", "b/0010.png", "gone.png"]

    def test_images_too_small_for_a_corruption(self, folder):
        noise(0, 5, 5).save(folder / "b/small.png")
        made = run(folder, corruption=Corruption("fog", 3))
        assert [error.name for error in made.skipped] == ["a/001.png", "b/0010.png", "b/small.png"]
        assert "at least 8" in str(made.skipped[-1])
        assert str(made.skipped[-1]).count("Fix:") == 1

    def test_lines_of_pixels_too(self, folder):
        Image.new("RGB", (60_000, 1)).save(folder / "b/line.png")
        encoder = NumpyEncoder()
        encoder.preprocessing = PixelPreprocessing(("shorter", 6), (6, 6), "bicubic", PREPROCESSING.table)
        assert "b/line.png" not in [error.name for error in run(folder, encoder=encoder).skipped]
        encoder.preprocessing = PixelPreprocessing(("shorter", 260), (6, 6), "bicubic", PREPROCESSING.table)
        made = run(folder, encoder=encoder)
        assert "60000 x 1 pixels are too long and thin to be resized" in str(made.skipped[-1])

    def test_none_left(self, tmp_path):
        top = tmp_path / "none"
        (top / "a").mkdir(parents=True)
        (top / "a/x.png").write_bytes(b"bad")
        (top / "a/y.png").write_bytes(b"bad too")
        with pytest.raises(ValueError, match=r"none of the 2 images can be used. The first: a/x.png: "):
            run(top)

    def test_what_is_out_of_the_ordinary_is_noted(self, tmp_path):
        (tmp_path / "frames/a").mkdir(parents=True)
        frames = [noise(i) for i in range(3)]
        frames[0].save(tmp_path / "frames/a/moving.gif", save_all=True, append_images=frames[1:])
        ((name, note),) = run(tmp_path / "frames").notes
        assert name == "a/moving.gif"
        assert "first" in note
