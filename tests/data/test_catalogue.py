"""Miniature data sets in each layout: files, labels and classes."""

import json

import pytest

pytest.importorskip("PIL")
from data import miniatures
from zeroshift.data import catalogue
from zeroshift.data.catalogue.files import class_list

COUNTS_ONLY = pytest.mark.filterwarnings("ignore::zeroshift.data.catalogue.CountWarning")


def variant(id):
    return {"corruption": "fog"} if id == "imagenet_c" else {}


@COUNTS_ONLY
@pytest.mark.parametrize("id", miniatures.ALL)
def test_adapt_layout(tmp_path, id):
    miniatures.build(tmp_path, id)
    images = catalogue.load(id, tmp_path, **variant(id))
    info = catalogue.get(id)
    assert images.labels.tolist() == miniatures.labels_of(id)
    assert (images.n_classes, images.template, images.descriptions) == (
        info.n_classes,
        info.template,
        info.descriptions,
    )
    assert not images.images.upright
    for i in range(len(images)):
        assert images.images.open(i).image.size == (12, 8)
    assert images.provenance["images"] == len(images)
    assert images.provenance["published_images"] == info.counts["test"]
    assert str(tmp_path) not in json.dumps(images.provenance)
    moved = tmp_path / "moved"
    miniatures.build(moved, id)
    again = catalogue.load(id, moved, **variant(id))
    assert (again.hash(), again.provenance) == (images.hash(), images.provenance)


@COUNTS_ONLY
@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("id", [*miniatures.SPLIT_FILES, "fgvc_aircraft"])
def test_other_splits_of_fine_grained_sets(tmp_path, id, split):
    miniatures.build(tmp_path, id)
    images = catalogue.load(id, tmp_path, split)
    assert images.labels.tolist() == miniatures.labels_of(id, split)
    assert images.provenance["split"] == split
    assert set(images.images.names).isdisjoint(catalogue.load(id, tmp_path).images.names)


@COUNTS_ONLY
@pytest.mark.parametrize(
    ("id", "folder"),
    [
        ("imagenet", "imagenet/images/val"),
        ("imagenet", "ImageNet/val"),
        ("imagenet_a", "imagenet-adversarial/imagenet-a"),
        ("imagenet_a", "imagenet-a"),
        ("imagenet_a", "imagenet-a/images"),
        ("imagenet_r", "imagenet-rendition/imagenet-r"),
        ("imagenet_r", "imagenet-r"),
        ("imagenet_r", "imagenet-r/images"),
        ("imagenetv2", f"imagenetv2/{miniatures.MATCHED}"),
        ("imagenetv2", miniatures.MATCHED),
        ("imagenetv2", f"{miniatures.MATCHED}/images"),
        ("imagenet_sketch", "imagenet-sketch/images"),
        ("imagenet_sketch", "ImageNet-Sketch"),
        ("imagenet_sketch", "ImageNet-Sketch/images"),
        ("imagenet_c", "imagenet-c/fog/5"),
    ],
)
def test_imagenet_family_in_other_layouts(tmp_path, id, folder):
    miniatures.class_folders(tmp_path / folder, miniatures.CLASS_FOLDERS[id][1])
    images = catalogue.load(id, tmp_path, **variant(id))
    assert images.labels.tolist() == miniatures.labels_of(id)
    assert images.provenance["layout"] == folder


@COUNTS_ONLY
@pytest.mark.parametrize("id", miniatures.SPLIT_FILES)
def test_coop_layout(tmp_path, id):
    folder, images, *_ = miniatures.SPLIT_FILES[id]
    miniatures.split_file(id, tmp_path / folder, tmp_path / folder / images)
    assert catalogue.load(id, tmp_path).labels.tolist() == miniatures.labels_of(id)


@COUNTS_ONLY
def test_a_folder_with_images_and_lists_is_preferred(tmp_path):
    for id in ("dtd", "fgvc_aircraft"):
        miniatures.build(tmp_path, id)
        folder = tmp_path / "fine-grained" / id
        folder.rename(tmp_path / id)
        (folder / "images").mkdir(parents=True)
        assert catalogue.load(id, tmp_path).provenance["layout"] == f"{id}/images"


