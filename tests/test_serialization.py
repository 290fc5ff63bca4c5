"""Saved methods: files of earlier versions load, damaged files are rejected, states move between libraries."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from zeroshift import OnlineADAPT, TransductiveADAPT, ZeroShot, methods
from zeroshift.files import FileFormatError
from zeroshift.older_states import as_written_now
from zeroshift.serialization import KIND, STATE_SCHEMA, read_header
from zeroshift.tensor_files import UnverifiedFileWarning, read_tensors, write_tensors
from zeroshift.testing import make_problem
from zeroshift.testing.examples import EXAMPLES

STATES = Path(__file__).parent / "states"
OTHER_METHODS = sorted((STATES / "schema_1").glob("anchored_mixture_*.safetensors"))
"""States of a mixture that had other parameters: what it learned is of no use to the present one."""
SAVED = [path for path in sorted(STATES.glob("schema_*/*.safetensors")) if path not in OTHER_METHODS]


def models_of(path):
    """The example models a saved method computed with, which follow from its prototypes."""
    header = read_header(path)
    cls = methods.get(header["method"]).cls
    tensors, _ = read_tensors(path, kind=KIND, schema=STATE_SCHEMA)
    return {name: EXAMPLES[name](tensors["parameter/prototypes"]) for name in cls.model_parameters}


@pytest.mark.parametrize("path", SAVED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_states_saved_by_earlier_versions_continue(path):
    """A new method gets a file with the next release: see make_states.py."""
    expected = np.load(path.with_suffix(".npz"))
    with pytest.warns(UnverifiedFileWarning) if "schema_1" in path.parts else nullcontext():
        method = methods.load(path, **models_of(path))
    np.testing.assert_allclose(method.predict(expected["features"]), expected["predicted"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(method.adapt(expected["features"]), expected["adapted"], rtol=0, atol=1e-9)
    assert method.n_seen == expected["n_seen"]


@pytest.mark.parametrize("path", OTHER_METHODS, ids=lambda path: path.stem)
def test_states_of_a_method_with_other_parameters_are_refused(path):
    assert len(OTHER_METHODS) == 2
    with pytest.raises(
        FileFormatError,
        match=r"was saved by an older or newer version of zeroshift: .*had the parameter\(s\) .*Fix: adapt again",
    ):
        methods.load(path)


@pytest.fixture
def saved(tmp_path):
    problem = make_problem()
    method = OnlineADAPT(problem.prototypes, logit_scale=20.0, bank_size=3, prune=(50, 0.5))
    method.adapt(problem.features[:40])
    path = tmp_path / "state.safetensors"
    method.save(path)
    return path, method, problem


def test_header_describes_the_contents(saved):
    header = read_header(saved[0])
    assert header["method"] == "adapt_online"
    assert header["schema"] == 2
    assert (header["classes"], header["dimension"]) == (6, 16)
    assert header["dtype"] == "float64"
    assert header["parameters"]["prune"] == [50, 0.5]
    assert header["values"]["n_seen"] == 40


def test_the_wrong_class_cannot_load_a_state(saved):
    with pytest.raises(FileFormatError, match=r"'adapt_online', not of 'adapt_transductive'.*zeroshift.methods.load"):
        TransductiveADAPT.load(saved[0])


def test_load_may_change_only_parameters_that_select_how_to_compute(saved):
    assert OnlineADAPT.load(saved[0], engine="direct").engine == "direct"
    with pytest.raises(TypeError, match=r"alpha cannot be changed .*allowed: engine"):
        OnlineADAPT.load(saved[0], alpha=0.5)
    with pytest.raises(ValueError, match="engine must be one of"):
        OnlineADAPT.load(saved[0], engine="warp")


def test_a_state_moves_to_torch_and_back(saved, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    path, method, problem = saved
    in_torch = OnlineADAPT.load(path, library="torch")
    assert isinstance(in_torch.means, torch.Tensor)
    in_torch.adapt(torch.tensor(problem.features[40:60]))
    in_torch.save(tmp_path / "torch.safetensors")
    again = OnlineADAPT.load(tmp_path / "torch.safetensors", library="numpy")
    method.adapt(problem.features[40:60])
    np.testing.assert_allclose(again.adapt(problem.features[60:]), method.adapt(problem.features[60:]), atol=1e-9)
    assert isinstance(OnlineADAPT.load(tmp_path / "torch.safetensors").means, torch.Tensor)


def test_unknown_libraries_and_devices_are_rejected(saved):
    with pytest.raises(ValueError, match="library must be 'numpy' or 'torch'; got 'jax'"):
        OnlineADAPT.load(saved[0], library="jax")
    pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(ValueError, match="the device 'cuda:77' is not available"):
        OnlineADAPT.load(saved[0], library="torch", device="cuda:77")


def test_saving_over_a_state_is_atomic(saved, monkeypatch):
    """A save that fails halfway leaves the earlier file."""
    path, method, problem = saved
    before = path.read_bytes()
    method.adapt(problem.features[40:])
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk gone")))
    with pytest.raises(OSError, match="disk gone"):
        method.save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


BANK_SHAPES = (("features", (16,)), ("weights", ()), ("confidences", ()))


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("parameters"),
        lambda header: header.pop("library"),
        lambda header: header.pop("method"),
        lambda header: header.update(schema="one"),
        lambda header: header["parameters"].update(novelty=3),
        lambda header: header["parameters"].update(alpha=7),
        lambda header: header["values"].update(n_seen="x"),
        lambda header: header.update(classes=77),
    ],
    ids=["parameters", "library", "method", "schema", "unknown", "alpha", "n_seen", "classes"],
)
def test_a_header_that_was_edited_is_rejected(saved, change):
    arrays, header = read_tensors(saved[0], kind="state", schema=2)
    change(header)
    write_tensors(saved[0], arrays, header)
    with pytest.raises(FileFormatError, match=str(saved[0])):
        OnlineADAPT.load(saved[0])


@pytest.mark.parametrize(
    "damage",
    [
        lambda arrays: arrays.pop("state/bank_weights"),
        lambda arrays: arrays.update({"state/bank_features": np.zeros((6, 3, 5))}),
        lambda arrays: arrays.update({"state/bank_sample_counts": np.zeros(2, dtype=np.int64)}),
        lambda arrays: arrays.update({"state/bank_sample_counts": np.full(6, 99)}),
        lambda arrays: arrays.update({"state/bank_sample_counts": np.full(6, -1)}),
        lambda arrays: arrays.update({"state/bank_confidences": np.zeros((6, 1))}),
        lambda arrays: arrays.update({"state/bank_weights": np.zeros((6, 3), dtype=np.float32)}),
        lambda arrays: arrays.update({"state/bank_weights": np.full((6, 3), np.nan)}),
        lambda arrays: arrays.update({f"state/bank_{n}": np.zeros((6, 9, *s)) for n, s in BANK_SHAPES}),
        lambda arrays: arrays.update({"parameter/prototypes": np.eye(5, 16)}),
    ],
    ids=[
        "array missing",
        "wrong dimension",
        "wrong class count",
        "count too large",
        "count negative",
        "wrong slots",
        "wrong type",
        "NaN",
        "over capacity",
        "other prototypes",
    ],
)
def test_a_state_that_does_not_fit_its_header_is_rejected(saved, damage):
    arrays, header = read_tensors(saved[0], kind="state", schema=2)
    damage(arrays)
    write_tensors(saved[0], arrays, header)
    with pytest.raises(FileFormatError, match="does not contain the state that its header describes"):
        OnlineADAPT.load(saved[0])


@pytest.mark.parametrize(
    ("cls", "parameters", "changed"),
    [
        (methods.TDA, {}, {"negative_masks": np.zeros(13 * 6)}),
        (methods.TDA, {}, {"negative_masks": np.zeros((6, 13))}),
        (methods.TCA, {}, {"tokens": np.zeros((6, 3, 16))}),
        (methods.TCA, {}, {"tokens": np.zeros((6, 3, 1, 1, 16))}),
        (methods.T3A, {"filter_size": None, "released": True}, {"features": np.zeros((6, 5))}),
    ],
)
def test_arrays_of_another_shape_are_rejected_when_loading(cls, parameters, changed, tmp_path):
    """They were loaded, and the next call failed."""
    problem = make_problem()
    method = cls(problem.prototypes, **parameters)
    method.save(tmp_path / "state")
    arrays, header = read_tensors(tmp_path / "state", kind="state", schema=2)
    write_tensors(tmp_path / "state", {**arrays, **{f"state/{name}": array for name, array in changed.items()}}, header)
    with pytest.raises(FileFormatError, match="does not contain the state that its header describes"):
        cls.load(tmp_path / "state")


def test_samples_without_numbers_take_no_time_to_load(tmp_path):
    """Every one of a million million samples without numbers, which take no place in a file, was learned."""
    methods.DOTA(np.ones((1, 1))).save(tmp_path / "state")
    arrays, header = read_tensors(tmp_path / "state", kind="state", schema=2)
    shapes = {"waiting": (10**12, 0), "waiting_labels": (10**12, 0), "means": (0, 0), "sums": (0, 0, 0)}
    empty = {f"state/{name}": np.zeros(shape) for name, shape in shapes.items()}
    write_tensors(tmp_path / "state", {**arrays, **empty}, header)
    with pytest.raises(FileFormatError, match="does not contain the state that its header describes"):
        methods.DOTA.load(tmp_path / "state")


@pytest.mark.parametrize(
    ("name", "forged"),
    [
        ("oga", {"features": (2, 2, 4), "arrivals": (5, 5)}),
        ("dmn", {"grams": (3,), "entries": (3,)}),
        ("dota", {"waiting": (3, 4), "waiting_labels": (2, 3)}),
        ("dota", {"waiting": (1, 20_000), "waiting_labels": (1, 1), "means": (1, 1), "sums": (1, 1, 1)}),
    ],
)
def test_a_forged_state_in_the_layout_of_earlier_versions_is_rejected(tmp_path, name, forged):
    path = tmp_path / "state.safetensors"
    methods.get(name).cls(np.eye(3, 4)).save(path)
    arrays, header = read_tensors(path, kind="state", schema=2)
    write_tensors(path, {**arrays, **{f"state/{one}": np.ones(shape) for one, shape in forged.items()}}, header)
    with pytest.raises(FileFormatError, match="does not contain the state that its header describes"):
        methods.load(path)


def test_counts_of_waiting_samples_do_not_multiply_the_sums():
    """Those of one class were counted for thousands: a small file took gigabytes."""
    shapes = {"waiting": (1, 4), "waiting_labels": (1, 1), "means": (1, 4), "sums": (1, 4, 4), "counts": (1000,)}
    with pytest.raises(ValueError, match="waited do not fit"):
        as_written_now("dota", {f"state/{name}": np.ones(shape) for name, shape in shapes.items()})


def test_missing_files_and_files_of_another_kind_are_rejected(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file at"):
        ZeroShot.load(tmp_path / "nothing")
    from zeroshift.data import packs

    features = tmp_path / "features.safetensors"
    packs.load("cifar10").save(features)
    with pytest.raises(FileFormatError, match="is a features file of zeroshift; a state file is needed"):
        ZeroShot.load(features)


def test_loading_with_the_base_class_names_the_fix(saved):
    with pytest.raises(
        TypeError, match=r"Method is a base class without a name\. Fix: zeroshift\.methods\.load\(path\)"
    ):
        methods.Method.load(saved[0])
