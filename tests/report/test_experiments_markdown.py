"""The Markdown document parsed again: escaped names, and equal numbers of columns."""

import dataclasses
from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from report.chapters import GAINS, INTERVALS, ODD, PRINTED, example_chapters, example_suite
from zeroshift.experiments import Chapter
from zeroshift.experiments._shared.findings import Column, Remark, Row, Table
from zeroshift.report.experiments.alt_text import alt_text
from zeroshift.report.experiments.headlines import chapter_heading
from zeroshift.report.experiments.markdown import MARK, chapters_markdown, check_markdown, write_markdown
from zeroshift.report.experiments.tables import formatted_table
from zeroshift.report.formatting import one_line

COMMAND = "zeroshift experiment all"


class Reader(HTMLParser):
    """Tables as lists of lists, other text in pieces, and which tags there were."""

    def __init__(self):
        super().__init__()
        self.tables, self.pieces, self.tags, self.inside = [], [], [], False

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.inside = True
        elif tag in ("p", "li", "h1", "h2", "summary"):
            self.pieces.append("")

    def handle_endtag(self, tag):
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data):
        if self.inside:
            self.tables[-1][-1][-1] += data
        elif self.pieces:
            self.pieces[-1] += data


def read(text):
    reader = Reader()
    reader.feed(MarkdownIt("commonmark").enable("table").enable("strikethrough").render(text))
    reader.pieces = [piece.strip() for piece in reader.pieces]
    return reader


def document(**options):
    return chapters_markdown(example_chapters(), example_suite(), command=COMMAND, **options)


def expected(table):
    made = formatted_table(table)
    yield [column.title for column in made.columns]
    for row in made.rows:
        if row.starts_group:
            yield [row.group] + [""] * (len(row.cells) - 1)
        yield [str(cell) for cell in row.cells]


def test_tables_are_read_back_whole():
    sets, gains, printed = read(document()).tables
    assert gains == list(expected(GAINS))
    assert printed == list(expected(PRINTED))
    assert sets[2][0] == ODD
    assert sets[2][3:6] == [f"Six of {ODD}", "other sets", "composed, default"]


def test_text_around_the_tables():
    reader = read(document())
    assert reader.pieces[0] == "Experiments"
    for piece in (
        chapter_heading(example_chapters()[0]),
        "What is to be known of every-kind? Table 5 of the paper.",
        f"A note on {ODD}.",
        "Data. Ours ran on other data than the paper's.",
        "Warning. Online ADAPT lost on one set.",
        f"accuracy (two sets, 12 samples). Three random orders. On {ODD}.",
        f"Figure. {alt_text(INTERVALS)}",
        INTERVALS.caption,
        "Its runs took 75.0 s together.",
        "Table 5 of the paper",
    ):
        assert piece in reader.pieces, piece
    assert any(piece.startswith(f"tda on {ODD}: ValueError: <no>") for piece in reader.pieces)
    assert COMMAND in document()


def test_the_contents_lead_to_the_chapters():
    tags = read(document()).tags
    targets = [attributes["href"] for tag, attributes in tags if tag == "a" and "href" in attributes]
    assert targets == ["#the-sets", "#every-kind", "#short"]
    assert [attributes["id"] for tag, attributes in tags if tag == "a" and "id" in attributes] == [
        "every-kind",
        "short",
    ]


def test_numbers_on_the_right_the_best_in_bold_the_papers_table_folded():
    text = document()
    assert "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |" in text
    assert "**78.51** (77.93 to 79.05)" in text
    assert "| **online ADAPT** |" in text
    folded = text.split("<details>")[1].split("</details>")[0]
    assert "65.04" in folded
    assert "78.51" not in folded


def test_figures_are_linked_with_alt_text():
    reader = read(document(figures={"every-kind-intervals": "my figures/a(1).svg", "intervals": "wrong.svg"}))
    (attributes,) = [attributes for tag, attributes in reader.tags if tag == "img"]
    assert attributes["src"] == "my%20figures/a%281%29.svg"
    assert unescape(attributes["alt"]) == alt_text(INTERVALS)
    assert f"Figure. {alt_text(INTERVALS)}" not in reader.pieces


@pytest.mark.parametrize(
    "name", ["&lt;b&gt; &copy;", "~~gone~~", "<!-- gone -->", "![x](y.png)", "<https://a.b>", "\\*x*"]
)
def test_names_that_look_like_markup_are_letters(name):
    table = Table("t", name, (Column("x", "text"),), (Row((name,)),))
    chapter = Chapter(example_chapters()[1].experiment, (table, Remark(name)))
    reader = read(chapters_markdown([chapter], example_suite(), command=COMMAND))
    assert reader.tables[1] == [["x"], [name]]
    assert reader.pieces.count(name) == 2
    assert "img" not in [tag for tag, _ in reader.tags]


@given(name=st.text(st.characters(), max_size=30))
def test_any_name_is_read_as_its_letters(name):
    experiment = example_chapters()[1].experiment
    table = Table("t", "T", (Column("x", "text"), Column("y", "text")), (Row((f"a{name}a", f"b{name}b")),))
    chapter = Chapter(experiment, (table, Remark(f"a{name}a")), failed=(f"z{name}z",))
    reader = read(chapters_markdown([chapter], example_suite(), command=COMMAND))
    assert reader.tables[1] == [["x", "y"], [one_line(f"a{name}a"), one_line(f"b{name}b")]]
    assert one_line(f"a{name}a") in reader.pieces
    assert one_line(f"z{name}z") in reader.pieces


@pytest.mark.parametrize("text", ["- no list", "1. no list", "12) no list", "+ no list", "# no heading", "=== no rule"])
def test_a_remark_does_not_begin_a_list_or_a_heading(text):
    chapter = Chapter(example_chapters()[1].experiment, (Remark(text),))
    assert text in read(chapters_markdown([chapter], example_suite(), command=COMMAND)).pieces


def test_only_documents_of_zeroshift_are_replaced(tmp_path):
    path = tmp_path / "experiments.md"
    write_markdown(path, example_chapters(), example_suite(), command=COMMAND)
    assert path.read_text(encoding="utf-8").splitlines()[0] == MARK
    write_markdown(path, example_chapters()[1:], example_suite(), command=COMMAND)
    assert "Every kind" not in path.read_text(encoding="utf-8")
    path.write_text("my notes\n", encoding="utf-8")
    with pytest.raises(FileExistsError, match="Fix"):
        write_markdown(path, example_chapters(), example_suite(), command=COMMAND)
    assert path.read_text(encoding="utf-8") == "my notes\n"
    with pytest.raises(IsADirectoryError, match="Fix"):
        check_markdown(tmp_path)
    with pytest.raises(FileNotFoundError, match="Fix"):
        check_markdown(tmp_path / "no" / "experiments.md")
    assert [file.name for file in tmp_path.iterdir()] == ["experiments.md"]


def test_commands_between_backticks_stay_commands_and_other_backticks_are_letters():
    remark = Remark("Fix: `zeroshift extract --prompts a,b_c`; a lone ` and `<b>` are letters.")
    chapter = dataclasses.replace(example_chapters()[0], findings=(remark,))
    text = chapters_markdown([chapter], example_suite(), command="c")
    assert "Fix: `zeroshift extract --prompts a,b_c`; a lone \\` and \\`\\<b\\>\\` are letters." in text
