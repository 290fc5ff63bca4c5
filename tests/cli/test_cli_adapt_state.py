"""A stream in two halves, with the state saved between them, is the stream in one piece."""

import json

import numpy as np
import pytest

from zeroshift import FeatureSet, OnlineAnchoredMixture, TransductiveADAPT
from zeroshift.tensor_files import write_tensors


@pytest.fixture
def halves(small, tmp_path):
    paths = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    for path, rows in zip(paths, (slice(0, 50), slice(50, None)), strict=True):
        small.subset(rows).save(path)
    return paths


def predictions(path):
    with np.load(path) as archive:
        return archive["probabilities"]


def test_two_halves_are_the_whole(call, small, halves, tmp_path):
    state = tmp_path / "state.safetensors"
    first = call("adapt", halves[0], "-o", tmp_path / "1.npz", "-s", "anchor_count=5", "--save-state", state)
    assert first.exit_code == 0, first.stderr
    # Saved over the state it came from, as one would do day after day.
    options = ["--state-in", state, "--save-state", state, "--force"]
    second = call("adapt", halves[1], "-o", tmp_path / "2.npz", *options)
    assert (second.exit_code, second.stderr) == (0, "")
    whole = OnlineAnchoredMixture(small.prototypes_for(), logit_scale=small.logit_scale, anchor_count=5)
    expected = whole.adapt(small.features)
    found = np.concatenate([predictions(tmp_path / "1.npz"), predictions(tmp_path / "2.npz")])
    np.testing.assert_array_equal(found, expected)
    assert OnlineAnchoredMixture.load(state).n_seen == 120


def test_the_state_contains_the_parameters(call, halves, tmp_path):
    state = tmp_path / "state.safetensors"
    call("adapt", halves[0], "-m", "adapt_online", "-o", tmp_path / "1.npz", "--save-state", state)
    failed = call("adapt", halves[1], "-o", tmp_path / "2.npz", "--state-in", state, "-s", "bank_size=3")
    assert failed.exit_code == 2
    assert "bank_size cannot be changed" in failed.stderr
    assert call("adapt", halves[1], "-o", tmp_path / "2.npz", "--state-in", state, "-s", "engine=direct").exit_code == 0


def test_the_state_contains_the_logit_scale(call, small, tmp_path):
    state, features = tmp_path / "state.safetensors", tmp_path / "x.npy"
    np.save(features, small.features)
    np.save(tmp_path / "t.npy", small.prototypes_for())
    again = ["adapt", features, "--prototypes", tmp_path / "t.npy"]
    assert call(*again, "-o", tmp_path / "1.npz", "--logit-scale", 20, "--save-state", state).exit_code == 0
    again += ["-o", tmp_path / "2.npz", "--state-in", state]
    failed = call(*again, "--logit-scale", 30)
    assert failed.exit_code == 2
    assert "--logit-scale 30 cannot be changed with --state-in" in failed.stderr
    assert "learned with 20" in failed.stderr
    assert not (tmp_path / "2.npz").exists()
    assert call(*again, "--logit-scale", 20).exit_code == 0


