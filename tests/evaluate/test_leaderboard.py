"""The leaderboard: outcomes in records, the paired bootstrap, ties and filters; streams and metrics of protocols."""

import json
from itertools import product

import numpy as np
import pytest

from zeroshift import FeatureSet, ZeroShot, methods, normalize
from zeroshift.evaluate import DatasetRef, Ledger, MethodSpec, gain_interval, plan_comparison, run_plan, summarize
from zeroshift.evaluate.differences import resampled_accuracies
from zeroshift.evaluate.leaderboard import build_leaderboard, tied_ranks
from zeroshift.evaluate.outcomes import Outcomes, read_outcomes, record_outcomes
from zeroshift.evaluate.protocols import PROTOCOLS, find_protocol
from zeroshift.evaluate.results import collect
from zeroshift.evaluate.streams import dirichlet
from zeroshift.report.leaderboard import (
    leaderboard_markdown,
    leaderboard_record,
    leaderboard_table,
    render_leaderboard_page,
)


def made(seed: int, rows: int = 90) -> FeatureSet:
    rng = np.random.default_rng(seed)
    centres = normalize(rng.normal(size=(4, 10)))
    labels = rng.integers(0, 4, size=rows)
    features = normalize(centres[labels] + 0.45 * rng.normal(size=(rows, 10)))
    prototypes = normalize(centres + 0.4 * rng.normal(size=(4, 10)))
    return FeatureSet(features, prototypes=prototypes, labels=labels, logit_scale=15.0)


NAMES = ("zero_shot", "tda", "tda+filter", "adapt_online", "transclip", "tip_adapter")


@pytest.fixture(scope="module")
def sets() -> dict[str, FeatureSet]:
    return {"one": made(0), "two": made(1, 70)}


@pytest.fixture(scope="module")
def folder(sets, tmp_path_factory):
    """The records of three orders of two sets."""
    out = tmp_path_factory.mktemp("board")
    datasets = [DatasetRef.of(name, features) for name, features in sets.items()]
    specs = [MethodSpec.named(name) for name in NAMES]
    plan = plan_comparison(datasets, specs, orders=2, protocol=find_protocol("three-orders"))
    assert all(outcome.error is None for outcome in run_plan(plan, Ledger(out / "runs")))
    return out


@pytest.fixture(scope="module")
def rows(folder):
    return collect([folder], outcomes=True).rows


def by_label(board):
    return {entry.label: entry for entry in board.entries}


# Outcomes


@pytest.mark.parametrize("n_rows", [1, 7, 8, 9, 100])
def test_outcomes_survive_a_record(n_rows):
    rng = np.random.default_rng(n_rows)
    scored = rng.permutation(n_rows)[: max(1, n_rows - 3)]
    right, zero_shot = rng.random((2, len(scored))) < 0.5
    found = read_outcomes(record_outcomes(scored, right, zero_shot, n_rows), n_rows)
    assert sorted(scored) == np.flatnonzero(found.scored).tolist()
    assert found.right[scored].tolist() == right.tolist()
    assert found.zero_shot[scored].tolist() == zero_shot.tolist()
    assert found.right.sum() == right.sum()


@pytest.mark.parametrize("recorded", [None, 3, {}, {"right": "!", "zero_shot": "AA=="}, {"right": "", "zero_shot": ""}])
def test_outcomes_that_cannot_be_read(recorded):
    assert read_outcomes(recorded, 9) is None


def test_records_hold_the_outcomes_of_their_runs(rows, sets):
    for row in rows:
        outcomes = read_outcomes(row["outcomes"], row["n_samples"])
        assert outcomes.right.sum() / outcomes.scored.sum() == pytest.approx(row["accuracy"])
        assert outcomes.zero_shot.sum() / outcomes.scored.sum() == pytest.approx(row["zero_shot_accuracy"])
        assert outcomes.scored.sum() == row["scored"]
    features = sets["one"]
    right = (
        ZeroShot(features.prototypes_for(), logit_scale=15.0).predict(features.features).argmax(1) == features.labels
    )
    row = next(row for row in rows if row["job"] == "tda" and row["features"] == "one")
    assert read_outcomes(row["outcomes"], 90).zero_shot.tolist() == right.tolist()


