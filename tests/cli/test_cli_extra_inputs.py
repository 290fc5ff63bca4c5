"""`--support`, `--validation`, `--unlabelled`: additional inputs of some methods, and files that do not fit."""

import json

import numpy as np
import pytest

from zeroshift import FeatureSet, TransductiveADAPT, normalize
from zeroshift.methods import GDACLIP


@pytest.fixture
def parts(small, tmp_path):
    """The small set in two files: labelled samples, and the rest."""
    paths = tmp_path / "support.safetensors", tmp_path / "rest.safetensors"
    small.subset(slice(0, 40)).save(paths[0])
    small.subset(slice(40, None)).save(paths[1])
    return paths


def test_labelled_samples_come_from_a_file(call, small, parts, tmp_path):
    out = tmp_path / "p.npz"
    done = call(
        "adapt", parts[1], "-m", "gda_clip", "--support", parts[0], "--validation", parts[1], "-o", out, "--json"
    )
    assert done.exit_code == 0, done.stderr
    support, rest = small.subset(slice(0, 40)), small.subset(slice(40, None))
    method = GDACLIP(
        small.prototypes_for(),
        logit_scale=small.logit_scale,
        support=(support.features, support.labels),
        validation=(rest.features, rest.labels),
    )
    with np.load(out) as archive:
        np.testing.assert_allclose(archive["probabilities"], method.predict(rest.features), rtol=1e-12, atol=1e-15)
    assert json.loads(done.stdout)["accuracy"] > json.loads(done.stdout)["zero_shot_accuracy"]


def test_support_can_be_optional(call, small, parts, tmp_path):
    out = tmp_path / "p.npz"
    call("adapt", parts[1], "-m", "adapt_transductive", "--support", parts[0], "-o", out)
    support, rest = small.subset(slice(0, 40)), small.subset(slice(40, None))
    method = TransductiveADAPT(
        small.prototypes_for(), logit_scale=small.logit_scale, support=(support.features, support.labels)
    )
    with np.load(out) as archive:
        np.testing.assert_allclose(archive["probabilities"], method.adapt(rest.features), rtol=1e-12, atol=1e-15)


def test_missing_and_unaccepted_inputs_are_errors(call, parts, tmp_path):
    done = call("adapt", parts[1], "-m", "tip_adapter", "-o", tmp_path / "p.npz")
    assert done.exit_code == 2
    assert "tip_adapter needs labelled samples (support). Fix: --support FILE" in done.stderr
    done = call("adapt", parts[1], "-m", "tda", "--support", parts[0], "-o", tmp_path / "p.npz")
    assert "--support: tda takes no support" in done.stderr


def test_files_that_do_not_fit_are_named(call, small, parts, tmp_path):
    other = tmp_path / "other.safetensors"
    FeatureSet(np.eye(3), prototypes=np.eye(3), labels=[0, 1, 2]).save(other)
    unlabelled = tmp_path / "unlabelled.safetensors"
    FeatureSet(small.features, prototypes=small.prototypes, class_names=small.class_names).save(unlabelled)
    renamed = tmp_path / "renamed.safetensors"
    names = [f"{name}s" for name in small.class_names]
    FeatureSet(small.features, prototypes=small.prototypes, labels=small.labels, class_names=names).save(renamed)
    for path, message in [
        (other, "has d = 3, the features have d = 12"),
        (unlabelled, "has no labels"),
        (renamed, "has other classes than the features, or in another order (6 and 6)"),
        (tmp_path / "missing.safetensors", "missing.safetensors"),
    ]:
        done = call("adapt", parts[1], "-m", "gda_clip", "--support", path, "-o", tmp_path / "p.npz")
        assert done.exit_code == 2
        assert message in done.stderr
    assert not (tmp_path / "p.npz").exists()


def test_a_saved_state_contains_its_samples(call, parts, tmp_path):
    state = tmp_path / "state.safetensors"
    call("adapt", parts[1], "--support", parts[0], "-o", tmp_path / "1.npz", "--save-state", state)
    done = call("adapt", parts[1], "--state-in", state, "--support", parts[0], "-o", tmp_path / "2.npz")
    assert done.exit_code == 2
    assert "contains its own samples. Fix: leave out --support" in done.stderr
    assert call("adapt", parts[1], "--state-in", state, "-o", tmp_path / "2.npz").exit_code == 0


