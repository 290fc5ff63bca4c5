"""Records of several folders: merging, selection and summaries."""

import json
import os

import numpy as np
import pytest

from zeroshift.evaluate.results import (
    Condition,
    check_fields,
    collect,
    differing_fields,
    field_names,
    flatten,
    group_rows,
    sort_rows,
    summarize_group,
)
from zeroshift.files import with_checksum


def record(key="0" * 20, **more):
    basis = {"kind": "zeroshift run", "schema": 2, "key": key, "features": "pets", "contestant": "tda", "seed": 0}
    return {**basis, "accuracy": 0.5, "zero_shot_accuracy": 0.25, "calibration_error": 0.1, **more}


def put(folder, found, age=1000, slug="tda"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{slug}-{found['key']}.json"
    path.write_text(json.dumps(with_checksum(found)))
    os.utime(path, (age, age))
    return path


def test_the_newest_of_several_records_of_a_run_counts(tmp_path):
    put(tmp_path / "a", record(accuracy=0.1), age=3000)
    put(tmp_path / "b" / "runs", record(accuracy=0.2), age=2000)
    put(tmp_path / "b" / "runs", record("1" * 20, seed=1))
    for order in (["a", "b"], ["b", "a"]):
        found = collect([tmp_path / name for name in order])
        assert [one["accuracy"] for one in found.rows] == [0.1, 0.5]
        assert found.repeated == 1
    # Of two that are equally old the folder named last is taken; a folder named twice is one.
    put(tmp_path / "b" / "runs", record(accuracy=0.2), age=3000)
    assert collect([tmp_path / "a", tmp_path / "b"]).rows[0]["accuracy"] == 0.2
    assert collect([tmp_path / "b", tmp_path / "b" / "runs"]).repeated == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-9],
        lambda text: "",
        lambda text: "[]",
        lambda text: json.dumps(with_checksum({**json.loads(text), "kind": "other"})),
        lambda text: json.dumps(with_checksum({**json.loads(text), "key": "f" * 20})),
        lambda text: json.dumps(with_checksum({**json.loads(text), "zero_shot_accuracy": None})),
        lambda text: json.dumps(with_checksum({**json.loads(text), "features": None})),
        lambda text: "[" * 100_000,
        lambda text: json.dumps({**json.loads(text), "accuracy": 0.9}),
        lambda text: json.dumps({name: one for name, one in json.loads(text).items() if name != "checksum"}),
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
    assert [one["key"] for one in found.rows] == ["2" * 20]


@pytest.mark.parametrize("value", ["high", [0.5], {"head": 0.5}, True, None], ids=str)
def test_an_accuracy_that_is_not_a_number_is_missing(tmp_path, value):
    analysis = record("2" * 20, contestant=None, analysis="tails", accuracy=value, calibration_error="low")
    put(tmp_path, analysis)
    put(tmp_path, record(calibration_error="low"))
    found = collect([tmp_path])
    assert (len(found.rows), found.damaged) == (2, ())
    assert flatten(analysis)["gain"] is None
    assert flatten(analysis)["accuracy"] is None
    (rows,) = group_rows(found.rows, ["features"])
    summary = summarize_group(rows)
    assert (summary["runs"], summary["accuracy"], summary["calibration_error"]) == (1, 0.5, None)


def test_seeds_may_be_anything(tmp_path):
    seeds = [None, 2, 0, 1.5, "first", [1]]
    for place, seed in enumerate(seeds):
        put(tmp_path, record(f"{place:020x}", seed=seed))
    assert [one["seed"] for one in collect([tmp_path]).rows] == [None, 0, 1.5, 2, [1], "first"]


def work(key, **more):
    """A record with the fields of its job."""
    what = {"digest": "d", "prompt": "vanilla", "shots": None, "stream": {"kind": "random"}}
    return record(key, **{**what, "timed": False, "every": 64, "code": "c", **more})


def test_for_equal_work_by_several_versions_the_newest_counts(tmp_path):
    put(tmp_path, work("1" * 20, code="old", zeroshift="1", accuracy=0.1), age=1000)
    put(tmp_path, work("2" * 20, code="new", zeroshift="2", accuracy=0.2), age=3000)
    put(tmp_path, work("3" * 20, code="mid", zeroshift="2", accuracy=0.3), age=2000)
    found = collect([tmp_path])
    assert [one["accuracy"] for one in found.rows] == [0.2]
    assert (found.outdated, found.repeated) == (2, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"prompt": "ensemble"},
        {"shots": 4},
        {"timed": True},
        {"every": 256},
        {"stream": {"kind": "random", "slots": 2}},
        {"contestant": "tda alpha=2"},
        {"contestant": None, "analysis": "spread"},
        {"digest": "e"},
    ],
    ids=lambda other: "-".join(other),
)
def test_other_work_is_not_outdated(tmp_path, other):
    put(tmp_path, work("1" * 20))
    put(tmp_path, work("2" * 20, **other))
    found = collect([tmp_path])
    assert (len(found.rows), found.outdated) == (2, 0)


