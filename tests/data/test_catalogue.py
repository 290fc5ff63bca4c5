"""The sixteen data sets, each read from a miniature of its published layout."""

import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("PIL")
from data import trees
from zeroshift.data import catalogue
from zeroshift.data.catalogue.class_lists import LISTS, class_list

COUNTS_ONLY = pytest.mark.filterwarnings("ignore::zeroshift.data.catalogue.CountWarning")
SOURCE = Path(__file__).parents[3] / "shared" / "prompts" / "classnames_templates.json"


def asked(id):
    return {"corruption": "fog"} if id == "imagenet_c" else {}


# What the catalogue says


def test_all_sixteen_are_listed_once():
    ids = [info.id for info in catalogue.list()]
    assert sorted(ids) == sorted(trees.ALL)
    assert len(ids) == 16
    spellings = [spelling for info in catalogue.list() for spelling in (info.id, *info.aliases)]
    assert [spelling for spelling, count in Counter(spellings).items() if count > 1] == []


def test_numbers_are_those_published():
    """(classes, test images, train images), from the table of the ADAPT layout; val from CoOp's."""
    published = {
        "imagenet": (1000, 50000, None, None),
        "imagenet_a": (200, 7500, None, None),
        "imagenet_r": (200, 30000, None, None),
        "imagenetv2": (1000, 10000, None, None),
        "imagenet_sketch": (1000, 50889, None, None),
        "imagenet_c": (1000, 50000, None, None),
        "oxford_flowers": (102, 2463, 4093, 1633),
        "dtd": (47, 1692, 2820, 1128),
        "oxford_pets": (37, 3669, 2944, 736),
        "stanford_cars": (196, 8041, 6509, 1635),
        "ucf101": (101, 3783, 7639, 1898),
        "caltech101": (100, 2465, 4128, 1649),
        "food101": (101, 30300, 50500, 20200),
        "sun397": (397, 19850, 15880, 3970),
        "fgvc_aircraft": (100, 3333, 3334, 3333),
        "eurosat": (10, 8100, 13500, 5400),
    }
    for info in catalogue.list():
        count = info.counts.get
        assert (info.n_classes, count("test"), count("train"), count("val")) == published[info.id], info.id
        for name in info.class_lists.values():
            assert len(class_list(name).names) == info.n_classes


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("pets", "oxford_pets"),
        ("cars", "stanford_cars"),
        ("aircraft", "fgvc_aircraft"),
        ("Flowers", "oxford_flowers"),
        ("flower102", "oxford_flowers"),
        ("caltech-101", "caltech101"),
        ("ImageNet-A", "imagenet_a"),
        ("imagenet_v2", "imagenetv2"),
        ("imagenetv2", "imagenetv2"),
        ("sketch", "imagenet_sketch"),
        ("Food-101", "food101"),
    ],
)
def test_data_sets_go_by_other_names(name, id):
    assert catalogue.get(name).id == id


def test_a_wrong_name_is_answered_with_the_right_one():
    with pytest.raises(
        ValueError,
        match=r"no data set is called 'oxford_flwers'\. Did you mean 'oxford_flowers'\? Fix: one of imagenet, ",
    ):
        catalogue.get("oxford_flwers")


def test_class_names_of_imagenet_and_its_parts():
    imagenet = class_list("imagenet")
    assert [k for k, name in enumerate(imagenet.names) if name == "missile"] == [657, 744]
    assert [k for k, name in enumerate(imagenet.names) if name == "sunglasses"] == [836, 837]
    assert len(set(imagenet.names)) == 998
    assert list(imagenet.wnids) == sorted(set(imagenet.wnids))
    for part in ("imagenet_a", "imagenet_r"):
        assert list(class_list(part).wnids) == sorted(set(class_list(part).wnids))
        assert set(class_list(part).wnids) < set(imagenet.wnids)


