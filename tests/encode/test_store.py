"""The feature store: rows are found by content after crashes and damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroshift import files
from zeroshift.encode.extraction.store import (
    DIGEST_BYTES,
    FeatureStore,
    content_digest,
    default_cache,
    settings_folder,
    settings_key,
)
from zeroshift.tensor_files import write_tensors


def digests(*names: str) -> list[bytes]:
    return [content_digest(name.encode()) for name in names]


def rows_of(*values: float) -> np.ndarray:
    return np.array([[value, -value] for value in values], np.float16)


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.safetensors"))


def test_a_digest_is_blake2b_of_the_content():
    assert content_digest(b"") == bytes.fromhex(
        "cae66941d9efbd404e4d88758ea67670"
    )  # as `b2sum -l 128 /dev/null` prints it
    assert len(content_digest(b"x")) == DIGEST_BYTES


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_rows_are_in_the_given_order(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("store")
    names = [str(i) for i in range(9)]
    store = FeatureStore(folder)
    ends = [*sorted(data.draw(st.sets(st.integers(1, 8)))), 9]
    for start, end in zip([0, *ends], ends, strict=False):
        store.add(digests(*names[start:end]), rows_of(*range(start, end)))
    queried = data.draw(st.lists(st.sampled_from(names), min_size=1))
    for each in (store, FeatureStore(folder)):
        found = each.rows(digests(*queried))
        assert found.dtype == np.float16
        np.testing.assert_array_equal(found, rows_of(*map(int, queried)))
        assert len(each) == 9


def test_views_keep_their_shape(tmp_path):
    rows = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    FeatureStore(tmp_path).add(digests("a", "b"), rows)
    again = FeatureStore(tmp_path)
    assert digests("a")[0] in again
    assert digests("c")[0] not in again
    assert b"" not in again
    found = again.rows(digests("b", "a"))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, rows[::-1])
    with pytest.raises(KeyError):
        again.rows(digests("c"))
    with pytest.raises(ValueError, match="digests is empty; at least one"):
        again.rows([])


def test_the_same_content_twice_is_one(tmp_path):
    store = FeatureStore(tmp_path)
    store.add(digests("a", "b"), rows_of(1, 2))
    store.add(digests("b", "c"), rows_of(2, 3))
    store.add(digests("a", "b"), rows_of(1, 2))  # the same part again, as two processes at once would write it
    for each in (store, FeatureStore(tmp_path)):
        assert len(each) == 3
        np.testing.assert_array_equal(each.rows(digests("c", "b", "a", "b")), rows_of(3, 2, 1, 2))
    assert len(parts(tmp_path)) == 2


def test_the_same_rows_are_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        FeatureStore(tmp_path / name).add(digests("a", "b"), rows_of(1, 2))
    (one,), (two,) = parts(tmp_path / "one"), parts(tmp_path / "two")
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_part_is_reported_and_deleted(tmp_path, damage):
    store = FeatureStore(tmp_path)
    store.add(digests("a", "b"), rows_of(1, 2))
    (first,) = parts(tmp_path)
    store.add(digests("c"), rows_of(3))
    if damage == "other":
        write_tensors(first, {"rows": rows_of(1, 2)}, {"kind": "part", "schema": 2})
    else:
        first.write_bytes(first.read_bytes()[: 0 if damage == "empty" else -3])
    with pytest.warns(UserWarning, match=rf"{first.name} is damaged and is computed again \("):
        again = FeatureStore(tmp_path)
    assert [digest in again for digest in digests("a", "b", "c")] == [False, False, True]
    assert len(FeatureStore(tmp_path)) == 1  # a second warning would be an error here
    again.add(digests("a", "b"), rows_of(1, 2))
    np.testing.assert_array_equal(FeatureStore(tmp_path).rows(digests("a", "b", "c")), rows_of(1, 2, 3))


def test_a_process_that_dies_while_it_writes_leaves_nothing_that_counts(tmp_path, monkeypatch):
    store = FeatureStore(tmp_path)
    store.add(digests("a"), rows_of(1))

    def dies(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        store.add(digests("b"), rows_of(2))
    monkeypatch.undo()
    (tmp_path / ".part-0123.safetensors.ab12.tmp").write_bytes(b"what a killed process leaves")
    again = FeatureStore(tmp_path)
    assert len(again) == 1
    assert digests("b")[0] not in again


class TestCache:
    def test_where_it_is(self, monkeypatch, tmp_path):
        monkeypatch.setenv("ZEROSHIFT_CACHE", "~/here")
        assert default_cache() == Path.home() / "here"
        monkeypatch.delenv("ZEROSHIFT_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert default_cache() == tmp_path / "zeroshift"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "windows"))
        assert default_cache() == tmp_path / "windows" / "zeroshift"
        monkeypatch.delenv("LOCALAPPDATA")
        assert default_cache() == Path.home() / ".cache" / "zeroshift"

    def test_keys_follow_the_settings_and_not_their_order(self):
        assert settings_key({"a": 1, "b": [2.5]}) == settings_key({"b": [2.5], "a": 1})
        assert (
            len({settings_key(each) for each in ({"a": 1}, {"a": 2}, {"b": 1}, {"a": "1"}, {"a": 1, "b": None}, {})})
            == 6
        )

    def test_about_json_contains_the_settings(self, tmp_path):
        folder = settings_folder(tmp_path / "cache", "images", {"b": 1, "a": "x"})
        assert folder == settings_folder(tmp_path / "cache", "images", {"a": "x", "b": 1})
        assert (folder / "about.json").read_text() == '{\n  "a": "x",\n  "b": 1\n}\n'

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(
            OSError, match=r"the cache .*file cannot be written \(.*\). Fix: choose another folder with --c"
        ):
            settings_folder(tmp_path / "file", "images", {})
