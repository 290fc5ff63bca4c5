"""Missing and damaged data sets are refused with a fix."""

import pytest

pytest.importorskip("PIL")
from data import miniatures
from zeroshift.data import catalogue

COUNTS_ONLY = pytest.mark.filterwarnings("ignore::zeroshift.data.catalogue.CountWarning")


@COUNTS_ONLY
def test_folders_of_other_classes_are_refused(tmp_path):
    miniatures.build(tmp_path, "imagenet_a")
    top = tmp_path / miniatures.CLASS_FOLDERS["imagenet_a"][0]
    (top / "empty").mkdir()
    (top / ".cache").mkdir()
    assert len(catalogue.load("imagenet_a", tmp_path)) == 6
    miniatures.class_folders(top, {"n01440764": 0, "n01443537": 0, "n01484850": 0, "n01491361": 0})
    message = r"has 4 folders with images that are none of the 200 expected classes: .*"
    message += r"n01440764, n01443537, n01484850, \.\.\.\. Fix"
    with pytest.raises(ValueError, match=message):
        catalogue.load("imagenet_a", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "imagenet", "split": "train"},
            r"split must be 'test', the only split of ImageNet; got 'train' for",
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
def test_unknown_arguments_are_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        catalogue.load(root=tmp_path, **arguments)


def test_a_missing_data_set_lists_the_searched_folders(tmp_path):
    (tmp_path / "imagenet-a").mkdir()  # empty, so it is not the data set
    folders = (
        "domain_shift_datastes/imagenet-a/imagenet-a, imagenet-adversarial/imagenet-a, imagenet-a, imagenet-a/images"
    )
    with pytest.raises(
        FileNotFoundError, match=rf"imagenet_a was not found in .*; searched {folders}\. Fix: move it to one"
    ):
        catalogue.load("imagenet_a", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no folder at .*nowhere\. Fix"):
        catalogue.load("dtd", tmp_path / "nowhere")


@pytest.mark.parametrize("id", ["stanford_cars", "sun397", "fgvc_aircraft"])
def test_a_listed_file_that_is_missing_is_an_error(tmp_path, id):
    miniatures.build(tmp_path, id)
    with pytest.warns(catalogue.CountWarning):
        images = catalogue.load(id, tmp_path)
    for name in images.images.names[1:]:
        (images.images.root / name).unlink()
    missing = len(images) - 1
    first = images.images.names[1]
    message = (
        rf"{missing} of the {len(images)} test images of {id} are missing from .*; the first is {first}\. Fix: extract"
    )
    with pytest.raises(FileNotFoundError, match=message):
        catalogue.load(id, tmp_path)
    with pytest.warns(catalogue.CountWarning):
        catalogue.load(id, tmp_path, "train")


def test_split_files_with_errors_are_refused(tmp_path):
    miniatures.build(tmp_path, "dtd")
    path = tmp_path / "fine-grained" / "dtd" / "split_zhou_DescribableTextures.json"
    errors = {
        "nonsense": r"is not JSON \(.*\)\. Fix: download it again",
        '["a"]': r"is not a split file: it must map splits to lists\. Fix",
        '{"test": 3}': "is not a split file",
        '{"test": [["a.jpg", 47, "x"]]}': r"'test', entry 0: the label is 47, but with 47 classes .* 0 to 46\. Fix",
        '{"test": [["a.jpg", -1]]}': "the label is -1",
        '{"train": [["a.jpg", "3"]]}': r"'train', entry 0: \['a\.jpg', '3'\] is not \[path, label, class name\]\. Fix",
        '{"test": [["a.jpg", true]]}': "is not ",
        '{"test": ["a.jpg"]}': r"'a\.jpg' is not ",
        '{"train": []}': r"has no split 'test', only train\. Fix",
    }
    for text, message in errors.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            catalogue.load("dtd", tmp_path)
    path.unlink()
    message = (
        r"no split_zhou_DescribableTextures\.json for dtd in .*; searched fine-grained/dtd/split_zhou_.*, "
        r"data_splits/split_zhou_.*, data/data_splits/split_zhou_.*\. Fix: download it"
    )
    with pytest.raises(FileNotFoundError, match=message):
        catalogue.load("dtd", tmp_path)


def test_aircraft_lists_with_errors_are_refused(tmp_path):
    miniatures.build(tmp_path, "fgvc_aircraft")
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