# The bootstrap


def whole(right, zero_shot=None) -> Outcomes:
    right = np.array(right, bool)
    return Outcomes(np.ones(len(right), bool), right, right if zero_shot is None else np.array(zero_shot, bool))


def test_draws_have_the_distribution_of_all_resamples():
    """Against all 4^4 equally probable resamples of four rows, enumerated."""
    first, second = np.array([1, 1, 0, 1]), np.array([0, 1, 1, 0])
    exact: dict[tuple[float, float], float] = {}
    for drawn in product(range(4), repeat=4):
        pair = float(first[list(drawn)].mean()), float(second[list(drawn)].mean())
        exact[pair] = exact.get(pair, 0) + 4**-4
    draws = 20_000
    found, _ = resampled_accuracies([[[[whole(first)]], [[whole(second)]]]], draws=draws, seed=0)
    pairs, counts = np.unique(found.round(9), axis=1, return_counts=True)
    assert {tuple(pair) for pair in pairs.T.tolist()} <= exact.keys()
    for pair, count in zip(pairs.T.tolist(), counts, strict=True):
        expected = exact[tuple(pair)]
        assert abs(count / draws - expected) < 5 * np.sqrt(expected / draws)


def test_draws_are_those_of_a_loop_over_rows():
    """Two sets, two streams, runs that score some of the rows: the means of single runs on rows drawn one by one."""
    rng = np.random.default_rng(4)

    def run(n_rows, share):
        scored = rng.random(n_rows) < share
        scored[:2] = True
        return Outcomes(scored, scored & (rng.random(n_rows) < 0.6), scored & (rng.random(n_rows) < 0.5))

    sets = [
        [[[run(n, 1.0), run(n, 1.0)], [run(n, 1.0)]], [[run(n, 0.7), run(n, 0.6)], [run(n, 0.8)]]] for n in (30, 21)
    ]
    found, baselines = resampled_accuracies(sets, draws=6, seed=3)
    for method in range(2):
        for draw in range(6):
            means = {"right": [], "zero_shot": []}
            for place, cells in enumerate(sets):
                n_rows = len(cells[0][0][0].scored)
                counts = np.random.default_rng([3, place]).multinomial(n_rows, np.full(n_rows, 1 / n_rows), size=6)
                drawn = [row for row, count in enumerate(counts[draw]) for _ in range(count)]
                for name, into in means.items():
                    streams = []
                    for runs in cells[method]:
                        values = []
                        for one in runs:
                            kept = [row for row in drawn if one.scored[row]]
                            values.append(sum(bool(getattr(one, name)[row]) for row in kept) / len(kept))
                        streams.append(sum(values) / len(values))
                    into.append(sum(streams) / len(streams))
            assert found[method, draw] == pytest.approx(np.mean(means["right"]))
            assert baselines[method, draw] == pytest.approx(np.mean(means["zero_shot"]))


def test_blocks_of_draws_change_nothing(monkeypatch):
    cells = [[[[whole(np.arange(50) % 3 == 0)]], [[whole(np.arange(50) % 2 == 0)]]]]
    before, _ = resampled_accuracies(cells, draws=40, seed=1)
    monkeypatch.setattr("zeroshift.evaluate.differences.ROWS_AT_ONCE", 350)
    after, _ = resampled_accuracies(cells, draws=40, seed=1)
    assert np.array_equal(before, after)


def test_the_interval_of_a_gain_is_that_of_paired_counts(rows):
    row = max(
        (row for row in rows if row["job"] == "tda+filter" and row["features"] == "one"), key=lambda one: one["gain"]
    )
    board = build_leaderboard([row], draws=4000)
    low, high = gain_interval(row["paired"], draws=4000)
    assert board.entries[0].gain == pytest.approx(row["gain"])
    assert board.entries[0].gain_interval == pytest.approx((low, high), abs=0.8)


