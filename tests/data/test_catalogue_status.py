"""The status of data sets in a root folder."""

import pytest

pytest.importorskip("PIL")
from data import miniatures
from zeroshift.data.catalogue.files import class_list
from zeroshift.data.catalogue.status import check
from zeroshift.data.corruptions import KINDS as CORRUPTIONS


def status_of(root, id):
    (status,) = check(root, only=[id])
    return status


def test_nothing_is_found_in_an_empty_folder(tmp_path):
    statuses = check(tmp_path)
    assert [status.id for status in statuses][:2] == ["imagenet", "imagenet_a"]
    assert len(statuses) == 16
    for status in statuses:
        assert (status.state, status.location, status.found, status.problems) == ("missing", None, 0, ("not found",))
        assert status.looked_in
    assert status_of(tmp_path, "pets").looked_in == (
        "fine-grained/oxford_pets/images",
        "oxford_pets/images",
        "OxfordPets",
    )


def test_miniature_data_sets_are_incomplete(tmp_path):
    miniatures.build_all(tmp_path)
    statuses = {status.id: status for status in check(tmp_path)}
    for id, status in statuses.items():
        if id == "imagenet_c":
            continue
        assert status.state == ("incomplete" if id in miniatures.CLASS_FOLDERS else "differs"), id
        assert status.found == len(miniatures.labels_of(id))
        assert status.unit == "test images"
    assert statuses["imagenet_a"].problems == (
        "197 of 200 class folders missing or empty: n01534433, n01558993, n01580077, ...",
        "6 of 7,500 images",
    )
    assert statuses["imagenet_a"].location == "domain_shift_datastes/imagenet-a/imagenet-a"
    assert statuses["dtd"].problems == ("3 test images, 1,692 were published",)
    assert (statuses["stanford_cars"].location, statuses["dtd"].location) == (
        "fine-grained/stanford_cars",
        "fine-grained/dtd/images",
    )


def test_corruptions_are_counted(tmp_path):
    folders = class_list("imagenet").folders
    for corruption in CORRUPTIONS:
        for folder in folders[: 1000 if corruption == "fog" else 3]:
            (tmp_path / "imagenet-c" / corruption / "5" / folder).mkdir(parents=True)
    (tmp_path / "imagenet-c" / "snow" / "5").rename(tmp_path / "imagenet-c" / "snow" / "4")
    status = status_of(tmp_path, "imagenet_c")
    assert (status.state, status.location, status.found, status.expected) == ("incomplete", "imagenet-c", 1, 15)
    assert status.unit == "corruptions"
    assert status.problems[0] == "gaussian_noise/5: 3 of 1,000 class folders"
    assert status.problems[-1] == "missing: snow/5"
    assert len(status.problems) == 14


def test_a_complete_set_has_no_problems(tmp_path):
    for corruption in CORRUPTIONS:
        target = tmp_path / "imagenet-c" / corruption
        target.mkdir(parents=True)
        if corruption == CORRUPTIONS[0]:
            for folder in class_list("imagenet").folders:
                (target / "5" / folder).mkdir(parents=True)
        else:
            (target / "5").symlink_to(tmp_path / "imagenet-c" / CORRUPTIONS[0] / "5", target_is_directory=True)
    assert status_of(tmp_path, "imagenet_c").state == "complete"
    for label, folder in enumerate(class_list("imagenet_a").folders):
        for number in range(38 if label < 100 else 37):
            miniatures.put(tmp_path / "imagenet-a" / folder / f"{number}.jpg", b"")
    status = status_of(tmp_path, "imagenet_a")
    assert (status.state, status.found, status.expected, status.problems) == ("complete", 7500, 7500, ())
    miniatures.put(tmp_path / "imagenet-a" / folder / "one_more.jpg", b"")
    assert status_of(tmp_path, "imagenet_a").state == "differs"


def test_missing_images_and_lists_are_named(tmp_path):
    miniatures.build(tmp_path, "food101")
    folder = tmp_path / "fine-grained" / "food-101"
    (folder / "images" / "apple_pie" / "1.jpg").unlink()
    (folder / "images" / "apple_pie" / "3.jpg").unlink()
    status = status_of(tmp_path, "food101")
    assert (status.state, status.found) == ("incomplete", 2)
    assert status.problems == (
        "1 of 2 train images missing: apple_pie/3.jpg",
        "1 of 3 test images missing: apple_pie/1.jpg",
    )
    split = folder / "split_zhou_Food101.json"
    split.write_text('{"test": []}')
    assert status_of(tmp_path, "food101").problems == (
        "the split file has no split 'train'",
        "the split file has no split 'val'",
    )
    split.write_text("?")
    assert "is not JSON" in status_of(tmp_path, "food101").problems[0]
    split.unlink()
    (problem,) = status_of(tmp_path, "food101").problems
    assert problem.startswith("no split file; searched fine-grained/food-101/split_zhou_Food101.json, data_splits/")


def test_each_list_of_aircraft_is_checked(tmp_path):
    miniatures.build(tmp_path, "fgvc_aircraft")
    folder = tmp_path / "fine-grained" / "fgvc_aircraft"
    (folder / "images_variant_train.txt").unlink()
    status = status_of(tmp_path, "aircraft")
    assert (status.state, status.found) == ("incomplete", 2)
    (problem,) = status.problems
    assert problem.startswith("no file images_variant_train.txt in ")
    (folder / "variants.txt").unlink()
    (problem,) = status_of(tmp_path, "aircraft").problems
    assert problem.startswith("no file variants.txt in ")


def test_unexpected_folders_are_a_problem_not_an_error(tmp_path):
    miniatures.build(tmp_path, "imagenet_r")
    miniatures.class_folders(tmp_path / miniatures.CLASS_FOLDERS["imagenet_r"][0], {"n00000000": 0})
    status = status_of(tmp_path, "imagenet_r")
    assert status.state == "incomplete"
    assert "none of the 200 expected classes: n00000000" in status.problems[0]


def test_a_root_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder at .*nowhere\. Fix"):
        check(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"there is no data set 'dtdd'\. Did you mean 'dtd'\?"):
        check(tmp_path, only=["dtdd"])
