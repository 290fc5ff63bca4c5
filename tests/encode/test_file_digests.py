"""The database of file digests: found for unchanged files only, and disabled on any error."""

from __future__ import annotations

import gc
import os
import sqlite3
from pathlib import Path

import pytest

from zeroshift.data.images import FileStat
from zeroshift.encode.extraction.images import SETTLING_TIME_NS, FileDigests

PATH, DIGEST = Path("/data/cat.jpg"), b"0123456789abcdef"
STAT = FileStat(size=123, modified=10**18, changed=10**18 + 7, inode=2**63 + 5)  # SQLite's own integers end at 2^63 - 1
STAT_TIME = STAT.modified + 10**12


@pytest.fixture
def digests(tmp_path):
    opened = FileDigests(tmp_path)
    yield opened
    opened.close()


def test_an_unchanged_file_is_found_by_the_next_process(digests, tmp_path):
    digests.add([(PATH, STAT, DIGEST)], STAT_TIME)
    assert digests.find(PATH, STAT) == DIGEST
    digests.close()
    again = FileDigests(tmp_path)
    assert again.find(PATH, STAT) == DIGEST
    again.close()


@pytest.mark.parametrize(
    "query",
    [
        (Path("/x"), STAT),
        *((PATH, STAT._replace(**{name: getattr(STAT, name) + 1})) for name in FileStat._fields),
        *((PATH, STAT._replace(**{name: getattr(STAT, name) - 1})) for name in FileStat._fields),
    ],
)
def test_a_changed_file_is_not_found(digests, query):
    digests.add([(PATH, STAT, DIGEST)], STAT_TIME)
    assert digests.find(*query) is None


def test_the_latest_record_counts(digests):
    digests.add([(PATH, STAT, DIGEST)], STAT_TIME)
    digests.add([(PATH, STAT._replace(modified=STAT.modified + 5), DIGEST[::-1])], STAT_TIME)
    assert digests.find(PATH, STAT) is None
    assert digests.find(PATH, STAT._replace(modified=STAT.modified + 5)) == DIGEST[::-1]


@pytest.mark.parametrize(
    ("age", "stored"), [(0, False), (SETTLING_TIME_NS, False), (SETTLING_TIME_NS + 1, True), (-5, False)]
)
def test_a_recently_modified_file_is_not_stored(digests, age, stored):
    # Relative to the time of the stat, not of storing: a shard may take minutes.
    digests.add([(PATH, STAT._replace(modified=STAT_TIME - age), DIGEST)], STAT_TIME)
    assert (digests.find(PATH, STAT._replace(modified=STAT_TIME - age)) == DIGEST) is stored


def test_file_names_need_not_be_text(digests):
    odd = Path(os.fsdecode(b"/data/\xff\xfe.jpg"))
    digests.add([(odd, STAT, DIGEST), (PATH, STAT, DIGEST[::-1])], STAT_TIME)
    assert digests.find(odd, STAT) == DIGEST
    assert digests.find(PATH, STAT) == DIGEST[::-1]


def test_without_a_cache_nothing_is_stored():
    disabled = FileDigests(None)
    disabled.add([(PATH, STAT, DIGEST)], STAT_TIME)
    assert disabled.find(PATH, STAT) is None
    disabled.close()


def other_table(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE files (something TEXT)")
    database.commit()
    database.close()


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"no database" * 100), Path.mkdir, other_table])
def test_a_broken_database_is_ignored(tmp_path, spoil):
    spoil(tmp_path / "contents.sqlite")
    digests = FileDigests(tmp_path)
    assert digests.find(PATH, STAT) is None
    digests.add([(PATH, STAT, DIGEST)], STAT_TIME)
    assert digests.find(PATH, STAT) is None
    digests.close()
    digests.close()
    del digests
    gc.collect()  # a connection left open would warn here


def test_a_folder_that_cannot_be_created_is_ignored(tmp_path):
    (tmp_path / "file").touch()
    digests = FileDigests(tmp_path / "file")
    assert digests.find(PATH, STAT) is None