# Ranks


def test_ties():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4, 2000)) * 0.01
    means = np.array([0.9, 0.895, 0.7, 0.697])
    ranks, tied = tied_ranks(means[:, None] + noise)
    assert ranks == [(1, 2), (1, 2), (3, 4), (3, 4)]
    assert tied == [[1], [0], [3], [2]]


def test_noise_that_methods_share_does_not_tie_them():
    """Paired: the second is always a little worse, however much both vary."""
    shared = np.random.default_rng(0).normal(size=2000)
    ranks, tied = tied_ranks(np.stack([shared + 0.001, shared]))
    assert ranks == [(1, 1), (2, 2)]
    assert tied == [[], []]


def test_equal_methods_are_tied():
    draws = np.random.default_rng(0).normal(size=(1, 100)).repeat(3, axis=0)
    assert tied_ranks(draws) == ([(1, 3)] * 3, [[1, 2], [0, 2], [0, 1]])


def test_a_tie_with_both_neighbours():
    """The first and the last differ, the middle one is tied with both: its rank may be any."""
    rng = np.random.default_rng(1)
    draws = np.array([[0.9], [0.88], [0.86]]) + 0.009 * rng.normal(size=(3, 4000))
    assert tied_ranks(draws) == ([(1, 2), (1, 3), (2, 3)], [[1], [0, 2], [1]])


# The board


def test_means_by_hand(rows):
    board = build_leaderboard(rows)
    entry = by_label(board)["tda"]
    own = [row for row in rows if row["job"] == "tda"]
    assert len(own) == entry.runs == 12
    mean = np.mean([row["accuracy"] for row in own])  # as many runs in every cell
    assert entry.accuracy == pytest.approx(mean)
    assert entry.gain == pytest.approx(np.mean([row["gain"] for row in own]))
    for kind, accuracy in entry.by_stream.items():
        assert accuracy == pytest.approx(np.mean([row["accuracy"] for row in own if row["stream.kind"] == kind]))
    assert entry.worst_stream[1] == min(entry.by_stream.values())
    assert entry.by_set["two"] == pytest.approx(np.mean([row["accuracy"] for row in own if row["features"] == "two"]))
    assert entry.calibration_error == pytest.approx(np.mean([row["calibration_error"] for row in own]))
    seeds = [np.mean([row["accuracy"] for row in own if row["seed"] == seed]) for seed in (0, 1)]
    assert entry.orders == pytest.approx((min(seeds), max(seeds)))
    times = [min(row["seconds"] / row["scored"] for row in own if row["features"] == name) for name in ("one", "two")]
    assert entry.microseconds == pytest.approx(1e6 * np.mean(times))
    assert entry.interval[0] < entry.accuracy < entry.interval[1]
    assert board.streams == board.averaged == ("random", "bursts", "class_sorted")


def test_groups_needs_and_ranks(rows):
    board = build_leaderboard(rows)
    found = by_label(board)
    assert {label: entry.needs for label, entry in found.items()} == {
        "zero_shot": (), "tda": (), "tda+filter": ("order",), "adapt_online": (), "transclip": ("set",),
        "tip_adapter": ("support",),
    }  # fmt: skip
    assert {entry.group for entry in board.entries} == {"online", "transductive", "few-shot"}
    assert found["transclip"].rank == found["tip_adapter"].rank == (1, 1)
    online = board.group("online")
    assert [entry.accuracy for entry in online] == sorted((entry.accuracy for entry in online), reverse=True)
    for entry in online:
        for other in entry.tied:
            assert entry.label in found[other].tied


