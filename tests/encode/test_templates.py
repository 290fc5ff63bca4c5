"""Files of templates, and what their writers are told when they cannot be used."""

from __future__ import annotations

import pytest

from zeroshift.encode.prompts.templates import read_templates
from zeroshift.files import FileFormatError


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
        ("mine.txt", "a {}\n\nb {}", "mine.txt, line 2 is blank"),
        (
            "mine.txt",
            "a {}\na cat\n",
            "mine.txt, line 2 must have {} exactly once; 'a cat' has it 0 times. Fix: put {}",
        ),
        ("mine.txt", '["a {}", "b {}"]', "mine.txt looks like a JSON list. Fix: rename it to end in .json"),
        ("mine.txt", '[\n "a {}"\n]', "mine.txt looks like a JSON list"),
        ("mine.json", '["a {}"', "mine.json is not JSON"),
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
