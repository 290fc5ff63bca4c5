"""`--support`, `--validation`, `--unlabelled`: what some methods take beside, and the files that cannot be it."""

import json

import numpy as np
import pytest

from zeroshift import FeatureSet, TransductiveADAPT
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


def test_a_method_may_take_support_and_do_without(call, small, parts, tmp_path):
    out = tmp_path / "p.npz"
    call("adapt", parts[1], "-m", "adapt_transductive", "--support", parts[0], "-o", out)
    support, rest = small.subset(slice(0, 40)), small.subset(slice(40, None))
    method = TransductiveADAPT(
        small.prototypes_for(), logit_scale=small.logit_scale, support=(support.features, support.labels)
    )
    with np.load(out) as archive:
        np.testing.assert_allclose(archive["probabilities"], method.adapt(rest.features), rtol=1e-12, atol=1e-15)


def test_what_is_needed_is_asked_for(call, parts, tmp_path):
    done = call("adapt", parts[1], "-m", "tip_adapter", "-o", tmp_path / "p.npz")
    assert done.exit_code == 2
    assert "tip_adapter needs support. Fix: --support FILE" in done.stderr
    done = call("adapt", parts[1], "-m", "tda", "--support", parts[0], "-o", tmp_path / "p.npz")
    assert "--support: tda takes no support" in done.stderr


def test_files_that_do_not_fit_are_named(call, small, parts, tmp_path):
    other = tmp_path / "other.safetensors"
    FeatureSet(np.eye(3), prototypes=np.eye(3), labels=[0, 1, 2]).save(other)
    unlabelled = tmp_path / "unlabelled.safetensors"
    FeatureSet(small.features, prototypes=small.prototypes, class_names=small.class_names).save(unlabelled)
    renamed = tmp_path / "renamed.safetensors"
    FeatureSet(small.features, prototypes=small.prototypes, labels=small.labels).save(renamed)
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


def test_a_saved_state_brings_its_own(call, parts, tmp_path):
    state = tmp_path / "state.safetensors"
    call("adapt", parts[1], "--support", parts[0], "-o", tmp_path / "1.npz", "--save-state", state)
    done = call("adapt", parts[1], "--state-in", state, "--support", parts[0], "-o", tmp_path / "2.npz")
    assert done.exit_code == 2
    assert "holds what it was learned with. Fix: leave out --support" in done.stderr
    assert call("adapt", parts[1], "--state-in", state, "-o", tmp_path / "2.npz").exit_code == 0