def test_differences_to_a_baseline(rows):
    found = by_label(build_leaderboard(rows, baseline="tda", draws=4000))
    for label, entry in found.items():
        assert entry.to_baseline.to == "tda"
        assert entry.to_baseline.points == pytest.approx(100 * (entry.accuracy - found["tda"].accuracy)), label
        assert entry.to_baseline.low <= entry.to_baseline.points <= entry.to_baseline.high
    assert found["tda"].to_baseline.low == found["tda"].to_baseline.high == 0
    # The gain is the difference to zero-shot on the same rows, which here are all.
    tda = by_label(build_leaderboard(rows, baseline="zero_shot", draws=4000))["tda"]
    assert (tda.to_baseline.low, tda.to_baseline.high) == pytest.approx(tda.gain_interval)
    assert all(entry.to_baseline is None for entry in build_leaderboard(rows).entries)
    with pytest.raises(ValueError, match=r"--baseline: 'tba' is not among .* Did you mean 'tda'\?"):
        build_leaderboard(rows, baseline="tba")


def test_intervals_of_a_comparison_are_those_of_the_leaderboard(sets, tmp_path):
    """`summarize` and `build_leaderboard` resample the same runs in the same way."""
    specs = [MethodSpec.named(name) for name in NAMES]
    plan = plan_comparison([DatasetRef.of(name, features) for name, features in sets.items()], specs, orders=2)
    outcomes = list(run_plan(plan, Ledger(tmp_path)))
    board = by_label(build_leaderboard(collect([tmp_path], outcomes=True).rows, baseline="tda"))
    for method in summarize(plan, outcomes, baseline="tda").overall:
        entry = board[method.spec.label]
        assert method.gain_interval == pytest.approx(entry.gain_interval)
        assert (method.to_baseline.low, method.to_baseline.high) == pytest.approx(
            (entry.to_baseline.low, entry.to_baseline.high)
        )
        if method.to_best is not None and method.to_best.to != method.spec.label:
            assert method.to_best.is_tie == (method.to_best.to in entry.tied)


def test_methods_with_views_are_ranked_apart(rows):
    """As in the documentation: a method that sees views is not compared with one that sees the image alone."""
    viewed = [{**row, "given": ["views"]} if row["contestant"] == "tda" else row for row in rows]
    found = by_label(build_leaderboard(viewed))
    assert (found["tda"].group, found["tda"].rank, found["tda"].tied) == ("online with views", (1, 1), ())
    assert all("tda" not in entry.tied for entry in found.values())


def test_reconstructions_are_marked_everywhere(rows):
    """Here the records of tda are said to be those of a reconstruction."""
    renamed = [
        {**row, "contestant": "freetta", "method": "freetta"} if row["contestant"] == "tda" else row for row in rows
    ]
    board = build_leaderboard(renamed)
    assert by_label(board)["freetta"].caveat == "reconstructed, not the authors' code"
    assert "`freetta*`" in leaderboard_table(board).markdown()
    assert "freetta: reconstructed, not the authors' code" in leaderboard_markdown(board)
    page = render_leaderboard_page(board, command="")
    assert ">freetta*</code>" in page
    record = {method["label"]: method for method in leaderboard_record(board)["methods"]}
    assert record["freetta"]["caveat"]
    assert not record["transclip"]["caveat"]


def test_methods_without_an_order_count_for_every_stream(rows):
    entry = by_label(build_leaderboard(rows))["transclip"]
    assert len(set(entry.by_stream.values())) == 1
    assert entry.runs == 2


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ({"methods": ["tda"]}, {"tda"}),
        ({"methods": ["tda", "tda+filter"]}, {"tda", "tda+filter"}),
        ({"groups": ["transductive", "few-shot"]}, {"transclip", "tip_adapter"}),
        ({"without": ["order", "support"]}, {"zero_shot", "tda", "adapt_online", "transclip"}),
        ({"without": ["set"], "groups": ["transductive", "online"], "methods": ["transclip", "tda"]}, {"tda"}),
    ],
)
def test_filters_of_methods(rows, chosen, left):
    assert set(by_label(build_leaderboard(rows, **chosen))) == left


