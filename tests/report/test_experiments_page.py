"""The page of experiments contains every number, lists warnings first, and loads nothing."""

import dataclasses
import re

import pytest

from report.chapters import GAINS, ODD, PRINTED, REMARKS, example_chapters, example_suite
from report.test_demo_report import Outline
from zeroshift.experiments._shared.findings import Remark, Table
from zeroshift.report.experiments.page import page_context, render_page, write_page
from zeroshift.report.experiments.tables import formatted_table
from zeroshift.report.page import is_report
from zeroshift.report.style import PAGE_COLOURS

HOW = {"command": "zeroshift experiment all --packs <x>", "machine": "two cores", "versions": {"NumPy": "9.8.7"}}


@pytest.fixture(scope="module")
def page():
    return render_page(example_chapters(), example_suite(), **HOW)


@pytest.fixture(scope="module")
def outline(page):
    return Outline(page)


@pytest.fixture(scope="module")
def words(outline):
    return " ".join(" ".join(outline.words).split())


def short(*findings, **changes):
    """A page with one chapter of findings that are quickly drawn."""
    chapter = dataclasses.replace(example_chapters()[1], findings=findings, **changes)
    return page_context([chapter], example_suite(), command="c")


def test_it_is_well_formed(outline):
    assert outline.open == []
    identities = [value for name, value in outline.attributes if name == "id"]
    assert len(identities) == len(set(identities))


def test_links_lead_somewhere(outline):
    identities = {value for name, value in outline.attributes if name == "id"}
    links = {value[1:] for name, value in outline.attributes if name in ("href", "xlink:href") and value[0] == "#"}
    assert {"sets", "every-kind", "short", "again", "top"} <= links <= identities


def test_it_holds_every_number_of_every_table(words):
    for table in (GAINS, PRINTED):
        made = formatted_table(table)
        for row in made.rows:
            for cell in row.cells:
                assert (cell.text.replace("-", "\N{MINUS SIGN}") if cell.is_number else cell.text) in words
                assert cell.range_text.replace("-", "\N{MINUS SIGN}") in words
        assert all(column.title in words for column in made.columns)


def test_the_papers_numbers_are_marked_and_its_own_table_is_folded_away(page):
    assert re.search(r'<td class="right paper"[^>]*>70\.91', page)
    assert re.search(r'<td class="right best"[^>]*>78\.51', page)
    folded = re.search(r'<details class="reference" id="every-kind-printed">.*?</details>', page, re.DOTALL)[0]
    assert "65.04" in folded
    assert "65.04" not in page.replace(folded, "")


def test_warnings_come_before_everything_else_and_lead_to_their_chapter(page):
    (warning,) = [remark.text for remark in REMARKS if remark.kind == "warning"]
    first = page.index(warning)
    assert first < page.index('<section id="sets">') < page.index(warning, first + 1)
    assert page.rindex('href="#every-kind"', 0, first) > page.index("What came out badly")


def test_without_warnings_there_is_no_list_of_warnings():
    assert short(REMARKS[0])["warnings"] == []


def test_every_kind_of_remark_is_there(words):
    for remark in REMARKS:
        assert remark.text.replace("`", "") in " ".join(words.split())
    assert "Other data." in words
    assert "Warning." in words


def test_runs_that_failed_are_named(words):
    assert "A run failed" in words
    assert f"tda on {ODD}: ValueError: <no>" in words


def test_every_figure_has_a_caption_and_alt_text(outline, words):
    assert outline.tags.count("figure") == 6
    panels = 1 + 1 + 2 + 2 + 3 + 2
    scales = 2
    labels = [value for name, value in outline.attributes if name == "aria-label"]
    assert outline.attributes.count(("role", "img")) == panels + scales
    assert all(labels)
    assert any("online ADAPT: 70.5 at 1" in label for label in labels)
    assert "The bank need not be large." in words


def test_sets_are_listed_with_their_zero_shot_accuracy():
    rows = page_context([], example_suite(), command="c", zero_shot={"cifar10": 0.5})["sets"]["table"].rows
    assert [row.cells[-1].text for row in rows] == ["50.0", ""]
    assert rows[1].cells[0].text == ODD
    assert {cell.text for cell in rows[0].cells} >= {"6", "3", "composed, default", "Task 1: natural shift", "no"}


def test_the_note_on_published_numbers():
    assert "No set here is the paper's own data" in short(REMARKS[0])["paper_note"]
    # 50 against 68.73 and 78.512 against 70.91.
    assert "2 numbers of ours stand next to" in short(GAINS)["paper_note"]
    assert "within 13.2 points of it, 1 above it" in short(GAINS)["paper_note"]
    assert "No set here" in short(PRINTED)["paper_note"]
    held = dataclasses.replace(example_suite().members[0], from_paper=True)
    suite = dataclasses.replace(example_suite(), members=(held,))
    assert "1 set is the paper's own data, but" in page_context([], suite, command="c")["paper_note"]


def test_nothing_comes_from_outside(outline):
    for name, value in outline.attributes:
        if name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            assert value.startswith(("#", "data:image/png;base64,")), f"{name}={value[:40]!r}"
    assert not {"link", "script", "iframe", "object", "img"} & set(outline.tags)
    assert "url(" not in outline.style
    assert "@import" not in outline.style


def test_names_are_text_not_markup(page, words):
    assert "<d>" not in page
    assert ODD in words
    assert "zeroshift experiment all --packs <x>" in words
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_it_names_machine_and_versions(words):
    assert "Measured on two cores." in words
    assert "NumPy 9.8.7" in words


def test_every_colour_has_a_light_and_a_dark_value(page, outline):
    for variable in {*PAGE_COLOURS.values(), *re.findall(r"var\(--[\w-]+\)", page)} - {"currentColor"}:
        name = variable[4:-1]
        if name in ("--colour", "--least"):
            continue
        assert outline.style.count(f"{name}:") >= 2, name
    for colour, page_colour in PAGE_COLOURS.items():
        assert f'.drawing [style*="fill: {colour}"] {{ fill: {page_colour} !important; }}' in outline.style


def test_the_same_chapters_give_the_same_bytes(page):
    assert render_page(example_chapters(), example_suite(), **HOW) == page


def test_the_page_is_recognised_as_a_report_and_leaves_no_other_file(tmp_path):
    write_page(tmp_path / "page.html", example_chapters()[1:], example_suite(), command="c")
    assert is_report(tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_two_findings_of_one_name_are_refused():
    twice = dataclasses.replace(GAINS, title="Another")
    with pytest.raises(ValueError, match="short-gains"):
        short(GAINS, twice)


def test_a_table_without_rows():
    empty = Table("empty", "Nothing", GAINS.columns, ())
    (block,) = short(empty)["chapters"][0]["blocks"]
    assert block["table"].rows == ()


@pytest.mark.parametrize(("count", "open_"), [(3, True), (8, False)])
def test_many_warnings_are_folded_away_and_few_are_not(count, open_):
    findings = tuple(Remark(f"Something {number}.", kind="warning") for number in range(count))
    chapter = dataclasses.replace(example_chapters()[1], findings=findings)
    text = render_page([chapter], example_suite(), **HOW)
    (attributes,) = re.findall(r'<details class="first" id="first"([^>]*)>', text)
    assert ("open" in attributes) is open_
