"""Readers of image folders, tables and arrays."""

import builtins
import csv
import os

import numpy as np
import pytest

from zeroshift.data.readers import open_images, read_array, read_folder, read_table


@pytest.fixture
def tree(tmp_path):
    """Create empty files in a folder; readers use only their names."""

    def tree(*names):
        for name in names:
            path = tmp_path / "top" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return tmp_path / "top"

    return tree


def test_subfolders_are_the_classes(tree):
    images = read_folder(
        tree("dog/2.PNG", "dog/10.jpg", "cat/x/1.JPEG", "a-cat/1.gif", "cat/notes.txt", ".git/1.jpg", "x.md")
    )
    assert images.class_names == ("a-cat", "cat", "dog")
    assert images.images.names == ("a-cat/1.gif", "cat/x/1.JPEG", "dog/10.jpg", "dog/2.PNG")
    assert images.labels.tolist() == [0, 1, 2, 2]
    assert images.provenance == {"source": "folder", "images": 4, "upright": True, "transparency": "white"}
    assert images.ignored_files == 2
    assert (images.name, images.images.upright) == ("top", True)


@pytest.mark.parametrize(
    "names",
    [
        ("1.jpg", "2.jpg"),
        ("1.jpg", "a/1.jpg", "b/1.jpg"),
        ("a/1.jpg", "a/b/1.jpg"),
        ("test/cat/1.jpg", "train/cat/1.jpg", "train/dog/1.jpg"),
    ],
)
def test_other_folders_have_no_labels(tree, names):
    images = read_folder(tree(*names), upright=False)
    assert (images.images.names, images.labels, images.class_names) == (names, None, None)
    assert not images.images.upright


def test_labelled_overrides_the_default(tree):
    top = tree("a/1.jpg", "b/1.jpg")
    assert read_folder(top, labelled=False).labels is None
    assert read_folder(top / "a", ["x", "y"]).class_names == ("x", "y")
    tree("a/c/2.jpg")
    assert read_folder(top, labelled=True).labels.tolist() == [0, 0, 1]
    tree("b/d/2.jpg")
    (top / "b" / "1.jpg").unlink()
    (top / "a" / "1.jpg").unlink()
    assert read_folder(top).labels is None
    assert read_folder(top, labelled=True).class_names == read_folder(top, ["a", "b"]).class_names == ("a", "b")
    assert read_folder(top, ["a", "b"]).labels.tolist() == [0, 1]
    single = tree("a/1.jpg")
    assert read_folder(single, labelled=True).class_names == ("a", "b")


def test_labelled_needs_every_image_in_a_subfolder(tree):
    with pytest.raises(
        ValueError, match=r"labelled=True \(--labelled\) needs one subfolder per class, but z\.jpg in .* Fix: "
    ):
        read_folder(tree("a/1.jpg", "b/1.jpg", "z.jpg"), labelled=True)


def test_given_classes_define_the_labels(tree):
    top = tree("dog/1.jpg", "cat/1.jpg")
    images = read_folder(top, ["wolf", "dog", "cat"])
    assert (images.class_names, images.labels.tolist()) == (("wolf", "dog", "cat"), [2, 1])
    assert images.empty_classes == ("wolf",)
    message = (
        r"cat/1\.jpg in .*: the label 'cat' is none of the 2 classes \('cats', 'dog'\)\. Did you mean 'cats'\? Fix: "
    )
    with pytest.raises(ValueError, match=message + r"rename the subfolder, or pass labelled=False"):
        read_folder(top, ["cats", "dog"], labelled=True)
    with pytest.warns(UserWarning, match="the subfolders cat are not classes, but other subfolders are"):
        assert read_folder(top, ["cats", "dog"]).labels is None


def test_folders_with_numbers_as_names(tree):
    top = tree("0/1.jpg", "1/1.jpg", "10/1.jpg")
    assert read_folder(top).class_names == ("0", "1", "10")
    with pytest.raises(ValueError, match=r"the label is 10, but the 3 classes are numbered 0 to 2\. Fix"):
        read_folder(top, ["a", "b", "c"], labelled=True)
    assert read_folder(top, ["a", "b", "c"]).labels is None
    assert read_folder(top, list("abcdefghijk")).labels.tolist() == [0, 1, 10]


def test_a_folder_without_images_is_refused(tree):
    with pytest.raises(
        ValueError, match=r"no images found in .*; it contains 2 other files\. Fix: .*\.bmp, .*\.webp\.$"
    ):
        read_folder(tree("a.txt", "b/c.zip", ".hidden.jpg"))


