"""`zeroshift extract`: from every kind of source to one file, with every way of wording the classes."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tarfile

import numpy as np
import pytest

pytest.importorskip("transformers")

from PIL import Image

from data import miniatures
from encode.numpy_encoder import noise
from pet_images import CLASSES, PER_CLASS, encoded, load, prototypes, record, write_pets
from zeroshift.encode.prompts import MODES, Prompts

LABELS = [k for k in range(len(CLASSES)) for _ in range(PER_CLASS)]


@pytest.fixture
def extract(call, model, tmp_path):
    """The JSON record and the features of an `extract` that must go well."""

    def extract(source, *options, env=None):
        out = tmp_path / "features.safetensors"
        done = call("extract", source, "--encoder", model, "--out", out, "--force", "--json", *options, env=env)
        return record(done), load(out)

    return extract


# Where the images come from.


def test_a_labelled_folder(extract, pets, model):
    summary, features = extract(pets)
    paths = [pets / name / f"{i}.png" for name in CLASSES for i in range(PER_CLASS)]
    assert features.class_names == CLASSES
    assert features.labels.tolist() == LABELS
    assert features.sample_names == tuple(path.relative_to(pets).as_posix() for path in paths)
    assert features.features.dtype == np.float16
    np.testing.assert_allclose(features.features, encoded(model, paths), atol=1e-3)
    prompts = [[template.replace("{}", name) for template in MODES["ensemble"].templates] for name in CLASSES]
    np.testing.assert_allclose(features.prototypes["ensemble"], prototypes(model, prompts), atol=1e-5)
    assert summary["out"].endswith("features.safetensors")
    assert (summary["computed"], summary["skipped"], summary["notes"]) == (len(paths), [], [])
    assert summary["cut_prompts"] == {"ensemble": 0}
    assert features.provenance["encoder"]["family"] == "clip"
    assert features.provenance["images"]["source"] == "folder"


def test_a_labelled_folder_read_as_unlabelled(extract, pets):
    _, features = extract(pets, "--unlabelled", "--classes", "sketch,photo")
    assert (features.labels, features.class_names) == (None, ("sketch", "photo"))


def test_an_unlabelled_folder_with_a_file_of_class_names(extract, tmp_path):
    names = write_pets(tmp_path / "photos", labelled=False)
    (tmp_path / "names.txt").write_text("hot_dog\ncat, domestic\n")
    _, features = extract(tmp_path / "photos", "--prompts", "vanilla", "--classes", tmp_path / "names.txt")
    assert features.class_names == ("hot_dog", "cat, domestic")
    assert features.sample_names == tuple(names)
    assert features.labels is None


def test_a_table(extract, pets, tmp_path):
    with open(tmp_path / "list.csv", "w", newline="") as handle:
        csv.writer(handle).writerows([["path", "label"], ["dog/1.png", "dog"], ["cat/0.png", "cat"]])
    _, features = extract(tmp_path / "list.csv", "--data", pets)
    assert features.sample_names == ("dog/1.png", "cat/0.png")
    assert (features.class_names, features.labels.tolist()) == (("cat", "dog"), [1, 0])


def test_a_parquet_table_with_numbers_for_labels(extract, pets, tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table({"path": ["pets/horse/2.png", "pets/cat/0.png"], "label": [2, 0]})
    pq.write_table(table, tmp_path / "list.parquet")
    _, features = extract(tmp_path / "list.parquet", "--classes", "cat,dog,horse")
    assert features.labels.tolist() == [2, 0]
    assert features.sample_names == ("pets/horse/2.png", "pets/cat/0.png")


def test_an_array_with_labels(extract, tmp_path, model):
    pixels = np.stack([np.asarray(noise(seed, 20, 18)) for seed in range(4)])
    np.save(tmp_path / "x.npy", pixels)
    np.save(tmp_path / "y.npy", np.array([1, 0, 0, 1]))
    _, features = extract(tmp_path / "x.npy", "--labels", tmp_path / "y.npy", "--classes", "cat,dog")
    assert features.labels.tolist() == [1, 0, 0, 1]
    for i, picture in enumerate(pixels):
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
    np.testing.assert_allclose(features.features, encoded(model, sorted(tmp_path.glob("?.png"))), atol=1e-3)


@pytest.mark.filterwarnings("default")  # miniatures have fewer images than was published, which is warned of
class TestDataSets:
    @pytest.mark.parametrize("name", ["dtd", "imagenet_a", "fgvc_aircraft"])
    def test_three_of_the_catalogue(self, extract, tmp_path, name):
        miniatures.build(tmp_path / "data", name)
        _, features = extract(name, "--data", tmp_path / "data", "--prompts", "custom")
        assert features.labels.tolist() == miniatures.labels_of(name)
        assert features.provenance["images"]["data_set"] == name
        assert features.prompts == ("custom",)

    def test_a_split_and_the_variable(self, extract, tmp_path):
        miniatures.build(tmp_path / "data", "dtd")
        _, features = extract("dtd", "--split", "val", env={"ZEROSHIFT_DATA": str(tmp_path / "data")})
        assert features.labels.tolist() == miniatures.labels_of("dtd", "val")
        assert features.provenance["images"]["split"] == "val"

    def test_imagenet_c_is_read_from_the_disk(self, extract, tmp_path, model):
        miniatures.build(tmp_path / "data", "imagenet_c")
        options = ("--data", tmp_path / "data", "--corruption", "fog", "--prompts", "vanilla")
        _, features = extract("imagenet_c", *options)
        folder = tmp_path / "data" / miniatures.CLASS_FOLDERS["imagenet_c"][0]
        np.testing.assert_allclose(features.features, encoded(model, sorted(folder.rglob("*.JPEG"))), atol=1e-3)
        images = features.provenance["images"]
        assert (images["corruption"], images["severity"]) == ("fog", 5)
        assert "corruption" not in features.provenance

    def test_fewer_images_than_published_are_reported(self, call, model, tmp_path):
        miniatures.build(tmp_path / "data", "dtd")
        options = ("--data", tmp_path / "data", "--encoder", model, "--out", tmp_path / "f.safetensors", "--quiet")
        done = call("extract", "dtd", *options)
        assert done.exit_code == 0
        assert "warning: dtd has 3 images, 1,692 were published" in done.stderr


# What is done to the images.


def test_a_corruption_is_made_on_the_fly_and_recorded(extract, pets):
    _, clean = extract(pets)
    summary, noisy = extract(pets, "--corruption", "contrast", "--severity", "3")
    assert summary["computed"] == len(LABELS)
    assert not np.allclose(clean.features, noisy.features, atol=1e-2)
    made = noisy.provenance["corruption"]
    assert {name: made[name] for name in ("kind", "severity", "seed", "shorter_side", "side")} == {
        "kind": "contrast", "severity": 3, "seed": 0, "shorter_side": 256, "side": 224,
    }  # fmt: skip
    _, strongest = extract(pets, "--corruption", "contrast", "--seed", "1")
    assert strongest.provenance["corruption"]["severity"] == 5


def test_a_photograph_is_cropped_before_it_is_corrupted(extract, tmp_path, model):
    from zeroshift.data.corruptions import corrupt

    (tmp_path / "one").mkdir()
    noise(1, 60, 40).resize((480, 320)).save(tmp_path / "one" / "a.png")
    _, features = extract(tmp_path / "one", "--classes", "cat,dog", "--corruption", "brightness", "--severity", "2")
    # Brightness draws nothing at random: by hand, 480 x 320 is 384 x 256, of which the middle is taken.
    middle = Image.open(tmp_path / "one" / "a.png").resize((384, 256), Image.Resampling.BILINEAR)
    corrupt(middle.crop((80, 16, 304, 240)), "brightness", 2).save(tmp_path / "by-hand.png")
    np.testing.assert_allclose(features.features, encoded(model, [tmp_path / "by-hand.png"]), atol=1e-3)


def test_views(extract, pets, model):
    _, plain = extract(pets)
    _, features = extract(pets, "--views", "4")
    assert (features.n_views, features.views.shape[:2]) == (4, (len(LABELS), 4))
    np.testing.assert_array_equal(features.views[:, 0], plain.features)  # the first view is the image itself
    assert features.provenance["views"]["n_views"] == 4
    _, mixed = extract(pets, "--views", "4", "--augmix", "--seed", "3")
    assert not np.array_equal(mixed.views[:, 1:], features.views[:, 1:])
    assert mixed.provenance["views"] != features.provenance["views"]


# Classes and prompts.


def test_several_prompt_modes_and_own_templates(extract, pets, tmp_path, model):
    (tmp_path / "mine.txt").write_text("a sketch of a {}.\na {} in the snow.\n")
    _, features = extract(
        pets, "--prompts", "vanilla, custom", "--template", "the {} of art.", "--templates", tmp_path / "mine.txt"
    )
    assert set(features.prompts) == {"vanilla", "custom", "templates"}
    assert features.default_prompt == "vanilla"
    own = [[f"a sketch of a {name}.", f"a {name} in the snow."] for name in CLASSES]
    np.testing.assert_allclose(features.prototypes["templates"], prototypes(model, own), atol=1e-5)
    custom = [[f"the {name} of art."] for name in CLASSES]
    np.testing.assert_allclose(features.prototypes["custom"], prototypes(model, custom), atol=1e-5)
    summary = features.provenance["prompts"]
    assert summary["vanilla"]["hash"] == Prompts.named("vanilla").hash(CLASSES)


def test_templates_alone_are_the_only_mode(extract, pets, tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps(["a sketch of a {}."]))
    _, features = extract(pets, "--templates", tmp_path / "mine.json")
    assert features.prompts == ("templates",)


@pytest.mark.filterwarnings("default")  # the tiny model reads but 24 tokens
def test_descriptions(extract, pets, tmp_path, model):
    sentences = {name: ["pet.", f"a {name}"] for name in CLASSES}
    (tmp_path / "descriptions.json").write_text(json.dumps(sentences))
    _, features = extract(pets, "--descriptions", tmp_path / "descriptions.json")
    assert features.prompts == ("descriptions_ensemble",)
    options = ("--prompts", "descriptions", "--template", "a photo of a {}.")
    _, features = extract(pets, "--descriptions", tmp_path / "descriptions.json", *options)
    # Two full stops in a row become one.
    sentences = [[f"a photo of a {name}, pet.", f"a photo of a {name}, a {name}."] for name in CLASSES]
    np.testing.assert_allclose(features.prototypes["descriptions"], prototypes(model, sentences), atol=1e-5)


@pytest.mark.filterwarnings("default")
def test_prompts_longer_than_the_model_reads_are_reported(call, pets, model, tmp_path):
    options = ("--prompts", "custom", "--template", "the small cat " * 10 + "{}")
    done = call("extract", pets, "-e", model, "-o", tmp_path / "f.safetensors", *options)
    assert done.exit_code == 0
    assert "warning: 3 of 3 prompts are longer than the 24 tokens the model reads" in done.stderr


# The file, and what is printed.


def test_adapt_reads_the_file(extract, call, pets, tmp_path):
    extract(pets)
    summary = record(call("adapt", tmp_path / "features.safetensors", "--out", tmp_path / "p.csv", "--json"))
    assert summary["zero_shot_accuracy"] == pytest.approx(load(tmp_path / "features.safetensors").zero_shot_accuracy())
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 1 + len(LABELS)


def test_the_table_and_warnings(call, pets, model, tmp_path):
    out = tmp_path / "f.safetensors"
    done = call("extract", pets, "--encoder", model, "--out", out, "--storage", "float32", env={"COLUMNS": "200"})
    features = load(out)
    assert features.features.dtype == np.float32
    accuracy = 100 * features.zero_shot_accuracy()
    for line in ("images     9\n", "classes    3\n", f"zero-shot  {accuracy:.1f}% (ensemble)", f"features   {out}"):
        assert line in "\n".join(row.rstrip() for row in done.stdout.splitlines()) + "\n"
    assert call("extract", pets, "--encoder", model, "--out", out, "--force", "--quiet").stdout == ""


def test_files_that_are_not_images_by_name_are_counted(call, pets, model, tmp_path):
    for name in ("cat/1.raw", "notes.txt", ".hidden"):
        (pets / name).touch()
    done = call("extract", pets, "--encoder", model, "--out", tmp_path / "f.safetensors")
    assert done.exit_code == 0
    assert "skipped 2 files: no image by the suffix, or a link to nothing" in done.stderr


@pytest.mark.filterwarnings("default")
def test_sub_folders_are_labels_only_if_all_are_classes(call, pets, model, tmp_path):
    done = call("extract", pets, "--classes", "cat,dog", "--encoder", model, "--out", tmp_path / "f.safetensors")
    assert done.exit_code == 0
    assert "the subfolders horse are not classes, but other subfolders are" in done.stderr
    assert load(tmp_path / "f.safetensors").labels is None


# A second encoder.


def test_a_second_encoder_without_text(extract, call, pets, model, vision_model, tmp_path):
    from zeroshift.encode import load_image_encoder

    extract(pets)
    summary, features = extract(pets, "--second-encoder", vision_model)
    paths = [pets / name / f"{i}.png" for name in CLASSES for i in range(PER_CLASS)]
    assert (summary["computed"], summary["second"], summary["second_computed"]) == (0, "tiny-dinov2", len(paths))
    expected = load_image_encoder(vision_model, device="cpu").encode_images(paths)
    np.testing.assert_allclose(features.extra["tiny-dinov2"], expected, atol=1e-3)
    np.testing.assert_allclose(features.features, encoded(model, paths), atol=1e-3)
    done = call(
        *("extract", pets, "-e", model, "--second-encoder", vision_model, "-o", tmp_path / "again.safetensors"),
        env={"COLUMNS": "200"},
    )
    assert "second encoder  tiny-dinov2, d = 32; 0 images had to be encoded" in done.stdout
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "features.safetensors").read_bytes()


def test_an_encoder_without_text_as_the_first_is_refused(call, pets, vision_model, tmp_path):
    done = call("extract", pets, "-e", vision_model, "-o", tmp_path / "f.safetensors")
    assert done.exit_code == 2
    assert "encodes images alone, and prototypes need text" in " ".join(done.stderr.split())


def test_the_first_encoder_as_second_is_refused(call, pets, model, tmp_path):
    done = call("extract", pets, "-e", model, "--second-encoder", model, "-o", tmp_path / "f.safetensors")
    assert done.exit_code == 2
    assert "the first encoder itself, which would add nothing" in " ".join(done.stderr.split())


def write_tars(folder):
    for number in range(2):
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            for index in range(6):
                content = io.BytesIO()
                noise(10 * number + index, 40, 40).save(content, "png")
                info = tarfile.TarInfo(f"{index}.png")
                info.size = len(content.getvalue())
                tar.addfile(info, io.BytesIO(content.getvalue()))


def test_tars_to_predictions(call, model, tmp_path):
    """Images in tars become features in many files, which `adapt` takes with the prototypes that it finds there."""
    from pyarrow import parquet

    write_tars(tmp_path)
    out = tmp_path / "features"
    options = ("--encoder", model, "--classes", "cat,dog", "--prompts", "vanilla", "--on", "local:1", "--no-cache")
    plan = json.loads(call("extract", tmp_path, *options, "--out", out, "--dry-run", "--json").stdout)["plan"]
    assert (plan["shards"], plan["left"], out.exists()) == (2, 2, False)
    done = call("extract", tmp_path, *options, "--out", out, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["result"]["images"] == 12
    adapted = call("adapt", out, "--on", "local:1", "--out", tmp_path / "answers", "--normalize")
    assert adapted.exit_code == 0, adapted.stderr
    answers = parquet.read_table(tmp_path / "answers" / "predictions")
    assert set(answers["prediction"].to_pylist()) <= {"cat", "dog"}
    assert answers.num_rows == 12
    refused = call("extract", tmp_path, *options, "--out", out, "--views", 4)
    assert refused.exit_code == 2
    assert "--views cannot be used with images in shards" in refused.stderr


def test_a_folder_of_features_keeps_its_prototypes(call, model, tmp_path):
    write_tars(tmp_path)
    out = tmp_path / "features"
    options = ("extract", tmp_path, "--encoder", model, "--on", "local:1", "--no-cache", "--out", out)
    assert call(*options, "--classes", "cat,dog").exit_code == 0
    files = [out / "prototypes.npy", out / "zeroshift.json"]
    before = [path.read_bytes() for path in files]
    refused = call(*options, "--classes", "horse,cow,pig", "--storage", "float32")
    assert refused.exit_code == 2
    assert "another storage" in refused.stderr
    assert [path.read_bytes() for path in files] == before
    assert call(*options).exit_code == 0
    assert [path.read_bytes() for path in files] == before


def test_a_stray_tar_does_not_hide_images(call, pets, model, tmp_path):
    folder = tmp_path / "photos"
    shutil.copytree(pets, folder)
    (folder / "backup.tar").write_bytes(b"")
    done = call("extract", folder, "--encoder", model, "--views", 4, "--out", tmp_path / "f.safetensors")
    assert done.exit_code == 2
    assert "has both tars (backup.tar) and images" in " ".join(done.stderr.split())
