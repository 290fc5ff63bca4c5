"""The demo page contains the numbers and the losses, and loads nothing."""

import dataclasses
import re
import shutil
from html.parser import HTMLParser

import pytest

from report.browser import dump_page
from zeroshift.report.demo_report import headline, render_report, write_report
from zeroshift.report.page import is_report

VOID = {"meta", "br", "hr", "img", "link", "input", "use", "path"}


class Outline(HTMLParser):
    """Tags, attributes and text; and whether everything that was opened is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.words, self.style = [], [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            self.style += data
        else:
            self.words.append(data)


@pytest.fixture(scope="module")
def page(comparisons):
    return render_report(comparisons, command="zeroshift demo", hint_note="")


@pytest.fixture(scope="module")
def outline(page):
    return Outline(page)


def test_it_is_well_formed(outline):
    assert outline.open == []
    identities = [value for name, value in outline.attributes if name == "id"]
    assert len(identities) == len(set(identities))


def test_it_holds_every_number(comparisons, outline):
    text = " ".join(outline.words)
    for comparison in comparisons:
        for result in comparison.results:
            assert f"{100 * result.accuracy:.1f}" in text
        for result in comparison.results[1:]:
            assert f"{comparison.gain(result):+.1f}".replace("-", "\N{MINUS SIGN}") in text


def test_it_says_where_adaptation_lost(comparisons, outline):
    gain = comparisons[1].gain(comparisons[1].result("adapt_online"))
    assert gain < 0
    assert f"Adaptation lost to zero-shot: Online ADAPT on Set B-2 ({gain:+.1f})" in " ".join(outline.words)


def test_it_has_a_figure_of_each_kind_for_each_set(comparisons, outline):
    assert outline.tags.count("svg") == 1 + 2 + 2 * len(comparisons)  # bars, the cloud, and two for each set
    assert outline.tags.count("figcaption") == outline.tags.count("figure") == outline.tags.count("svg") - 1
    assert all(value for name, value in outline.attributes if name == "aria-label")


def test_nothing_comes_from_outside(outline):
    for name, value in outline.attributes:
        if name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            assert value.startswith("#"), f"{name}={value!r}"
    assert not {"link", "script", "iframe", "object", "img"} & set(outline.tags)
    assert "url(" not in outline.style
    assert "@import" not in outline.style


def test_names_are_text_not_markup(page, outline):
    assert "<b>co</b>" not in page
    assert "t-shirt" in page  # a hyphen in a name is no minus sign
    assert "Set A-1" in " ".join(outline.words)


def test_it_names_data_methods_parameters_and_versions(outline):
    text = " ".join(" ".join(outline.words).split())
    for phrase in ("a random encoder", "bank_size", "zeroshift demo", "NumPy", "Licence: none", "NeurIPS 2025"):
        assert phrase in text


def test_light_and_dark_are_both_there(outline):
    assert "prefers-color-scheme: dark" in outline.style


def test_the_same_comparisons_give_the_same_bytes(comparisons, page):
    assert render_report(comparisons, command="zeroshift demo", hint_note="") == page


def test_headline_is_honest(comparisons):
    first = comparisons[0]
    lost = dataclasses.replace(first.results[1], accuracy=first.baseline.accuracy - 0.1)
    equal = dataclasses.replace(first.results[1], accuracy=first.baseline.accuracy)
    won = dataclasses.replace(first.results[1], accuracy=first.baseline.accuracy + 0.05)

    other = dataclasses.replace(won, method="other")

    def headline_of(*others):
        return headline([dataclasses.replace(first, results=(first.baseline, *others))])

    third = dataclasses.replace(won, method="third")
    assert headline_of(won) == "Online ADAPT +5.0 points on Set A-1, without labels"
    assert headline_of(lost) == "Online ADAPT -10.0 points on Set A-1, without labels"
    assert headline_of(equal) == "Online ADAPT 0.0 points on Set A-1, without labels"
    assert headline_of(lost, other) == "Online ADAPT -10.0, other +5.0 points on Set A-1, without labels"
    assert headline_of(lost, other, third) == "-10.0 to +5.0 points on Set A-1, without labels"
    assert headline_of() == f"Zero-shot {100 * first.baseline.accuracy:.1f}% on Set A-1"


def test_titles_state_findings(comparisons, outline):
    text = " ".join(" ".join(outline.words).split())
    gains = [comparisons[0].gain(result) for result in comparisons[0].results[1:]]
    low, high = (f"{end:+.1f}".replace("-", "\N{MINUS SIGN}") for end in (min(gains), max(gains)))
    assert f"Set A-1 : {low} to {high} points".replace(" :", ":") in text
    assert "On 1 of 2 sets, some method loses to zero-shot" in text
    assert re.search(r"online methods are ahead of zero-shot in \d of 4 runs", text)
    assert re.search(r"Three classes of Set A-1: \d+ of \d+ labels change, accuracy", text)
    assert re.search(r"[Cc]alibration error (rises from )?[\d.]+%", text)


def test_no_backticks_no_captions_in_scrolling_boxes_and_no_broken_words(page, outline):
    assert "`" not in " ".join(outline.words)
    assert "caption" not in outline.tags  # it would be as wide as the table, and cut by the window
    assert "break-all" not in outline.style
    assert "anywhere" not in outline.style
    assert '<span class="whole">Zero-shot</span>' in page


def test_a_report_is_recognised_and_other_files_are_not(comparisons, tmp_path):
    report, other = tmp_path / "report.html", tmp_path / "other.html"
    write_report(report, comparisons, command="zeroshift demo")
    other.write_text("<html><p>zeroshift</p></html>")
    assert is_report(report)
    assert not is_report(other)
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "other.html"}


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 360])
def test_no_horizontal_overflow_in_a_browser(page, tmp_path, width):
    # In a frame, because a headless window does not get narrower than 500 pixels.
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    (tmp_path / "frame.html").write_text(
        f"""<iframe src="report.html" style="border: 0; width: {width}px; height: 900px"></iframe><script>
        onload = () => {{
            const root = document.querySelector("iframe").contentDocument.documentElement;
            document.body.innerHTML = `client=${{root.clientWidth}} scroll=${{root.scrollWidth}}`;
        }}
        </script>"""
    )
    text, _ = dump_page(tmp_path / "frame.html")
    client, scroll = (int(re.search(rf"{name}=(\d+)", text)[1]) for name in ("client", "scroll"))
    assert client == width
    assert scroll <= width