@COUNTS_ONLY
@pytest.mark.parametrize("splits", ["data_splits", "data/data_splits"])
@pytest.mark.parametrize(
    ("id", "images"),
    [
        ("oxford_flowers", "Flower102/jpg"),
        ("dtd", "DTD/images"),
        ("oxford_pets", "OxfordPets"),
        ("stanford_cars", "StanfordCars"),
        ("ucf101", "UCF101"),
        ("caltech101", "Caltech101"),
        ("food101", "Food101/images"),
        ("sun397", "SUN397"),
        ("eurosat", "eurosat"),
    ],
)
def test_tpt_layout(tmp_path, id, images, splits):
    name = f"split_zhou_{miniatures.SPLIT_FILES[id][2]}.json"
    miniatures.split_file(id, tmp_path, tmp_path / images, tmp_path / splits / name)
    assert catalogue.load(id, tmp_path).labels.tolist() == miniatures.labels_of(id)


@COUNTS_ONLY
def test_labels_of_imagenetv2_follow_its_folders_as_strings(tmp_path):
    miniatures.build(tmp_path, "imagenetv2")
    images = catalogue.load("imagenetv2", tmp_path)
    name_of = {images.images.names[i].split("/")[0]: images.class_names[k] for i, k in enumerate(images.labels)}
    # ImageNet's classes 0, 1, 2, 10 and 999.
    assert name_of == {
        "0": "tench",
        "1": "goldfish",
        "2": "great white shark",
        "10": "brambling",
        "999": "toilet paper",
    }


@COUNTS_ONLY
def test_the_two_missile_classes_of_imagenet_get_different_names(tmp_path):
    miniatures.build(tmp_path, "imagenet")
    images = catalogue.load("imagenet", tmp_path)
    assert images.class_names[657] == images.class_names[744] == "missile"
    unique = images.unique_class_names()
    assert (unique[657], unique[744]) == ("missile", "missile (n04008634)")
    assert len(set(unique)) == 1000


@COUNTS_ONLY
def test_eurosat_has_two_lists_of_class_names(tmp_path):
    miniatures.build(tmp_path, "eurosat")
    adapt, coop = catalogue.load("eurosat", tmp_path), catalogue.load("eurosat", tmp_path, class_names="coop")
    assert (adapt.class_names[1], coop.class_names[1]) == ("forest", "Forest")
    assert (adapt.provenance["class_names"], coop.provenance["class_names"]) == ("adapt", "coop")
    assert adapt.hash() == coop.hash()


@COUNTS_ONLY
def test_a_corruption_is_part_of_the_name(tmp_path):
    labels = miniatures.CLASS_FOLDERS["imagenet_c"][1]
    miniatures.class_folders(tmp_path / "corruption/imagenet-c/jpeg_compression/2", labels, per_class=1)
    images = catalogue.load("imagenet_c", tmp_path, corruption="jpeg_compression", severity=2)
    assert (images.name, len(images)) == ("imagenet_c_jpeg_compression_2", 2)
    assert (images.provenance["corruption"], images.provenance["severity"]) == ("jpeg_compression", 2)


def test_an_incomplete_data_set_is_a_warning(tmp_path):
    miniatures.build(tmp_path, "imagenet_a")
    message = (
        r"imagenet_a has 6 images, 7,500 were published; 197 of 200 classes have none: junco, .*, \.\.\.\. Its numbers"
    )
    with pytest.warns(catalogue.CountWarning, match=message):
        catalogue.load("imagenet_a", tmp_path)


def test_a_complete_data_set_gives_no_warning(tmp_path):
    labels = {folder: k for k, folder in enumerate(class_list("imagenet_a").folders)}
    for folder in labels:
        for number in range(38 if labels[folder] < 100 else 37):  # 7,500 in all
            miniatures.put(tmp_path / "imagenet-a" / folder / f"{number}.jpg", b"")
    images = catalogue.load("imagenet_a", tmp_path)
    assert (len(images), images.empty_classes) == (7500, ())
