"""The contact sheet shows the right images in the right order, and is one file that shows nothing else."""

import re
from dataclasses import replace

import numpy as np
import pytest

from report.classified import BEFORE, FILES, LABELS, NONE, REJECT, classified, rejects
from report.sheet_reader import Sheet

Image = pytest.importorskip("PIL.Image")

from zeroshift.data.images import ImageError  # noqa: E402
from zeroshift.reject import RejectRule, Rejects  # noqa: E402
from zeroshift.report.contact_sheet import (  # noqa: E402
    BYTES_PER_PIXEL,
    HEADER_BYTES,
    MAX_CLASSES,
    MAX_IMAGES,
    PAGE_BYTES,
    THUMBS,
    check_contact_sheet_target,
    class_counts,
    contact_sheet,
    is_contact_sheet,
    shown_per_class,
    thumbnail_size,
    write_contact_sheet,
)
from zeroshift.report.page import is_report  # noqa: E402
from zeroshift.report.predictions import final_classes  # noqa: E402

WORDS = {"title": "Pets", "command": "zeroshift classify pets --classes cat,dog,horse"}
NASTY = '<script>alert("1")</script>\'&amp;.jpg'


def picture(i):
    return Image.new("RGB", (64 + i, 48), (40 * i, 90, 200))


def noise(side):
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))


def sheet(comparison, given=NONE, open_image=picture, **options):
    return Sheet(contact_sheet(comparison, given, open_image, **WORDS, **options))


def test_images_are_shown_by_class_in_the_order_worked_out_by_hand():
    shown = sheet(classified())
    assert shown.open == []
    assert list(shown.files) == [
        "",
        "dog is given 2 images more",
        "Images by class",
        "cat",
        "dog",
        "Reproduce this page",
    ]
    assert shown.files["cat"] == ["e.jpg", "d.jpg"]  # equally certain: the higher reject score comes first
    assert shown.files["dog"] == ["a.jpg", "c.jpg", "b.jpg", "f.jpg"]
    assert shown.text["cat"].startswith("2 images ")
    assert shown.text["Images by class"].startswith("All 6 images, in each class the least certain first. File name")


def test_rejected_images_have_a_section_of_their_own_before_the_classes():
    shown = sheet(classified(), rejects())
    assert list(shown.files)[-5:] == ["Images by class", "none of these", "cat", "dog", "Reproduce this page"]
    assert shown.files["none of these"] == ["b.jpg", "e.jpg"]  # the less like any class, the earlier
    assert shown.files["cat"] == ["d.jpg"]
    assert shown.files["dog"] == ["a.jpg", "c.jpg", "f.jpg"]
    text = shown.text["none of these"]
    assert "b.jpg zero-shot: cat 0.50 → none of these best class dog 0.95 reject score 0.90" in text
    assert "e.jpg zero-shot: cat 0.70 → none of these best class cat 0.50 reject score 0.70" in text
    assert "above 0.5 it is rejected" in shown.text["Images by class"]
    assert "Pets: dog 3, cat 1, 2 none of these " in shown.text[""]
    assert "2 images rejected as none of these (33.3%)." in shown.text[""]


def test_a_class_that_is_called_none_of_these_stays_a_class():
    shown = sheet(classified(classes=("none of these", "dog", "horse")), rejects())
    assert list(shown.files)[-4:-1] == ["none of these (rejected)", "none of these", "dog"]
    assert shown.files["none of these"] == ["d.jpg"]


def test_if_all_are_rejected_there_is_one_section():
    shown = sheet(classified(), rejects(np.ones(6)))
    assert list(shown.files)[-3:] == ["Images by class", "none of these", "Reproduce this page"]
    assert "6 images show none of the classes" in shown.text


def test_a_page_shows_at_most_the_requested_number():
    shown = sheet(classified(), max_images=3)
    assert shown.files["cat"] == ["e.jpg"]
    assert shown.files["dog"] == ["a.jpg", "c.jpg"]
    assert shown.text["dog"].startswith("2 of 4 images ")
    note = shown.text["Images by class"]
    assert note.startswith("3 of 6 images: a page shows no more. Of classes with many images it shows those that the")
    assert "The file of predictions lists all 6." in note


@pytest.mark.parametrize(
    ("counts", "most", "expected"),
    [
        ([3, 3], 6, [3, 3]),
        ([9, 1], 4, [3, 1]),
        ([5, 5, 5], 3, [1, 1, 1]),
        ([5, 5, 0], 3, [1, 2, 0]),
        ([4, 4], 1, [0, 1]),
    ],
)
def test_large_classes_give_way_to_small_ones(counts, most, expected):
    assert shown_per_class(counts, most) == expected


