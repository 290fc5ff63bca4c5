"""`zeroshift adapt` with views and with an encoder: the library's own predictions, and wrong combinations."""

import json

import numpy as np
import pytest

from evaluate import fake_methods, view_fixtures
from zeroshift import FeatureSet, ZeroShot, methods
from zeroshift.testing.examples import ExampleText


@pytest.fixture
def adapt(call, tmp_path):
    """Runs it and answers (the process, the probabilities or None)."""

    def adapt(*arguments):
        out = tmp_path / "p.npz"
        done = call("adapt", *arguments, "--out", out, "--force", "--json")
        if done.exit_code:
            return done, None
        with np.load(out) as archive:
            return done, dict(archive)

    return adapt


def made(name: str, seen: FeatureSet, **parameters):
    return methods.create(name, seen.prototypes_for(), logit_scale=seen.logit_scale, **parameters)


def test_optional_views_are_given_on_request(adapt, seen, seen_file):
    done, found = adapt(seen_file, "-m", "tda", "--views")
    assert done.exit_code == 0, done.stderr
    np.testing.assert_array_equal(found["probabilities"], made("tda", seen).adapt_views(np.array(seen.views)))
    assert json.loads(done.stdout)["n_views"] == view_fixtures.N_VIEWS
    done, found = adapt(seen_file, "-m", "tda")
    np.testing.assert_array_equal(found["probabilities"], made("tda", seen).adapt(seen.features))
    assert json.loads(done.stdout)["n_views"] == 0


@pytest.mark.parametrize("options", [[], ["--views"]], ids=["needed", "requested"])
def test_a_method_that_needs_views_always_gets_them(adapt, seen, seen_file, monkeypatch, options):
    fake_methods.register(monkeypatch, view_fixtures.Needs)
    done, found = adapt(seen_file, "-m", "needs", *options)
    assert done.exit_code == 0, done.stderr
    np.testing.assert_array_equal(found["probabilities"], made("needs", seen).predict_views(np.array(seen.views)))


def test_the_table_shows_the_number_of_views(call, seen_file, tmp_path):
    done = call("adapt", seen_file, "-m", "tda", "--views", "--out", tmp_path / "p.csv")
    assert f"{view_fixtures.N_VIEWS} per image" in done.stdout
    assert "per image" not in call("adapt", seen_file, "-m", "tda", "--out", tmp_path / "q.csv").stdout


def test_prompts_are_tuned_with_the_encoder_of_the_features(call, adapt, seen, seen_file, tmp_path, monkeypatch):
    own = seen.prototypes_for("vanilla")
    requested = view_fixtures.stand_in_encoder(monkeypatch, own)
    done, found = adapt(seen_file, "-m", "tpt", "--encoder", "no-encoder", "--set", "steps=2")
    assert done.exit_code == 0, done.stderr
    method = methods.create("tpt", own, text=ExampleText(own), logit_scale=seen.logit_scale, steps=2)
    np.testing.assert_array_equal(found["probabilities"], method.adapt_views(np.array(seen.views)))
    zero_shot = ZeroShot(own, logit_scale=seen.logit_scale).predict(seen.features)
    record = json.loads(done.stdout)
    assert record["zero_shot_accuracy"] == pytest.approx(float((zero_shot.argmax(axis=1) == seen.labels).mean()))
    assert (record["text_encoder"], record["n_views"]) == ("no-encoder", view_fixtures.N_VIEWS)
    assert "text" not in record["parameters"]
    assert requested == [(seen.class_names, "a photo of a")]
    assert record["prompt"] == "a photo of a"
    summary = call("adapt", seen_file, "-m", "tpt", "--encoder", "no-encoder", "--out", tmp_path / "shown.csv").stdout
    assert '"a photo of a", the method\'s own' in summary


WRONG = {
    "views of a method without": (
        ["-m", "zero_shot", "--views"],
        "--views: zero_shot takes no views. It takes features alone. Fix: leave",
    ),
    "views of a file without": (
        ["-m", "tda", "--views"],
        "{file} contains no views of its images, which --views gives to the method. Fix: leave out --views, or "
        "features with views (`zeroshift extract --views 64`).",
    ),
    "no views": (
        ["-m", "tpt", "-e", "no-encoder"],
        "{file} contains no views of its images, which tpt needs. Fix: another method, or features with views "
        "(`zeroshift extract --views 64`).",
    ),
    "no encoder": (
        ["-m", "tpt"],
        "tpt needs the encoder the features come from, to tune its prompts. Fix: --encoder SOURCE, the",
    ),
    "an encoder in vain": (
        ["-m", "tda", "-e", "no-encoder"],
        "--encoder: tda takes no encoder. It takes views. Fix: leave",
    ),
    "a prompt": (
        ["-m", "tpt", "-e", "no-encoder", "--prompt", "vanilla"],
        "--prompt vanilla: tpt starts with its own prompt, 'a photo of a'. Fix: leave it out.",
    ),
    "a device alone": (["--dtype", "bfloat16"], "--dtype needs an encoder. Fix: add --encoder"),
    "a model typed": (
        ["-m", "tpt", "-s", "text=x"],
        "--set text: this parameter holds a model. Fix: --encoder",
    ),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_wrong_combinations_are_errors_with_a_fix(adapt, small_file, options, message):
    done, _ = adapt(small_file, *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message.format(file=small_file) in done.stderr.splitlines()[-1]


def test_an_encoder_of_other_features_is_an_error(adapt, seen, seen_file, monkeypatch):
    view_fixtures.stand_in_encoder(monkeypatch, np.eye(seen.n_classes, 7))
    done, _ = adapt(seen_file, "-m", "tpt", "--encoder", "other")
    assert done.exit_code == 2
    assert "has features of d = 12, the encoder other has d = 7. Fix: --encoder the one the features" in done.stderr


def test_episodic_methods_have_no_state_to_resume(call, adapt, seen, seen_file, tmp_path, monkeypatch):
    fake_methods.register(monkeypatch, view_fixtures.Needs)
    done, _ = adapt(seen_file, "-m", "needs", "--save-state", tmp_path / "state.safetensors")
    assert done.exit_code == 2
    assert "--save-state: needs learns from each image separately and cannot resume from a state" in done.stderr
    made("needs", seen).save(tmp_path / "state.safetensors")
    done, _ = adapt(seen_file, "--state-in", tmp_path / "state.safetensors")
    assert done.exit_code == 2
    assert "needs learns from each image separately and cannot resume from a state. Fix: leave out" in done.stderr


def test_a_state_learned_from_views_resumes_with_views(adapt, seen, seen_file, tmp_path):
    state = tmp_path / "state.safetensors"
    adapt(seen_file, "-m", "tda", "--views", "--save-state", state)
    done, found = adapt(seen_file, "--state-in", state, "--views")
    assert done.exit_code == 0, done.stderr
    method = made("tda", seen)
    method.adapt_views(np.array(seen.views))
    np.testing.assert_array_equal(found["probabilities"], method.adapt_views(np.array(seen.views)))


def test_methods_list_what_they_need(call):
    listed = call("methods", "--json")
    needed = {record["name"]: record["needs"] for record in json.loads(listed.stdout)}
    assert {"views", "text"} < set(needed["tpt"])
    shown = call("methods", "tpt")
    assert "views, text" in shown.stdout
    assert "nothing but prototypes (optional: views)" in call("methods", "tda").stdout
    episodic = call("methods", "--protocol", "episodic", "--json")
    assert "tpt" in {record["name"] for record in json.loads(episodic.stdout)}
