"""Class names, templates and descriptions from users: parsing, files and errors."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from zeroshift.encode.prompts.prompts import Prompts
from zeroshift.encode.prompts.templates import read_templates
from zeroshift.encode.prompts.user_text import check_descriptions, clean_name, parse_class_names, read_descriptions
from zeroshift.files import FileFormatError

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


def test_an_existing_file_is_preferred_to_a_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat,dog").write_text("a\nb\n")
    assert parse_class_names("cat,dog") == ("a", "b")


def test_a_list_longer_than_a_file_name_may_be():
    names = tuple(f"class {i}" for i in range(1000))
    assert parse_class_names(",".join(names)) == names


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (["cat", " "], ValueError, "class_names, name 2 is blank. Fix: remove it.$"),
        ("cat,dog,cat", ValueError, rf"has 'cat' twice \(names 1 and 3\). Fix: remove or rename one. {COMMA}$"),
        (
            ["hot_dog", "cat", "hot dog"],
            ValueError,
            r"has 'hot_dog' and 'hot dog', which are the same name \(names 1 and 3\). Fix: ",
        ),
        ("Bird,bird", ValueError, r"has 'Bird' and 'bird', which are the same name \(names 1 and 2\). Fix: "),
        (["ﬁsh", "FISH"], ValueError, "has 'ﬁsh' and 'FISH', which are the same name"),
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


@pytest.mark.parametrize("given", ["cat,,dog", "cat, dog,", ",cat,dog"])
def test_a_comma_too_many_is_skipped_with_a_warning(given):
    with pytest.warns(UserWarning, match="class_names has a comma too many: a blank name is skipped"):
        assert parse_class_names(given) == ("cat", "dog")


def test_blank_lines_are_skipped_with_a_warning(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("cat\n \ndog\n\n")
    with pytest.warns(UserWarning, match=r"names\.txt, line 2 is blank and skipped"):
        assert parse_class_names(path) == ("cat", "dog")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names.txt is empty. Fix: write the class names into it, one per line"),
        ("\n \n", "names.txt is empty"),
        ("cat\ndog\ncat\n", r"names.txt has 'cat' twice \(names 1 and 3\). Fix: remove or rename one.$"),
        ("cat,dog\n", "names.txt has only 'cat,dog'; a classifier needs at least two .* one class per line.$"),
    ],
)
def test_refused_files_of_names(text, message, tmp_path):
    path = tmp_path / "names.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        parse_class_names(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [("names.csv", "id,name\n0,cat\n1,dog\n"), ("names.TSV", "0\tcat\n1\tdog\n"), ("names.json", '["cat", "dog"]')],
)
def test_tables_are_no_files_of_names(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(
        ValueError, match=r"has more than a name on each line, such as .*Fix: a \.txt file with one name"
    ):
        parse_class_names(tmp_path / name)
    (tmp_path / name).write_text("cat\ndog\n")
    assert parse_class_names(tmp_path / name) == ("cat", "dog")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mine.txt", "a photo of a {}.\n  {} [seen] at night  \n\n"),
        ("mine", "a photo of a {}.\r\n{} [seen] at night"),
        ("mine.JSON", '["a photo of a {}.", "{} [seen] at night"]'),
    ],
)
def test_files_of_templates(name, text, tmp_path):
    (tmp_path / name).write_text(text, newline="")
    assert read_templates(tmp_path / name) == ("a photo of a {}.", "{} [seen] at night")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mine.txt", "", "mine.txt is empty. Fix: write the templates into it"),
        (
            "mine.txt",
            "a {}\na cat\n",
            "mine.txt, template 2 must have {} exactly once; 'a cat' has it 0 times. Fix: put {}",
        ),
        ("mine.txt", '["a {}", "b {}"]', "mine.txt looks like a JSON list. Fix: rename it to end in .json"),
        ("mine.txt", '[\n "a {}"\n]', "mine.txt looks like a JSON list"),
        ("mine.json", '["a {}"', "mine.json cannot be read as JSON"),
        ("mine.json", '{"a": "a {}"}', "mine.json must contain a JSON list of templates. Fix: "),
        ("mine.json", '["a {}", 3]', r"mine.json: templates\[1\] must be a string; got 3"),
        ("mine.json", "[]", "mine.json: templates is empty"),
        (
            "mine.json",
            '["a {}", "{} {}"]',
            r"mine.json: templates\[1\] must have {} exactly once; '{} {}' has it 2 times",
        ),
    ],
)
def test_refused_files_of_templates(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(FileFormatError, match=message):
        read_templates(tmp_path / name)


SHARED = Path(__file__).resolve().parents[3] / "shared" / "prompts"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the published descriptions are not at {SHARED}")


@pytest.fixture
def write(tmp_path):
    def write(content: object) -> Path:
        path = tmp_path / "pets.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


def test_sentences_are_not_changed(write):
    content = {"b_c": [" two  spaces ", "a\nline", "ä {}"], "a": ["again", "again"]}
    read = read_descriptions(write(content))
    assert read == content
    assert list(read) == ["b_c", "a"]


def test_a_byte_order_mark_is_no_part_of_the_file(write):
    assert read_descriptions(write('\ufeff{"a": ["b"]}')) == {"a": ["b"]}


def test_blank_sentences_are_kept_with_a_warning(write):
    path = write({"cat": ["It purrs."], "dog": ["It barks.", "", " "]})
    with pytest.warns(UserWarning, match=r"pets.json has 2 blank sentences of 4, the first is 'dog'\[1\]"):
        assert read_descriptions(path)["dog"] == ["It barks.", "", " "]


@needs_shared
@pytest.mark.parametrize(
    ("name", "classes", "sentences", "blank"),
    [("dtd", 47, 2450, 9), ("eurosat", 10, 533, 3)],
)
def test_published_files(name, classes, sentences, blank):
    path = SHARED / "descriptions" / f"{name}.json"
    with pytest.warns(UserWarning, match=f"has {blank} blank sentences of {sentences},"):
        descriptions = read_descriptions(path)
    assert (len(descriptions), sum(map(len, descriptions.values()))) == (classes, sentences)
    names = json.loads((SHARED / "classnames_templates.json").read_text(encoding="utf-8"))["classnames"][name]
    check_descriptions(descriptions, names, path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"pets.json cannot be read as JSON \(.*line 1 column 2.*\). Fix: "),
        ("", r"pets.json cannot be read as JSON \(.*\). Fix: "),
        ("[" * 100_000, r"pets.json cannot be read as JSON \(.*\). Fix: "),
        ([["cat", "It purrs."]], "pets.json must contain a JSON object; it contains a list. Fix: "),
        ({}, "pets.json has no classes. Fix: "),
        (
            '{"cat": ["a"], "dog": ["b"], "cat": ["c"]}',
            r"pets.json .*\(the key 'cat' occurs twice in one object\)",
        ),
        ({"cat": []}, "pets.json: 'cat' has no sentence. Fix: "),
        ({"cat": ["", " "]}, "pets.json: 'cat' has no sentence. Fix: "),
        ({"cat": "It purrs."}, "pets.json: 'cat' must have a list of sentences; got 'It purrs.'. Fix: "),
        ({"cat": None}, "pets.json: 'cat' must have a list of sentences; got None. Fix: "),
        ({"cat": {"a": 1}}, "pets.json: 'cat' must have a list of sentences; got {'a': 1}. Fix: "),
        ({"cat": ["It purrs.", 3]}, r"pets.json: 'cat'\[1\] must be a string; got 3. Fix: "),
    ],
)
def test_refused_files(write, content, message):
    with pytest.raises(FileFormatError, match=message):
        read_descriptions(write(content))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file at .*none.json. Fix: check the path"):
        read_descriptions(tmp_path / "none.json")
    with pytest.raises(IsADirectoryError, match=r"is a folder. Fix: pass the file of descriptions in it"):
        read_descriptions(tmp_path)
    (tmp_path / "latin.json").write_bytes('{"café": ["x"]}'.encode("latin-1"))
    with pytest.raises(FileFormatError, match=r"latin.json is not UTF-8 text \(.*\). Fix: save it as UTF-8"):
        read_descriptions(tmp_path / "latin.json")


@pytest.mark.parametrize(
    ("descriptions", "error", "message"),
    [
        ([("cat", ["x"])], TypeError, "descriptions must be a mapping from class name to sentences; got list. Fix: "),
        ({1: ["x"]}, TypeError, "descriptions must be keyed by class names; got the key 1. Fix: "),
        ({"cat": "x"}, TypeError, "descriptions: 'cat' must have a list of sentences; got 'x'"),
        ({"cat": []}, ValueError, "descriptions: 'cat' has no sentence"),
    ],
)
def test_mappings_of_ones_own_are_checked_too(descriptions, error, message):
    with pytest.raises(error, match=message):
        Prompts.named("descriptions_ensemble", descriptions=descriptions)


def test_what_fits_is_accepted_in_silence():
    """A name may stand twice among the classes: ImageNet has two missiles, and they share their descriptions."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_descriptions({"missile": ["a"], "kite": ["b"]}, ["missile", "kite", "missile"])