def test_the_summary_line():
    comparison = classified(provenance={"encoder": {"source": "clip/tiny"}})
    text = sheet(comparison).text[""]
    assert "6 images, 3 classes, encoder clip/tiny, method Online ADAPT: 3 predictions changed" in text
    assert "(50.0%)" in text
    assert "6 images, 3 classes, method Online ADAPT: " in sheet(classified()).text[""]


def test_the_text_below_an_image():
    text = sheet(classified()).text
    assert "b.jpg zero-shot: cat 0.50 → dog 0.95 reject score 0.90 f.jpg dog 0.99 reject score 0.50" in text["dog"]
    assert "true label" not in text["dog"]


def test_right_and_wrong_are_written_out():
    text = sheet(classified(labels=LABELS)).text
    assert "b.jpg zero-shot: cat 0.50 → dog 0.95 true label cat: was right → now wrong" in text["dog"]
    assert "a.jpg zero-shot: cat 0.55 → dog 0.60 true label dog: was wrong → now right" in text["dog"]
    assert "f.jpg dog 0.99 true label horse: was wrong → now wrong" in text["dog"]
    rejected = sheet(classified(labels=LABELS), rejects()).text["none of these"]
    assert "best class dog 0.95 true label cat: was right → now rejected" in rejected


def test_numbers_to_filter_and_sort_by():
    page = contact_sheet(classified(labels=LABELS), rejects(), picture, **WORDS)
    tiles = dict(re.findall(r"<li ([^>]*)>.*?<p class=\"file\"[^>]*>(.*?)</p>", page, re.DOTALL))
    by_file = {file: attributes for attributes, file in tiles.items()}
    numbers = 'data-class="3" data-certain="0.9500" data-moved="0.6500" data-reject="0.9"'
    assert by_file["b.jpg"] == f'{numbers} data-changed data-best="1" data-rejected data-wrong'
    assert by_file["c.jpg"] == 'data-class="1" data-certain="0.8000" data-moved="0.0000" data-reject="0.1"'
    assert by_file["f.jpg"].endswith('data-reject="0.5" data-wrong')


def test_a_slider_knows_how_many_images_of_the_whole_set_each_cut_rejects():
    page = contact_sheet(classified(), rejects(), picture, **WORDS, max_images=3)
    (slider,) = re.findall(r"<input type=\"range\"[^>]*>", page)
    assert 'value="0.50" data-label="none of these" data-number="3" data-count="2" data-total="6"' in slider
    above = [int(count) for count in re.findall(r'data-above="([^"]*)"', slider)[0].split()]
    assert [above[hundredths] for hundredths in (0, 9, 10, 29, 50, 69, 90, 100)] == [6, 6, 5, 4, 2, 2, 0, 0]
    found_of_few = Rejects(RejectRule(0.2, 0.6, 6), 0.5, REJECT, np.zeros(6, bool))
    assert 'id="cut"' not in contact_sheet(classified(), found_of_few, picture, **WORDS)


def test_the_title_leads_with_what_was_found():
    comparison = classified(labels=LABELS)
    before, after = comparison.results
    known = replace(comparison, results=(replace(before, accuracy=0.5), replace(after, accuracy=0.75)))
    assert "<h1>Pets: dog 4, cat 2; 75.0% right, +25.0 points</h1>" in contact_sheet(known, NONE, picture, **WORDS)


def test_no_changed_prediction_is_stated():
    shown = sheet(classified(after=BEFORE))
    assert "0 predictions changed" in shown.text[""]
    assert "Every class is given as many images as by zero-shot" in shown.text
    assert shown.files["horse"] == ["d.jpg"]


def test_counts_of_predicted_classes():
    assert class_counts(classified(), final_classes(classified(), NONE)) == [
        {"name": "dog", "number": 1, "old": 2, "new": 4, "widths": ["50.0", "100.0"]},
        {"name": "cat", "number": 0, "old": 3, "new": 2, "widths": ["75.0", "50.0"]},
        {"name": "horse", "number": None, "old": 1, "new": 0, "widths": ["25.0", "0.0"]},
    ]
    assert "dog 2 4 cat 3 2 horse 1 0" in sheet(classified()).text["dog is given 2 images more"]


