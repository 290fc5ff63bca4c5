"""Class names as users give them, and what they are told when they cannot be used."""

from __future__ import annotations

import pytest

from zeroshift.encode.prompts.user_text import clean_name, parse_class_names

COMMA = "Names that contain a comma can be given in a text file, one name per line."


def test_clean():
    assert clean_name("american_pit_bull_terrier") == "american pit bull terrier"
    assert clean_name(" A_b ") == " A b "


@pytest.mark.parametrize(
    "given", ["cat,hot_dog,horse", " cat , hot_dog,horse\n", ["cat ", "hot_dog", " horse"], ("cat", "hot_dog", "horse")]
)
def test_lists(given):
    assert parse_class_names(given) == ("cat", "hot_dog", "horse")


def test_names_in_a_sequence_may_have_commas_and_quotes():
    assert parse_class_names(["salt, pepper", '24" wheel']) == ("salt, pepper", '24" wheel')


def test_names_in_a_file(tmp_path):
    path = tmp_path / "names.txt"
    path.write_bytes("\ufeffcat\r\n salt, pepper \r\nCafé\r\n\r\n".encode())
    assert parse_class_names(path) == parse_class_names(str(path)) == ("cat", "salt, pepper", "Café")


def test_an_existing_file_goes_before_a_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat,dog").write_text("a\nb\n")
    assert parse_class_names("cat,dog") == ("a", "b")


def test_a_list_longer_than_a_file_name_may_be():
    names = tuple(f"class {i}" for i in range(1000))
    assert parse_class_names(",".join(names)) == names


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("cat,,dog", ValueError, f"class_names, name 2 is blank. Fix: remove it. {COMMA}$"),
        ("cat,dog,", ValueError, "class_names, name 3 is blank. Fix: "),
        (["cat", " "], ValueError, "class_names, name 2 is blank. Fix: remove it.$"),
        ("cat,dog,cat", ValueError, rf"has 'cat' twice \(names 1 and 3\). Fix: remove or rename one. {COMMA}$"),
        (
            ["hot_dog", "cat", "hot dog"],
            ValueError,
            r"has 'hot_dog' and 'hot dog', which give the same prompts \(names 1 and 3\). Fix: ",
        ),
        (
            "cat",
            ValueError,
            f"class_names has only 'cat'; a classifier needs at least two classes. Fix: add .*{COMMA}$",
        ),
        (["cat"], ValueError, "class_names has only 'cat'"),
        ([], ValueError, "class_names has no names; a classifier needs at least two"),
        ("", ValueError, "class_names, name 1 is blank"),
        ('"salt, pepper",cat', ValueError, f"a comma inside quotation marks, near '\"salt'. Fix: {COMMA}$"),
        (["cat", 3], TypeError, "class_names, name 2 must be a string; got 3. Fix: "),
        (
            7,
            TypeError,
            r"class_names must be a string, a path or a sequence of strings; got int. Fix: \['cat', 'dog'\]",
        ),
        (
            "no/such/names.txt",
            FileNotFoundError,
            "no file at no/such/names.txt. Fix: check the path of the file of class",
        ),
        ("names.txt", FileNotFoundError, "no file at names.txt"),
    ],
)
def test_refused_names(given, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        parse_class_names(given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names.txt is empty. Fix: write the class names into it, one per line"),
        ("\n \n", "names.txt is empty"),
        ("cat\n\ndog\n", "names.txt, line 2 is blank. Fix: remove the line"),
        ("cat\ndog\ncat\n", r"names.txt has 'cat' twice \(lines 1 and 3\). Fix: remove or rename one.$"),
        ("cat,dog\n", "names.txt has only 'cat,dog'; a classifier needs at least two .* one class per line.$"),
    ],
)
def test_refused_files_of_names(text, message, tmp_path):
    path = tmp_path / "names.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        parse_class_names(path)
