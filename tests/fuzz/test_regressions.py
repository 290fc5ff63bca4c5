"""Cases that the search has found, each with the promise it broke."""

import signal

import numpy as np
import pytest

from fuzz import commands
from fuzz.arrays import Array, array_parameters_are_computed_with_or_refused, feature_sets_are_valid_or_refused
from fuzz.cases import Stream
from fuzz.commands import commands_end_with_a_result_or_an_error
from fuzz.files import Damage, Edit, bombs_take_little_memory, forged_states_are_refused_or_work
from fuzz.parameters import parameters_work_or_are_refused
from zeroshift.cli import errors
from zeroshift.methods._shared.tuning import AdamW


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("class_names", Array((3,), "torch", "float64", "meta")),
        ("sample_names", Array((5,), "torch", "float64", "sparse")),
        ("sample_names", Array((5,), "object", "float64", "type")),
        ("class_names", Array((0, 0), "object", "float64", "memoryview")),
        ("sample_names", Array((5, 0), "object", "float64", "memoryview")),
        ("logit_scale", Array((), "torch", "float64", "meta")),
        ("features", Array((5, 4), "numpy", ">f8")),
    ],
)
def test_values_of_other_types_are_refused_by_name(field, value):
    """The error of torch, or of Python, came out."""
    feature_sets_are_valid_or_refused((field, value))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", ["nested", "meta", "sparse"])
def test_prompts_must_be_dense_tensors(layout):
    """torch's own error came out when the shape was read."""
    array_parameters_are_computed_with_or_refused(("awt", "prompts"), Array((6, 4), "torch", "float64", layout))


@pytest.mark.parametrize(
    "line",
    [
        ("adapt", (("--class-names", "loop.npy"),)),
        ("adapt", (("ARGUMENT", "loop.npy"),)),
        ("adapt", (("--out", "loop.npy"),)),
        ("compare", (("ARGUMENT", "loop.npy"),)),
        ("data corrupt", (("ARGUMENT", "loop.npy"),)),
        ("data corrupt", (("--out", "loop.npy"),)),
        ("data corrupt", (("--out", ".csv"),)),
    ],
)
def test_links_to_themselves_and_hidden_folders(line):
    """A link to itself ended in a traceback."""
    commands_end_with_a_result_or_an_error(line)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_signals_at_the_begin_and_the_end_of_a_command(number, tmp_path, monkeypatch):
    """In the few lines around the command, SIGTERM gave the exit code of SIGINT, and a lock was left behind."""
    monkeypatch.setattr(commands, "TRACED", (errors.__file__,))
    monkeypatch.chdir(tmp_path)
    arguments = ["results", "runs", "--csv", "new.csv"]
    commands._make(tmp_path)
    before = set(commands.snapshot(tmp_path))
    commands._call_with_signal(arguments, 0, number)
    for line in range(1, 1 + commands._LINES[tuple(arguments)]):
        done = commands._call_with_signal([*arguments, "--force"], line, number)
        assert done.error is None
        assert done.exit_code in (0, 128 + number), f"line {line}: {done}"
        assert set(commands.snapshot(tmp_path)) - before <= {"new.csv"}, f"line {line}"


def test_numbers_as_class_names_are_not_listed():
    """A 64 kB archive took 512 MB: every number became a Python object before its type was checked."""
    bombs_take_little_memory(64, "as stored", "class_names.npy")


def test_models_of_a_state_must_be_an_object():
    forged_states_are_refused_or_work("histpt", Edit(92, "replace", "-1"), [])


@pytest.mark.filterwarnings("ignore:.*without checksums")
@pytest.mark.parametrize("name", ["stata", "transclip", "histo_transclip"])
def test_variances_of_a_state_must_be_above_zero(name):
    """A state whose variances are zeros was loaded, and predicted NaN."""
    forged_states_are_refused_or_work(name, Edit(1, "add", "-1"), [[Damage("truncate", 0.5, 0)]])


def test_second_moments_must_not_be_negative():
    """A tolerance for rounding let -1e-8 pass, whose square root is NaN."""
    optimizer = AdamW(0.1)
    optimizer.step(np.ones(2), np.ones(2))
    arrays, values = optimizer.state()
    optimizer.restore({**arrays, "second_moment": np.array([1.0, -1e-8])}, values)
    with pytest.raises(ValueError, match="second_moment must be at least 0"):
        optimizer.check(np.ones(2), 1)


@pytest.mark.filterwarnings("ignore:.*without checksums")
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("b2tpt", Damage("swap", 0.18)),
        ("b2tpt", Damage("swap", 0.99)),
        ("ecalp", Damage("swap", 0.72)),
        ("ecalp", Damage("swap", 0.99)),
    ],
)
def test_numbers_of_a_state_must_be_those_of_samples(name, damage):
    """Numbers of 1e300 were loaded: NaN, or eigenvalues that do not converge."""
    forged_states_are_refused_or_work(name, Edit(1, "add", "-1"), [[damage]])


@pytest.mark.parametrize(
    "chosen",
    [
        ("dota", {"constant": 1.0, "epsilon": 0}),
        ("dmn", {"memory_size": 100_000}),
        ("timo", {"transferred": 2**31}),
        ("ecalp", {"n_neighbors": 2**31}),
        ("timo", {"transferred": 2**63}),
        ("b2tpt", {"text_latent": 2**63}),
        ("b2tpt", {"batch_size": 1, "vision_latent": 2**31, "vision_tokens": 2**31}),
        ("swapprompt", {"logit_scale": 1, "rate": 1e8}),
    ],
)
def test_parameters_work_or_are_refused_by_name(chosen):
    """A saved state was refused, its means were longer than 1; NumPy's own MemoryError and ValueError came out; and
    a long step led to a prompt whose text features are zero, where the gradient was NaN."""
    for stream in (Stream(dimension=2), Stream(classes=1, dimension=1, samples=1)):
        parameters_work_or_are_refused(chosen, stream)
