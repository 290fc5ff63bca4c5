"""The contact sheet in Chromium: filters, order, enlarging by mouse and keyboard; and without its script."""

import shutil

import pytest
from PIL import Image

from report.browser import browser
from report.classified import LABELS, classified, rejects
from zeroshift.report.contact_sheet import write_contact_sheet

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")

WIDTHS = (1280, 390)
FILES = ("2024/summer_holiday/IMG_0001.jpg", "b.jpg", "c.jpg", f"{'long' * 30}.jpg", "e.jpg", "F-Ünïcode 猫.jpg")
SHOWN = "[...document.querySelectorAll('#images .group:not([hidden]) li:not([hidden]) .file')].map(f => f.textContent)"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sheet")
    comparison = classified(files=FILES, labels=LABELS, classes=("cat", "d" * 80, "dog and horse " * 8))
    write_contact_sheet(
        folder / "sheet.html", comparison, rejects(), lambda i: Image.new("RGB", (640, 480), (40 * i, 90, 200)),
        title="pets", command="zeroshift classify pets",
    )  # fmt: skip
    return (folder / "sheet.html").as_uri()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(params=WIDTHS)
def page(request, chromium, address):
    chromium.open(address, width=request.param)
    return chromium


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_requested_reported_or_cut(chromium, address, width, scheme):
    chromium.open(address, width=width, scheme=scheme)
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    assert chromium.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, p, label, output, button, select, input')]"
        f".filter(e => e.getBoundingClientRect().right > {width} + 0.5).map(e => e.textContent)"
    ) == []  # fmt: skip
    red, green, blue = chromium.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (red + green + blue < 180) == (scheme == "dark")
    text, behind = chromium.evaluate(
        "['color', 'backgroundColor'].map(p => getComputedStyle(document.querySelector('#by-name'))[p])"
    )
    assert text != behind
    assert chromium.reports == []
    assert {request.split(":")[0] for request in chromium.requests} == {"file", "data"}
    assert [request for request in chromium.requests if request.startswith("file")] == [address]


def test_file_names_are_whole_and_inside_their_tiles(page):
    assert sorted(page.evaluate(SHOWN)) == sorted(FILES)
    outside = page.evaluate(
        "[...document.querySelectorAll('.file')].filter(f => f.scrollWidth > f.clientWidth + 1 ||"
        " f.getBoundingClientRect().right > f.parentElement.getBoundingClientRect().right).length"
    )
    assert outside == 0


def test_filters(page):
    def count():
        return page.evaluate("document.getElementById('count').textContent")

    assert count() == "6 of 6 images"
    page.type("#by-name", "img_0")
    assert page.evaluate(SHOWN) == [FILES[0]]
    assert count() == "1 of 6 images"
    assert page.evaluate("document.querySelectorAll('#images .group:not([hidden])').length") == 1
    page.click("#reset")
    assert count() == "6 of 6 images"
    page.select("#by-class", "0")
    assert page.evaluate(SHOWN) == [FILES[3]]
    page.select("#by-class", "3")
    assert page.evaluate(SHOWN) == ["b.jpg", "e.jpg"]
    page.click("#reset")
    page.select("#by-kind", "changed")
    assert page.evaluate(SHOWN) == ["b.jpg", FILES[3], FILES[0]]
    page.select("#by-kind", "rejected")
    assert page.evaluate(SHOWN) == ["b.jpg", "e.jpg"]
    page.select("#by-kind", "wrong")
    assert page.evaluate(SHOWN) == ["b.jpg", "e.jpg", FILES[5]]
    page.click("#reset")
    page.type("#below", "0.7")
    assert page.evaluate(SHOWN) == [FILES[3], FILES[0]]  # rejected images have no probability
    page.type("#by-name", "nothing like it")
    assert page.evaluate(SHOWN) == []
    assert count() == "0 of 6 images"
    assert page.reports == []


def test_orders(page):
    page.select("#order", "certain")
    assert page.evaluate(SHOWN) == [FILES[3], FILES[0], "c.jpg", FILES[5], "e.jpg", "b.jpg"]
    page.select("#order", "moved")
    assert page.evaluate(SHOWN)[:3] == ["b.jpg", FILES[3], FILES[0]]
    page.select("#order", "reject")
    assert page.evaluate(SHOWN) == ["b.jpg", "e.jpg", FILES[5], FILES[0], FILES[3], "c.jpg"]
    page.select("#order", "")
    assert page.evaluate(SHOWN) == ["b.jpg", "e.jpg", FILES[3], FILES[0], "c.jpg", FILES[5]]
    assert page.evaluate("document.getElementById('sorted').hidden") is True


def groups(page):
    """The pictures of every group that is shown, by its heading."""
    return page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#images .group:not([hidden])')].map("
        "g => [g.querySelector('bdi').textContent.slice(0, 13),"
        " [...g.querySelectorAll('.file')].map(f => f.textContent)]))"
    )


