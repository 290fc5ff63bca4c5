"""Figures of findings show the data, in colours that everyone can distinguish, with the same bytes each time."""

import dataclasses
import io
import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations, pairwise

import numpy as np
import pytest
from PIL import Image

from report.chapters import (
    CONFUSION,
    GAINS,
    INTERVALS,
    MAPS,
    ODD,
    REGIONS,
    RELIABILITY,
    REMARKS,
    SWEEP,
    example_chapters,
)
from zeroshift.experiments._shared.findings import Bar, Bars, HeatMap, HeatMaps, Lines, Region, Series
from zeroshift.report.experiments.figures import figure_of, panel_figure, panels_of, write_figures
from zeroshift.report.experiments.maps import shades
from zeroshift.report.style import CLASS_COLOURS, METHOD_COLOURS, SERIES_COLOURS, svg_bytes

FIGURES = {finding.name: finding for finding in (SWEEP, INTERVALS, MAPS, RELIABILITY, CONFUSION, REGIONS)}

DICHROMATS = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
"""What those without red or green cones see of linear RGB (Machado et al. 2009, severity 1)."""


def panel(finding, place=0):
    """The axes of one panel."""
    return panel_figure(panels_of(finding).panels[place]).axes[0]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_lines_are_the_series_and_end_with_their_values():
    axes = panel(SWEEP)
    for line, series in zip(axes.lines, SWEEP.series, strict=False):
        np.testing.assert_array_equal(line.get_xdata(), series.x)
        np.testing.assert_array_equal(line.get_ydata(), series.y)
    assert {"75.0", "60.0", "default"} == set(texts(axes))
    assert axes.lines[2].get_xdata()[0] == SWEEP.marked_x
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4", "16"]
    assert len(axes.collections) == 1  # the band of the one series that has one


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    x = tuple(float(at) for at in range(5000))
    line = panel(Lines("l", "L", "x", "y", (Series("s", x, x),))).lines[0]
    assert len(line.get_xdata()) < 300
    assert (line.get_xdata()[0], line.get_xdata()[-1]) == (0, 4999)


@pytest.mark.parametrize("ends", [(50.0, 50.1, 50.2, 50.3), (1.0, 99.0, 99.5, 100.0), (3.0, 3.1, 3.2, 3.3)])
def test_values_at_the_ends_do_not_overlap_and_stay_inside(ends):
    axes = panel(
        Lines("l", "L", "x", "y", tuple(Series(f"s{e}", (0.0, 1.0), (0.0, end)) for e, end in enumerate(ends)))
    )
    bottom, top = axes.get_ylim()
    heights = sorted(text.xy[1] for text in axes.texts)
    assert all(b - a > 0.99 * (top - bottom) / 13 for a, b in pairwise(heights))
    assert len(heights) == 4
    assert bottom <= heights[0] <= heights[-1] <= top


def test_only_lines_that_reach_the_far_end_are_labelled_there_and_equal_ones_once():
    series = (
        Series("a", (0.0, 1.0), (0.0, 5.0)),
        Series("b", (0.0, 1.0), (9.0, 5.0)),
        Series("c", (0.0, 0.5), (0.0, 7.0)),
    )
    assert texts(panel(Lines("l", "L", "x", "y", series))) == ["5.0"]


def test_a_logarithm_that_meets_a_zero_still_shows_it():
    axes = panel(Lines("l", "L", "x", "y", (Series("s", (0.0, 1.0, 64.0), (1.0, 2.0, 3.0)),), log_x=True, steps=True))
    assert axes.get_xscale() == "symlog"
    assert "0" in [label.get_text() for label in axes.get_xticklabels()]
    powers = tuple(2.0**at for at in range(40))
    axes = panel(Lines("l", "L", "x", "y", (Series("s", powers, powers),), log_x=True))
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert 5 < len(ticks) < 12
    assert not any("$" in tick for tick in ticks)


@pytest.mark.parametrize(
    "series",
    [
        (),
        (Series("none", (), ()),),
        (Series("one", (1.0,), (2.0,)),),
        (Series("gaps", (1.0, 2.0), (float("nan"), 2.0)),),
    ],
    ids=["no-series", "no-points", "one-point", "a-gap"],
)
def test_curves_of_little_or_nothing_are_drawn(series):
    assert b"<svg" in svg_bytes(figure_of(Lines("l", "L", "x", "y", series, steps=True)))