def test_class_names_of_the_fine_grained_sets():
    """The order of labels, checked where a slip would show: the first, an odd one, the last."""
    expected = {
        "oxford_flowers": {0: "pink primrose", 1: "hard-leaved pocket orchid", 101: "blackberry lily"},
        "dtd": {0: "banded", 46: "zigzagged"},
        "oxford_pets": {0: "abyssinian", 36: "yorkshire_terrier"},
        "stanford_cars": {0: "2000 AM General Hummer SUV", 195: "2012 smart fortwo Convertible"},
        "ucf101": {0: "Apply_Eye_Makeup", 100: "Yo_Yo"},
        "caltech101": {0: "face", 4: "airplane"},
        "food101": {0: "apple_pie", 100: "waffles"},
        "sun397": {0: "abbey", 396: "youth_hostel"},
        "fgvc_aircraft": {0: "707-320", 99: "Yak-42"},
        "eurosat": {2: "brushland or shrubland", 9: "lake or sea"},
        "eurosat_coop": {2: "Herbaceous Vegetation Land", 9: "Sea or Lake"},
    }
    for name, some in expected.items():
        assert {k: class_list(name).names[k] for k in some} == some


@pytest.mark.skipif(not SOURCE.is_file(), reason="the source of the lists is not part of the project")
def test_the_lists_are_what_the_script_writes(tmp_path):
    import runpy

    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "write_lists.py"))
    script["write_lists"](SOURCE, tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_bytes() for path in LISTS.glob("*.txt")}


# What it reads


@COUNTS_ONLY
@pytest.mark.parametrize("id", trees.ALL)
def test_each_is_read_from_its_layout(tmp_path, id):
    trees.build(tmp_path, id)
    images = catalogue.load(id, tmp_path, **asked(id))
    info = catalogue.get(id)
    assert images.labels.tolist() == trees.labels_of(id)
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
    trees.build(moved, id)
    again = catalogue.load(id, moved, **asked(id))
    assert (again.hash(), again.provenance) == (images.hash(), images.provenance)


@COUNTS_ONLY
@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("id", [*trees.SPLIT_FILES, "fgvc_aircraft"])
def test_other_splits_of_fine_grained_sets(tmp_path, id, split):
    trees.build(tmp_path, id)
    images = catalogue.load(id, tmp_path, split)
    assert images.labels.tolist() == trees.labels_of(id, split)
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
        ("imagenetv2", f"imagenetv2/{trees.MATCHED}"),
        ("imagenetv2", trees.MATCHED),
        ("imagenetv2", f"{trees.MATCHED}/images"),
        ("imagenet_sketch", "imagenet-sketch/images"),
        ("imagenet_sketch", "ImageNet-Sketch"),
        ("imagenet_sketch", "ImageNet-Sketch/images"),
        ("imagenet_c", "imagenet-c/fog/5"),
    ],
)
def test_the_imagenet_family_in_the_layouts_of_others(tmp_path, id, folder):
    trees.class_folders(tmp_path / folder, trees.CLASS_FOLDERS[id][1])
    images = catalogue.load(id, tmp_path, **asked(id))
    assert images.labels.tolist() == trees.labels_of(id)
    assert images.provenance["layout"] == folder


@COUNTS_ONLY
@pytest.mark.parametrize("id", trees.SPLIT_FILES)
def test_fine_grained_sets_in_the_layout_of_coop(tmp_path, id):
    folder, images, *_ = trees.SPLIT_FILES[id]
    trees.split_file(id, tmp_path / folder, tmp_path / folder / images)
    assert catalogue.load(id, tmp_path).labels.tolist() == trees.labels_of(id)


@COUNTS_ONLY
def test_a_place_with_images_and_lists_is_taken_before_one_with_images_alone(tmp_path):
    for id in ("dtd", "fgvc_aircraft"):
        trees.build(tmp_path, id)
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
def test_fine_grained_sets_in_the_layout_of_tpt(tmp_path, id, images, splits):
    name = f"split_zhou_{trees.SPLIT_FILES[id][2]}.json"
    trees.split_file(id, tmp_path, tmp_path / images, tmp_path / splits / name)
    assert catalogue.load(id, tmp_path).labels.tolist() == trees.labels_of(id)


@COUNTS_ONLY
def test_labels_of_imagenetv2_follow_its_folders_as_strings(tmp_path):
    trees.build(tmp_path, "imagenetv2")
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
def test_imagenets_two_missiles_are_told_apart(tmp_path):
    trees.build(tmp_path, "imagenet")
    images = catalogue.load("imagenet", tmp_path)
    assert images.class_names[657] == images.class_names[744] == "missile"
    unique = images.unique_class_names()
    assert (unique[657], unique[744]) == ("missile", "missile (n04008634)")
    assert len(set(unique)) == 1000