def test_the_record_contains_inputs_and_chosen_parameters(call, parts, tmp_path):
    command = ["adapt", parts[1], "-m", "gda_clip", "--support", parts[0], "-o", tmp_path / "p.npz", "--force"]
    record = json.loads(call(*command, "--validation", parts[0], "--json").stdout)
    assert record["support"] == record["validation"] == str(parts[0])
    assert record["unlabelled"] is record["preset"] is None
    assert set(record["chosen"]) == {"alpha"}
    assert record["setup_seconds"] > 0
    shown = call(*command, "--validation", parts[0], env={"COLUMNS": "200"}).stdout
    assert f"chosen       alpha={record['chosen']['alpha']:g}" in shown
    plain = json.loads(call("adapt", parts[1], "-o", tmp_path / "p.npz", "--force", "--json").stdout)
    assert plain["chosen"] is plain["support"] is None


def test_a_long_set_up_is_shown(call, parts, tmp_path, monkeypatch):
    command = ["adapt", parts[1], "-m", "gda_clip", "--support", parts[0], "-o", tmp_path / "p.npz", "--force"]
    for least, shown in [(0.0, True), (1e9, False)]:
        monkeypatch.setattr("zeroshift.cli.adapt.SHOWN_SETUP", least)
        assert ("set-up" in call(*command).stdout) is shown


def renamed(features, path, *, order=None, named=True, prototypes=None, modes=None):
    """The same samples in a file without class names, or with another order or other prototypes."""
    rows = np.arange(features.n_classes) if order is None else np.asarray(order)
    given = {modes[mode] if modes else mode: matrix[rows] for mode, matrix in features.prototypes.items()}
    FeatureSet(
        features.features,
        prototypes=given if prototypes is None else prototypes,
        labels=np.argsort(rows)[features.labels],
        class_names=[features.class_names[k] for k in rows] if named else None,
        logit_scale=features.logit_scale,
    ).save(path)
    return path


@pytest.mark.parametrize(("bare_support", "bare_features"), [(True, True), (True, False), (False, True)])
def test_without_class_names_prototypes_decide_the_order(call, small, tmp_path, bare_support, bare_features):
    features = renamed(small.subset(slice(40, None)), tmp_path / "f.safetensors", named=not bare_features)
    few = small.subset(slice(0, 40))
    command = ["adapt", features, "-m", "gda_clip", "-o", tmp_path / "p.npz", "--support"]
    same = renamed(few, tmp_path / "same.safetensors", named=not bare_support)
    done = call(*command, same)
    assert (done.exit_code, done.stderr) == (0, "")
    other = renamed(few, tmp_path / "other.safetensors", named=not bare_support, order=[1, 0, 2, 3, 4, 5])
    done = call(*command, other, "--force")
    assert done.exit_code == 2
    assert "--support" in done.stderr
    assert "its prototypes differ from those of the features" in done.stderr
    assert "Without class names in" in done.stderr
    assert "Fix: extract both with the same encoder, prompts and class names." in done.stderr


def test_another_feature_space_is_an_error_even_with_equal_names(call, small, parts, tmp_path):
    turned = normalize(np.random.default_rng(0).normal(size=(6, 12)))
    other = renamed(small, tmp_path / "o.safetensors", prototypes=turned)
    for option in ("--support", "--validation"):
        files = ["--support", parts[0], "--validation", parts[0]]
        done = call("adapt", parts[1], "-m", "gda_clip", *files, option, other, "-o", tmp_path / "p.npz")
        assert done.exit_code == 2
        assert f"{option} {other}: its prototypes differ" in done.stderr
        assert "Without class names" not in done.stderr


def test_prompt_modes_may_have_other_names_and_rounding(call, small, parts, tmp_path):
    few = small.subset(slice(0, 40))
    half = {"mine": few.prototypes_for("vanilla").astype(np.float16)}
    path = renamed(few, tmp_path / "half.safetensors", prototypes=half)
    assert call("adapt", parts[1], "-m", "gda_clip", "--support", path, "-o", tmp_path / "p.npz").exit_code == 0


