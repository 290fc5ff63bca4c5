"""docs/gallery.md: its images and experiments exist."""

import re
from pathlib import Path

from zeroshift.experiments import list_experiments

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "gallery.md").read_text()


def test_every_image_exists_and_is_used():
    shown = re.findall(r"!\[[^]]+\]\((images/gallery/[^)]+\.png)\)", TEXT)
    assert len(shown) >= 10
    assert {Path(path).name for path in shown} == {path.name for path in (DOCS / "images" / "gallery").glob("*")}
    assert all((DOCS / path).read_bytes().startswith(b"\x89PNG") for path in shown)


def test_every_section_has_the_title_and_question_of_its_experiment():
    known = {experiment.name: experiment for experiment in list_experiments()}
    named = re.findall(r"^zeroshift experiment (\S+)$", TEXT, re.MULTILINE)
    assert named[0] == "all"
    for name in named[1:]:
        assert f"## {known[name].title}\n\n{known[name].question}\n" in TEXT
