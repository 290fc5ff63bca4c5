"""The entries of the catalogue: ids, aliases, published counts and class names."""

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("PIL")
from data import miniatures
from zeroshift.data import catalogue
from zeroshift.data.catalogue.files import LISTS, class_list

SOURCE = Path(__file__).parents[3] / "shared" / "prompts" / "classnames_templates.json"


def test_all_sixteen_are_listed_once():
    ids = [info.id for info in catalogue.list()]
    assert sorted(ids) == sorted(miniatures.ALL)
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
def test_aliases(name, id):
    assert catalogue.get(name).id == id


def test_a_misspelt_name_is_corrected():
    with pytest.raises(
        ValueError,
        match=r"there is no data set 'oxford_flwers'\. Did you mean 'oxford_flowers'\? Fix: one of imagenet, ",
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
    """The order of labels, checked at the first, an unusual and the last label."""
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
