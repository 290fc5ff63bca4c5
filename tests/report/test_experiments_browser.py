"""The page of experiments in Chromium: desktop and phone width, light and dark."""

import html
import json
import re
import shutil

import pytest

from report.browser import browser, dump_page
from report.chapters import example_chapters, example_suite
from zeroshift.data import packs
from zeroshift.experiments import Suite
from zeroshift.report.experiments.page import write_page

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")

WIDTHS = (1280, 360)
SCHEMES = {"dark": 0, "light": 1}
"""What Chromium calls them in its settings."""

SMALLEST_TEXT = 7.0
"""Pixels of the page."""

# In frames, because a headless window does not get narrower than 500 pixels.
FRAMES = """<!doctype html><body>{frames}<pre id="seen"></pre><script>
const errors = [];
function look(frame) {{
    const view = frame.contentWindow, page = frame.contentDocument, root = page.documentElement;
    for (const folded of page.querySelectorAll("details")) folded.open = true;
    const box = element => element.getBoundingClientRect();
    const drawn = [...page.querySelectorAll("figure .drawing[role=img] > svg")];
    const letters = drawn.flatMap(svg => [...svg.querySelectorAll("text")].map(text => {{
        const scale = box(svg).width / svg.viewBox.baseVal.width, at = box(text), of = box(svg);
        const out = Math.max(of.left - at.left, at.right - of.right, of.top - at.top, at.bottom - of.bottom);
        return {{text: text.textContent, size: scale * parseFloat(view.getComputedStyle(text).fontSize), out}};
    }}));
    return {{
        client: root.clientWidth, scroll: root.scrollWidth,
        background: view.getComputedStyle(page.body).backgroundColor,
        figures: [...page.querySelectorAll("figure")].map(
            figure => ({{id: figure.id, ...box(figure).toJSON()}})),
        panels: drawn.map(svg => ({{width: box(svg).width, height: box(svg).height,
            parts: svg.querySelectorAll("path, use, image, text").length}})),
        images: [...page.querySelectorAll("svg image")].map(image => box(image).width * box(image).height),
        marks: [...page.querySelectorAll(".keys svg")].map(mark => box(mark).width * box(mark).height),
        tables: [...page.querySelectorAll("table")].map(table => ({{
            width: box(table).width, height: box(table).height, room: box(table.parentElement).width,
            scrolls: view.getComputedStyle(table.parentElement).overflowX}})),
        contents: [...page.querySelectorAll("nav")].filter(nav => box(nav).height > 0).length,
        letters,
    }};
}}
addEventListener("load", () => {{
    const seen = [...document.querySelectorAll("iframe")].map(frame => {{
        frame.contentWindow.addEventListener("error", event => errors.push(String(event.message)));
        return look(frame);
    }});
    document.getElementById("seen").textContent = JSON.stringify({{pages: seen, errors}});
}});
</script></body>"""


@pytest.fixture(scope="module", params=SCHEMES)
def shown(request, tmp_path_factory):
    """(scheme, {width: what was seen}, console) of one Chromium that shows the page at every width."""
    folder = tmp_path_factory.mktemp("browser")
    write_page(
        folder / "page.html", example_chapters(), example_suite(), command="zeroshift experiment all", machine="m"
    )
    frames = "".join(
        f'<iframe src="page.html" style="border: 0; width: {width}px; height: 900px"></iframe>' for width in WIDTHS
    )
    (folder / "frames.html").write_text(FRAMES.format(frames=frames), encoding="utf-8")
    scheme = f"--blink-settings=preferredColorScheme={SCHEMES[request.param]}"
    text, messages = dump_page(folder / "frames.html", "--enable-logging=stderr", scheme)
    report = json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', text, re.DOTALL)[1]))
    console = [line for line in messages.splitlines() if "CONSOLE" in line]
    return request.param, dict(zip(WIDTHS, report["pages"], strict=True)), [*report["errors"], *console]


@pytest.fixture(params=WIDTHS)
def seen(request, shown):
    return shown[1][request.param]


def test_the_console_is_empty(shown):
    assert shown[2] == []


def test_light_is_light_and_dark_is_dark(shown):
    scheme, pages, _ = shown
    for page in pages.values():
        bright = sum(map(int, re.findall(r"\d+", page["background"])[:3])) / 3
        assert bright > 200 if scheme == "light" else bright < 60


def test_the_page_is_as_wide_as_the_window(shown):
    for width, page in shown[1].items():
        assert page["client"] == width
        assert page["scroll"] <= width


def test_every_figure_is_there_and_inside_the_window(seen):
    assert len(seen["figures"]) == 6
    assert len(seen["panels"]) == 13
    for figure in seen["figures"]:
        assert figure["width"] > 200, figure
        assert figure["height"] > 100, figure
        assert figure["right"] <= seen["client"], figure
    for panel in seen["panels"]:
        assert panel["width"] > 150, panel
        assert panel["height"] > 20, panel
        assert panel["parts"] > 3, panel
    assert len(seen["images"]) == 2 + 3 + 2 + 2  # maps, confusions, regions and two scales
    assert min(seen["images"]) > 1000
    assert min(seen["marks"]) > 10


def test_text_of_figures_is_large_enough(seen):
    assert len(seen["letters"]) > 100
    least = min(seen["letters"], key=lambda letter: letter["size"])
    assert least["size"] >= SMALLEST_TEXT, least


def test_no_letter_of_a_figure_is_cut_off(seen):
    farthest = max(seen["letters"], key=lambda letter: letter["out"])
    assert farthest["out"] <= 1.5, farthest


def test_every_table_is_visible_and_wide_ones_scroll(seen):
    assert len(seen["tables"]) == 3
    for table in seen["tables"]:
        assert min(table["width"], table["height"]) > 40, table
        assert table["room"] <= seen["client"], table
        assert table["width"] <= table["room"] + 1 or table["scrolls"] == "auto", table


def test_contents_are_shown_once(seen):
    assert seen["contents"] == 1


@pytest.mark.parametrize("width", [390, 1280])
def test_the_table_of_the_bundled_sets_can_be_read(tmp_path, width):
    """On a desktop all of it, on a phone the sizes next to the names; the rest scrolls in its own box."""
    suite = Suite.of({info.name: packs.load(info.name) for info in packs.list() if not info.n_views})
    zero_shot = {member.name: 0.5 for member in suite.members}
    write_page(tmp_path / "page.html", [], suite, command="zeroshift experiment all", zero_shot=zero_shot)
    with browser(tmp_path) as chromium:
        chromium.open((tmp_path / "page.html").as_uri(), width=width)
        assert chromium.evaluate("document.documentElement.scrollWidth") <= width
        box = "document.querySelector('#sets .scroll')"
        assert width == 390 or chromium.evaluate(f"{box}.scrollWidth") <= chromium.evaluate(f"{box}.clientWidth")
        cells = (
            "[...document.querySelectorAll('#sets tbody tr')].map(row => row.cells[2].getBoundingClientRect().right)"
        )
        assert max(chromium.evaluate(cells)) <= width
