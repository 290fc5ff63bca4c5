"""Encoders that are loaded when they are needed: what is cached needs no model, and a changed model is noticed."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

pytest.importorskip("transformers")

from encode.few_sentences import TOTAL, FewSentences, use_few_names
from encode.numpy_encoder import COUNT, age, bytes_of, noise, run, write_images
from zeroshift.data.image_set import ImageSet
from zeroshift.data.images import ImageArrays
from zeroshift.encode import extract, load_when_needed, recorded, registry
from zeroshift.encode.families.composed import ComposedEncoder, SentencePrototypes
from zeroshift.encode.prompts import Prompts
from zeroshift.encode.recorded import EncoderChangedError, RecordedEncoder, RecordedImageEncoder


@pytest.fixture
def model(tiny_folder, tmp_path):
    """A copy of the tiny CLIP that a test may change, of files that are not new."""
    folder = shutil.copytree(tiny_folder("clip"), tmp_path / "own-clip")
    for path in folder.iterdir():
        age(path)
    return folder


@pytest.fixture
def loads(monkeypatch):
    """The sources of the encoders that were loaded."""
    seen: list[str] = []

    def counted(load):
        def counting(source, **options):
            seen.append(str(source))
            return load(source, **options)

        return counting

    monkeypatch.setattr(registry, "load", counted(registry.load))
    monkeypatch.setattr(registry, "load_image_encoder", counted(registry.load_image_encoder))
    return seen


@pytest.fixture
def load(cache, loads):
    def load(source, **options):
        return load_when_needed(source, **{"device": "cpu", "cache": cache, **options})

    return load


def record_file(cache):
    (path,) = (cache / "encoders").iterdir()
    return path


class TestWhatIsKnown:
    @pytest.mark.parametrize("family", ["clip", "siglip", "siglip2", "blip"])
    def test_is_what_the_loaded_encoder_says(self, load, loads, tiny_folder, family):
        loaded = load(tiny_folder(family))
        assert loaded.is_loaded
        known = load(tiny_folder(family))
        assert isinstance(known, RecordedEncoder)
        for name in (
            "family",
            "source",
            "revision",
            "dimension",
            "logit_scale",
            "logit_bias",
            "text_length",
            "batch_size",
        ):
            assert getattr(known, name) == getattr(loaded, name), name
        assert known.key() == loaded.key()
        assert known.describe() == loaded.describe()
        assert known.describe_preprocessing() == json.loads(json.dumps(loaded.describe_preprocessing()))
        assert len(loads) == 1
        assert not known.is_loaded

    def test_of_an_encoder_without_text(self, load, loads, tiny_folder):
        loaded = load(tiny_folder("dinov2"), images_only=True)
        known = load(tiny_folder("dinov2"), images_only=True)
        assert type(known) is RecordedImageEncoder
        assert (known.key(), known.dimension) == (loaded.key(), loaded.dimension)
        assert len(loads) == 1

    def test_the_rest_is_that_of_the_loaded_encoder(self, load, loads, model):
        loaded, known = load(model), load(model)
        assert known.preprocessing.describe() == loaded.preprocessing.describe()
        assert (known.device, known.dtype) == (loaded.device, loaded.dtype)
        np.testing.assert_array_equal(known.encode_images([noise(1)]), loaded.encode_images([noise(1)]))
        np.testing.assert_array_equal(known.encode_texts(["a cat"]), loaded.encode_texts(["a cat"]))
        assert len(loads) == 2

    def test_without_a_cache_the_encoder_is_loaded_at_once(self, load, loads, model):
        assert [load(model, cache=None).is_loaded for _ in range(2)] == [True, True]
        assert len(loads) == 2

    @pytest.mark.parametrize("option", [{"dtype": "bfloat16"}, {"device": "auto"}])
    def test_other_options_have_another_record(self, load, loads, model, option):
        load(model)
        assert load(model, **option).is_loaded
        assert not load(model, **option).is_loaded
        assert not load(model).is_loaded

    def test_another_version_of_a_library_loads_again(self, load, model, monkeypatch):
        load(model)
        monkeypatch.setattr(recorded, "_version", lambda package: "99")
        assert load(model).is_loaded

    def test_a_given_batch_size_is_used(self, load, model):
        load(model)
        known = load(model, batch_size=3)
        assert known.batch_size == 3
        assert known.loaded.batch_size == 3
        with pytest.raises(ValueError, match="batch_size"):
            load(model, batch_size=0)


class TestExtraction:
    @pytest.fixture
    def first(self, load, model, folder, cache, tmp_path):
        """The file of a first extraction."""
        return bytes_of(run(folder, encoder=load(model), cache=cache), tmp_path / "first.safetensors")

    @pytest.fixture
    def again(self, first, load, model, folder, cache):
        """A later extraction, and whether it loaded the encoder."""

        def again(images=None, **options):
            encoder = load(model)
            made = run(folder if images is None else images, encoder=encoder, cache=cache, **options)
            return made, encoder.is_loaded

        return again

    def test_what_is_cached_needs_no_model_and_gives_the_same_bytes(self, again, first, tmp_path):
        made, loaded = again()
        assert not loaded
        assert made.computed == 0
        assert bytes_of(made, tmp_path / "again.safetensors") == first

    def test_a_new_class_name_loads_it(self, again):
        made, loaded = again(class_names=["frog", "cat"])
        assert loaded
        assert made.computed == 0

    def test_fewer_classes_in_another_order_do_not(self, again, first):
        made, loaded = again(class_names=["dog", "cat"])
        assert not loaded
        assert made.features.class_names == ("dog", "cat")

    def test_new_prompts_load_it(self, again):
        assert again(prompts=Prompts.named("custom", template="art of the {}."))[1]

    def test_a_new_image_loads_it(self, again, folder, cache, model, tmp_path):
        write_images(folder, 2, first=100)
        made, loaded = again()
        assert loaded
        assert made.computed == 2
        whole = run(folder, encoder=registry.load(model, device="cpu"), cache=tmp_path / "other")
        assert made.features.sample_names == whole.features.sample_names
        np.testing.assert_allclose(made.features.features, whole.features.features, atol=1e-3)

    def test_a_changed_image_loads_it(self, again, folder):
        path = next(folder.rglob("*.png"))
        noise(999).save(path)
        age(path)
        made, loaded = again()
        assert loaded
        assert made.computed == 1

    def test_renamed_and_touched_images_do_not(self, again, folder):
        first, second, *_ = sorted(folder.rglob("*.png"))
        first.rename(first.with_name("zzz.png"))
        os.utime(second)
        made, loaded = again()
        assert not loaded
        assert len(made.features.features) == COUNT

    @pytest.mark.parametrize("workers", [0, 2])
    def test_an_image_that_cannot_be_read_does_not(self, again, folder, workers):
        (folder / "a" / "broken.png").write_bytes(b"not an image")
        made, loaded = again(workers=workers)
        assert not loaded
        assert [error.name for error in made.skipped] == ["a/broken.png"]

    def test_a_new_image_after_a_broken_and_a_renamed_one_is_encoded(self, again, folder):
        (folder / "a" / "broken.png").write_bytes(b"not an image")
        first = min(folder.rglob("0*.png"))
        first.rename(first.with_name("aaa.png"))
        write_images(folder, 1, first=100)
        made, loaded = again()
        assert loaded
        assert (made.computed, len(made.features.features), len(made.skipped)) == (1, COUNT + 1, 1)

    def test_images_in_an_array_do_not(self, load, model, cache, tmp_path):
        rows = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
        np.save(tmp_path / "images.npy", rows)
        images = ImageSet("rows", ImageArrays(tmp_path / "images.npy"), class_names=("cat", "dog"))
        options = {"cache": cache, "workers": 0}
        first = extract(images, load(model), Prompts.named("vanilla"), **options)
        encoder = load(model)
        second = extract(images, encoder, Prompts.named("vanilla"), **options)
        assert not encoder.is_loaded
        np.testing.assert_array_equal(first.features.features, second.features.features)

    def test_the_second_encoder_is_not_loaded_either(self, again, load, tiny_folder):
        first, _ = again(second=load(tiny_folder("dinov2"), images_only=True))
        second = load(tiny_folder("dinov2"), images_only=True)
        made, loaded = again(second=second)
        assert not loaded
        assert not second.is_loaded
        assert made.second == first.second
        np.testing.assert_array_equal(made.features.extra[made.second], first.features.extra[first.second])

    def test_a_damaged_part_of_the_cache_loads_it(self, again, cache):
        part = next((cache / "images").rglob("part-*"))
        part.write_bytes(part.read_bytes()[:-20])
        with pytest.warns(UserWarning, match="is damaged and is computed again"):
            made, loaded = again()
        assert loaded
        assert made.computed > 0

    def test_a_cache_of_an_earlier_version_is_used_and_completed(self, again, cache, loads):
        shutil.rmtree(cache / "encoders")
        loads.clear()
        made, loaded = again()
        assert loaded
        assert made.computed == 0
        assert not again()[1]
        assert len(loads) == 1


class TestChangedModels:
    def change(self, folder):
        """Other weights of the same size, with the same modification time."""
        path = folder / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        age(path)

    def test_are_loaded_and_encode_again(self, load, model, folder, cache):
        old = run(folder, encoder=load(model), cache=cache)
        self.change(model)
        encoder = load(model)
        assert encoder.is_loaded
        new = run(folder, encoder=encoder, cache=cache)
        assert new.computed == COUNT
        assert new.features.provenance["encoder"]["revision"] != old.features.provenance["encoder"]["revision"]
        assert not load(model).is_loaded

    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "preprocessor_config.json"])
    def test_every_file_that_matters_counts(self, load, model, name):
        load(model)
        path = model / name
        path.write_text(path.read_text() + "\n")
        assert load(model).is_loaded

    def test_the_same_files_written_again_are_the_same_model(self, load, model):
        load(model)
        for path in model.iterdir():
            path.write_bytes(path.read_bytes())
        assert not load(model).is_loaded

    def test_a_readme_does_not_matter(self, load, model):
        load(model)
        (model / "README.md").write_text("new")
        assert not load(model).is_loaded

    def test_files_that_change_while_the_model_is_loaded_are_not_recorded(self, load, model, monkeypatch, cache):
        inner = registry.load

        def meanwhile(source, **options):
            encoder = inner(source, **options)
            self.change(model)
            return encoder

        monkeypatch.setattr(registry, "load", meanwhile)
        load(model)
        assert not (cache / "encoders").exists()

    def test_an_encoder_that_is_not_as_recorded_is_refused_before_it_encodes(self, load, model, cache, folder):
        run(folder, encoder=load(model), cache=cache)
        path = record_file(cache)
        content = json.loads(path.read_text())
        content["encoder"]["revision"] = "sha256:0000000000000000"
        path.write_text(json.dumps(content))
        known = load(model)
        with pytest.raises(EncoderChangedError, match="own-clip has changed since it was last loaded") as raised:
            run(folder, encoder=known, cache=cache)
        assert raised.value.recorded is known
        assert raised.value.encoder.revision != known.revision
        stored = {part.parent for part in (cache / "images").rglob("part-*")}
        assert len(stored) == 1  # that of the first run


class TestDamagedRecords:
    @pytest.mark.parametrize(
        "damage",
        [
            lambda content: "",
            lambda content: content[: len(content) // 2],
            lambda content: "[]",
            lambda content: content.replace('"schema": 1', '"schema": 2'),
            lambda content: content.replace('"dimension": 16', '"dimension": "16"'),
            lambda content: content.replace('"dimension"', '"size"'),
            lambda content: content.replace('"family": "clip"', '"family": "clap"'),
            lambda content: content.replace('"logit_scale": ', '"logit_scale": null, "other": '),
            lambda content: content.replace('"text_length": ', '"text_length": true, "other": '),
        ],
    )
    def test_are_reported_and_written_again(self, load, model, cache, damage):
        load(model)
        path = record_file(cache)
        content = path.read_text()
        assert damage(content) != content
        path.write_text(damage(content))
        with pytest.warns(UserWarning, match="is damaged, so that the encoder is loaded and recorded again"):
            assert load(model).is_loaded
        assert path.read_text() == content

    def test_a_cache_that_cannot_be_written_is_no_error_here(self, load, model, cache):
        cache.mkdir()
        (cache / "encoders").write_text("a file where the folder goes")
        assert load(model).is_loaded


class TestHub:
    COMMIT = "c" * 40

    @pytest.fixture
    def hub(self, tmp_path, monkeypatch):
        constants = pytest.importorskip("huggingface_hub").constants
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        folder = tmp_path / "hub" / "models--openai--clip"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(self.COMMIT)
        (folder / "snapshots" / self.COMMIT).mkdir(parents=True)
        return folder

    def test_the_commit_is_that_of_the_local_copy(self, hub):
        assert recorded._downloaded_commit("openai/clip", None) == self.COMMIT
        assert recorded._downloaded_commit("openai/clip", self.COMMIT) == self.COMMIT
        assert recorded._downloaded_commit("openai/clip", "v2") is None
        assert recorded._downloaded_commit("openai/other", None) is None
        (hub / "refs" / "main").write_text("d" * 40)  # whose files are not there
        assert recorded._downloaded_commit("openai/clip", None) is None

    @pytest.mark.parametrize("source", ["open_clip:ViT-B-32/laion2b", "hf-hub:laion/clip", "../openai/clip", "clip"])
    def test_other_sources_have_none(self, hub, source):
        assert recorded._downloaded_commit(source, None) is None

    def test_a_newer_commit_loads_again(self, hub, load, loads, model, monkeypatch):
        def from_folder(source, **options):
            loads.append(source)
            encoder = inner(model, **options)
            encoder.source, encoder.revision = source, (hub / "refs" / "main").read_text()
            return encoder

        inner = registry.load
        monkeypatch.setattr(registry, "load", from_folder)
        assert load("openai/clip").is_loaded
        assert not load("openai/clip").is_loaded
        newer = "d" * 40
        (hub / "snapshots" / newer).mkdir()
        (hub / "refs" / "main").write_text(newer)
        assert load("openai/clip").is_loaded
        assert load("openai/clip").revision == newer


class TestComposed:
    """Prototypes of the composed encoder, with a handful of sentences instead of seven thousand."""

    @pytest.fixture(autouse=True)
    def few_names(self, monkeypatch):
        use_few_names(monkeypatch)

    @pytest.mark.parametrize("templates", [None, ["a drawing of a {}."]])
    def test_a_second_object_reads_the_map_and_needs_no_model(self, cache, templates):
        means = np.random.default_rng(1).normal(size=(2, 384))
        first = FewSentences(cache)
        expected = first.finish_prototypes(means, templates)
        second = FewSentences(cache)
        np.testing.assert_array_equal(second.finish_prototypes(means, templates), expected)
        assert first.batches
        assert second.batches == []

    def test_fitting_reports_its_progress(self, cache):
        models, seen = FewSentences(cache), []
        models.fit_progress = lambda what, done, total: seen.append((done, total))
        models.finish_prototypes(np.ones((1, 384)))
        assert seen[0] == (0, TOTAL)
        assert sum(done for done, _ in seen) == TOTAL
        assert models.batches == [done for done, _ in seen[1:]]
        assert max(models.batches) == 4

    def test_only_this_family_needs_a_class_of_its_own(self):
        from zeroshift.encode.encoder import Encoder

        for family in registry.list_families():
            if family.has_text and family.name != "composed":
                assert family.cls().finish_prototypes is Encoder.finish_prototypes, family.name
        assert issubclass(ComposedEncoder, SentencePrototypes)
        assert issubclass(recorded.RecordedComposedEncoder, SentencePrototypes)
