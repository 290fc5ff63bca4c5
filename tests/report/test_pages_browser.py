"""The pages of demo, compare and classify as Chromium shows them in the width of a phone: no text is cut."""

import html
import json
import re
import shutil
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from report.browser import dump_page
from report.classified import classified, rejects
from zeroshift.evaluate import DatasetRef, Ledger, MethodSpec, plan_comparison, run_plan, summarize
from zeroshift.report.compare_page import write_page
from zeroshift.report.contact_sheet import write_contact_sheet
from zeroshift.report.demo_report import write_report
from zeroshift.report.timeline import Timeline

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")

WIDTH = 390

# In frames, because a headless window does not get narrower than 500 pixels.
FRAMES = """<!doctype html><body>{frames}<pre id="seen"></pre><script>
addEventListener("load", () => {{
    const seen = [...document.querySelectorAll("iframe")].map(frame => {{
        const page = frame.contentDocument, root = page.documentElement;
        for (const folded of page.querySelectorAll("details")) folded.open = true;
        const texts = [...page.querySelectorAll("h1, h2, h3, p, figcaption, dt, dd, summary, pre")];
        const cut = texts.filter(text => text.getBoundingClientRect().right > {width} + 0.5);
        const words = [...page.querySelectorAll(".whole")].filter(
            word => word.offsetHeight > 1.9 * parseFloat(frame.contentWindow.getComputedStyle(word).fontSize));
        const times = [...page.querySelectorAll(".timeline .time")].map(time => time.getBoundingClientRect());
        return {{
            times: times.map(box => [box.left, box.right]),
            bars: [...page.querySelectorAll(".timeline rect[fill]")].map(bar => bar.getBoundingClientRect().width),
            scroll: root.scrollWidth, count: texts.length, cut: cut.map(text => text.textContent),
            broken: words.map(word => word.textContent),
        }};
    }});
    document.getElementById("seen").textContent = JSON.stringify(seen);
}});
</script></body>"""


@pytest.fixture(scope="module")
def pages(comparisons, tmp_path_factory):
    """What Chromium sees of each page, by name."""
    folder = tmp_path_factory.mktemp("pages")
    write_report(folder / "demo.html", comparisons, command="zeroshift demo")
    datasets = [DatasetRef.of(comparison.name, comparison.features) for comparison in comparisons]
    plan = plan_comparison(
        datasets, [MethodSpec(name) for name in ("zero_shot", "tda", "adapt_transductive")], orders=2
    )
    write_page(folder / "compare.html", summarize(plan, list(run_plan(plan, Ledger(folder / "runs")))))
    sheet = {"title": "photos", "command": "zeroshift classify photos"}
    picture = Image.new("RGB", (64, 48))
    write_contact_sheet(folder / "sheet.html", classified(), rejects(), lambda i: picture, **sheet)
    times, shown = np.arange(6.0), classified(classes=("cat", "n" * 90, "horse"))
    last = shown.results[-1]
    timeline = Timeline.of(
        last.predictions, last.run.probabilities.max(axis=1), times=times, end=6.0, names=shown.features.class_names,
        rejected=rejects().rejected,
    )  # fmt: skip
    stream = {**sheet, "timeline": timeline}
    write_contact_sheet(folder / "stream.html", shown, rejects(), lambda i: picture, **stream)
    names = ("demo", "compare", "sheet", "stream")
    style = f"border: 0; width: {WIDTH}px; height: 900px"
    frames = "".join(f'<iframe src="{name}.html" style="{style}"></iframe>' for name in names)
    (folder / "frames.html").write_text(FRAMES.format(frames=frames, width=WIDTH), encoding="utf-8")
    text, _ = dump_page(folder / "frames.html")
    seen = json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', text, re.DOTALL)[1]))
    return dict(zip(names, seen, strict=True))


@pytest.mark.parametrize("name", ["demo", "compare", "sheet", "stream"])
def test_nothing_is_wider_than_the_window(pages, name):
    assert pages[name]["count"] > 5
    assert pages[name]["scroll"] <= WIDTH
    assert pages[name]["cut"] == []


@pytest.mark.parametrize("name", ["demo", "compare"])
def test_words_with_hyphens_are_not_broken(pages, name):
    assert pages[name]["broken"] == []


def test_times_below_a_timeline_do_not_overlap(pages):
    times, bars = pages["stream"]["times"], pages["stream"]["bars"]
    assert len(times) >= 3
    assert all(before[1] < after[0] for before, after in pairwise(times))
    assert times[0][0] >= 0
    assert times[-1][1] <= WIDTH
    assert len(bars) >= 3
    assert min(bars) > 20
