"""Segments of equal labels: worked out by hand, in the file, in the table and in the drawing of the page."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest
from PIL import Image

from report.classified import classified, rejects
from report.sheet_reader import Sheet
from zeroshift.report.contact_sheet import contact_sheet
from zeroshift.report.timeline import MAX_BARS, Segment, Timeline, clock, write_segments

NAMES = ("cat", "dog", "horse")


def timeline(labels, probabilities=None, *, times=None, end=None, names=NAMES, in_seconds=True) -> Timeline:
    labels = np.array(labels)
    times = np.arange(len(labels)) if times is None else np.array(times)
    return Timeline.of(
        labels,
        np.full(len(labels), 0.5) if probabilities is None else np.array(probabilities),
        times=times,
        end=len(labels) if end is None else end,
        names=names,
        in_seconds=in_seconds,
    )


# Segments.


def test_segments_worked_out_by_hand():
    found = timeline(
        [1, 1, 0, 2, 2, 2],
        [0.5, 0.7, 0.9, 0.2, 0.4, 0.9],
        times=[0.0, 0.5, 1.0, 4.0, 4.5, 5.0],  # three seconds without a frame
        end=5.25,
    ).segments
    assert found == (
        Segment(start=0.0, end=1.0, label=1, probability=pytest.approx(0.6), first=0, frames=2),
        Segment(start=1.0, end=4.0, label=0, probability=pytest.approx(0.9), first=2, frames=1),
        Segment(start=4.0, end=5.25, label=2, probability=pytest.approx(0.5), first=3, frames=3),
    )


def test_one_frame_is_one_segment():
    assert timeline([2], [0.75], times=[1.5], end=2.0).segments == (Segment(1.5, 2.0, 2, 0.75, 0, 1),)


def test_segments_cover_the_sequence():
    labels = np.random.default_rng(0).integers(0, 3, 200)
    found = timeline(labels)
    assert sum(segment.frames for segment in found.segments) == 200
    assert [s.end for s in found.segments[:-1]] == [s.start for s in found.segments[1:]]
    assert [s.label for s in found.segments for _ in range(s.frames)] == labels.tolist()
    assert all(before.label != after.label for before, after in zip(found.segments, found.segments[1:], strict=False))


@pytest.mark.parametrize(
    ("found", "headline"),
    [
        (timeline([0, 0, 1, 0]), "3 segments of 2 classes in 0:04.0"),
        (timeline([0], in_seconds=False), "1 segment of 1 class in 1 frame"),
        (timeline([0, 1], times=[90.0, 92.0], end=3692.5), "2 segments of 2 classes in 1:00:02.5"),
    ],
)
def test_headline(found, headline):
    assert found.headline == headline


# Files.


def test_the_file(tmp_path):
    found = timeline(
        [0, 0, 1], [1.0, 0.5, 1 / 3], times=[0, 4000.0005, 7200.04], end=7200.08, names=("=1+1", 'a "b", c')
    )
    write_segments(tmp_path / "s.csv", found)
    assert (tmp_path / "s.csv").read_text() == (
        "start,end,label,probability,frames\n"
        "0.000,7200.040,'=1+1,0.75,2\n"
        '7200.040,7200.080,"a ""b"", c",0.333333,1\n'
    )  # fmt: skip
    write_segments(tmp_path / "s.csv", found, raw_csv=True)
    assert "0.000,7200.040,=1+1,0.75,2\n" in (tmp_path / "s.csv").read_text()


def test_numbers_of_frames_are_integers(tmp_path):
    found = timeline([0, 1, 1], in_seconds=False)
    write_segments(tmp_path / "s.csv", found)
    assert (tmp_path / "s.csv").read_text().splitlines()[1:] == ["0,1,cat,0.5,1", "1,3,dog,0.5,2"]
    assert found.records()[1] == {"start": 1, "end": 3, "label": "dog", "probability": 0.5, "frames": 2}


def test_the_table_is_bounded():
    shown = timeline([0, 1] * 30).table(20, "see s.csv")
    assert len(shown.rows) == 20
    assert shown.notes == ("and 40 more segments: see s.csv",)
    assert timeline([0, 1] * 10).table(20, "see s.csv").notes == ()
    assert [str(cell) for cell in shown.rows[1].cells] == ["0:01.0", "0:02.0", "dog", "0.50", "1"]


# The drawing.


def test_bars_are_where_the_segments_are():
    drawing = timeline([1, 0, 0, 1], [1.0, 0.0, 0.0, 0.5], times=[10, 12, 14, 16], end=20).drawing()
    assert [lane["name"] for lane in drawing["lanes"]] == ["dog", "cat"]  # as they first appear
    bars = [[(bar["x"], bar["width"], bar["opacity"]) for bar in lane["bars"]] for lane in drawing["lanes"]]
    assert bars == [
        [("0.000", "20.000", "1.00"), ("60.000", "40.000", "0.68")],
        [("20.000", "40.000", "0.35")],
    ]
    assert drawing["lanes"][1]["bars"][0]["text"] == "0:12.0 to 0:16.0: cat 0.00"
    assert [(tick["x"], tick["text"]) for tick in drawing["ticks"]] == [
        ("0.000", "0:10"), ("20.000", "0:12"), ("40.000", "0:14"), ("60.000", "0:16"), ("80.000", "0:18"),
        ("100.000", "0:20"),
    ]  # fmt: skip
    assert [tick["anchor"] for tick in drawing["ticks"]][::5] == ["start", "end"]


@pytest.mark.parametrize(
    ("start", "end", "in_seconds", "expected"),
    [
        (0.0, 0.04, True, ["0:00.00", "0:00.01", "0:00.02", "0:00.03", "0:00.04"]),
        (0.0, 3.2, True, ["0:00", "0:01", "0:02", "0:03"]),
        (0.5, 3.5, True, ["0:00.5", "0:01.5", "0:02.5", "0:03.5"]),
        (0.0, 80.0, True, ["0:00", "0:30", "1:00"]),
        (0.0, 86400.0, True, ["0:00", "5:00:00", "10:00:00", "15:00:00", "20:00:00"]),
        (0, 12, False, ["0", "5", "10"]),
        (0, 3, False, ["0", "1", "2", "3"]),
    ],
)
def test_times_below_the_drawing(start, end, in_seconds, expected):
    drawing = timeline([0], times=[start], end=end, in_seconds=in_seconds).drawing()
    assert [tick["text"] for tick in drawing["ticks"]] == expected


def test_rare_classes_share_a_line():
    names = tuple(f"class {k}" for k in range(15))
    labels = [k for k in range(15) for _ in range(20 - k)]
    lanes = timeline(labels, names=names).drawing()["lanes"]
    assert [lane["name"] for lane in lanes] == [*names[:10], "5 other classes"]
    assert [len(lane["bars"]) for lane in lanes] == [1] * 10 + [5]
    assert len({lane["colour"] for lane in lanes}) == 11


def test_of_very_many_segments_the_longest_are_drawn():
    labels = [0, 1] * MAX_BARS + [2] * 10
    drawing = timeline(labels).drawing()
    assert sum(len(lane["bars"]) for lane in drawing["lanes"]) == MAX_BARS
    assert drawing["left_out"] == MAX_BARS + 1
    assert len(drawing["lanes"][2]["bars"]) == 1


def test_a_clip_of_no_length_can_be_drawn():
    assert timeline([0], times=[0.0], end=0.0).drawing()["lanes"][0]["bars"][0]["x"] == "0.000"


def test_clock():
    assert [clock(t, decimals=1) for t in (0, 59.94, 59.96, 3599.99, 360000)] == [
        "0:00.0", "0:59.9", "1:00.0", "1:00:00.0", "100:00:00.0",
    ]  # fmt: skip


# Frames that show none of the classes.


@pytest.fixture
def with_rejected() -> Timeline:
    """cat, cat, rejected, rejected, cat, dog; the rejected frames would have been a cat and a dog."""
    return Timeline.of(
        np.array([0, 0, 0, 1, 0, 1]), np.array([0.5, 0.7, 0.9, 0.9, 0.8, 0.6]), times=np.arange(6), end=6, names=NAMES,
        rejected=np.array([0, 0, 1, 1, 0, 0], bool),
    )  # fmt: skip


def test_rejected_frames_are_segments_without_a_probability(with_rejected, tmp_path):
    assert [(one.label, one.probability, one.frames) for one in with_rejected.segments] == [
        (0, pytest.approx(0.6), 2), (3, None, 2), (0, 0.8, 1), (1, 0.6, 1),
    ]  # fmt: skip
    assert with_rejected.headline == "4 segments, 1 of them none of these, of 2 classes in 0:06.0"
    assert with_rejected.found == "cat 0:03.0, dog 0:01.0, 0:02.0 none of these in 0:06.0"
    assert with_rejected.records()[1] == {
        "start": 2.0, "end": 4.0, "label": "none of these", "probability": None, "frames": 2,
    }  # fmt: skip
    write_segments(tmp_path / "s.csv", with_rejected)
    assert (tmp_path / "s.csv").read_text().splitlines()[2] == "2.000,4.000,none of these,,2"
    cells = [str(cell) for cell in with_rejected.table(9, "").rows[1].cells]
    assert cells == ["0:02.0", "0:04.0", "none of these", "", "2"]


def test_rejected_frames_have_a_lane_of_their_own(with_rejected):
    lanes = {lane["name"]: lane for lane in with_rejected.drawing()["lanes"]}
    assert list(lanes) == ["cat", "none of these", "dog"]
    assert lanes["none of these"]["colour"] == "currentColor"
    (bar,) = lanes["none of these"]["bars"]
    assert bar["text"] == "0:02.0 to 0:04.0: none of these"


def test_rejected_segments_on_the_page(with_rejected):
    sheet = Sheet(sheet_of(classified(), with_rejected))
    assert "0:02.0 0:04.0 none of these 2 0:04.0" in sheet.text["Timeline"]
    assert "none of these 0:02.0 to 0:04.0" in sheet.text["Segments"]


def test_all_frames_may_be_rejected():
    found = Timeline.of(np.zeros(3, int), np.ones(3), times=np.arange(3), end=3, names=NAMES, rejected=np.ones(3, bool))
    assert found.headline == "1 segment, 1 of them none of these, of 0 classes in 0:03.0"
    assert len(found.drawing()["lanes"]) == 1


# The page.


def sheet_of(comparison, found) -> str:
    return contact_sheet(
        comparison, rejects(np.zeros(6)), lambda i: Image.new("RGB", (64, 48), (40 * i, 0, 0)),
        title="clip.mp4", command="zeroshift classify clip.mp4 --stream", timeline=found,
    )  # fmt: skip


def page_of(names=NAMES, **options) -> tuple[str, Timeline]:
    comparison = classified(classes=names, files=tuple(f"clip.mp4#t={0.5 * i:g}" for i in range(6)))
    last = comparison.results[-1]
    found = timeline(last.predictions, last.run.probabilities.max(axis=1), names=names, **options)
    return sheet_of(comparison, found), found


def test_the_page_shows_drawing_table_and_first_frames():
    # The predictions are dog, dog, dog, cat, cat, dog.
    page, _ = page_of(times=0.5 * np.arange(6), end=3.0)
    sheet = Sheet(page)
    assert "clip.mp4: dog 0:02.0, cat 0:01.0 in 0:03.0" in page
    assert '<td class="label"><bdi>dog</bdi></td>' in page
    assert ".segments .label { text-align: left; }" in page
    assert "3 segments of 2 classes in 0:03.0" in page
    drawn = page.split('<svg class="timeline"')[1].split("</svg>")[0]
    assert re.findall("<title>(.*?)</title>", drawn) == [
        "0:00.0 to 0:01.5: dog 0.78", "0:02.5 to 0:03.0: dog 0.99", "0:01.5 to 0:02.5: cat 0.50",
    ]  # fmt: skip
    assert re.findall(r'x="(\S+)%" y="\d+" width="(\S+)%"', drawn) == [
        ("0.000", "50.000"), ("83.333", "16.667"), ("50.000", "33.333"),
    ]  # fmt: skip
    text = sheet.text["Timeline"]
    assert "Start End Label Probability Frames 0:00.0 0:01.5 dog 0.78 3 0:01.5 0:02.5 cat 0.50 2" in text
    assert "3 segments with the first frame. dog 0.78 0:00.0 to 0:01.5 cat 0.50" in sheet.text["Segments"]
    assert page.count("data:image/jpeg") == 6  # those of segments are not embedded again
    first = page.split("<h2>Segments</h2>")[1]
    assert re.findall(r'<image id="picture-(\d)"', first)[:3] == ["0", "3", "5"]


def test_numbers_of_frames_on_the_page():
    page, _ = page_of(in_seconds=False)
    assert "in 6 frames" in page
    assert "numbers of frames, counted from 0" in page
    assert "0 to 3: dog 0.78" in page


def test_names_cannot_break_the_page():
    page, _ = page_of(names=("<script>", '"&quot;\x1b[31m', "x"))
    sheet = Sheet(page)
    assert sheet.tags.count("script") == 1  # the page's own
    assert "\x1b" not in html.unescape(page)
    links = [value for name, value in sheet.attributes if name in ("src", "href")]
    assert all(value.startswith(("#", "data:")) for value in links)


def test_a_long_sequence_is_bounded():
    labels = np.arange(1000) % 2
    comparison = classified(
        before=[[0.6, 0.4, 0.0]] * 1000, after=[[0.6, 0.4, 0.0], [0.4, 0.6, 0.0]] * 500,
        files=tuple(f"{i}.jpg" for i in range(1000)),
    )  # fmt: skip
    page = contact_sheet(
        comparison, rejects(np.zeros(1000)), lambda i: Image.new("RGB", (8, 8)), title="clip", command="x",
        timeline=timeline(labels),
    )  # fmt: skip
    assert "And 800 more, in the .csv file of the segments." in page
    assert "24 of 1,000 segments, the longest, with the first frame." in page
    assert page.split("<h2>Segments</h2>")[1].split("</section>")[0].count("<li>") == 24
    assert '<details class="segments">' in page  # closed


def test_pages_without_a_timeline_are_as_before():
    page = sheet_of(classified(), None)
    assert "timeline" not in page.split("</style>")[1]