def test_filters_of_streams_and_sets(rows):
    board = build_leaderboard(rows, streams=["bursts"], sets=["two"])
    own = [row for row in rows if row["job"] == "tda" and row["features"] == "two" and row["stream.kind"] == "bursts"]
    assert by_label(board)["tda"].accuracy == pytest.approx(np.mean([row["accuracy"] for row in own]))
    assert board.streams == ("bursts",)
    assert dict(board.sets) == {"two": 70}
    assert "transclip" in by_label(board)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"methods": ["tad"]}, "--methods: 'tad' is none of"),
        ({"groups": ["offline"]}, "--groups: 'offline' is none of"),
        ({"streams": ["burst"]}, "Did you mean 'bursts'"),
        ({"sets": ["three"]}, "--sets: 'three' is none of one, two"),
        ({"without": ["labels"]}, "--without: 'labels' is none of"),
        ({"methods": ["tda"], "groups": ["few-shot"]}, "no run is left"),
        ({"draws": 0}, "draws"),
        ({"level": 2.0}, "level"),
        ({"protocol": find_protocol("ttabc")}, "no record is a run of the protocol ttabc"),
    ],
)
def test_wrong_filters(rows, chosen, message):
    with pytest.raises(ValueError, match=message):
        build_leaderboard(rows, **chosen)


def test_methods_that_lack_a_stream_or_a_set_are_not_ranked(rows):
    some = [row for row in rows if (row["job"], row["stream.kind"]) != ("tda", "bursts")]
    some = [row for row in some if (row["job"], row["features"]) != ("transclip", "two")]
    board = build_leaderboard(some)
    assert board.incomplete == {"tda": "no result on one (bursts), two (bursts)", "transclip": "no result on two"}
    assert not {"tda", "transclip"} & set(by_label(board))


def test_without_an_order_that_has_all_results_there_is_no_range_of_orders(rows):
    """As after two damaged records; JSON has no NaN."""
    some = [row for row in rows if (row["job"], row["features"], row.get("seed")) != ("tda", "one", 0)]
    board = build_leaderboard(
        [row for row in some if (row["job"], row["features"], row.get("seed")) != ("tda", "two", 1)]
    )
    assert by_label(board)["tda"].orders is None
    assert by_label(board)["adapt_online"].orders is not None
    json.dumps(leaderboard_record(board), allow_nan=False)


def test_records_without_outcomes_are_left_out(rows):
    old = [{**row, "outcomes": None} if row["job"] == "tda" else row for row in rows]
    board = build_leaderboard(old)
    assert "tda" not in by_label(board)
    assert any("12 records of an earlier version" in note for note in board.notes)
    with pytest.raises(ValueError, match="compare --again"):
        build_leaderboard([{**row, "outcomes": None} for row in rows])
    with pytest.raises(ValueError, match="no records of runs"):
        build_leaderboard([])


def test_two_sets_of_one_name(rows):
    other = [{**row, "digest": "other"} if row["features"] == "one" and row["job"] == "tda" else row for row in rows]
    with pytest.raises(ValueError, match="two different sets or prompts called 'one'"):
        build_leaderboard(other)


# Protocols


def test_the_streams_of_protocols(sets):
    """By hand: what each method runs on, how many rows per call, how many bins."""
    datasets = [DatasetRef.of("one", sets["one"])]
    specs = [MethodSpec.named(name) for name in ("tda", "transclip", "tip_adapter")]
    expected = {
        "three-orders": (("random", "bursts", "class_sorted"), None, 15, ("random", "bursts", "class_sorted")),
        "ttabc": (("random", "dirichlet"), 1, 20, ("random",)),
        "tta-vlm": (("random", "dirichlet"), 1, 15, ("random",)),
    }
    assert expected.keys() == PROTOCOLS.keys()
    for name, (streams, every, bins, averaged) in expected.items():
        plan = plan_comparison(datasets, specs, orders=2, protocol=find_protocol(name))
        online = [trial for trial in plan.trials if trial.spec.method == "tda"]
        assert [(trial.stream["kind"], trial.seed) for trial in online] == [
            (s, seed) for s in streams for seed in (0, 1)
        ]
        assert {(trial.every, trial.bins) for trial in plan.trials} == {(every, bins)}
        assert find_protocol(name).averaged == averaged
        others = [(trial.spec.method, trial.stream["kind"], trial.seed) for trial in plan.trials[len(online) :]]
        assert others == [("transclip", "stored", None), ("tip_adapter", "stored", 0), ("tip_adapter", "stored", 1)]