def test_counts_with_rejected_images():
    rows = class_counts(classified(), final_classes(classified(), rejects()))
    assert [(row["name"], row["old"], row["new"]) for row in rows] == [
        ("dog", 2, 3), ("cat", 3, 1), ("horse", 1, 0), ("none of these", "", 2),
    ]  # fmt: skip
    assert rows[-1]["widths"] == ["0.0", "66.7"]
    shown = sheet(classified(), rejects())
    assert "dog 2 3 cat 3 1 horse 1 0 none of these 2" in shown.text["2 images show none of the classes"]
    links = {value for name, value in shown.attributes if name == "href" and value.startswith("#class-")}
    assert links == {"#class-0", "#class-1", "#class-3"}
    assert {link[1:] for link in links} <= {value for name, value in shown.attributes if name == "id"}


def test_many_classes_share_a_row():
    classes, images = MAX_CLASSES + 2, MAX_CLASSES + 4
    # An image in each class, a second one in the first two; afterwards the last class has lost its own to the first.
    before = np.eye(classes)[np.arange(images) % classes]
    after = np.eye(classes)[np.where(np.arange(images) == classes - 1, 0, np.arange(images) % classes)]
    names = [f"class {k}" for k in range(classes)]
    comparison = classified(before, after, classes=names, files=[f"{i}.jpg" for i in range(images)])
    rows = class_counts(comparison, final_classes(comparison, rejects(np.zeros(images))))
    assert len(rows) == MAX_CLASSES + 1
    assert rows[0]["name"] == "class 0"
    assert rows[-1] == {"name": "2 other classes", "number": None, "old": 2, "new": 1, "widths": []}
    assert sum(row["new"] for row in rows) == sum(row["old"] for row in rows) == images


def test_a_picture_is_opened_and_embedded_once():
    opened = []
    shown = sheet(classified(), open_image=lambda i: opened.append(i) or picture(i))
    assert opened == [0, 1, 2, 3, 4, 5]
    embedded = [value for name, value in shown.attributes if name == "href" and value.startswith("data:")]
    assert len(set(embedded)) == len(embedded) == 6
    identities = [value for name, value in shown.attributes if name == "id"]
    assert len(identities) == len(set(identities))


def test_every_picture_has_its_name_for_those_who_cannot_see_it():
    shown = sheet(classified())
    alt_text = [value for name, value in shown.attributes if name == "aria-label" and value.startswith("Picture")]
    assert len(alt_text) == shown.tags.count("svg") == 6
    assert set(alt_text) == {f"Picture {file}" for file in FILES}


def test_file_names_are_complete_and_may_be_broken_after_separators():
    files = ["/".join(["folder"] * 20) + "/a_long-name.jpg", *FILES[1:]]
    page = contact_sheet(classified(files=files), NONE, picture, **WORDS)
    assert "folder/<wbr>folder/<wbr>a_<wbr>long-<wbr>name.jpg</p>" in page
    assert files[0] in Sheet(page).files["dog"]


def test_an_image_that_cannot_be_read_is_a_tile_that_says_so():
    def broken(i):
        if i == 1:
            raise ImageError("b.jpg", "is empty (0 bytes) <b>", "delete it")
        return picture(i)

    shown = sheet(classified(), open_image=broken)
    assert shown.files["dog"] == ["a.jpg", "c.jpg", "b.jpg", "f.jpg"]
    assert "No picture: the file is empty (0 bytes) <b>. b.jpg zero-shot: cat" in shown.text["dog"]
    assert shown.tags.count("image") == 5


def test_other_errors_are_not_hidden():
    def wrong(i):
        raise IndexError(i)

    with pytest.raises(IndexError):
        contact_sheet(classified(), NONE, wrong, **WORDS)


def test_names_are_text_not_markup():
    comparison = classified(
        files=[NASTY, *FILES[1:]],
        classes=(NASTY, '"><img src=x>', "{{ 1 + 1 }}"),
        labels=LABELS,
        provenance={"encoder": {"source": NASTY}},
    )
    page = contact_sheet(comparison, NONE, picture, title=NASTY, command=NASTY)
    shown = Sheet(page)
    assert shown.open == []
    assert page.count("<script") == shown.tags.count("script") == 1  # the page's own
    assert "img" not in shown.tags
    assert NASTY in shown.files['"><img src=x>']
    assert NASTY in shown.text["Reproduce this page"]
    assert f"zero-shot: {NASTY} 0.50" in shown.text['"><img src=x>']
    assert "zero-shot: {{ 1 + 1 }} 0.60" in shown.text[NASTY]
    assert not any(name.startswith("on") for name, _ in shown.attributes)


