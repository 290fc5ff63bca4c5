"""Tables and the figure, from records alone."""

import sys
from pathlib import Path

import pytest
from rich.console import Console

from zeroshift.benchmarks.case import BenchBackend, BenchCase
from zeroshift.benchmarks.tables import (
    bench_tables,
    case_warnings,
    cases_markdown,
    figure_paths,
    growth,
    growth_figure,
    growth_table,
    write_figures,
)

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def case_record(classes: int, dimension: int, samples: int = 500) -> dict:
    times = {"median": 0.01, "least": 0.01, "most": 0.02, "repeats": 3}
    point = {"entering": {"p50": 0.001 * classes}, "other": None}
    latency = {"p50": 1e-4, "p90": 2e-4, "p99": 3e-4, "max": 1.0}
    good = {"samples": 9, "largest_difference": 2e-9, "argmax_equal": 1.0}
    engine = {"seconds": 1.0, "seconds_per_sample": 0.002, "times_the_floor": 100.0, "agreement": good}
    return {
        "settings": BenchCase(classes, dimension, samples, BenchBackend(), ("direct", "streaming")).record(),
        "floor": {"float64": times, "float32": times, "single_sample_float64": latency},
        "engines": {
            "direct": {**engine, "agreement": None, "points": [{"seen": 0, **point}, {"seen": 400, **point}]},
            "streaming": {
                **engine,
                "times_faster_than_direct": 123.0,
                "float64": {"seconds": 2.0, "seconds_per_sample": 0.004, "interpolated": True},
                "latency": {"all": latency},
                "windows": [{"seen": n, "seconds_per_sample": 0.001} for n in range(50, 501, 50)],
                "memory": {"bytes_beyond_input_and_output": 12_000_000},
                "agreement": {**good, "argmax_equal": 0.5},
            },
            "transductive": {**engine, "memory": {"error": "MemoryError"}},
        },
    }


@pytest.fixture
def cases():
    return {f"{k} {d}": case_record(k, d) for k, d in ((10, 64), (100, 64), (100, 128))}


def printed(table) -> str:
    screen = Console(width=80)
    with screen.capture() as captured:
        screen.print(table)
    return captured.get()


def test_growth_groups_cases_that_differ_in_one_size(cases):
    found = growth(cases)
    assert len(found["seen"]) == 3
    (line,) = found["classes"]
    assert line["title"] == "d=64 N=500"
    assert [at for at, _ in line["engines"]["streaming"]] == [10, 100]
    (line,) = found["dimension"]
    assert [at for at, _ in line["engines"]["direct"]] == [64, 128]
    assert found["samples"] == []


def test_tables_fit_a_terminal_and_hide_nothing(cases):
    text = printed(bench_tables(cases)[0])
    assert "K=10 d=64 N=500" in text
    assert "transductive" in text
    assert "123" in text
    assert "2e-09!" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "samples seen" in printed(growth_table(growth(cases)))


def test_geometry_competitors_and_both_precisions_are_shown():
    record = case_record(10, 64)
    record["settings"] |= {"source": "clustered", "competitors": 2}
    text = printed(bench_tables({"one": record})[0])
    assert "clustered, K=10 d=64 N=500, 2 competing processes" in text
    assert "~4 ms" in text


def test_cases_of_different_load_or_geometry_are_not_one_curve():
    other, busy = case_record(100, 64), case_record(1000, 64)
    other["settings"]["source"] = "clustered"
    busy["settings"]["competitors"] = 2
    assert growth({"a": case_record(10, 64), "b": other, "c": busy})["classes"] == []


def test_wrong_answers_and_failures_are_warned_about(cases):
    wrong, failed = case_warnings({"one": cases["10 64"]})
    assert wrong.startswith("streaming at K=10 d=64 N=500: 50.0% of predictions differ from the definition's")
    assert failed.endswith("its memory could not be measured (MemoryError)")


def test_a_busy_machine_is_warned_about_once(cases):
    for busy, one in zip((0.0, 1.2, None), cases.values(), strict=True):
        one["busy_cores_before"] = busy
    first, *_ = case_warnings(cases)
    assert first.startswith("other programs kept up to 1.2 cores busy while 1 of 3 sizes were measured")


def test_the_section_of_results_md(cases, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for module in ("engines", "results"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    import engines

    for one in cases.values():
        one |= {"threads": 2, "surroundings": {"machine": "a machine", "numpy": "2.0"}}
    text = engines.section(cases)
    assert cases_markdown(cases) in text
    assert text.endswith("Measured on: a machine, NumPy 2.0, 2 threads.")


def test_markdown_has_a_row_for_each_engine_and_floor(cases):
    lines = cases_markdown(cases).splitlines()
    assert len(lines) == 2 + 3 * 4
    assert len({line.count("|") for line in lines}) == 1
    assert "| streaming | K, d=64 N=500 | 10: 2 ms, 100: 2 ms |" in growth_table(growth(cases)).markdown()


def test_the_figure(cases, tmp_path):
    figure = growth_figure(growth(cases))
    assert [axes.get_xlabel() for axes in figure.axes] == ["samples seen", "K", "d"]
    assert write_figures(tmp_path, growth(cases)) == figure_paths(tmp_path)
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    first = (tmp_path / "growth.svg").read_bytes()
    write_figures(tmp_path, growth(cases))
    assert (tmp_path / "growth.svg").read_bytes() == first


def test_the_figure_of_one_case_has_one_panel():
    assert len(growth_figure(growth({"only": case_record(10, 64)})).axes) == 1