def test_missing_classes_are_counted_and_five_are_named():
    names = [f"class {i}" for i in range(8)]
    with pytest.raises(
        ValueError, match=r"x.json lacks 7 of 8 classes: 'class 1', .*'class 5', \.\.\.\. .*Fix: spell"
    ) as caught:
        check_descriptions({"class 0": ["x"]}, names, "x.json")
    assert "'class 6'" not in str(caught.value)
    with pytest.raises(ValueError, match=r"lacks 1 of 2 classes: 'quilt'. Fix: spell"):
        check_descriptions({"cat": ["x"]}, ["cat", "quilt"])


@pytest.mark.parametrize(
    ("name", "key"), [("american bulldog", "american_bulldog"), ("HOT DOG", "hot_dog"), ("Pug", "pug")]
)
def test_keys_that_differ_only_in_underscores_or_case_are_pointed_out(name, key):
    hint = f"1 of them differ only in underscores or case: for {name!r}, did you mean {key!r}\\?"
    with pytest.raises(ValueError, match=hint):
        check_descriptions({key: ["x"], "cat": ["x"]}, ["zebra", name, "cat"])


def test_a_misspelt_key_is_pointed_out():
    with pytest.raises(ValueError, match=r"lacks 1 of 1 classes: 'sphinx'. Did you mean 'sphynx'\? Fix: "):
        check_descriptions({"sphynx": ["x"], "cat": ["x"]}, ["sphinx"])


def test_extra_classes_are_counted_in_a_warning():
    descriptions = {"cat": ["x"], "dog": ["x"], "ant": ["x"]}
    with pytest.warns(UserWarning, match="2 of the 3 classes in x.json are not in use, such as 'ant'"):
        check_descriptions(descriptions, ["cat"], Path("x.json"))
