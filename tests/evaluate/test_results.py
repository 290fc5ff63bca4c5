"""Records of several folders as one: which are taken, which are chosen, and what is made of them."""

import json
import os

import numpy as np
import pytest

from zeroshift.evaluate.results import check_fields, collect, field_names, group, ordered, value_of
from zeroshift.evaluate.results_where import Condition


def record(key="0" * 20, **more):
    basis = {"kind": "zeroshift run", "schema": 1, "key": key, "features": "pets", "contestant": "tda", "seed": 0}
    return {**basis, "accuracy": 0.5, "zero_shot_accuracy": 0.25, "calibration_error": 0.1, **more}


def put(folder, found, age=1000, slug="tda"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{slug}-{found['key']}.json"
    path.write_text(json.dumps(found))
    os.utime(path, (age, age))
    return path


def test_the_newest_of_several_records_of_a_run_counts(tmp_path):
    put(tmp_path / "a", record(accuracy=0.1), age=3000)
    put(tmp_path / "b" / "runs", record(accuracy=0.2), age=2000)
    put(tmp_path / "b" / "runs", record("1" * 20, seed=1))
    for order in (["a", "b"], ["b", "a"]):
        found = collect([tmp_path / name for name in order])
        assert [one["accuracy"] for one in found.records] == [0.1, 0.5]
        assert found.repeated == 1
    # Of two that are equally old the folder named last is taken; a folder named twice is one.
    put(tmp_path / "b" / "runs", record(accuracy=0.2), age=3000)
    assert collect([tmp_path / "a", tmp_path / "b"]).records[0]["accuracy"] == 0.2
    assert collect([tmp_path / "b", tmp_path / "b" / "runs"]).repeated == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-9],
        lambda text: "",
        lambda text: "[]",
        lambda text: json.dumps({**json.loads(text), "kind": "other"}),
        lambda text: json.dumps({**json.loads(text), "key": "f" * 20}),
        lambda text: json.dumps({**json.loads(text), "accuracy": "high"}),
        lambda text: json.dumps({**json.loads(text), "zero_shot_accuracy": None}),
        lambda text: json.dumps({**json.loads(text), "features": None}),
        lambda text: "[" * 100_000,
    ],
)
def test_damaged_files_are_named_and_others_ignored(tmp_path, spoil):
    path = put(tmp_path, record())
    put(tmp_path, record("2" * 20))
    path.write_text(spoil(path.read_text()))
    (tmp_path / "notes.json").write_text("mine")
    (tmp_path / f".{path.name}.ab.tmp").write_text("{")
    found = collect([tmp_path])
    assert found.damaged == (path,)
    assert [one["key"] for one in found.records] == ["2" * 20]


def test_records_of_a_newer_zeroshift_are_apart(tmp_path):
    path = put(tmp_path, record(schema=2))
    assert (collect([tmp_path]).newer, collect([tmp_path]).records) == ((path,), ())


def test_what_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for name, message in (("file", "is a file; records lie in folders"), ("none", "is not there")):
        with pytest.raises(FileNotFoundError, match=message):
            collect([tmp_path / name])


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("contestant=tda", True),
        ("contestant == TDA", True),
        ("contestant!=tda", False),
        ("accuracy>0.4", True),
        ("accuracy>=0.5", True),
        ("accuracy<0.5", False),
        ("accuracy<=0.5", True),
        ("accuracy=0.50", True),
        ("gain>24", True),
        ("gain<24", False),
        ("settings.alpha=0.9", True),
        ("settings.moving=true", True),
        ("settings.none=none", True),
        ("settings.none!=none", False),
        ("given=support,prompts", True),
        ("absent>0", False),
        ("contestant>0", False),
        ("job=tda", True),
        ("note=a=b", True),
    ],
)
def test_conditions(text, holds):
    settings = {"alpha": 0.9, "moving": True, "none": None}
    assert Condition.parse(text).holds(record(settings=settings, given=["support", "prompts"], note="a=b")) is holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tda", "--where takes NAME=VALUE"),
        ("=tda", "--where takes NAME=VALUE"),
        ("accuracy>high", "> compares with a number; got 'high'"),
        ("accuracy>50", r"accuracy is a fraction of one; got 50. Fix: accuracy>0.5\."),
        ("accuracy>nan", "compares with a number"),
    ],
)
def test_conditions_that_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Condition.parse(text)


def test_unknown_names_and_values_are_answered_with_the_nearest():
    records = [record(settings={"alpha": 0.9}), record(contestant="adapt_online")]
    with pytest.raises(ValueError, match=r"no record has 'setings.alpha'. Did you mean 'settings.alpha'\?"):
        Condition.parse("setings.alpha=1").check(records)
    with pytest.raises(ValueError, match=r"--by: no record has 'contestent'. Did you mean 'contestant'\?"):
        check_fields("--by", ["contestent"], records)
    said = Condition.parse("contestant=adapt").why_none(records)
    assert said == "no record has contestant=adapt. Did you mean 'adapt_online'? contestant is tda, adapt_online."


def test_fields_leave_out_curves_and_matrices():
    found = field_names([record(detail={"curve": [1]}, paired=[1, 2], groups={"head": {"accuracy": 0.5}}, given=[])])
    assert "groups.head.accuracy" in found
    assert "given" in found
    assert not [name for name in found if name.startswith(("detail", "paired", "kind"))]


def test_groups_sum_up_runs_and_leave_out_what_has_no_accuracy():
    runs = [record(str(k) * 20, accuracy=k / 20, zero_shot_accuracy=0.5, seed=k) for k in range(20)]
    look = {**record(), "contestant": None, "analysis": "spread", "accuracy": None}
    (one,) = group([*runs, look], ["features", "contestant"])
    assert (one.of, one.runs) == (("pets", "tda"), 20)
    assert one.accuracy.mean == pytest.approx(np.mean([k / 20 for k in range(20)]))
    assert (one.accuracy.low, one.accuracy.high) == (0.0, 0.95)
    assert one.worst == pytest.approx((0 + 1 / 20) / 2)  # two of twenty
    assert one.gain.mean == pytest.approx(100 * (one.accuracy.mean - 0.5))
    assert one.zero_shot == 0.5
    assert value_of(look, "gain") is None
    assert value_of(look, "job") == "spread"


def test_sorting_puts_what_has_no_value_last():
    records = [record(seed=None), record(seed=2), record(seed=1)]
    assert [one["seed"] for one in ordered(records, "seed")] == [1, 2, None]
    assert [one["seed"] for one in ordered(records, "seed", descending=True)] == [2, 1, None]
