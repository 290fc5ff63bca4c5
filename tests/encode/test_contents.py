"""The shortcut by path and what the file looks like: right where nothing changed, silent where anything may have."""

from __future__ import annotations

import gc
import os
import sqlite3
from pathlib import Path

import pytest

from zeroshift.data.images import FileStat
from zeroshift.encode.extraction.images import SETTLED_NS, Contents

PATH, DIGEST = Path("/data/cat.jpg"), b"0123456789abcdef"
STAT = FileStat(size=123, modified=10**18, changed=10**18 + 7, inode=2**63 + 5)  # SQLite's own integers end at 2^63 - 1
LOOKED = STAT.modified + 10**12


@pytest.fixture
def contents(tmp_path):
    opened = Contents(tmp_path)
    yield opened
    opened.close()


def test_an_unchanged_file_is_known_also_to_the_next_process(contents, tmp_path):
    contents.keep([(PATH, STAT, DIGEST)], LOOKED)
    assert contents.find(PATH, STAT) == DIGEST
    contents.close()
    again = Contents(tmp_path)
    assert again.find(PATH, STAT) == DIGEST
    again.close()


@pytest.mark.parametrize(
    "asked",
    [
        (Path("/x"), STAT),
        *((PATH, STAT._replace(**{name: getattr(STAT, name) + 1})) for name in FileStat._fields),
        *((PATH, STAT._replace(**{name: getattr(STAT, name) - 1})) for name in FileStat._fields),
    ],
)
def test_a_changed_file_is_not(contents, asked):
    contents.keep([(PATH, STAT, DIGEST)], LOOKED)
    assert contents.find(*asked) is None


def test_the_latest_state_counts(contents):
    contents.keep([(PATH, STAT, DIGEST)], LOOKED)
    contents.keep([(PATH, STAT._replace(modified=STAT.modified + 5), DIGEST[::-1])], LOOKED)
    assert contents.find(PATH, STAT) is None
    assert contents.find(PATH, STAT._replace(modified=STAT.modified + 5)) == DIGEST[::-1]


@pytest.mark.parametrize(("age", "kept"), [(0, False), (SETTLED_NS, False), (SETTLED_NS + 1, True), (-5, False)])
def test_a_file_that_was_young_when_looked_at_is_not_kept(contents, age, kept):
    # However late it is when they are kept: a shard may take minutes.
    contents.keep([(PATH, STAT._replace(modified=LOOKED - age), DIGEST)], LOOKED)
    assert (contents.find(PATH, STAT._replace(modified=LOOKED - age)) == DIGEST) is kept


def test_names_need_not_be_text(contents):
    odd = Path(os.fsdecode(b"/data/\xff\xfe.jpg"))
    contents.keep([(odd, STAT, DIGEST), (PATH, STAT, DIGEST[::-1])], LOOKED)
    assert contents.find(odd, STAT) == DIGEST
    assert contents.find(PATH, STAT) == DIGEST[::-1]


def test_without_a_cache_nothing_is_kept():
    none = Contents(None)
    none.keep([(PATH, STAT, DIGEST)], LOOKED)
    assert none.find(PATH, STAT) is None
    none.close()


def other_table(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE files (something TEXT)")
    database.commit()
    database.close()


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"no database" * 100), Path.mkdir, other_table])
def test_a_broken_database_is_as_none(tmp_path, spoil):
    spoil(tmp_path / "contents.sqlite")
    contents = Contents(tmp_path)
    assert contents.find(PATH, STAT) is None
    contents.keep([(PATH, STAT, DIGEST)], LOOKED)
    assert contents.find(PATH, STAT) is None
    contents.close()
    contents.close()
    del contents
    gc.collect()  # a connection left open would warn here


def test_a_folder_that_cannot_be_made_is_as_none(tmp_path):
    (tmp_path / "file").touch()
    contents = Contents(tmp_path / "file")
    assert contents.find(PATH, STAT) is None