def slide(page, key, code, count):
    page.evaluate("document.getElementById('cut').focus()")
    for _ in range(count):
        page.press(key, code)


def test_the_slider_previews_another_cut(page):
    def note():
        return page.evaluate("document.getElementById('cut-note').textContent")

    def tile(file):
        found = f"[...document.querySelectorAll('#images li')].find(t => t.textContent.includes('{file}'))"
        return " ".join(page.evaluate(f"[...{found}.children].map(one => one.textContent).join(' ')").split())

    given, text = groups(page), tile("b.jpg")
    assert list(given) == ["none of these", "cat", "d" * 13]
    assert note() == "2 of 6 images are none of these, as in the file of predictions"
    slide(page, "ArrowLeft", 37, 21)  # 0.29
    assert note() == "Above 0.29: 4 of 6 images would be none of these"
    assert groups(page)["none of these"] == ["b.jpg", "e.jpg", FILES[5], FILES[0]]
    assert "none of these" in tile(FILES[0])
    assert "now rejected" in tile(FILES[0])
    page.select("#by-kind", "rejected")
    assert page.evaluate("document.getElementById('count').textContent") == "4 of 6 images"
    page.select("#by-kind", "")
    slide(page, "End", 35, 1)  # 1: nothing is rejected
    assert note() == "Above 1: 0 of 6 images would be none of these"
    assert "none of these" not in groups(page)
    assert "b.jpg" in groups(page)["d" * 13]
    assert "best class" not in tile("b.jpg")
    assert "now wrong" in tile("b.jpg")
    page.click("#reset")
    assert groups(page) == given
    assert tile("b.jpg") == text
    assert note() == "2 of 6 images are none of these, as in the file of predictions"
    assert page.reports == []


def test_the_slider_has_a_label_and_describes_what_it_did(page):
    name, described = page.evaluate(
        "[document.getElementById('cut').labels[0].textContent.trim(), document.getElementById('cut-note').ariaLive]"
    )
    assert (name, described) == ("Reject above (previews --reject-above)", "polite")
    assert page.evaluate("document.getElementById('cut').getBoundingClientRect().width") > 150


def enlarged(page):
    """The name and the width of the enlarged picture; None if there is none."""
    return page.evaluate(
        "document.getElementById('viewer').open ?"
        " [document.querySelector('#enlarged .file').textContent,"
        "  document.querySelector('#enlarged svg use').getBoundingClientRect().width] : null"
    )


def test_pictures_are_enlarged_by_mouse_and_keyboard(page):
    small = page.evaluate("document.querySelector('#images li svg').getBoundingClientRect().width")
    page.click("#class-3 li svg")
    name, width = enlarged(page)
    assert name == "b.jpg"
    assert width > 1.5 * small
    page.press("ArrowRight", 39)
    assert enlarged(page)[0] == "e.jpg"
    page.press("ArrowLeft", 37)
    page.press("ArrowLeft", 37)  # there is none before the first
    assert enlarged(page)[0] == "b.jpg"
    page.press("Escape", 27)
    assert enlarged(page) is None
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Enlarge b.jpg"
    page.press("Tab", 9)
    page.press("Enter", 13, "\r")
    assert enlarged(page)[0] == "e.jpg"
    page.click("#close")
    assert enlarged(page) is None
    assert page.reports == []


def test_only_pictures_that_are_shown_are_reached(page):
    page.select("#by-kind", "rejected")
    page.click("#class-3 li:nth-child(2) svg")
    page.click("#next")
    assert enlarged(page)[0] == "e.jpg"
    page.click("#previous")
    assert enlarged(page)[0] == "b.jpg"


@pytest.mark.parametrize("width", WIDTHS)
def test_without_the_script_every_picture_is_shown(chromium, address, width):
    chromium.open(address, width=width, script=False)
    assert chromium.evaluate("document.getElementById('filters').getBoundingClientRect().height") == 0
    assert chromium.evaluate("document.getElementById('viewer').getBoundingClientRect().height") == 0
    assert sorted(chromium.evaluate(SHOWN)) == sorted(FILES)
    assert chromium.evaluate("document.querySelector('#images li svg').getBoundingClientRect().width") > 100
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width


def test_no_other_script_runs(chromium, address, tmp_path):
    page = tmp_path / "other.html"
    with open(address.removeprefix("file://"), encoding="utf-8") as handle:
        page.write_text(handle.read().replace("</main>", "<script>document.title = 'run'</script></main>"))
    chromium.open(page.as_uri(), width=1280)
    assert chromium.evaluate("document.title").startswith("pets: ")
    assert any("Content Security Policy" in report for report in chromium.reports)
