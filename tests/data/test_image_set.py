"""`ImageSet`: images with their classes and labels."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from zeroshift.data.image_set import ImageSet
from zeroshift.data.images import ImageArrays, ImageFiles

FILES = ImageFiles(Path("pets"), ("cat/1.jpg", "dog/1.jpg", "dog/2.jpg"))


def pets(**different) -> ImageSet:
    fields = {"class_names": ["cat", "dog"], "labels": [0, 1, 1], "template": "a photo of a {}."}
    return ImageSet("pets", FILES, **{**fields, **different})


def test_fields_are_normalised():
    images = pets(descriptions="pets.json", provenance={"split": ("test",)})
    assert (len(images), images.n_classes, images.class_names) == (3, 2, ("cat", "dog"))
    assert images.labels.dtype == np.int64
    assert not images.labels.flags.writeable
    assert images.provenance == {"split": ["test"]}
    assert repr(images) == "ImageSet('pets', 3 images, 2 classes, labelled)"


def test_classes_and_labels_may_be_unknown():
    images = ImageSet("pets", FILES)
    assert (images.n_classes, images.unique_class_names(), images.empty_classes) == (0, (), ())
    assert repr(images) == "ImageSet('pets', 3 images, no labels)"
    assert pets(labels=None).empty_classes == ()


def test_labels_are_copied():
    labels = np.array([0, 1, 1])
    images = pets(labels=labels)
    labels[:] = 0
    assert images.labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("different", "error", "message"),
    [
        (
            {"labels": [0, 2, 1]},
            ValueError,
            r"the label of dog/1\.jpg is 2; with 2 classes .* 0 to 1\. Fix: count from 0",
        ),
        ({"labels": [0, 1, -1]}, ValueError, r"the label of dog/2\.jpg is -1"),
        ({"labels": [0, 1]}, ValueError, r"labels must have one entry per image, shape \(3,\); got shape \(2,\)\. Fix"),
        ({"labels": ["a", "b", "c"]}, TypeError, r"labels must be integers.* got <U1\. Fix: \[class_names\.index"),
        ({"labels": [0.0, 1.0, 1.0]}, TypeError, "got float64"),
        ({"class_names": None}, ValueError, r"labels are given without class_names\. Fix: pass class_names="),
        ({"class_names": "cat"}, TypeError, r"class_names must be a sequence of names; got 'cat'\. Fix"),
        ({"class_names": ("cat", " ")}, ValueError, r"class_names\[1\] must be a name that is not blank; got ' '"),
        ({"class_names": ("cat", 3)}, ValueError, r"class_names\[1\]"),
        (
            {"class_ids": ("n1",)},
            ValueError,
            r"class_ids must be different.* got 1 \(1 different\) for 2 classes\. Fix",
        ),
        ({"class_ids": ("n1", "n1")}, ValueError, r"got 2 \(1 different\)"),
        ({"template": "a photo"}, ValueError, r"template must have \{\} once.*got 'a photo'\. Fix"),
        ({"template": "{} {}"}, ValueError, "template must have"),
        ({"provenance": {"path": Path("x")}}, TypeError, "provenance must be JSON-serialisable"),
    ],
)
def test_invalid_arguments_are_refused(different, error, message):
    with pytest.raises(error, match=message):
        pets(**different)


def test_a_subset_keeps_the_classes():
    part = pets().subset([2, 0])
    assert (part.images.names, part.labels.tolist(), part.class_names) == (
        ("dog/2.jpg", "cat/1.jpg"),
        [1, 0],
        ("cat", "dog"),
    )
    assert part.provenance == {"subset": {"images": 2, "of": 3}}
    assert pets().subset(np.array([True, False, False])).empty_classes == ("dog",)
    with pytest.raises(IndexError, match="indices contains 3"):
        pets().subset([3])


def test_a_subset_of_arrays(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 4, 5), np.uint8))
    part = ImageSet("a", ImageArrays(tmp_path / "a.npy")).subset([2])
    assert (len(part), part.images.name(0), part.labels) == (1, "a.npy[2]", None)


def test_repeated_names_are_made_unique():
    files = ImageFiles(Path("."), ())
    names = ("missile", "crane", "missile", "missile")
    by_number = ImageSet("x", files, class_names=names).unique_class_names()
    assert by_number == ("missile", "crane", "missile (2)", "missile (3)")
    by_id = ImageSet("x", files, class_names=names, class_ids=("n1", "n2", "n3", "n4")).unique_class_names()
    assert by_id == ("missile", "crane", "missile (n3)", "missile (n4)")
    taken = ("a", "a", "a (2)", "a")
    assert ImageSet("x", files, class_names=taken).unique_class_names() == ("a", "a (3)", "a (2)", "a (4)")


def test_hash_of_names_and_labels():
    expected = b'["cat/1.jpg", 0]\n["dog/1.jpg", 1]\n["dog/2.jpg", 1]\n'
    assert pets().hash() == hashlib.sha256(expected).hexdigest()
    elsewhere = ImageFiles(Path("/other/root"), FILES.names)
    assert ImageSet("b", elsewhere, class_names=("x", "y"), labels=[0, 1, 1]).hash() == pets().hash()
    others = [pets(labels=[0, 1, 0]), pets(labels=None), pets().subset([1, 0, 2]), pets().subset([0, 1])]
    assert len({images.hash() for images in [pets(), *others]}) == 5


def test_names_of_any_bytes_can_be_hashed():
    ImageSet("a", ImageFiles(Path("."), ("caf\udce9.jpg", "ä\n.jpg"))).hash()
