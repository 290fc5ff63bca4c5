"""The contact sheet shows the right images in the right order, and is one file that shows nothing else."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from report.classified import AFTER, BEFORE, FILES, LABELS, REJECT, classified
from report.sheet_reader import Sheet

Image = pytest.importorskip("PIL.Image")

from zeroshift.data.images import ImageError  # noqa: E402
from zeroshift.report.contact_sheet import (  # noqa: E402
    MAX_CLASSES,
    check_contact_sheet_target,
    class_counts,
    contact_sheet,
    is_contact_sheet,
    write_contact_sheet,
)
from zeroshift.report.page import is_report  # noqa: E402

WORDS = {"title": "Pets", "command": "zeroshift classify pets --classes cat,dog,horse"}
NASTY = '<script>alert("1")</script>\'&amp;.jpg'


def picture(i):
    return Image.new("RGB", (64 + i, 48), (40 * i, 90, 200))


def noise(side):
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))


def sheet(comparison, reject=REJECT, open_image=picture, **options):
    return Sheet(contact_sheet(comparison, reject, open_image, **WORDS, **options))


def test_each_section_is_in_the_order_worked_out_by_hand():
    shown = sheet(classified())
    assert shown.open == []
    assert list(shown.files) == [
        "",
        "dog is given 2 images more",
        "Most changed",
        "Least certain",
        "Least like any class",
        "Reproduce this page",
    ]
    assert shown.files["Most changed"] == ["b.jpg", "d.jpg", "a.jpg"]
    assert shown.files["Least certain"] == ["e.jpg", "d.jpg", "a.jpg", "c.jpg", "b.jpg", "f.jpg"]
    assert shown.files["Least like any class"] == ["b.jpg", "e.jpg", "f.jpg", "a.jpg", "d.jpg", "c.jpg"]


def test_a_section_shows_at_most_the_requested_number():
    shown = sheet(classified(), per_section=2)
    assert shown.files["Most changed"] == ["b.jpg", "d.jpg"]
    assert shown.files["Least certain"] == ["e.jpg", "d.jpg"]
    assert shown.text["Most changed"].startswith("2 of 3 changed predictions:")
    assert shown.text["Least certain"].startswith("2 of 6 images:")


def test_the_summary_line():
    comparison = classified(provenance={"encoder": {"source": "clip/tiny"}})
    text = sheet(comparison).text[""]
    assert "6 images, 3 classes, encoder clip/tiny, method Online ADAPT: 3 predictions changed" in text
    assert "(50.0%)" in text
    assert "6 images, 3 classes, method Online ADAPT: " in sheet(classified()).text[""]


def test_the_text_below_an_image():
    text = sheet(classified()).text["Most changed"]
    assert "b.jpg zero-shot: cat 0.50 → dog 0.95 reject score 0.9 d.jpg" in text
    assert "true label" not in text


def test_right_and_wrong_are_written_out():
    text = sheet(classified(labels=LABELS)).text
    assert "b.jpg zero-shot: cat 0.50 → dog 0.95 true label cat: was right → now wrong" in text["Most changed"]
    assert "a.jpg zero-shot: cat 0.55 → dog 0.60 true label dog: was wrong → now right" in text["Most changed"]
    assert "f.jpg zero-shot: dog 0.90 → dog 0.99 true label horse: was wrong → now wrong" in text["Least certain"]


def test_no_changed_prediction_is_stated():
    shown = sheet(classified(after=BEFORE))
    assert shown.files["Most changed"] == []
    assert shown.text["Most changed"].startswith("No prediction changed: Online ADAPT gives every image the label")
    assert len(shown.files["Least certain"]) == 6


def test_counts_of_predicted_classes():
    assert class_counts(classified()) == [
        {"name": "dog", "old": 2, "new": 4, "widths": ["50.0", "100.0"]},
        {"name": "cat", "old": 3, "new": 2, "widths": ["75.0", "50.0"]},
        {"name": "horse", "old": 1, "new": 0, "widths": ["25.0", "0.0"]},
    ]
    assert "dog 2 4 cat 3 2 horse 1 0" in sheet(classified()).text["dog is given 2 images more"]


def test_many_classes_share_a_row():
    classes, images = MAX_CLASSES + 2, MAX_CLASSES + 4
    # An image in each class, a second one in the first two; afterwards the last class has lost its own to the first.
    before = np.eye(classes)[np.arange(images) % classes]
    after = np.eye(classes)[np.where(np.arange(images) == classes - 1, 0, np.arange(images) % classes)]
    names = [f"class {k}" for k in range(classes)]
    rows = class_counts(classified(before, after, classes=names, files=[f"{i}.jpg" for i in range(images)]))
    assert len(rows) == MAX_CLASSES + 1
    assert rows[0]["name"] == "class 0"
    assert rows[-1] == {"name": "2 other classes", "old": 2, "new": 1, "widths": []}
    assert sum(row["new"] for row in rows) == sum(row["old"] for row in rows) == images


def test_a_picture_is_opened_and_embedded_once():
    opened = []
    shown = sheet(classified(), open_image=lambda i: opened.append(i) or picture(i))
    assert sorted(opened) == [0, 1, 2, 3, 4, 5]
    embedded = [value for name, value in shown.attributes if name == "href" and value.startswith("data:")]
    assert len(set(embedded)) == len(embedded) == 6
    referred = [value[1:] for name, value in shown.attributes if name == "href" and value.startswith("#")]
    identities = [value for name, value in shown.attributes if name == "id"]
    assert len(referred) == 3 + 6 + 6 - 6
    assert set(referred) <= set(identities)
    assert len(identities) == len(set(identities))


def test_every_picture_has_its_name_for_those_who_cannot_see_it():
    shown = sheet(classified())
    alt_text = [value for name, value in shown.attributes if name == "aria-label"]
    assert len(alt_text) == shown.tags.count("svg") == 15
    assert set(alt_text) == {f"Picture {file}" for file in FILES}


def test_an_image_that_cannot_be_read_is_a_tile_that_says_so():
    def broken(i):
        if i == 1:
            raise ImageError("b.jpg", "is empty (0 bytes) <b>", "delete it")
        return picture(i)

    shown = sheet(classified(), open_image=broken)
    assert shown.files["Most changed"] == ["b.jpg", "d.jpg", "a.jpg"]
    assert "No picture: the file is empty (0 bytes) <b>. b.jpg zero-shot: cat" in shown.text["Most changed"]
    assert shown.tags.count("image") == 5


def test_other_errors_are_not_hidden():
    def wrong(i):
        raise IndexError(i)

    with pytest.raises(IndexError):
        contact_sheet(classified(), REJECT, wrong, **WORDS)


def test_names_are_text_not_markup():
    comparison = classified(
        files=[NASTY, *FILES[1:]],
        classes=(NASTY, '"><img src=x>', "{{ 1 + 1 }}"),
        labels=LABELS,
        provenance={"encoder": {"source": NASTY}},
    )
    page = contact_sheet(comparison, REJECT, picture, title=NASTY, command=NASTY)
    shown = Sheet(page)
    assert shown.open == []
    assert "<script" not in page
    assert not {"script", "img"} & set(shown.tags)
    assert NASTY in shown.files["Most changed"]
    assert NASTY in shown.text["Reproduce this page"]
    assert f"zero-shot: {NASTY} 0.50" in shown.text["Most changed"]
    assert "{{ 1 + 1 }}" in shown.text["Most changed"]
    assert not any(name.startswith("on") for name, _ in shown.attributes)


def test_characters_without_a_shape_are_spelled_out(tmp_path):
    files = ["two\nlines.jpg", "caf\udce9.jpg", "\N{NARROW NO-BREAK SPACE}1.jpg", *FILES[3:]]
    write_contact_sheet(tmp_path / "s.html", classified(files=files), REJECT, picture, **WORDS)
    shown = Sheet((tmp_path / "s.html").read_text(encoding="utf-8"))
    assert {r"two\nlines.jpg", r"caf\udce9.jpg", "\N{NARROW NO-BREAK SPACE}1.jpg"} <= set(shown.files["Least certain"])


def test_nothing_comes_from_outside():
    page = contact_sheet(classified(), REJECT, picture, **WORDS)
    for value in re.findall(r"\b(?:src|href|srcset|action|data)\s*=\s*[\"']?([^\"'>\s]+)", page):
        assert value.startswith(("#picture-", "data:image/jpeg;base64,"))
    assert not {"link", "script", "iframe", "object"} & set(Sheet(page).tags)
    assert not re.search(r"url\(|@import|https?:", page)


def test_the_page_has_a_language_one_title_and_both_colour_schemes():
    page = contact_sheet(classified(), REJECT, picture, **WORDS)
    shown = Sheet(page)
    assert ("lang", "en") in shown.attributes
    assert shown.tags.count("h1") == shown.tags.count("title") == shown.tags.count("main") == 1
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_the_same_input_gives_the_same_bytes():
    pages = {contact_sheet(classified(labels=LABELS), REJECT, picture, **WORDS) for _ in range(2)}
    assert len(pages) == 1


def test_the_file_stays_small_even_if_every_image_is_noise():
    # 24 changed images, 24 uncertain ones and 24 with a high score: no section shares a picture with another.
    before = np.repeat([[0.4, 0.6], [0.6, 0.4], [0.9, 0.1]], 24, axis=0)
    after = np.repeat([[0.9, 0.1], [0.6, 0.4], [0.9, 0.1]], 24, axis=0)
    comparison = classified(before, after, classes=("cat", "dog"), files=[f"{i}.jpg" for i in range(72)])
    page = contact_sheet(comparison, np.repeat([0.1, 0.2, 0.3], 24), lambda i: noise(400), **WORDS)
    assert page.count("data:image/jpeg") == 72
    assert len(page) < 1_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_section": 0}, "per_section must be an integer of at least 1; got 0"),
        ({"thumb": 8}, "thumb must be an integer from 16 to 1024; got 8"),
    ],
)
def test_sizes_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        contact_sheet(classified(), REJECT, picture, **WORDS, **options)


def test_scores_and_names_are_checked():
    with pytest.raises(ValueError, match="reject must be a vector of 6"):
        contact_sheet(classified(), REJECT[:2], picture, **WORDS)
    with pytest.raises(ValueError, match="sample_names is None"):
        contact_sheet(classified(files=None), REJECT, picture, **WORDS)


def test_only_a_sheet_is_replaced(tmp_path):
    path, other = tmp_path / "sheet.html", tmp_path / "other.html"
    check_contact_sheet_target(path)
    write_contact_sheet(path, classified(), REJECT, picture, **WORDS)
    first = path.read_text(encoding="utf-8")
    assert first == contact_sheet(classified(), REJECT, picture, **WORDS)
    assert is_contact_sheet(path)
    assert not is_report(path)
    write_contact_sheet(path, classified(after=BEFORE), REJECT, picture, **WORDS)
    assert path.read_text(encoding="utf-8") != first

    other.write_text("<title>mine</title>")
    with pytest.raises(FileExistsError, match=r"other\.html exists and is not a contact sheet of zeroshift\. Fix:"):
        write_contact_sheet(other, classified(), REJECT, picture, **WORDS)
    assert other.read_text() == "<title>mine</title>"
    assert {file.name for file in tmp_path.iterdir()} == {"sheet.html", "other.html"}


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_no_horizontal_overflow_on_a_phone_or_a_desk(tmp_path):
    files = ["/".join(["folder"] * 20) + f"/{i}.jpg" for i in range(6)]
    comparison = classified(BEFORE, AFTER, files=files, classes=("cat", "d" * 80, "dog and horse " * 8), labels=LABELS)
    write_contact_sheet(tmp_path / "sheet.html", comparison, REJECT, picture, **WORDS)
    # In frames, because a headless window does not get narrower than 500 pixels.
    frames = "".join(f'<iframe src="sheet.html" style="border: 0; width: {width}px"></iframe>' for width in (360, 1200))
    measure = """<script>onload = () => {
        const roots = [...document.querySelectorAll("iframe")].map(frame => frame.contentDocument.documentElement);
        document.body.textContent = roots.map(root => `${root.clientWidth}:${root.scrollWidth}`).join(" ");
    }</script>"""
    (tmp_path / "frame.html").write_text(frames + measure)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000", "--dump-dom"]
    command = ["chromium", *flags, (tmp_path / "frame.html").as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "360:360 1200:1200" in shown
