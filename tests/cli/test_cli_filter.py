"""`NAME+filter` wherever a command takes the name of a method."""

import json

import numpy as np
import pytest

from zeroshift import FeatureSet, methods


def test_methods_describes_it(call):
    done = call("methods", "tda+filter", "--json")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["name"] == "tda+filter"
    assert {"lag", "positive_capacity"} <= {parameter["name"] for parameter in record["parameters"]}
    assert "filter" in call("methods", "tda+filter").stdout


def test_adapt_runs_saves_and_resumes_it(call, small, small_file, tmp_path):
    state, out = tmp_path / "state.safetensors", tmp_path / "p.npz"
    arguments = ("adapt", small_file, "-m", "tda+filter", "-s", "lag=2", "-o", out, "--force", "--json")
    done = call(*arguments, "--save-state", state)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "tda+filter"
    resumed = call("adapt", small_file, "--state-in", state, "-o", out, "--force", "--json", "--save-state", state)
    assert resumed.exit_code == 0, resumed.stderr
    assert methods.load(state).n_seen == 2 * small.n_samples


def test_compare_shows_a_method_with_and_without_it(call, small_file, tmp_path):
    done = call(
        "compare", small_file, "--methods", "zero_shot,tda,tda+filter", "--set", "tda+filter.lag=1", "--jobs", "1",
        "--out", tmp_path / "out", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "tda+filter lag=1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("methods", "transclip+filter"), "transclip cannot be filtered: it is transductive"),
        (("adapt", "FILE", "-m", "tpt+filter", "-o", "OUT"), "tpt cannot be filtered: it is episodic"),
        (("compare", "FILE", "--methods", "transclip+filter", "--out", "OUT"), "transclip cannot be filtered"),
        (
            ("compare", "FILE", "--methods", "tda+filter", "--set", "tda+filter+views.lag=1", "--out", "OUT"),
            "Fix: --set tda+filter.lag=1",
        ),
    ],
)
def test_what_cannot_be_filtered(call, small_file, tmp_path, arguments, words):
    places = {"FILE": small_file, "OUT": tmp_path / "out.csv"}
    done = call(*(places.get(argument, argument) for argument in arguments))
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.split())


def test_the_filter_is_used_online(call, small_file, tmp_path):
    """The answers are those of the library, in the order of the file."""
    done = call("adapt", small_file, "-m", "zero_shot+filter", "-o", tmp_path / "p.npz")
    assert done.exit_code == 0, done.stderr
    features = FeatureSet.load(small_file)
    made = methods.create("zero_shot+filter", features.prototypes_for(), logit_scale=features.logit_scale)
    expected = made.adapt(np.asarray(features.features))
    with np.load(tmp_path / "p.npz") as file:
        names = [name for name in file.files if file[name].shape == expected.shape]
        assert any(np.allclose(file[name], expected, atol=1e-6) for name in names)
