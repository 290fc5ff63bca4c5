"""The table of benchmarks/peers.py follows from its records."""

import peers


def record(kind, ratio, **changes):
    numbers = {"median": ratio, "least": ratio / 2, "most": 2 * ratio, "repeats": 3}
    return {
        "kind": kind,
        "classes": 10,
        "dimension": 256,
        "samples": 1500,
        "seconds": {"plain": {**numbers, "median": 1.0}, "torch": numbers, "numpy": numbers},
        "ratio": {"torch": numbers, "numpy": numbers},
        "same_predictions": {"torch": 1.0, "numpy": 0.998},
        "streamed": {"method": numbers, "plain": {**numbers, "median": 2 * ratio}, "adapt_online": numbers}
        if kind == "online"
        else None,
        "threads": 1,
        "busy_cores": 0.0,
        "surroundings": {"machine": "a machine", "torch": "2", "numpy": "2"},
        **changes,
    }


def test_rows_follow_the_order_of_methods_and_sizes():
    records = {
        "cpu/medium/tda": record("online", 0.5),
        "cpu/small/stata": record("transductive", 0.25),
        "cpu/small/tda": record("online", 0.125),
    }
    whole, streamed, where = peers.table(records).split("\n\n")
    rows = whole.splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| tda", "| tda", "| stata"]
    assert rows[0] == (
        "| tda | 10, 256, 1500 | 1 | 0.125 | 0.12 (0.06 to 0.25) | 0.125 | 0.12 (0.06 to 0.25) | 99.8 % |"
    )
    assert streamed.splitlines()[2:] == [
        "| tda | 10, 256 | 125 | 250 | 0.50 | 125 |",
        "| tda | 10, 256 | 500 | 1e+03 | 0.50 | 500 |",
    ]
    assert "a machine, 1 thread(s), torch 2, NumPy 2" in where
    assert "other programs used the machine" not in where


def test_notes_about_a_busy_machine_and_a_device_without_numpy():
    on_cuda = record("transductive", 0.5, busy_cores=1.0)
    del on_cuda["ratio"]["numpy"], on_cuda["seconds"]["numpy"], on_cuda["same_predictions"]["numpy"]
    on_cuda["surroundings"]["device"] = "a GPU"
    whole, where = peers.table({"cuda/small/zlap": on_cuda}).split("\n\n")
    assert whole.splitlines()[2].endswith("| 0.5 | 0.50 (0.25 to 1.00) | - | - | 100.0 % |")
    assert where.startswith("Measured on: a GPU, torch 2")
    assert where.endswith("Measured while other programs used the machine: zlap small.")


def test_every_method_has_a_size_for_its_kind():
    assert {peer.kind for peer in peers.PEERS.values()} == {"online", "transductive", "few-shot"}
    assert {problem for problem, _ in peers.FEWER} <= set(peers.SIZES)
    assert {name for _, name in peers.FEWER} <= set(peers.PEERS)
