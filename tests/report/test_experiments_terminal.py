"""Tables that fit the terminal without cutting numbers."""

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from report.chapters import GAINS, ODD, example_chapters
from zeroshift.experiments import Chapter
from zeroshift.report.experiments.tables import formatted_table, print_chapters

WIDE, MEDIUM, NARROW, NARROWEST = 220, 90, 40, 26


def printed(width, chapters=None, **options):
    out = io.StringIO()
    console = Console(file=out, width=width, markup=True, highlight=False)
    print_chapters(console, chapters or example_chapters(), width=width, **options)
    return out.getvalue()


def test_everything_but_the_figures_is_printed():
    text = printed(WIDE)
    for part in (
        "Every kind of finding: " + ODD,
        "(Table 5 of the paper)",
        "What is to be known of every-kind?",
        "accuracy (two sets, 12 samples). Three random orders.",
        "Data: Ours ran on other data than the paper's.",
        "Warning: Online ADAPT lost on one set.",
        "Failed: tda on",
        "Figures in the report: Accuracy by bank size: ",
        "; Gain over zero-shot: ",
        "A short one",
    ):
        assert part in text, part
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_result_is_in_one_heading():
    text = printed(WIDE, [Chapter(example_chapters()[0].experiment, (GAINS,))])
    (result,) = re.findall(r": gain [^ ].* points", text)
    assert text.count(result) == 1
    assert result not in text.splitlines()[0]


def test_the_table_of_the_paper_is_shown_on_request():
    assert "65.04" not in printed(WIDE)
    assert "65.04" in printed(WIDE, paper=True)


@pytest.mark.parametrize("width", [26, 30, 36, 45, 60, 80, 100, 120, 140, 180, 240])
def test_no_number_is_cut_and_no_line_too_long(width):
    text = printed(width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    words = set(re.split(r"[\s()]+", text))
    for row in formatted_table(GAINS).rows:
        for cell in row.cells:
            if cell.is_number:
                assert cell.text.split()[0] in words, (width, cell)


def test_narrower_terminals_hide_ranges_first_and_mention_it():
    assert "78.51 (77.93 to 79.05)" in printed(WIDE)
    medium = printed(MEDIUM)
    assert "77.93" not in medium
    assert "in a wider terminal" in medium
    assert "in a wider terminal" not in printed(WIDE)


def test_narrow_terminals_get_the_columns_in_several_tables():
    text = printed(NARROW)
    headings = [line.split() for line in text.splitlines() if line.strip().startswith("method")]
    assert [title for heading in headings for title in heading if title != "method"] == [
        column.title for column in formatted_table(GAINS).columns[1:]
    ]
    assert len(headings) > 1
    assert headings[0][1:3] == ["accuracy", "paper"], "the paper's numbers stay next to ours"
    assert text.count("\n zero-shot ") == len(headings)
    assert "wider terminal" in " ".join(text.split())


def test_the_narrowest_get_a_list_of_everything():
    text = " ".join(printed(NARROWEST).split())
    assert (
        "method: online ADAPT accuracy: 78.51 (77.93 to 79.05) paper: 70.91 gain: +28.5 (+27.9 to +29.0) time: 42.1 ms"
        in text
    )
    assert "wider terminal" not in text


def test_columns_of_numbers_are_lined_up_on_the_right():
    lines = printed(WIDE).splitlines()
    times = ("12.3 µs", "42.1 ms", "75.0 s", "1.5 h")
    ends = [line.index(time) + len(time) for time in times for line in lines if f" {time} " in line]
    assert len(ends) == len(times)
    assert len(set(ends)) == 1


def test_rows_of_a_group_are_below_its_name():
    lines = [line.strip() for line in printed(WIDE).splitlines()]
    place = lines.index("online")
    assert lines[place + 1].startswith("online ADAPT")


def test_an_experiment_that_found_nothing_still_has_its_heading():
    empty = Chapter(example_chapters()[1].experiment, ())
    assert printed(NARROW, [empty]).startswith("A short one\nWhat is to be known of short?")