@COUNTS_ONLY
def test_eurosat_has_two_lists_of_names(tmp_path):
    trees.build(tmp_path, "eurosat")
    adapt, coop = catalogue.load("eurosat", tmp_path), catalogue.load("eurosat", tmp_path, class_names="coop")
    assert (adapt.class_names[1], coop.class_names[1]) == ("forest", "Forest")
    assert (adapt.provenance["class_names"], coop.provenance["class_names"]) == ("adapt", "coop")
    assert adapt.hash() == coop.hash()


@COUNTS_ONLY
def test_a_corruption_is_part_of_the_name(tmp_path):
    labels = trees.CLASS_FOLDERS["imagenet_c"][1]
    trees.class_folders(tmp_path / "corruption/imagenet-c/jpeg_compression/2", labels, per_class=1)
    images = catalogue.load("imagenet_c", tmp_path, corruption="jpeg_compression", severity=2)
    assert (images.name, len(images)) == ("imagenet_c_jpeg_compression_2", 2)
    assert (images.provenance["corruption"], images.provenance["severity"]) == ("jpeg_compression", 2)


def test_a_part_of_a_data_set_is_told(tmp_path):
    trees.build(tmp_path, "imagenet_a")
    message = (
        r"imagenet_a has 6 images here, 7,500 as published; 197 of 200 classes have none: junco, .*, \.\.\.\. Numbers"
    )
    with pytest.warns(catalogue.CountWarning, match=message):
        catalogue.load("imagenet_a", tmp_path)


def test_a_whole_data_set_is_read_without_a_word(tmp_path):
    labels = {folder: k for k, folder in enumerate(class_list("imagenet_a").folders)}
    for folder in labels:
        for number in range(38 if labels[folder] < 100 else 37):  # 7,500 in all
            trees.put(tmp_path / "imagenet-a" / folder / f"{number}.jpg", b"")
    images = catalogue.load("imagenet_a", tmp_path)
    assert (len(images), images.empty_classes) == (7500, ())


# What it refuses


@COUNTS_ONLY
def test_folders_of_other_classes_are_refused(tmp_path):
    trees.build(tmp_path, "imagenet_a")
    top = tmp_path / trees.CLASS_FOLDERS["imagenet_a"][0]
    (top / "empty").mkdir()
    (top / ".cache").mkdir()
    assert len(catalogue.load("imagenet_a", tmp_path)) == 6
    trees.class_folders(top, {"n01440764": 0, "n01443537": 0, "n01484850": 0, "n01491361": 0})
    message = (
        r"has 4 folders with images that are none of the 200 classes.*: n01440764, n01443537, n01484850, \.\.\.\. Fix"
    )
    with pytest.raises(ValueError, match=message):
        catalogue.load("imagenet_a", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "imagenet", "split": "train"},
            r"split can only be 'test': ImageNet has test images alone.*'train' for",
        ),
        (
            {"name": "dtd", "split": "tset"},
            r"split must be 'train', 'val', 'test'; got 'tset' for dtd\. Did you mean 'test'\? Fix",
        ),
        (
            {"name": "dtd", "corruption": "fog"},
            r"dtd has no corruptions; got corruption='fog'\. Fix: load 'imagenet_c'",
        ),
        ({"name": "imagenet_c"}, r"corruption must be one of gaussian_noise, .*; got None\. Fix"),
        ({"name": "imagenet_c", "corruption": "frosty"}, r"got 'frosty'\. Did you mean 'frost'\?"),
        ({"name": "imagenet_c", "corruption": "fog", "severity": 6}, r"severity must be 1, 2, 3, 4 or 5; got 6\. Fix"),
        ({"name": "dtd", "class_names": "coop"}, r"class_names must be 'adapt' for dtd; got 'coop'\. Fix"),
        (
            {"name": "eurosat", "class_names": "cop"},
            r"must be 'adapt' or 'coop' for eurosat; got 'cop'\. Did you mean 'coop'\?",
        ),
    ],
)
def test_what_does_not_exist_is_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        catalogue.load(root=tmp_path, **arguments)


