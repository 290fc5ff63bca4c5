"""Tables and the picture, from records alone."""

import sys
from pathlib import Path

import pytest
from rich.console import Console

from zeroshift.benchmarks.case import Settings, Where
from zeroshift.benchmarks.tables import (
    bench_tables,
    figure_paths,
    growth,
    growth_figure,
    growth_table,
    markdown,
    warnings,
    write_figures,
)

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def cell(classes: int, dimension: int, samples: int = 500) -> dict:
    times = {"median": 0.01, "least": 0.01, "most": 0.02, "repeats": 3}
    point = {"entering": {"p50": 0.001 * classes}, "other": None}
    latency = {"p50": 1e-4, "p90": 2e-4, "p99": 3e-4, "max": 1.0}
    good = {"samples": 9, "largest_difference": 2e-9, "argmax_equal": 1.0}
    engine = {"seconds": 1.0, "seconds_a_sample": 0.002, "times_the_floor": 100.0, "agreement": good}
    return {
        "settings": Settings(classes, dimension, samples, Where(), ("direct", "streaming")).record(),
        "floor": {"float64": times, "float32": times, "single_sample_float64": latency},
        "engines": {
            "direct": {**engine, "agreement": None, "points": [{"seen": 0, **point}, {"seen": 400, **point}]},
            "streaming": {
                **engine,
                "times_faster_than_direct": 123.0,
                "latency": {"all": latency},
                "windows": [{"seen": n, "seconds_a_sample": 0.001} for n in range(50, 501, 50)],
                "memory": {"bytes_beyond_input_and_output": 12_000_000},
                "agreement": {**good, "argmax_equal": 0.5},
            },
            "transductive": {**engine, "memory": {"error": "MemoryError"}},
        },
    }


@pytest.fixture
def cells():
    return {f"{k} {d}": cell(k, d) for k, d in ((10, 64), (100, 64), (100, 128))}


def printed(table) -> str:
    screen = Console(width=80)
    with screen.capture() as captured:
        screen.print(table)
    return captured.get()


def test_growth_gathers_cells_that_differ_in_one_size_alone(cells):
    found = growth(cells)
    assert len(found["seen"]) == 3
    (line,) = found["classes"]
    assert line["title"] == "d=64 N=500"
    assert [at for at, _ in line["engines"]["streaming"]] == [10, 100]
    (line,) = found["dimension"]
    assert [at for at, _ in line["engines"]["direct"]] == [64, 128]
    assert found["samples"] == []


def test_tables_fit_a_terminal_and_hide_nothing(cells):
    text = printed(bench_tables(cells)[0])
    assert "K=10 d=64 N=500" in text
    assert "transductive" in text
    assert "123" in text
    assert "2e-09!" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "samples seen" in printed(growth_table(growth(cells)))


def test_wrong_answers_and_failures_are_said_in_words(cells):
    wrong, failed = warnings({"one": cells["10 64"]})
    assert wrong.startswith("streaming at K=10 d=64 N=500: 50.0% of predictions differ from the definition's")
    assert failed.endswith("its memory could not be measured (MemoryError)")


def test_a_busy_machine_is_said_once(cells):
    for busy, one in zip((0.0, 1.2, None), cells.values(), strict=True):
        one["busy_cores_before"] = busy
    first, *_ = warnings(cells)
    assert first.startswith("other programs kept up to 1.2 cores busy while 1 of 3 sizes were measured")


def test_the_section_of_the_results_page(cells, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for module in ("engines", "results"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    import engines

    for one in cells.values():
        one |= {"threads": 2, "surroundings": {"machine": "a machine", "numpy": "2.0"}}
    text = engines.section(cells)
    assert markdown(cells) in text
    assert text.endswith("Measured on: a machine, NumPy 2.0, 2 threads.")


def test_markdown_has_a_row_for_each_engine_and_floor(cells):
    lines = markdown(cells).splitlines()
    assert len(lines) == 2 + 3 * 5
    assert len({line.count("|") for line in lines}) == 1
    assert "| streaming | K, d=64 N=500 | 10: 2 ms, 100: 2 ms |" in growth_table(growth(cells)).markdown()


def test_the_picture(cells, tmp_path):
    figure = growth_figure(growth(cells))
    assert [axes.get_xlabel() for axes in figure.axes] == ["samples seen", "K", "d"]
    assert write_figures(tmp_path, growth(cells)) == figure_paths(tmp_path)
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    first = (tmp_path / "growth.svg").read_bytes()
    write_figures(tmp_path, growth(cells))
    assert (tmp_path / "growth.svg").read_bytes() == first


def test_the_picture_of_one_cell_has_one_panel():
    assert len(growth_figure(growth({"only": cell(10, 64)})).axes) == 1