def test_paths_that_are_no_folders_are_refused(tree, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder at .*nowhere\. Fix: check the path\."):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(NotADirectoryError, match=r"1\.jpg is a file, not a folder\. Fix: pass the folder"):
        read_folder(tree("1.jpg") / "1.jpg")


def test_an_unreadable_folder_is_an_error(tree, monkeypatch):
    top = tree("a/1.jpg", "b/1.jpg")
    scandir = os.scandir

    def refusing(path):
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(OSError, match=r"b cannot be read \(Permission denied\)\. Fix: check its permissions\."):
        read_folder(top)


def test_links_are_followed_but_not_in_circles(tree):
    top = tree("a/1.jpg", "b/1.jpg", "b/2.txt")
    try:
        (top / "b" / "up").symlink_to(top, target_is_directory=True)
        (top / "c").symlink_to(top / "a", target_is_directory=True)
        (top / "b" / "self.jpg").symlink_to(top / "b" / "self.jpg")
        (top / "b" / "broken.jpg").symlink_to(top / "nowhere")
    except OSError:
        pytest.skip("this file system has no links")
    assert read_folder(top).images.names == ("a/1.jpg", "b/1.jpg", "c/1.jpg")


@pytest.fixture
def table(tree, tmp_path):
    """Write a CSV file, or a parquet file of the same content, next to a folder of images."""
    tree("cat/1.jpg", "dog/1.jpg", "dog/2.jpg")

    def table(text, kind="csv"):
        path = tmp_path / f"list.{kind}"
        if kind == "csv":
            path.write_text(text, encoding="utf-8")
        else:
            pa = pytest.importorskip("pyarrow")
            import pyarrow.parquet as pq

            header, *rows = csv.reader(text.splitlines())
            columns = {name: [row[i] or None for row in rows] for i, name in enumerate(header)}
            pq.write_table(pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()}), path)
        return path

    return table


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("column", ["path", "file", "image", "Filename"])
def test_a_table_lists_images_in_its_order(table, kind, column):
    images = read_table(table(f"x,{column},label\n1,top/dog/2.jpg,dog\n2,top/cat/1.jpg,cat\n", kind))
    assert images.images.names == ("top/dog/2.jpg", "top/cat/1.jpg")
    assert (images.class_names, images.labels.tolist(), images.name) == (("cat", "dog"), [1, 0], "list")
    assert images.provenance == {"source": "table", "images": 2, "upright": True, "transparency": "white"}


def test_a_table_needs_no_labels_and_may_have_another_root(table, tmp_path):
    path = table("\ufefffile\ndog/2.jpg\n\n./dog/../cat/1.jpg\n")
    images = read_table(path, root=tmp_path / "top", classes=["cat", "dog"], upright=False)
    assert (images.images.names, images.labels, images.class_names) == (
        ("dog/2.jpg", "cat/1.jpg"),
        None,
        ("cat", "dog"),
    )
    assert not images.images.upright


def test_absolute_paths_are_made_relative_or_refused(table, tmp_path):
    path = table(f"file\n{tmp_path / 'top' / 'dog' / '2.jpg'}\n")
    assert read_table(path).images.names == ("top/dog/2.jpg",)
    with pytest.raises(ValueError, match=r"line 2: .*2\.jpg is not inside .*cat\. Fix: pass root="):
        read_table(path, root=tmp_path / "top" / "cat")


def test_numbers_are_looked_up_in_the_classes(table):
    text = "file,label\ntop/dog/2.jpg,1\ntop/cat/1.jpg,00\n"
    assert read_table(table(text), classes=["cat", "dog"]).labels.tolist() == [1, 0]
    assert read_table(table(text), classes=["1", "00", "2"]).labels.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"line 2: the label '1' is a number, like all others.* Fix: pass classes="):
        read_table(table(text))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("paths,label\na,b\n", r"line 1: no column of paths.*got 'paths', 'label'\. Did you mean 'path'\? Fix"),
        ("file,label\ntop/dog/1.jpg,dog\ntop/cat/1.jpg,\n", r"(line 3|row 1): the label is empty\. Fix"),
        ("file,label\ntop/dog/1.jpg,dgo\n", r"(line 2|row 0): the label 'dgo' is none of.*Did you mean 'dog'\?.*Fix"),
        ("file,label\ntop/dog/1.jpg,2\n", r"(line 2|row 0): the label is 2, but the 2 classes are numbered 0 to 1"),
        ("file,label\ntop/dog/1.jpg,-1\n", r"the label is -1"),
        (
            "file\ntop/x.jpg\ny/z.jpg\n",
            r"(line 2|row 0): no file top/x\.jpg.*2 of 2 listed.*Fix: pass root=",
        ),
        ("file,label\n", r"lists no images\. Fix"),
    ],
)
def test_invalid_tables_are_refused_with_file_and_line(table, text, message, kind):
    with pytest.raises((ValueError, FileNotFoundError), match=rf"list\.{kind}.*{message}"):
        read_table(table(text, kind), classes=["cat", "dog"])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_missing_files_and_empty_paths_are_skipped_with_a_warning(table, kind):
    path = table("file,label\ntop/dog/1.jpg,dog\n,cat\ntop/gone.jpg,cat\ntop/cat/1.jpg,cat\n", kind)
    with (
        pytest.warns(UserWarning, match=r"skipped: .*(line 3|row 1): the path is empty"),
        pytest.warns(
            UserWarning, match=r"(line 4|row 2): no file top/gone\.jpg in .*; 1 of 3 listed files are missing"
        ),
    ):
        images = read_table(path)
    assert (images.images.names, images.labels.tolist()) == (("top/dog/1.jpg", "top/cat/1.jpg"), [1, 0])


