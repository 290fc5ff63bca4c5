"""The browser that tests of pages use leaves nothing behind."""

import shutil
import tempfile
from pathlib import Path

import pytest

from report.browser import browser, dump_page

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")


def test_neither_profile_nor_temporary_files_are_left(monkeypatch):
    with tempfile.TemporaryDirectory() as folder:  # its path is short, as paths of sockets have to be
        top = Path(folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        page = top / "page.html"
        page.write_text("<p id=x></p><script>x.textContent = 6 * 7</script>")
        with browser(top) as chromium:
            chromium.open(page.as_uri(), width=800)
            assert chromium.evaluate("x.textContent") == "42"
        assert ">42</p>" in dump_page(page)[0]
        assert list(top.iterdir()) == [page]