def test_work_on_a_renamed_set_or_stream_is_the_same(tmp_path):
    called = [{"kind": "mixed", "domains": [1, 2], "names": names} for names in (["a", "b"], None)]
    put(tmp_path, work("1" * 20, stream=called[0]), age=1)
    put(tmp_path, work("2" * 20, stream=called[1], features="renamed"), age=2)
    found = collect([tmp_path])
    assert ([one["features"] for one in found.rows], found.outdated) == (["renamed"], 1)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({}, {}, []),
        ({"seed": 0}, {"seed": 1}, []),
        ({"prompt": "a"}, {"prompt": "b"}, ["prompt"]),
        ({"shots": None}, {"shots": 4}, ["shots"]),
        ({"timed": True}, {"every": 256}, ["timed", "every"]),
        ({"stream": {"kind": "random"}}, {"stream": {"kind": "dirichlet", "concentration": 1.0}}, ["stream.kind"]),
        ({"stream": {"kind": "mixed", "domains": [1, 2]}}, {"stream": {"kind": "mixed", "domains": [2, 1]}},
         ["stream.domains"]),
        ({"stream": {"kind": "mixed", "names": ["a"]}}, {"stream": {"kind": "mixed", "names": ["b"]}}, []),
        ({"parameters": {"held": 1}}, {"parameters": {"held": 1.0}}, []),
        ({"parameters": {"held": 1}}, {"parameters": {}}, ["parameters.held"]),
        ({"digest": "d"}, {"digest": "e"}, ["digest"]),
        ({"digest": "d"}, {"digest": "e", "features": "birds"}, []),
    ],
    ids=range(12),
)  # fmt: skip
def test_fields_in_which_jobs_differ(one, other, expected):
    assert differing_fields([flatten(work("1" * 20, **one)), flatten(work("2" * 20, **other))]) == expected


def test_records_of_a_newer_zeroshift_are_separate(tmp_path):
    path = put(tmp_path, record(schema=3))
    assert (collect([tmp_path]).newer, collect([tmp_path]).rows) == ((path,), ())


def test_a_file_in_place_of_a_folder_is_rejected(tmp_path):
    (tmp_path / "file").write_text("")
    for name, message in (("file", "is a file, not a folder"), ("none", "does not exist")):
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
    row = flatten(record(settings=settings, given=["support", "prompts"], note="a=b"))
    assert Condition.parse(text).holds(row) is holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tda", "--where takes NAME=VALUE"),
        ("=tda", "--where takes NAME=VALUE"),
        ("accuracy>high", "> compares with a number; got 'high'"),
        ("accuracy>nan", "compares with a number"),
    ],
)
def test_conditions_that_are_rejected(text, message):
    with pytest.raises(ValueError, match=message):
        Condition.parse(text)


def test_unknown_names_and_values_suggest_the_nearest():
    rows = [flatten(record(settings={"alpha": 0.9})), flatten(record(contestant="adapt_online"))]
    with pytest.raises(ValueError, match=r"--where: no record has 'setings.alpha'. Did you mean 'settings.alpha'\?"):
        check_fields("--where", ["setings.alpha"], rows)
    with pytest.raises(ValueError, match=r"--by: no record has 'contestent'. Did you mean 'contestant'\?"):
        check_fields("--by", ["contestent"], rows)
    message = Condition.parse("contestant=adapt").explain_no_match(rows)
    assert message == "no record has contestant=adapt. Did you mean 'adapt_online'? contestant is tda, adapt_online."


def test_fields_omit_curves_and_matrices():
    groups = {"head": {"accuracy": 0.5}}
    found = field_names([flatten(record(detail={"curve": [1]}, paired=[1, 2], groups=groups, given=[]))])
    assert {"groups.head.accuracy", "given", "paired"} < set(found)
    assert "curve" not in field_names([flatten(record(curve=list(range(9)), matrix=[[1, 2]]))])
    assert not [name for name in found if name.startswith(("detail", "kind"))]


def test_names_with_dots_and_spaces():
    row = flatten(record(groups={"fog 5": {"accuracy": 0.4}, "cifar10.1": {"accuracy": 0.3}}))
    assert row["groups.fog 5.accuracy"] == 0.4
    assert row["groups.cifar10.1.accuracy"] == 0.3
    for text, holds in (("groups.fog 5.accuracy>0.3", True), ("groups.fog 5.accuracy = 0.5", False)):
        condition = Condition.parse(text)
        assert condition.name == "groups.fog 5.accuracy"
        assert condition.holds(row) is holds


def test_groups_summarize_runs_and_omit_analyses():
    runs = [record(str(k) * 20, accuracy=k / 20, zero_shot_accuracy=0.5, seed=k) for k in range(20)]
    analysis = flatten({**record(), "contestant": None, "analysis": "spread", "accuracy": None})
    (rows,) = group_rows([*map(flatten, runs), analysis], ["features", "contestant"])
    summary = summarize_group(rows)
    assert summary["runs"] == 20
    assert summary["accuracy"] == pytest.approx(np.mean([k / 20 for k in range(20)]))
    assert (summary["accuracy_low"], summary["accuracy_high"]) == (0.0, 0.95)
    assert summary["accuracy_worst"] == pytest.approx((0 + 1 / 20) / 2)  # two of twenty
    assert summary["gain"] == pytest.approx(100 * (summary["accuracy"] - 0.5))
    assert summary["zero_shot_accuracy"] == 0.5
    assert (analysis["gain"], analysis["job"]) == (None, "spread")


def test_sorting_puts_missing_values_last():
    records = [record(seed=None), record(seed=2), record(seed=1)]
    assert [one["seed"] for one in sort_rows(records, "seed")] == [1, 2, None]
    assert [one["seed"] for one in sort_rows(records, "seed", descending=True)] == [2, 1, None]