def test_every_one_of_many_series_looks_different():
    sketch = panels_of(Lines("l", "L", "x", "y", tuple(Series(f"s{k}", (0.0,), (1.0,)) for k in range(16))))
    assert len({(key.colour, key.mark) for key in sketch.keys}) == 16


def test_methods_have_their_own_colours_and_nothing_else_has_them():
    series = (Series("a", (0,), (1,), method="adapt_online"), Series("b", (0,), (1,)), Series("c", (0,), (1,)))
    keys = panels_of(Lines("l", "L", "x", "y", series)).keys
    assert keys[0].colour == METHOD_COLOURS["adapt_online"]
    assert len({key.colour for key in keys}) == 3
    assert not set(SERIES_COLOURS) & set(METHOD_COLOURS.values())


def test_bars_reach_their_values_and_whiskers_their_intervals():
    axes = panel(INTERVALS)
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], [bar.value for bar in INTERVALS.bars])
    whiskers = [tuple(line.get_xdata()) for line in axes.lines if line.get_marker() == "|"]
    assert whiskers == [(3.8, 6.1), (-2.5, 0.5)]
    assert {"natural", "corruption", "4.90", "\N{MINUS SIGN}1.25", "0.00"} <= set(texts(axes))
    low, high = axes.get_xlim()
    assert low < -2.5
    assert high > 6.1


@pytest.mark.parametrize("group", ["CIFAR-10, JPEG compression, severity 5", "W" * 10 + " wide" * 20, "x"])
def test_the_name_of_a_group_stays_inside_the_figure(group):
    bars = tuple(Bar(label, 4.0, 3.0, 5.0, group) for label in ("ADAPT (online)", "ADAPT (transductive)"))
    figure = figure_of(Bars("gains", "Gains", "points", bars))
    figure.canvas.draw()
    (heading,) = [text for text in figure.axes[0].texts if text.get_fontweight() == "bold"]
    box = heading.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_what_recurs_from_group_to_group_has_one_colour_and_a_key():
    bars = tuple(Bar(label, 1.0, group=group) for group in ("a", "b") for label in ("x", "y"))
    sketch = panels_of(Bars("b", "B", "points", bars))
    assert [key.label for key in sketch.keys] == ["x", "y"]
    assert sketch.keys[0].colour != sketch.keys[1].colour
    assert panels_of(INTERVALS).keys == ()


def test_maps_share_a_scale_on_which_zero_is_empty():
    one, other = np.array([[2.0, 0.0]]), np.array([[1.0, -2.0]])
    alone = shades(one, -2.0, 2.0, diverging=True)
    assert alone[0, :, 3].tolist() == [217, 0]
    assert shades(other, -2.0, 2.0, diverging=True)[0, 0, 3] == 108
    assert tuple(shades(other, -2.0, 2.0, diverging=True)[0, 1, :3]) != tuple(alone[0, 0, :3])
    assert shades(np.array([[np.nan, 5.0]]), 1.0, 5.0, diverging=False)[0, :, 3].tolist() == [0, 217]


