"""Figures show the data, and the same data gives the same bytes."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from zeroshift.evaluate import running_accuracy
from zeroshift.report import demo_figures as figures
from zeroshift.report.demo_figures import _constant_runs, first_drawn, spaced, write_figures
from zeroshift.report.style import INK, METHOD_COLOURS, PAGE_COLOURS, inline_svg, svg_bytes


def test_lines_are_the_running_accuracies(comparisons):
    axes = figures.running_accuracy_of(comparisons[0]).axes[0]
    assert [line.get_label() for line in axes.lines] == [
        "Zero-shot", "Online ADAPT", "Online mixture", "Transductive ADAPT", "Transductive mixture"
    ]  # fmt: skip
    for line, result in zip(axes.lines, comparisons[0].results, strict=True):
        seen = line.get_xdata().astype(int)
        assert (seen[0], seen[-1]) == (first_drawn(120), 120) == (30, 120)
        np.testing.assert_allclose(line.get_ydata(), 100 * running_accuracy(result.correct)[seen - 1])


def test_labels_of_lines_do_not_overlap_and_are_near_their_ends():
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = np.sort(rng.uniform(0, 5, size=5))
        heights = np.array(spaced(list(values), gap=1.0))
        assert np.diff(heights).min() >= 1 - 1e-12
        assert heights.mean() == pytest.approx(values.mean())  # as much is pushed down as up
    assert spaced([1.0, 3.0], gap=1.0) == [1.0, 3.0]


def test_bars_are_the_accuracies(comparisons):
    axes = figures.accuracy_bars(comparisons).axes[0]
    expected = [100 * result.accuracy for comparison in comparisons for result in comparison.results]
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], expected)


def test_bank_strips_end_with_the_entries_of_each_class(comparisons):
    axes = figures.bank_fill_of(comparisons[0]).axes[0]
    counts = comparisons[0].result("adapt_online").run.bank_history[-1]
    assert [text.get_text() for text in axes.texts] == [str(count) for count in counts]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(comparisons[0].features.class_names)


def test_constant_runs_join_steps_with_the_same_count():
    starts, stops = np.array([0, 10, 20, 30]), np.array([10, 20, 30, 35])
    assert _constant_runs(starts, stops, np.array([0, 2, 2, 1])) == [(0, 10, 0), (10, 30, 2), (30, 35, 1)]


def test_unlabelled_sets_are_refused(comparisons):
    import dataclasses

    blind = dataclasses.replace(comparisons[0].baseline, correct=None, accuracy=None)
    comparison = dataclasses.replace(comparisons[0], results=(blind,))
    with pytest.raises(ValueError, match="needs labels"):
        figures.running_accuracy_of(comparison)
    with pytest.raises(ValueError, match="needs labels"):
        figures.accuracy_bars([comparison])


def test_the_same_data_gives_the_same_bytes(comparisons):
    for draw in (figures.accuracy_bars, figures.running_accuracies, figures.bank_fill):
        first, second = svg_bytes(draw(comparisons)), svg_bytes(draw(comparisons))
        assert first == second
        assert b"<dc:date>" not in first


def test_ids_of_an_inline_figure_are_its_own(comparisons):
    first, second = (inline_svg(figures.running_accuracy_of(comparisons[0]), name=name) for name in ("one", "two"))
    ids = re.findall(r'\bid="([^"]*)"', first)
    assert len(set(ids)) == len(ids) > 0
    assert not set(ids) & set(re.findall(r'\bid="([^"]*)"', second))
    assert set(re.findall(r'(?:href="|url\()#([^")]*)', first)) <= set(ids)


def test_an_inline_figure_has_no_background_and_colours_that_a_page_replaces(comparisons):
    text = inline_svg(figures.running_accuracy_of(comparisons[0]), name="mine")
    root = ElementTree.fromstring(text)
    assert root.get("viewBox")
    assert "fill: #ffffff" not in text
    for colour in (INK, *METHOD_COLOURS.values()):
        assert f"stroke: {colour}" in text
        assert colour in PAGE_COLOURS


def test_files_are_written_as_png_and_svg(comparisons, tmp_path):
    written = write_figures(tmp_path, comparisons)
    names = {f"{name}{suffix}" for name in ("accuracy", "running_accuracy", "bank_fill") for suffix in (".png", ".svg")}
    assert {path.name for path in written} == names == {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    before = {path: path.read_bytes() for path in written}
    assert {path: path.read_bytes() for path in write_figures(tmp_path, comparisons)} == before


def contrast(first, second):
    """The contrast of two colours as WCAG 2 defines it."""

    def luminance(colour):
        channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_numbers_can_be_read_on_a_light_card(comparisons):
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for figure in (figures.running_accuracy_of(comparisons[0]), figures.accuracy_bars(comparisons)):
        texts = figure.axes[0].texts
        assert texts
        assert all(contrast(text.get_color(), "#f6f8fa") >= 4.5 for text in texts)