def test_a_comma_at_the_end_of_a_line_is_skipped_with_a_warning(table):
    with pytest.warns(UserWarning, match=r"line 2 ends with a comma too many"):
        assert read_table(table("file,label\ntop/dog/1.jpg,dog,\ntop/cat/1.jpg,cat\n")).labels.tolist() == [1, 0]


def test_one_class_in_two_spellings_is_refused(tree, table):
    with pytest.raises(ValueError, match=r"'Dog' and 'dog' are the same name. Fix: spell it in one way"):
        read_folder(tree("dog/1.jpg", "Dog/2.jpg", "cat/1.jpg"))
    with pytest.raises(ValueError, match=r"line 3: 'hot dog' and 'hot_dog' are the same name"):
        read_table(table("file,label\ntop/dog/1.jpg,hot dog\ntop/cat/1.jpg,hot_dog\n"))


def test_photographs_that_need_pillow_heif_are_named_with_the_remedy(tree, monkeypatch):
    monkeypatch.setattr("zeroshift.data.images.find_spec", lambda name: None)
    fix = "Fix: pip install pillow-heif, or convert them to JPEG"
    top = tree("1.HEIC", "2.heif")
    with pytest.raises(ValueError, match=rf"2 \.heic files in .* cannot be read\. {fix}"):
        read_folder(top)
    with pytest.raises(ValueError, match=rf"1\.HEIC cannot be read\. {fix}"):
        open_images(top / "1.HEIC")
    tree("3.jpg", "notes.txt")
    with pytest.warns(UserWarning, match=rf"skipped: 2 \.heic files in .*{fix}"):
        images = read_folder(top)
    assert (images.images.names, images.ignored_files) == (("3.jpg",), 1)