def test_no_predictions_without_the_state_that_made_them(call, halves, tmp_path, monkeypatch):
    def fails(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr("zeroshift.method.Method.save", fails)
    done = call("adapt", halves[0], "-o", tmp_path / "1.npz", "--save-state", tmp_path / "state.safetensors")
    assert (done.exit_code, done.stderr) == (2, "error: the disk is full\n")
    assert not (tmp_path / "1.npz").exists()


def test_a_state_without_its_method_is_named(call, halves, tmp_path):
    state = tmp_path / "state.safetensors"
    write_tensors(state, {"x": np.zeros(1)}, {"kind": "state", "schema": 1})
    failed = call("adapt", halves[1], "-o", tmp_path / "2.npz", "--state-in", state)
    assert failed.exit_code == 2
    assert f"{state} has a header without 'method'" in failed.stderr


def test_another_method_or_prompt_is_an_error(call, halves, tmp_path):
    state = tmp_path / "state.safetensors"
    call("adapt", halves[0], "-o", tmp_path / "1.npz", "--save-state", state)
    again = ["adapt", halves[1], "-o", tmp_path / "2.npz", "--state-in", state]
    assert (
        "holds the state of anchored_mixture_online, not of zero_shot" in call(*again, "--method", "zero_shot").stderr
    )
    assert "other prototypes than 'vanilla'" in call(*again, "--prompt", "vanilla").stderr
    assert not (tmp_path / "2.npz").exists()


def test_a_state_of_another_prompt_mode_keeps_its_prototypes(call, small, halves, tmp_path):
    state = tmp_path / "state.safetensors"
    call("adapt", halves[0], "-o", tmp_path / "1.npz", "--prompt", "vanilla", "--save-state", state)
    done = call("adapt", halves[1], "-o", tmp_path / "2.npz", "--state-in", state)
    assert (done.exit_code, done.stderr) == (0, "")
    whole = OnlineAnchoredMixture(small.prototypes_for("vanilla"), logit_scale=small.logit_scale)
    np.testing.assert_array_equal(predictions(tmp_path / "2.npz"), whole.adapt(small.features)[50:])


def test_other_prototypes_warn_and_other_classes_are_an_error(call, small, halves, tmp_path):
    state = tmp_path / "state.safetensors"
    call("adapt", halves[0], "-o", tmp_path / "1.npz", "--save-state", state)
    reversed_classes = tmp_path / "reversed.safetensors"
    FeatureSet(small.features, prototypes=small.prototypes_for()[::-1].copy()).save(reversed_classes)
    done = call("adapt", reversed_classes, "-o", tmp_path / "2.npz", "--state-in", state)
    assert done.exit_code == 0
    assert done.stderr.startswith("warning: ")
    assert "other prototypes" in done.stderr
    fewer = tmp_path / "fewer.safetensors"
    FeatureSet(small.features, prototypes=small.prototypes_for()[:3].copy()).save(fewer)
    failed = call("adapt", fewer, "-o", tmp_path / "3.npz", "--state-in", state)
    assert failed.exit_code == 2
    assert "6 classes" in failed.stderr


def test_transductive_methods_have_no_state_to_resume(call, small, halves, tmp_path):
    state = tmp_path / "state.safetensors"
    TransductiveADAPT(small.prototypes_for()).save(state)
    failed = call("adapt", halves[1], "-o", tmp_path / "2.npz", "--state-in", state)
    assert failed.exit_code == 2
    assert "learns from each set separately" in failed.stderr
    failed = call("adapt", halves[1], "-o", tmp_path / "2.npz", "--state-in", state, "--transductive")
    assert (failed.exit_code, "--transductive and --state-in contradict each other" in failed.stderr) == (2, True)


def test_the_prompt_of_a_state_is_reported(call, small, halves, tmp_path):
    state = tmp_path / "state.safetensors"
    call("adapt", halves[0], "-o", tmp_path / "1.npz", "--prompt", "vanilla", "--save-state", state)
    again = ["-o", tmp_path / "2.npz", "--state-in", state, "--json", "--force"]
    assert json.loads(call("adapt", halves[1], *again).stdout)["prompt"] == "vanilla"
    others = tmp_path / "others.safetensors"
    FeatureSet(small.features, prototypes=small.prototypes_for("ensemble"), logit_scale=20.0).save(others)
    done = call("adapt", others, *again)
    assert json.loads(done.stdout)["prompt"] is None
    shown = call("adapt", others, *again[:-2], "--force", env={"COLUMNS": "160"}).stdout
    assert "prompt       none of the set's; the prototypes are those of the saved state" in shown


def test_the_state_to_resume_is_not_overwritten_by_predictions(call, halves, tmp_path):
    state = tmp_path / "state.npz"
    call("adapt", halves[0], "-o", tmp_path / "1.npz", "--save-state", state)
    failed = call("adapt", halves[1], "-o", state, "--state-in", state, "--force")
    assert failed.exit_code == 2
    assert "also an input" in failed.stderr