def test_characters_without_a_shape_are_spelled_out(tmp_path):
    files = ["two\nlines.jpg", "caf\udce9.jpg", "\N{NARROW NO-BREAK SPACE}1.jpg", *FILES[3:]]
    write_contact_sheet(tmp_path / "s.html", classified(files=files), NONE, picture, **WORDS)
    shown = Sheet((tmp_path / "s.html").read_text(encoding="utf-8"))
    assert {r"two\nlines.jpg", r"caf\udce9.jpg", "\N{NARROW NO-BREAK SPACE}1.jpg"} <= set(shown.files["dog"])


def test_nothing_comes_from_outside():
    page = contact_sheet(classified(), NONE, picture, **WORDS)
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    for value in re.findall(r"\b(?:src|href|srcset|action|data)\s*=\s*[\"']?([^\"'>\s]+)", markup):
        assert value.startswith(("#picture-", "#class-", "data:image/jpeg;base64,"))
    assert not {"link", "iframe", "object"} & set(Sheet(page).tags)
    named_space = page.replace("http://www.w3.org/2000/svg", "")  # of elements that the script makes; not an address
    assert not re.search(r"url\(|@import|https?:|fetch|XMLHttp|import\(", named_space)


def test_the_page_has_a_language_one_title_and_both_colour_schemes():
    page = contact_sheet(classified(), NONE, picture, **WORDS)
    shown = Sheet(page)
    assert ("lang", "en") in shown.attributes
    assert shown.tags.count("h1") == shown.tags.count("title") == shown.tags.count("main") == 1
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_the_same_input_gives_the_same_bytes():
    pages = {contact_sheet(classified(labels=LABELS), NONE, picture, **WORDS) for _ in range(2)}
    assert len(pages) == 1


def test_the_file_stays_small_even_if_every_image_is_noise():
    comparison = classified(np.tile([0.6, 0.4], (300, 1)), np.tile([0.6, 0.4], (300, 1)), classes=("cat", "dog"),
                            files=[f"{i}.jpg" for i in range(300)])  # fmt: skip
    loud = noise(400)
    page = contact_sheet(comparison, rejects(np.zeros(300)), lambda i: loud, **WORDS)
    assert page.count("data:image/jpeg") == 300
    assert len(page) < 1.1 * PAGE_BYTES


@pytest.mark.parametrize("count", [1, 100, 286, 287, 500, MAX_IMAGES])
def test_thumbnails_are_as_large_as_the_page_allows(count):
    size = thumbnail_size(count)
    per_picture = (HEADER_BYTES + BYTES_PER_PIXEL * size**2) * 4 / 3
    assert count * per_picture <= PAGE_BYTES
    larger = [other for other in THUMBS if other > size]
    assert all(count * (HEADER_BYTES + BYTES_PER_PIXEL * other**2) * 4 / 3 > PAGE_BYTES for other in larger)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_images": 0}, "max_images must be an integer from 1 to 10000; got 0"),
        ({"thumb": 8}, "thumb must be an integer from 16 to 1024; got 8"),
    ],
)
def test_sizes_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        contact_sheet(classified(), NONE, picture, **WORDS, **options)


def test_scores_and_names_are_checked():
    with pytest.raises(ValueError, match="rejects must be about the 6 samples of the comparison; got 2"):
        contact_sheet(classified(), rejects(REJECT[:2]), picture, **WORDS)
    with pytest.raises(TypeError, match=r"rejects must be a zeroshift\.reject\.Rejects; got ndarray"):
        contact_sheet(classified(), REJECT, picture, **WORDS)
    with pytest.raises(ValueError, match="sample_names is None"):
        contact_sheet(classified(files=None), NONE, picture, **WORDS)


def test_only_a_sheet_is_replaced(tmp_path):
    path, other = tmp_path / "sheet.html", tmp_path / "other.html"
    check_contact_sheet_target(path)
    write_contact_sheet(path, classified(), NONE, picture, **WORDS)
    first = path.read_text(encoding="utf-8")
    assert first == contact_sheet(classified(), NONE, picture, **WORDS)
    assert is_contact_sheet(path)
    assert not is_report(path)
    write_contact_sheet(path, classified(after=BEFORE), NONE, picture, **WORDS)
    assert path.read_text(encoding="utf-8") != first

    other.write_text("<title>mine</title>")
    with pytest.raises(FileExistsError, match=r"other\.html exists and is not a contact sheet of zeroshift\. Fix:"):
        write_contact_sheet(other, classified(), NONE, picture, **WORDS)
    assert other.read_text() == "<title>mine</title>"
    assert {file.name for file in tmp_path.iterdir()} == {"sheet.html", "other.html"}