def test_files_that_are_no_tables_are_refused(table, tmp_path, monkeypatch):
    with pytest.raises(
        ValueError, match=r"line 3: 3 values for 2 columns\. Fix: put values that contain commas in quot"
    ):
        read_table(table("file,label\ntop/dog/1.jpg,dog\na,b,c\n"))
    with pytest.raises(FileNotFoundError, match=r"no table at .*x\.csv"):
        read_table(tmp_path / "x.csv")
    with pytest.raises(ValueError, match=r"a \.csv or \.parquet file; got .*x\.txt"):
        read_table(tmp_path / "x.txt")
    (tmp_path / "x.csv").write_bytes(b"file\n\xff\xfe\n")
    with pytest.raises(ValueError, match=r"x\.csv is not UTF-8 text .*Fix"):
        read_table(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("")
    with pytest.raises(ValueError, match="got none"):
        read_table(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text('file\n"' + "a" * 200_000)
    with pytest.raises(ValueError, match=r"x\.csv, line 2: field larger than"):
        read_table(tmp_path / "x.csv")
    (tmp_path / "x.parquet").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"x\.parquet is not a readable parquet file .*Fix"):
        read_table(tmp_path / "x.parquet")
    original = builtins.__import__

    def without_pyarrow(name, *rest):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    with pytest.raises(ImportError, match=r"needs pyarrow.* Fix: pip install .*\[parquet\]'"):
        read_table(tmp_path / "x.parquet")


def test_an_array_with_labels(tmp_path):
    np.save(tmp_path / "digits.npy", np.zeros((3, 8, 8), np.uint8))
    np.save(tmp_path / "labels.npy", np.array([1, 0, 1]))
    images = read_array(tmp_path / "digits.npy", tmp_path / "labels.npy", ["zero", "one"])
    assert (images.name, images.labels.tolist(), images.images.name(2)) == ("digits", [1, 0, 1], "digits.npy[2]")
    assert images.provenance == {"source": "array", "images": 3}
    assert read_array(str(tmp_path / "digits.npy")).labels is None
    with pytest.raises(FileNotFoundError, match=r"no file of labels at .*x\.npy\. Fix"):
        read_array(tmp_path / "digits.npy", tmp_path / "x.npy", ["a"])
    (tmp_path / "x.npy").write_bytes(b"?")
    with pytest.raises(ValueError, match=r"not a readable \.npy file of labels .*Fix"):
        read_array(tmp_path / "digits.npy", tmp_path / "x.npy", ["a"])
    np.savez(tmp_path / "x.npz", a=np.zeros(3, int))
    with pytest.raises(ValueError, match=r"but an \.npz archive\. Fix"):
        read_array(tmp_path / "digits.npy", tmp_path / "x.npz", ["a"])
    np.save(tmp_path / "none.npy", np.zeros((0, 8, 8), np.uint8))
    with pytest.raises(ValueError, match=r"contains no images \(0 rows\)"):
        read_array(tmp_path / "none.npy")


def test_open_images_picks_the_reader(table, tmp_path):
    assert open_images(tmp_path / "top").class_names == ("cat", "dog")
    assert open_images(tmp_path / "top", labelled=False, upright=False).labels is None
    assert len(open_images(table("file\ndog/1.jpg\n"), root=tmp_path / "top")) == 1
    np.save(tmp_path / "a.npy", np.zeros((2, 8, 8), np.uint8))
    assert open_images(str(tmp_path / "a.npy"), ["x", "y"], labels=[0, 1]).labels.tolist() == [0, 1]


def test_open_images_refuses_other_sources(table, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file or folder: .*Fix: check the path\."):
        open_images(tmp_path / "nowhere.csv")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"got the file .*notes\.txt\. Fix: pass the folder of the images, or a file"):
        open_images(tmp_path / "notes.txt")
    single = open_images(tmp_path / "top" / "cat" / "1.jpg", ["cat", "dog"])
    assert (len(single), single.images.name(0), single.class_names, single.labels) == (1, "1.jpg", ("cat", "dog"), None)
    with pytest.raises(ValueError, match=r"^labels cannot be used with a folder, which .* Fix: omit it\.$"):
        open_images(tmp_path / "top", labels=[0])
    with pytest.raises(ValueError, match=r"^root cannot be used with a folder"):
        open_images(tmp_path / "top", root=tmp_path)
    with pytest.raises(ValueError, match=r"^labelled cannot be used with a table"):
        open_images(table("file\n"), labelled=True)
    np.save(tmp_path / "a.npy", np.zeros((2, 8, 8), np.uint8))
    with pytest.raises(ValueError, match=r"^root cannot be used with an array"):
        open_images(tmp_path / "a.npy", root=tmp_path)


def test_subfolders_are_classes_only_if_all_have_names_of_classes(tmp_path):
    """By month or by camera: --classes cat,dog must not be answered with "the label '2024-01' is none of them"."""
    for name in ("2024-01/a.jpg", "2024-02/b.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert read_folder(tmp_path, ["cat", "dog"]).labels is None
    assert read_folder(tmp_path).class_names == ("2024-01", "2024-02")
    assert read_folder(tmp_path, ["2024-02", "2024-01"]).labels.tolist() == [1, 0]
    with pytest.warns(UserWarning, match="the subfolders 2024-02 are not classes"):
        assert read_folder(tmp_path, ["2024-01", "dog"]).labels is None
    assert read_folder(tmp_path, ["2024-01", "dog"], labelled=False).labels is None


@pytest.mark.parametrize("name", ["a.safetensors", "a.npz", "a.pt"])
def test_features_are_not_images(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=rf"{name} has features, by its suffix, .* Fix: zeroshift adapt .*{name}\.$"):
        open_images(tmp_path / name)


def test_class_names_are_a_list(tree, tmp_path):
    """A string would be a class for each of its letters."""
    top = tree("cat/1.jpg", "dog/1.jpg")
    (tmp_path / "list.csv").write_text("path,label\ncat/1.jpg,cat\n")
    np.save(tmp_path / "x.npy", np.zeros((2, 4, 4, 3), np.uint8))
    for source, options in (
        (top, {}),
        (top, {"labelled": True}),
        (top / "cat" / "1.jpg", {}),
        (tmp_path / "list.csv", {"root": top}),
        (tmp_path / "x.npy", {}),
    ):
        with pytest.raises(TypeError, match=r"classes must be a sequence of names; got 'cat,dog'\. Fix"):
            open_images(source, "cat,dog", **options)