def test_a_data_set_that_is_not_there_is_told_with_every_place(tmp_path):
    (tmp_path / "imagenet-a").mkdir()  # empty, so it is not the data set
    places = (
        "domain_shift_datastes/imagenet-a/imagenet-a, imagenet-adversarial/imagenet-a, imagenet-a, imagenet-a/images"
    )
    with pytest.raises(
        FileNotFoundError, match=rf"imagenet_a is not below .*; looked in {places}\. Fix: put it into one"
    ):
        catalogue.load("imagenet_a", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no folder at .*nowhere\. Fix"):
        catalogue.load("dtd", tmp_path / "nowhere")


@pytest.mark.parametrize("id", ["stanford_cars", "sun397", "fgvc_aircraft"])
def test_a_listed_file_that_is_missing_is_an_error(tmp_path, id):
    trees.build(tmp_path, id)
    with pytest.warns(catalogue.CountWarning):
        images = catalogue.load(id, tmp_path)
    for name in images.images.names[1:]:
        (images.images.root / name).unlink()
    missing = len(images) - 1
    first = images.images.names[1]
    message = rf"{missing} of the {len(images)} test images of {id} are not in .*; the first is {first}\. Fix: extract"
    with pytest.raises(FileNotFoundError, match=message):
        catalogue.load(id, tmp_path)
    with pytest.warns(catalogue.CountWarning):
        catalogue.load(id, tmp_path, "train")


def test_split_files_with_faults_are_refused(tmp_path):
    trees.build(tmp_path, "dtd")
    path = tmp_path / "fine-grained" / "dtd" / "split_zhou_DescribableTextures.json"
    faults = {
        "nonsense": r"is not JSON \(.*\)\. Fix: download it again",
        '["a"]': r"is no split file: it must map splits to lists\. Fix",
        '{"test": 3}': "is no split file",
        '{"test": [["a.jpg", 47, "x"]]}': r"'test', entry 0: the label is 47, but with 47 classes .* 0 to 46\. Fix",
        '{"test": [["a.jpg", -1]]}': "the label is -1",
        '{"train": [["a.jpg", "3"]]}': r"'train', entry 0: \['a\.jpg', '3'\] is not \[path, label, class name\]\. Fix",
        '{"test": [["a.jpg", true]]}': "is not ",
        '{"test": ["a.jpg"]}': r"'a\.jpg' is not ",
        '{"train": []}': r"has no split 'test', only train\. Fix",
    }
    for text, message in faults.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            catalogue.load("dtd", tmp_path)
    path.unlink()
    message = (
        r"no split_zhou_DescribableTextures\.json for dtd below .*; looked for fine-grained/dtd/split_zhou_.*, "
        r"data_splits/split_zhou_.*, data/data_splits/split_zhou_.*\. Fix: download it"
    )
    with pytest.raises(FileNotFoundError, match=message):
        catalogue.load("dtd", tmp_path)


def test_aircraft_lists_with_faults_are_refused(tmp_path):
    trees.build(tmp_path, "fgvc_aircraft")
    folder = tmp_path / "fine-grained" / "fgvc_aircraft"
    (folder / "images_variant_test.txt").write_text("1514522 Yak-42\n\n1514522 Yak-24\n")
    with pytest.raises(
        ValueError, match=r"images_variant_test\.txt, line 3: 'Yak-24' is none of .* Did you mean 'Yak-42'\? Fix"
    ):
        catalogue.load("aircraft", tmp_path)
    variants = (folder / "variants.txt").read_text()
    (folder / "variants.txt").write_text(variants.replace("A310\nA318", "A318\nA310"))
    with pytest.raises(ValueError, match=r"variants\.txt, line 23: 'A318' where FGVC-Aircraft has 'A310'\. Fix"):
        catalogue.load("aircraft", tmp_path)
    (folder / "variants.txt").write_text("Yak-42\n")
    with pytest.raises(ValueError, match=r"variants\.txt lists 1 classes; FGVC-Aircraft has 100 variants\. Fix"):
        catalogue.load("aircraft", tmp_path)
    (folder / "variants.txt").write_bytes(b"\xff\xff")
    with pytest.raises(ValueError, match=r"variants\.txt is not UTF-8 text"):
        catalogue.load("aircraft", tmp_path)
    (folder / "variants.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"no file variants\.txt in .*Fix: copy it there"):
        catalogue.load("aircraft", tmp_path)