def test_unlabelled_features_need_no_prototypes(call, small, parts, tmp_path):
    answers = []
    np.save(tmp_path / "u.npy", small.features[:40])
    np.save(tmp_path / "raw.npy", 3 * small.features[:40])
    command = ["adapt", parts[1], "-m", "zlap_inductive", "-o", tmp_path / "p.npz", "--force", "--unlabelled"]
    for options in ([parts[0]], [tmp_path / "u.npy"], [tmp_path / "raw.npy", "--normalize"]):
        done = call(*command, *options)
        assert (done.exit_code, done.stderr) == (0, "")
        with np.load(tmp_path / "p.npz") as archive:
            answers.append(archive["probabilities"])
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_allclose(answers[0], answers[2], atol=1e-6)
    np.save(tmp_path / "thin.npy", np.eye(3))
    np.save(tmp_path / "flat.npy", np.ones(12))
    (tmp_path / "text.npy").write_text("features")
    for name, message in [
        ("raw.npy", "Here: --normalize does it."),
        ("thin.npy", "thin.npy has d = 3, the features have d = 12"),
        ("flat.npy", "flat.npy: features must"),
        ("text.npy", "text.npy is not an .npy file"),
        ("none.npy", "no file at"),
    ]:
        done = call(*command, tmp_path / name)
        assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


def test_the_wrong_kind_of_file(call, small, parts, tmp_path):
    np.save(tmp_path / "x.npy", small.features)
    command = ["adapt", parts[1], "-m", "gda_clip", "-o", tmp_path / "p.npz", "--support"]
    alone = call(*command, tmp_path / "x.npy")
    assert alone.exit_code == 2
    assert f"--support {tmp_path / 'x.npy'} contains only features; labels and prototypes are needed" in alone.stderr
    assert "--prototypes" not in alone.stderr
    assert f"--support {tmp_path} is a folder. Fix: name a feature file" in call(*command, tmp_path).stderr


def test_validation_without_support_is_an_error(call, parts, tmp_path):
    done = call("adapt", parts[1], "-m", "transclip", "--validation", parts[0], "-o", tmp_path / "p.npz")
    assert done.exit_code == 2
    assert "transclip needs labelled samples (support). Fix: --support FILE." in done.stderr


def test_support_rows_among_the_features_are_counted(call, small, parts, tmp_path):
    some = tmp_path / "some.safetensors"
    small.subset(slice(30, 47)).save(some)
    command = ["adapt", parts[1], "-m", "gda_clip", "-o", tmp_path / "p.npz", "--force"]
    done = call(*command, "--support", parts[0], "--validation", some)
    assert (
        done.stderr == "warning: 7 rows of --validation are among the features: the accuracy on them is meaningless\n"
    )
    small.subset(slice(5, 41)).save(some)
    done = call(*command, "--support", some)
    assert "1 row of --support is among the features: the accuracy" in done.stderr


def test_classes_without_support_are_counted(call, small, parts, tmp_path):
    two = tmp_path / "two.safetensors"
    few = small.subset(slice(0, 40))
    few.subset(few.labels < 2).save(two)
    done = call("adapt", parts[1], "-m", "tip_adapter", "--support", two, "-o", tmp_path / "p.npz")
    assert done.stderr == "warning: --support has samples of 2 of 6 classes\n"


def test_a_single_prompt_per_class_is_warned_about(call, small, parts, tmp_path):
    single = renamed(small, tmp_path / "s.safetensors", prototypes={"vanilla": small.prototypes_for("vanilla")})
    done = call("adapt", single, "-m", "histo_transclip", "-o", tmp_path / "p.npz")
    assert "histo_transclip weighs several prompts per class; the features contain one prompt per class" in done.stderr
    assert call("adapt", parts[1], "-m", "histo_transclip", "-o", tmp_path / "q.npz").stderr == ""


@pytest.mark.parametrize(
    ("method", "name", "fix"),
    [
        ("gda_clip", "support", "Fix: --support FILE."),
        ("zlap_inductive", "unlabelled", "Fix: --unlabelled FILE."),
        ("timo", "prompts", "the prompts of a class are the prompt modes of FEATURES"),
    ],
)
def test_arrays_have_their_own_options(call, parts, tmp_path, method, name, fix):
    done = call("adapt", parts[1], "-m", method, "--set", f"{name}=x", "-o", tmp_path / "p.npz")
    assert done.exit_code == 2
    assert f"--set {name}: this parameter holds arrays. " in done.stderr
    assert fix in done.stderr