def test_every_stream_of_a_protocol_holds_every_row(sets):
    for protocol in PROTOCOLS.values():
        for stream in protocol.streams.values():
            rows = stream.stream(sets["one"], seed=1).rows
            assert sorted(rows.tolist()) == list(range(90))


def test_an_unknown_protocol():
    with pytest.raises(ValueError, match=r"three-orders, ttabc, tta-vlm; got 'tta_vlm'\. Did you mean 'tta-vlm'"):
        find_protocol("tta_vlm")


def test_ttabc_by_hand(sets, tmp_path):
    """Accuracy and 20-bin calibration error of both streams, computed image by image without the runner."""
    features = sets["one"]
    plan = plan_comparison(
        [DatasetRef.of("one", features)], [MethodSpec("tda")], orders=1, protocol=find_protocol("ttabc")
    )
    list(run_plan(plan, Ledger(tmp_path)))
    found = build_leaderboard(collect([tmp_path], outcomes=True).rows, protocol=find_protocol("ttabc")).entries[0]
    orders = {
        "random": np.random.default_rng(0).permutation(90),
        "dirichlet": dirichlet(features.labels, 0).rows,
    }
    for stream, order in orders.items():
        method = methods.create("tda", features.prototypes_for(), logit_scale=features.logit_scale)
        answers = np.concatenate([method.adapt(np.asarray(features.features)[[row]]) for row in order])
        right = answers.argmax(axis=1) == features.labels[order]
        assert found.by_stream[stream] == pytest.approx(right.mean())
        if stream == "random":
            confidence = answers.max(axis=1)
            error = sum(
                abs(right[inside].sum() - confidence[inside].sum())
                for low in np.arange(20)
                if (inside := (confidence > low / 20) & (confidence <= (low + 1) / 20)).any()
            )
            assert found.calibration_error == pytest.approx(error / 90, abs=1e-6)
            assert found.accuracy == pytest.approx(right.mean())


def test_plain_and_protocol_runs_in_one_folder(sets, tmp_path):
    for protocol in (None, find_protocol("ttabc")):
        plan = plan_comparison([DatasetRef.of("one", sets["one"])], [MethodSpec("tda")], orders=1, protocol=protocol)
        list(run_plan(plan, Ledger(tmp_path)))
    rows = collect([tmp_path], outcomes=True).rows
    assert len(rows) == 3
    plain, ttabc = build_leaderboard(rows), build_leaderboard(rows, protocol=find_protocol("ttabc"))
    assert plain.streams == ("random",)
    assert ttabc.streams == ("random", "dirichlet")
    assert any("another batch size" in note for note in plain.notes)
    with pytest.raises(ValueError, match=r"no run is left on a stream that ttabc averages \(random\). Fix: name one"):
        build_leaderboard(rows, protocol=find_protocol("ttabc"), streams=["dirichlet"])


def test_few_shot_methods_with_several_numbers_of_shots(sets, tmp_path):
    for shots in (1, 4):
        plan = plan_comparison([DatasetRef.of("one", sets["one"])], [MethodSpec("tip_adapter")], orders=1, shots=shots)
        list(run_plan(plan, Ledger(tmp_path)))
    board = build_leaderboard(collect([tmp_path], outcomes=True).rows)
    assert set(by_label(board)) == {"tip_adapter (1 shots)", "tip_adapter (4 shots)"}