def test_maps_show_their_numbers_and_names():
    axes = panel(MAPS)
    assert texts(axes) == ["1.00", "0.25", "0.25", "0.50"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2"]
    assert texts(panel(MAPS, 1))[1] == "\N{MINUS SIGN}0.50"
    scale = panel_figure(panels_of(MAPS).scale).axes[0]
    assert scale.get_xlim() == (-2.0, 2.0)
    assert scale.get_xlabel() == "covariance"


def test_a_large_or_an_empty_map_is_drawn_without_numbers():
    large = HeatMap("l", np.arange(64.0 * 64).reshape(64, 64))
    assert texts(panel(HeatMaps("h", "H", (large,), written=True))) == []
    nothing = HeatMap("n", np.full((2, 2), np.nan), ("a", "b"), ("c", "d"))
    assert texts(panel(HeatMaps("h", "H", (nothing,), written=True))) == []


def test_confusions_are_shown_before_after_and_as_a_change():
    sketch = panels_of(CONFUSION)
    assert [one.title for one in sketch.panels] == ["zero-shot", "online ADAPT", "change"]
    assert texts(panel(CONFUSION, 0))[:3] == ["75", "25", ""]
    assert texts(panel(CONFUSION, 2))[:3] == ["+25", "\N{MINUS SIGN}25", ""]
    names = [label.get_text() for label in panel(CONFUSION).get_yticklabels()]
    assert names[0] == "cat"
    assert names[1].endswith("…")
    assert ODD.startswith(names[1][:-1])


def test_reliability_bars_are_accuracies_and_the_outline_ends_at_the_confidence():
    axes = panel(RELIABILITY)
    measured = RELIABILITY.panels[0]
    bars = [bar.get_height() for bar in axes.patches]
    np.testing.assert_allclose(bars[:3], measured.accuracy)
    np.testing.assert_allclose(np.add(bars[:3], bars[3:]), measured.confidence)
    assert texts(axes) == ["calibration error 10.0%"]
    (above,) = axes.child_axes
    np.testing.assert_allclose([bar.get_height() for bar in above.patches], measured.share)


def test_regions_are_coloured_by_class_with_the_first_row_at_the_bottom():
    axes = panel(REGIONS)
    image = axes.images[0]
    assert image.origin == "lower"
    colours = [f"#{''.join(f'{c:02x}' for c in pixel[:3])}" for pixel in image.get_array()[0]]
    assert colours == [CLASS_COLOURS[0], CLASS_COLOURS[0], CLASS_COLOURS[1]]
    stars = [line for line in axes.lines if line.get_marker() == "*" and line.get_markersize() == 10]
    np.testing.assert_array_equal([line.get_xydata()[0] for line in stars], REGIONS.anchors)
    assert [one.title for one in panels_of(REGIONS).panels] == ["zero-shot: 50.0%", "online ADAPT: 100.0%"]


def test_classes_beyond_ten_share_one_colour_and_the_rarest_do():
    labels = np.repeat(np.arange(14), np.arange(14, 0, -1))
    many = dataclasses.replace(
        REGIONS,
        regions=(Region("r", np.arange(14).reshape(2, 7), 0.5),),
        points=np.zeros((len(labels), 2)),
        labels=labels,
        class_names=tuple(f"c{k}" for k in range(14)),
        anchors=None,
    )
    assert [key.label for key in panels_of(many).keys] == [*(f"c{k}" for k in range(9)), "other classes"]
    pixels = panel(many).images[0].get_array().reshape(14, 4)
    assert len({tuple(pixel) for pixel in pixels}) == 10
    assert len({tuple(pixel) for pixel in pixels[9:]}) == 1


def test_many_points_become_an_image_and_few_stay_shapes():
    def weight(count):
        spread = np.random.default_rng(0).uniform(-1, 1, (count, 2))
        labels = np.arange(count) % 3
        found = dataclasses.replace(REGIONS, points=spread, labels=labels)
        return svg_bytes(panel_figure(panels_of(found).panels[0]))

    assert weight(300).count(b"<use") - weight(30).count(b"<use") == 270
    assert len(weight(5000)) < 200_000  # a shape each would be 500,000


@pytest.mark.parametrize("kind", DICHROMATS)
def test_class_colours_differ_without_red_or_green(kind):
    values = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in CLASS_COLOURS]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.array(DICHROMATS[kind]).T, 0, 1)
    white = np.array([0.9505, 1.0, 1.089])
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    f = np.cbrt(np.maximum(seen @ to_xyz.T / white, 0.008856))
    lab = np.stack([116 * f[:, 1], 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)
    assert min(np.linalg.norm(a - b) for a, b in combinations(lab, 2)) > 20


def test_tables_and_remarks_are_not_figures():
    assert figure_of(GAINS) is None
    assert panels_of(REMARKS[0]) is None


def test_every_figure_becomes_two_files_on_white_the_same_each_time(tmp_path):
    paths = write_figures(tmp_path / "new" / "figures", example_chapters())
    assert [path.name for path in paths] == [f"every-kind-{name}.{kind}" for name in FIGURES for kind in ("svg", "png")]
    assert sorted(path.name for path in (tmp_path / "new" / "figures").iterdir()) == sorted(p.name for p in paths)
    for path in paths:
        if path.suffix == ".png":
            with Image.open(io.BytesIO(path.read_bytes())) as picture:
                assert picture.convert("RGB").getpixel((1, 1)) == (255, 255, 255)
                assert min(picture.size) > 200
        else:
            root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
            words = " ".join("".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text"))
            assert FIGURES[path.stem.removeprefix("every-kind-")].title in words
            assert "var(--" not in path.read_text(encoding="utf-8")
            assert path.read_bytes() == svg_bytes(figure_of(FIGURES[path.stem.removeprefix("every-kind-")]))
            assert b"<dc:date>" not in path.read_bytes()


def test_dollars_in_names_are_letters():
    assert re.search(r"\$x\$", svg_bytes(figure_of(SWEEP)).decode())
