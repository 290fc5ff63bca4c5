"""The page of `zeroshift leaderboard`: complete without its script, filtered with it, and no wider than the window."""

import shutil
from dataclasses import replace
from itertools import combinations

import pytest

from report.browser import browser
from zeroshift.evaluate import DatasetRef, Ledger, MethodSpec, plan_comparison, run_plan
from zeroshift.evaluate.leaderboard import GROUPS, build_leaderboard
from zeroshift.evaluate.protocols import find_protocol
from zeroshift.evaluate.results import collect
from zeroshift.report.leaderboard import render_leaderboard_page, upper_edge, write_leaderboard_page

NAMES = ("zero_shot", "tda", "tda+filter", "adapt_online", "adapt_transductive", "transclip", "tip_adapter")

needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def board(comparisons, tmp_path_factory):
    folder = tmp_path_factory.mktemp("board")
    datasets = [DatasetRef.of(comparison.name, comparison.features) for comparison in comparisons]
    specs = [MethodSpec.named(name) for name in NAMES]
    plan = plan_comparison(datasets, specs, orders=1, protocol=find_protocol("three-orders"))
    list(run_plan(plan, Ledger(folder)))
    return build_leaderboard(collect([folder], outcomes=True).rows, draws=200)


@pytest.fixture(scope="module")
def page(board, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "leaderboard.html"
    write_leaderboard_page(path, board, command="zeroshift leaderboard")
    return path


def test_the_page_is_the_same_for_the_same_records(board):
    first = render_leaderboard_page(board, command="zeroshift leaderboard")
    assert first == render_leaderboard_page(board, command="zeroshift leaderboard")
    assert all(f'data-name="{name}"' in first for name in NAMES)
    assert "http://" not in first.replace("http://www.w3.org", "").replace("http://purl.org", "")


def test_the_upper_edge(board):
    edge = upper_edge(board.entries)
    for entry in board.entries:
        faster = [other for other in board.entries if other.microseconds < entry.microseconds]
        assert (entry in edge) == all(other.accuracy < entry.accuracy for other in faster)


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(page, tmp_path, width):
    with browser(tmp_path) as chromium:
        chromium.open(page.as_uri(), width=width)
        assert chromium.evaluate("document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('h1,h2,p,figcaption,dt,dd,label,button')]"
        cut = f"{wide}.filter(one => one.getBoundingClientRect().right > {width} + 0.5).map(one => one.textContent)"
        assert chromium.evaluate(cut) == []
        assert chromium.reports == []
        assert [url for url in chromium.requests if not url.startswith("file:")] == []


# The name of every method in the picture, with the corners of its text.
LABELS = """[...document.querySelectorAll('.drawing text')].filter(text => /[a-z]_|[a-z]{3}/.test(text.textContent)
    && !/percent|microseconds/.test(text.textContent)).map(text => {
        const box = text.getBoundingClientRect();
        return [text.textContent, box.left, box.right, box.top, box.bottom];
    })"""


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_labels_of_the_picture_do_not_overprint(board, tmp_path, width):
    """Ten methods with long names, nearly as fast and as accurate as each other, on an axis that goes far down."""
    crowd = [
        replace(
            board.entries[place % len(board.entries)],
            label=f"a_method_with_a_long_name_{place}",
            group=group,
            microseconds=10 + 0.5 * place,
            accuracy=0.7 + 0.0004 * place,
            interval=(0.1, 0.75),
        )
        for place, group in enumerate([*GROUPS, "online", "online", "online"])
    ]
    write_leaderboard_page(tmp_path / "page.html", replace(board, entries=tuple(crowd)), command="")
    with browser(tmp_path) as chromium:
        chromium.open((tmp_path / "page.html").as_uri(), width=width)
        labels = chromium.evaluate(LABELS)
    assert len(labels) >= 5
    for first, second in combinations(labels, 2):
        apart = first[2] <= second[1] or second[2] <= first[1] or first[4] <= second[3] or second[4] <= first[3]
        assert apart, (first, second)
    assert all(left >= 0 and right <= width for _, left, right, _, _ in labels)


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_numbers_are_next_to_long_names(board, tmp_path, width):
    """The table scrolls in its own box, and the first column leaves more than half of it to the numbers."""
    entries = tuple(replace(entry, label=f"anchored_mixture_{entry.label}+support+views") for entry in board.entries)
    write_leaderboard_page(tmp_path / "page.html", replace(board, entries=entries), command="")
    with browser(tmp_path) as chromium:
        chromium.open((tmp_path / "page.html").as_uri(), width=width)
        first = "document.querySelector('tr.method th').getBoundingClientRect().width"
        box = "document.querySelector('#numbers .scroll').getBoundingClientRect().width"
        assert chromium.evaluate(first) < 0.45 * chromium.evaluate(box)
        assert chromium.evaluate("document.documentElement.scrollWidth") <= width


SHOWN = "[...document.querySelectorAll('tr.method')].filter(row => row.offsetParent).map(row => row.dataset.name)"


@needs_chromium
def test_filters_of_the_page(page, board, tmp_path):
    with browser(tmp_path) as chromium:
        chromium.open(page.as_uri(), width=1280)
        assert set(chromium.evaluate(SHOWN)) == set(NAMES)
        assert chromium.evaluate("document.getElementById('count').textContent") == "7 of 7 methods"
        chromium.click(".without[value=order]")
        assert set(chromium.evaluate(SHOWN)) == set(NAMES) - {"tda+filter"}
        chromium.select("#by-group", "transductive")
        assert set(chromium.evaluate(SHOWN)) == {"adapt_transductive", "transclip"}
        chromium.click(".without[value=set]")
        assert chromium.evaluate(SHOWN) == []
        chromium.click("#filters button")
        assert set(chromium.evaluate(SHOWN)) == set(NAMES)
        chromium.select("#by-name", "TDA")
        assert set(chromium.evaluate(SHOWN)) == {"tda", "tda+filter"}
        chromium.click("#filters button")
        times = {entry.label: entry.microseconds for entry in board.entries}
        chromium.select("#at-most", str(times["tda"] + 0.001))
        assert set(chromium.evaluate(SHOWN)) == {label for label, time in times.items() if time <= times["tda"] + 0.001}


@needs_chromium
def test_without_scripts_the_page_is_complete(page, tmp_path):
    with browser(tmp_path) as chromium:
        chromium.open(page.as_uri(), width=390, script=False)
        assert set(chromium.evaluate(SHOWN)) == set(NAMES)
        assert chromium.evaluate("document.getElementById('filters').offsetParent") is None
        assert chromium.evaluate("document.getElementById('count').textContent") == "7 methods"
