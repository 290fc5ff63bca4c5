"""Loaded states: numbers that no samples lead to are refused, and nothing large is allocated for a small file."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from zeroshift import methods
from zeroshift.files import FileFormatError
from zeroshift.parameters import state
from zeroshift.serialization import COUNTS_ROUNDS, read_header
from zeroshift.state_checks import check_lengths, check_range, check_seen, check_semidefinite
from zeroshift.tensor_files import read_tensors, write_tensors
from zeroshift.testing import Case, make_problem
from zeroshift.testing.examples import EXAMPLES


def counts_rounds(name):
    return name.endswith(COUNTS_ROUNDS)


SAVED = sorted((Path(__file__).parent / "states" / "schema_2").glob("*.safetensors"))


def test_ranges():
    check_range("x", np.array([0.0, 1.0]), 0, 1)
    check_range("x", 1 + 1e-9, 0, 1)
    check_range("x", np.array([], dtype=np.int64), 0)
    with pytest.raises(ValueError, match=r"^x must be from 0 to 1; it contains numbers from 0 to 1\.5\.$"):
        check_range("x", np.array([0.0, 1.5]), 0, 1)
    with pytest.raises(ValueError, match=r"^x must be at least 0; it contains numbers from -1 to -1\.$"):
        check_range("x", np.array([-1]), 0)
    with pytest.raises(ValueError, match="it contains numbers from nan to nan"):
        check_range("x", np.nan, 0)


def test_lengths():
    check_lengths("x", np.eye(3))
    check_lengths("x", np.zeros((0, 2, 3)))
    check_lengths("x", np.array([[0.0, 0.0], [1.0, 0.0]]), unit=True)
    check_lengths("x", np.array([[0.3, 0.0]]))
    with pytest.raises(ValueError, match=r"^the rows of x must be of unit length; one has the length 0\.3\.$"):
        check_lengths("x", np.array([[0.3, 0.0]]), unit=True)
    with pytest.raises(ValueError, match=r"^the rows of x must be no longer than 1; one has the length inf\.$"):
        check_lengths("x", np.array([[[1e200, 0.0]]]))
    with pytest.raises(ValueError, match="one has the length nan"):
        check_lengths("x", np.full((1, 2), np.nan))


def test_counts_of_samples():
    check_seen("n", 3, 3)
    check_seen("n", 0, 0)
    for count in (-1, 4, np.nan):
        with pytest.raises(ValueError, match=r"^n must be from 0 to n_seen = 3; it is"):
            check_seen("n", count, 3)


def test_semidefinite_matrices():
    rows = np.random.default_rng(0).normal(size=(3, 2, 6)).astype(np.float32)
    check_semidefinite("x", rows.transpose(0, 2, 1) @ rows)
    check_semidefinite("x", np.zeros((3, 3)))
    wide = np.array([[1e150, -1e150], [1e150, -1e150]])
    for wrong in (-np.eye(3), np.diag([1.0, -1e-3]), np.array([[1.0, 0.5], [0.0, 1.0]]), wide):
        with pytest.raises(ValueError, match=r"^x must be symmetric, without negative eigenvalues\.$"):
            check_semidefinite("x", np.stack([np.eye(len(wrong)), wrong]))


def load_edited(path, target, edit):
    """Load a saved state after `edit(arrays, header)`, with the right checksums."""
    arrays, header = read_tensors(path, kind="state", schema=2)
    arrays = {name: array.copy() for name, array in arrays.items()}
    models = {
        name: EXAMPLES[name](arrays["parameter/prototypes"])
        for name in methods.get(header["method"]).cls.model_parameters
    }
    edit(arrays, header)
    write_tensors(target, arrays, header)
    return methods.load(target, **models)


@pytest.mark.parametrize("n_seen", [-1, 2**63, 2**70, 2.5, 30.0, True, None, "30", [30]], ids=str)
def test_n_seen_must_be_a_count(tmp_path, n_seen):
    path = SAVED[0]
    with pytest.raises(FileFormatError, match=r"x\.safetensors.*n_seen must be an integer from 0 to 2\*\*63 - 1"):
        load_edited(path, tmp_path / "x.safetensors", lambda arrays, header: header["values"].update(n_seen=n_seen))


COUNTING = [
    "adapt_online", "adapt_released_online", "adapt_released_transductive", "adapt_transductive", "bca", "dmn", "dota",
    "anchored_mixture_online", "anchored_mixture_transductive", "dpcore", "dpe", "ecalp", "histpt", "oga", "t3a", "tca",
    "tda", "zlap",
]  # fmt: skip
"""Methods whose state contains how many samples it was made of, at least."""


@pytest.mark.parametrize("name", COUNTING)
def test_n_seen_must_agree_with_other_counts(tmp_path, name):
    (path,) = (path for path in SAVED if path.stem == name)
    assert read_header(path)["values"]["n_seen"] == 30
    with pytest.raises(FileFormatError, match=r"x\.safetensors does not contain the state that its header describes"):
        load_edited(path, tmp_path / "x.safetensors", lambda arrays, header: header["values"].update(n_seen=0))


@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.stem)
def test_numbers_that_are_far_too_large_are_refused_or_harmless(tmp_path, path):
    """The highest bit of the exponent of the first number of an array: no answer may become NaN."""
    arrays, _ = read_tensors(path, kind="state", schema=2)
    features = np.load(path.with_suffix(".npz"))["features"]
    for name, array in arrays.items():
        if not name.startswith("state/") or array.dtype != np.float64 or not array.size:
            continue

        def edit(arrays, header, name=name):
            arrays[name].reshape(-1).view(np.uint64)[0] ^= np.uint64(1 << 62)

        try:
            method = load_edited(path, tmp_path / "x.safetensors", edit)
        except FileFormatError:
            continue
        with np.errstate(all="ignore"):
            assert np.isfinite(method.predict(features)).all(), name


@pytest.mark.parametrize(("name", "array"), [("freetta", "covariance"), ("dota", "sums")])
def test_a_covariance_with_negative_eigenvalues_is_refused(tmp_path, name, array):
    """Its inverse is that of no Gaussian, or fails later in the stream."""
    (path,) = (path for path in SAVED if path.stem == name)

    def edit(arrays, header):
        arrays[f"state/{array}"] -= 0.5 * np.eye(8)

    with pytest.raises(FileFormatError, match=rf"{array} must be symmetric, without negative eigenvalues"):
        load_edited(path, tmp_path / "x.safetensors", edit)


REPEATING = [path for path in SAVED if any(map(counts_rounds, read_header(path)["parameters"]))]


@pytest.mark.parametrize("path", REPEATING, ids=lambda path: path.stem)
def test_a_file_cannot_ask_for_endless_rounds(tmp_path, path):
    for name in filter(counts_rounds, read_header(path)["parameters"]):

        def edit(arrays, header, name=name):
            header["parameters"][name] = 10**9

        with pytest.raises(FileFormatError, match=rf"{name} = 10{{9}}(; of a file, at most| an array has that many)"):
            load_edited(path, tmp_path / "x.safetensors", edit)


def random_content(array, rng):
    """Finite numbers of any size in the place of those of a state."""
    if array.dtype.kind != "f":
        return rng.integers(-3, 60, array.shape).astype(array.dtype)
    size = 10.0 ** rng.choice([-300, -150, -8, -2, 0, 0, 0, 1, 3, 30])
    made = rng.choice([rng.normal(size=array.shape) * size, np.abs(rng.normal(size=array.shape)), -array, array * size])
    return np.nan_to_num(made, posinf=1e30, neginf=-1e30).astype(array.dtype)


@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.stem)
def test_forged_numbers_are_refused_or_give_a_method_that_works(tmp_path, path):
    """Any finite content: it may be wrong, but no other error comes of it, at once or later in the stream."""
    features = np.load(path.with_suffix(".npz"))["features"]
    for seed in range(12):
        rng = np.random.default_rng([seed, len(path.stem)])

        def edit(arrays, header, rng=rng):
            names = [name for name in arrays if name.startswith("state/")]
            for name in names:
                if len(names) == 1 or rng.random() < 0.5:
                    arrays[name] = random_content(arrays[name], rng)

        try:
            method = load_edited(path, tmp_path / "x.safetensors", edit)
        except FileFormatError:
            continue
        with np.errstate(all="ignore"):
            assert np.isfinite(method.predict(features)).all()
            assert np.isfinite(method.adapt(features)).all()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("tca", {"reservoir_size": 5_000_000}),
        ("tda", {"positive_capacity": 5_000_000}),
        ("tda", {"negative_capacity": 5_000_000}),
        ("dmn", {"memory_size": 100_000}),
        ("oga", {"capacity": 5_000_000}),
        ("dpe", {"capacity": 5_000_000}),
        ("t3a", {"filter_size": 5_000_000}),
        ("histpt", {"local_size": 5_000_000}),
        ("histpt", {"hard_size": 5_000_000}),
        ("dynaprompt", {"n_prompts": 5_000_000}),
        ("b2tpt", {"text_latent": 1_000_000}),
    ],
)
def test_a_small_file_cannot_ask_for_much_memory(tmp_path, name, parameters):
    (path,) = (path for path in SAVED if path.stem == name)

    def edit(arrays, header):
        header["parameters"].update(parameters)
        arrays["state/wide"] = np.zeros((0, 10**9))  # has no numbers, so it does not count

    tracemalloc.start()
    try:
        with pytest.raises(
            FileFormatError, match=rf"x\.safetensors.*with {next(iter(parameters))} = .* an array has that"
        ):
            load_edited(path, tmp_path / "x.safetensors", edit)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "edit",
    [
        lambda header: header["values"].update(engine=[1]),
        lambda header: header["values"].update(engine="fast"),
        lambda header: header.update(values=[]),
        lambda header: header.update(parameters=None),
        lambda header: header.update(library="jax"),
        lambda header: header.update(library=["numpy"]),
        lambda header: header.update(device=7),
        lambda header: header.update(device="cuda:77", library="torch"),
        lambda header: header.update(method=["adapt_online"]),
        lambda header: header.update(method="no_such_method"),
        lambda header: header["parameters"].update(alpha={"a": 1}),
        lambda header: header.update(models=["text"]),
        lambda header: header.update(device="x" * 10_000),
    ],
)
def test_headers_with_wrong_types_are_errors_that_name_the_file(tmp_path, edit):
    pytest.importorskip("torch", reason="torch is not installed")
    (path,) = (path for path in SAVED if path.stem == "adapt_online")
    with pytest.raises(ValueError, match=r"x\.safetensors"):
        load_edited(path, tmp_path / "x.safetensors", lambda arrays, header: edit(header))


def test_a_part_of_the_state_whose_values_are_no_object_is_named(tmp_path):
    (path,) = (path for path in SAVED if path.stem == "adapt_online")
    with pytest.raises(FileFormatError, match=r"x\.safetensors.*engine is 'fast', not an object"):
        load_edited(path, tmp_path / "x.safetensors", lambda arrays, header: header["values"].update(engine="fast"))


def test_a_check_declared_by_a_method_is_called_after_loading(tmp_path):
    class Counting(methods.OnlineMethod):
        """Counts the samples whose first number is positive."""

        name = "counting"
        n_positive: int = state(0, check=lambda self, n: check_seen("n_positive", n, self.n_seen))

        def learn(self, x):
            self.n_positive += int(x[0] > 0)

        def score(self, features):
            return features @ self.prototypes64.T

    problem = make_problem(classes=3, dimension=8, samples=20)
    method = Case(Counting).create(problem.prototypes)
    method.adapt(problem.features)
    path = tmp_path / "state.safetensors"
    method.save(path)
    assert Counting.load(path).n_positive == method.n_positive
    arrays, header = read_tensors(path, kind="state", schema=2)
    header["values"]["n_positive"] = 21
    write_tensors(path, arrays, header)
    with pytest.raises(
        FileFormatError, match=r"state\.safetensors.*n_positive must be from 0 to n_seen = 20; it is 21"
    ):
        Counting.load(path)
