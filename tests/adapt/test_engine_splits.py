"""Changing the engine, splitting calls, and saving and loading after any sample do not change the answers."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_comparison import (
    assert_same_bank,
    assert_same_scores,
    assert_same_statistics,
    bank_arrays,
    get_stream,
    make_method,
    run_direct,
    treat_as_large,
)
from zeroshift import OnlineADAPT
from zeroshift.adapt.engines import ENGINE_NAMES
from zeroshift.files import FileFormatError
from zeroshift.tensor_files import UnverifiedFileWarning, read_tensors, write_tensors

FAST = ["auto", "streaming", "replay"]
SAVED = sorted((Path(__file__).parents[1] / "states").glob("schema_*/adapt_online.safetensors"))


@pytest.fixture(scope="module", autouse=True)
def large():
    """These small streams then use the dual form and the maintained inverse, and return to the former with `prune`."""
    with pytest.MonkeyPatch.context() as patch:
        treat_as_large(patch)
        yield


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("states") / "state.safetensors"


def save_and_load(method, file, **changes):
    method.save(file)
    return OnlineADAPT.load(file, **changes)


def form(method):
    return method._engine._precision.form


# Streams whose banks soon exceed d // 2 entries, where the form of the precision changes.
NAMES = ["small", "negative cosines", "every sample replaces", "interleaved duplicates", "the whole sphere"]
parameter_sets = st.sampled_from(
    [
        {},
        {"bank_size": 3},
        {"bank_size": 4, "prune": (40, 0.8)},
        {"bank_size": 4, "alpha": 1.0, "support": True},
        {"bank_size": 3, "batch_size": 4},
        {"use_bank_term": False, "bank_size": 2},
        {"update_mean": False, "bank_size": 3},
        {"update_covariance": False, "bank_size": 3},
    ]
)
pieces = st.lists(
    st.tuples(st.sampled_from(ENGINE_NAMES), st.sampled_from([1, 2, 3, 5, 12, 30, 60]), st.booleans()),
    min_size=2,
    max_size=9,
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(NAMES), parameter_sets, pieces)
def test_any_split_gives_the_same_answers_and_the_same_bank(file, name, parameters, pieces):
    """Each piece: an engine, the batches per call, and whether the state is saved and loaded."""
    stream = get_stream(name)
    expected, _ = run_direct(name, **parameters)
    method = make_method(stream, pieces[0][0], **parameters)
    size = parameters.get("batch_size", 1)
    for engine, batches, _ in pieces:
        if method.engine != engine:
            method = save_and_load(method, file, engine=engine)
        start = method.n_seen
        rows = stream.features[start : start + batches * size]
        if len(rows) == 0:
            break
        answer = method.adapt_scores(rows)
        assert_same_scores(answer, expected[start : start + len(rows)])
    reference = make_method(stream, "direct", **parameters)
    reference.adapt(stream.features[: method.n_seen])
    assert_same_bank(method, reference)
    assert_same_statistics(method, reference)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(NAMES), parameter_sets, st.sampled_from(FAST), pieces)
def test_saving_and_loading_changes_no_bit(file, name, parameters, engine, pieces):
    stream = get_stream(name)
    kept, saved = (make_method(stream, engine, **parameters) for _ in range(2))
    size = parameters.get("batch_size", 1)
    for _, batches, save in pieces:
        rows = stream.features[kept.n_seen : kept.n_seen + batches * size]
        if len(rows) == 0:
            break
        np.testing.assert_array_equal(saved.adapt_scores(rows), kept.adapt_scores(rows))
        if save:
            saved = save_and_load(saved, file)
            np.testing.assert_array_equal(saved.predict_scores(rows), kept.predict_scores(rows))
    assert all(
        np.array_equal(*pair) for pair in zip(bank_arrays(saved).values(), bank_arrays(kept).values(), strict=True)
    )
    np.testing.assert_array_equal(saved.precision_matrix, kept.precision_matrix)


class TestResume:
    """Save and load in every state of the engine, then continue."""

    def assert_resumes(self, method, file, stream, engine):
        other = save_and_load(method, file)
        assert form(other) == form(method)
        rest = stream.features[method.n_seen : method.n_seen + 45]
        for part in np.split(rest, [1, 5, 20]):
            np.testing.assert_array_equal(other.adapt_scores(part), method.adapt_scores(part))
        np.testing.assert_array_equal(other.precision_matrix, method.precision_matrix)

    @pytest.mark.parametrize("engine", FAST)
    @pytest.mark.parametrize("rows", [1, 6])
    def test_in_the_dual_form(self, engine, rows, file):
        stream = get_stream("negative cosines")
        method = make_method(stream, engine)
        method.adapt(stream.features[:rows])
        assert form(method) == "dual"
        self.assert_resumes(method, file, stream, engine)

    @pytest.mark.parametrize("engine", FAST)
    def test_before_and_after_the_change_of_form(self, engine, file):
        stream = get_stream("negative cosines")
        method = make_method(stream, engine)
        before = method
        while form(method) == "dual":
            before = save_and_load(method, file)
            method.adapt(stream.features[method.n_seen])
        assert form(before) == "dual"
        assert before._evidence.size == stream.features.shape[1] // 2
        self.assert_resumes(method, file, stream, engine)
        self.assert_resumes(before, file, stream, engine)

    @pytest.mark.parametrize("engine", ["streaming", "auto"])
    def test_with_changes_waiting(self, engine, file):
        stream = get_stream("negative cosines")
        method = make_method(stream, engine)
        for part in np.array_split(stream.features[:60], 6):
            method.adapt(part)
        assert form(method) == "primal"
        assert len(method._engine._precision._waiting) > 1
        self.assert_resumes(method, file, stream, engine)

    @pytest.mark.parametrize("engine", FAST)
    def test_right_after_a_replayed_call(self, engine, file):
        stream = get_stream("negative cosines")
        method = make_method(stream, engine)
        method.adapt(stream.features[:100])
        assert form(method) == "primal"
        self.assert_resumes(method, file, stream, engine)

    @pytest.mark.parametrize("engine", FAST)
    def test_after_a_prune_that_returns_to_the_dual_form(self, engine, file):
        stream = get_stream("negative cosines")
        method = make_method(stream, engine, bank_size=4, prune=(100, 0.9))
        method.adapt(stream.features[:99])
        assert form(method) == "primal"
        method.adapt(stream.features[99:100])
        assert form(method) == "dual"
        self.assert_resumes(method, file, stream, engine)

    @pytest.mark.parametrize("engine", FAST)
    def test_between_samples_without_insertion(self, engine, file):
        """After several such samples the scores are computed differently; their number is part of the state."""
        stream = get_stream("classes that stay empty")
        kept, saved = (make_method(stream, engine, bank_size=1) for _ in range(2))
        for method in (kept, saved):
            method.adapt(stream.features[:40])
        for row in range(40, 110):
            x = stream.features[row]
            np.testing.assert_array_equal(saved.adapt_scores(x), kept.adapt_scores(x))
            saved = save_and_load(saved, file)


class TestFiles:
    @pytest.mark.parametrize("other", ENGINE_NAMES)
    @pytest.mark.parametrize("engine", ENGINE_NAMES)
    @pytest.mark.parametrize("rows", [3, 70], ids=["dual", "primal"])
    @pytest.mark.sampled(3)
    def test_every_engine_loads_the_states_of_every_engine(self, engine, other, rows, file):
        stream = get_stream("negative cosines")
        expected, _ = run_direct("negative cosines", bank_size=4)
        method = make_method(stream, engine, bank_size=4)
        method.adapt(stream.features[:rows])
        again = save_and_load(method, file, engine=other)
        assert again.engine == other
        assert_same_scores(again.adapt_scores(stream.features[rows : rows + 30]), expected[rows : rows + 30])

    @pytest.mark.parametrize("engine", ENGINE_NAMES)
    @pytest.mark.parametrize("path", SAVED, ids=lambda path: path.parent.name)
    def test_states_of_earlier_versions(self, path, engine):
        expected = np.load(path.with_suffix(".npz"))
        with pytest.warns(UnverifiedFileWarning) if path.parent.name == "schema_1" else nullcontext():
            method = OnlineADAPT.load(path, engine=engine)
        np.testing.assert_allclose(method.predict(expected["features"]), expected["predicted"], rtol=0, atol=1e-7)
        np.testing.assert_allclose(method.adapt(expected["features"]), expected["adapted"], rtol=0, atol=1e-7)

    def test_state_moves_between_numpy_and_torch(self, file):
        pytest.importorskip("torch", reason="torch is not installed")
        stream = get_stream("negative cosines")
        expected, _ = run_direct("negative cosines")
        method = make_method(stream, "streaming")
        for start in range(0, 150, 25):
            answer = method.adapt_scores(stream.features[start : start + 25])
            assert_same_scores(answer, expected[start : start + 25])
            method = save_and_load(method, file, library="torch" if start % 50 == 0 else "numpy")

    @pytest.mark.parametrize("engine", FAST)
    @pytest.mark.parametrize("bank_size", [2, 16])
    def test_file_size(self, engine, bank_size, file):
        """K L (d + 2) numbers for the bank, and at most 4 (K d + d^2) for the engine without collected changes.

        Sums, totals and means are 3 K d, scatter and inverse 2 d^2; the moments and cones, 10 K, fit in the difference.
        Before the change of form Z, Z Z^T and Z mu^T are smaller than that. Collected changes are at most CHECK_EVERY
        times four rows of d numbers.
        """
        stream = get_stream("negative cosines")
        method = make_method(stream, engine, bank_size=bank_size)
        K, d = stream.prototypes.shape
        for rows in (3, 20, 60, 120, 250):
            method.adapt(stream.features[method.n_seen : rows])
            method.save(file)
            arrays, _ = read_tensors(file, kind="state", schema=2)
            numbers = sum(array.size for name, array in arrays.items() if name.startswith("state/"))
            waiting = arrays.get("state/engine_waiting", np.zeros(0)).size * (1 + 1 / d)
            assert waiting <= 64 * 4 * (d + 1)
            assert numbers - waiting <= K * bank_size * (d + 2) + 4 * (K * d + d * d)


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory, large):
    """One file per form of the precision."""
    stream, folder = get_stream("negative cosines"), tmp_path_factory.mktemp("saved")
    for name, rows in (("dual", 7), ("primal", 61)):
        method = make_method(stream, "streaming", bank_size=4)
        method.adapt(stream.features[:rows])
        assert form(method) == name
        method.save(folder / name)
    return folder


@pytest.fixture(params=["dual", "primal"])
def saved(request, saved_once, tmp_path):
    shutil.copy(saved_once / request.param, tmp_path / "state")
    return tmp_path / "state", request.param


ENGINE_ARRAYS = {
    "dual": ["centred", "gram", "places", "projected", "means", "weights", "direction", "across"],
    "primal": ["contraction", "moments", "scatter", "waiting", "waiting_signs", "means", "totals", "along"],
}


class TestDamagedFiles:
    @pytest.mark.parametrize("damage", ["missing", "shape", "type", "NaN"])
    @pytest.mark.parametrize("number", range(8))
    def test_damaged_arrays_are_rejected(self, saved, number, damage):
        path, form = saved
        name = f"state/engine_{ENGINE_ARRAYS[form][number]}"
        arrays, header = read_tensors(path, kind="state", schema=2)
        array = arrays[name]
        if damage == "missing":
            del arrays[name]
        elif damage == "shape":
            arrays[name] = np.concatenate([array, array])
        elif damage == "type":
            arrays[name] = array.astype(np.float32)
        elif array.dtype == np.int64:
            arrays[name] = array + 77
        else:
            arrays[name] = np.full_like(array, np.nan)
        write_tensors(path, arrays, header)
        with pytest.raises(FileFormatError, match="does not contain the state that its header describes"):
            OnlineADAPT.load(path)

    @pytest.mark.parametrize("name", ["degree", "waiting"])
    def test_numbers_in_the_header_cannot_ask_for_much_memory(self, saved_once, tmp_path, name):
        arrays, header = read_tensors(saved_once / "primal", kind="state", schema=2)
        header["values"]["engine"][name] = 10**15
        write_tensors(tmp_path / "state", arrays, header)
        with pytest.raises(FileFormatError, match=r"must be float64 of shape \(1000000000000000, "):
            OnlineADAPT.load(tmp_path / "state")

    @pytest.mark.parametrize(
        "change",
        [
            lambda values: values.pop("idle"),
            lambda values: values.update(idle="long"),
        ],
        ids=["no idle", "idle"],
    )
    def test_damaged_values_are_rejected(self, saved, change):
        path, _ = saved
        arrays, header = read_tensors(path, kind="state", schema=2)
        change(header["values"]["engine"])
        write_tensors(path, arrays, header)
        with pytest.raises(FileFormatError, match="does not contain the state that its header describes"):
            OnlineADAPT.load(path)

    @pytest.mark.parametrize("form", ["other", "cubic", None])
    def test_another_form_is_recomputed_from_the_bank(self, saved, form):
        """A version that selects another form can load the file; it recomputes everything from the bank."""
        path, own = saved
        arrays, header = read_tensors(path, kind="state", schema=2)
        header["values"]["engine"]["form"] = {"dual": "primal", "primal": "dual"}[own] if form == "other" else form
        arrays["state/engine_means"] += 1.0
        write_tensors(path, arrays, header)
        stream = get_stream("negative cosines")
        method = OnlineADAPT.load(path)
        expected, _ = run_direct("negative cosines", bank_size=4)
        rest = slice(method.n_seen, method.n_seen + 20)
        assert_same_scores(method.adapt_scores(stream.features[rest]), expected[rest])

    def test_direct_ignores_the_engine_state(self, saved):
        """`direct` loads a file without the arrays of the other engines."""
        path, _ = saved
        arrays, header = read_tensors(path, kind="state", schema=2)
        write_tensors(path, {name: a for name, a in arrays.items() if "engine" not in name}, header)
        stream = get_stream("negative cosines")
        method = OnlineADAPT.load(path, engine="direct")
        expected, _ = run_direct("negative cosines", bank_size=4)
        rest = slice(method.n_seen, method.n_seen + 20)
        assert_same_scores(method.adapt_scores(stream.features[rest]), expected[rest])
