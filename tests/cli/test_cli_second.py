"""`adapt --second`: features of the same images from another encoder, as a file or as extra features of the set."""

import json

import numpy as np
import pytest

from evaluate import fake_methods
from evaluate.fake_methods import SEEN, Stream, TwoEncoders
from zeroshift import FeatureSet, TransductiveAnchoredMixture, normalize
from zeroshift.cli import compare as compare_module
from zeroshift.evaluate import run_plan
from zeroshift.evaluate import runner as job_runner
from zeroshift.methods import COSMIC

ROWS = normalize(np.random.default_rng(9).normal(size=(120, 8)))


@pytest.fixture
def run(call, monkeypatch, tmp_path):
    """Run `adapt` with a method that records the second features it is given."""
    fake_methods.register(monkeypatch, TwoEncoders, Stream)

    def run(path, *arguments, method="two_encoders"):
        done = call("adapt", path, "-m", method, "-o", tmp_path / "p.npz", "--force", *arguments)
        given = [rows for one in SEEN if isinstance(one, TwoEncoders) for rows in one.seconds if rows is not None]
        SEEN.clear()
        return done, np.concatenate(given) if given else None

    return run


def other_set(small, **changes):
    fields = {"prototypes": normalize(np.ones((6, 8)) + np.eye(6, 8)), "labels": small.labels, **changes}
    return FeatureSet(ROWS, **{"class_names": small.class_names, **fields})


def test_a_feature_file_of_the_same_images(run, small, small_file, tmp_path):
    other_set(small).save(tmp_path / "other encoder.safetensors")
    done, given = run(small_file, "--second", tmp_path / "other encoder.safetensors", "--json")
    assert done.exit_code == 0, done.stderr
    np.testing.assert_array_equal(given, ROWS)
    assert json.loads(done.stdout)["second"] == str(tmp_path / "other encoder.safetensors")
    done, _ = run(small_file, "--second", tmp_path / "other encoder.safetensors")
    assert "second encoder  other-encoder, d = 8" in done.stdout


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_rows_without_prototypes_are_enough(run, small, small_file, tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    np.save(path, ROWS) if suffix == "npy" else np.savez(path, features=ROWS, labels=small.labels)
    done, given = run(small_file, "--second", path)
    assert done.exit_code == 0, done.stderr
    np.testing.assert_array_equal(given, ROWS)


def test_extra_features_of_the_file_by_name(run, small, tmp_path):
    small.with_extra("dinov2", ROWS).with_extra("vit", ROWS[:, ::-1]).save(tmp_path / "both.safetensors")
    done, given = run(tmp_path / "both.safetensors", "--second", "vit")
    assert done.exit_code == 0, done.stderr
    np.testing.assert_array_equal(given, ROWS[:, ::-1])
    done, given = run(tmp_path / "both.safetensors")
    assert done.exit_code == 0
    assert given is None
    assert "dinov2, vit: not used; --second dinov2 gives it to the method" in " ".join(done.stdout.split())
    done, _ = run(tmp_path / "both.safetensors", "--second", "dinov3")
    assert done.exit_code == 2
    assert "it contains dinov2, vit. Did you mean 'dinov2'? Fix: the name of extra features, or a feature" in (
        " ".join(done.stderr.split())
    )


def test_a_file_called_as_extra_features_of_the_set_is_still_used(run, small, small_file, tmp_path):
    small.with_extra("rows", ROWS[:, ::-1]).save(tmp_path / "both.safetensors")
    np.save(tmp_path / "rows.npy", ROWS)
    done, given = run(tmp_path / "both.safetensors", "--second", tmp_path / "rows.npy")
    assert done.exit_code == 0, done.stderr
    np.testing.assert_array_equal(given, ROWS)


def refusals(small, folder):
    """Arguments and what the error says."""
    np.save(folder / "few.npy", ROWS[:50])
    yield ["--second", folder / "few.npy"], "has 50 samples, but this set has 120"
    np.save(folder / "long.npy", 2 * ROWS)
    yield ["--second", folder / "long.npy"], "has length 2"
    other_set(small, labels=np.roll(small.labels, 1)).save(folder / "rolled.safetensors")
    yield ["--second", folder / "rolled.safetensors"], "has other labels than this set"
    np.savez(folder / "rolled.npz", features=ROWS, labels=np.roll(small.labels, 1))
    yield ["--second", folder / "rolled.npz"], "has other labels than this set"
    yield ["--second", folder / "absent.npy"], "no file at"
    yield ["--second", folder / "absent.npz"], "no file at"
    yield ["--second", "dinov2"], "it contains none"


def test_what_does_not_fit_is_refused(run, small, small_file, tmp_path):
    for arguments, message in refusals(small, tmp_path):
        done, given = run(small_file, *arguments)
        assert done.exit_code == 2, arguments
        assert message in " ".join(done.stderr.split())
        assert given is None
        assert not (tmp_path / "p.npz").exists()


def test_rows_can_be_scaled(run, small_file, tmp_path):
    np.save(tmp_path / "long.npy", 2 * ROWS)
    done, given = run(small_file, "--second", tmp_path / "long.npy", "--normalize")
    assert done.exit_code == 0, done.stderr
    np.testing.assert_allclose(given, ROWS, atol=1e-12)


def test_methods_with_one_encoder_refuse_a_second(run, small_file):
    done, _ = run(small_file, "--second", "dinov2", method="stream")
    assert done.exit_code == 2
    assert (
        "--second: stream takes no second encoder. It takes features alone. Fix: leave it out, or --method two_encoders"
        in " ".join(done.stderr.split())
    )


def test_the_file_is_not_overwritten(run, small_file, tmp_path):
    np.savez(tmp_path / "p.npz", features=ROWS)
    content = (tmp_path / "p.npz").read_bytes()
    done, _ = run(small_file, "--second", tmp_path / "p.npz")
    assert done.exit_code == 2
    assert (tmp_path / "p.npz").read_bytes() == content


# A method that cannot do without a second encoder.


def test_adapt_with_a_method_that_needs_it(call, small, small_file, tmp_path):
    done = call("adapt", small_file, "-m", "cosmic", "-o", tmp_path / "p.npz")
    assert done.exit_code == 2
    reason = "cosmic needs features of the same images from a second encoder."
    assert f"{reason} Fix: --second NAME, extra features of FEATURES, or a file." in " ".join(done.stderr.split())
    assert not (tmp_path / "p.npz").exists()
    np.save(tmp_path / "rows.npy", ROWS)
    done = call("adapt", small_file, "-m", "cosmic", "--second", tmp_path / "rows.npy", "-o", tmp_path / "p.npz")
    assert done.exit_code == 0, done.stderr
    method = COSMIC(small.prototypes_for(), logit_scale=small.logit_scale)
    with np.load(tmp_path / "p.npz") as found:
        np.testing.assert_allclose(found["probabilities"], method.adapt(small.features, second=ROWS), atol=1e-6)


@pytest.fixture
def compare(call, tmp_path, monkeypatch):
    """`compare` in this process."""
    monkeypatch.setattr(compare_module, "run_plan", lambda *given, jobs, **more: run_plan(*given, jobs=0, **more))
    return lambda *arguments: call("compare", *arguments, "--orders", "1", "--out", tmp_path / "out")


def test_comparisons_give_the_first_extra_features(compare, call, small, tmp_path):
    both = small.with_extra("dinov2", ROWS).with_extra("vit", ROWS[:, ::-1])
    both.save(tmp_path / "both.safetensors")
    methods = "zero_shot,cosmic,anchored_mixture_transductive,anchored_mixture_transductive+second"
    done = compare(tmp_path / "both.safetensors", "-m", methods, "--json")
    assert done.exit_code == 0, done.stderr
    accuracies = {row["method"]: row["accuracy"]["mean"] for row in json.loads(done.stdout)["mean"]}
    assert set(accuracies) == set(methods.split(","))
    order = np.random.default_rng(0).permutation(small.n_samples)
    method = COSMIC(small.prototypes_for(), logit_scale=small.logit_scale)
    expected = method.adapt(small.features[order], second=ROWS[order]).argmax(axis=1) == small.labels[order]
    assert accuracies["cosmic"] == pytest.approx(float(expected.mean()))
    mixture = TransductiveAnchoredMixture(small.prototypes_for(), logit_scale=small.logit_scale)
    expected = mixture.adapt(small.features, second=ROWS).argmax(axis=1) == small.labels
    assert accuracies["anchored_mixture_transductive+second"] == pytest.approx(float(expected.mean()))
    done = call("leaderboard", tmp_path / "out", "--without", "second", "--json")
    assert done.exit_code == 0, done.stderr
    kept = {method["label"] for method in json.loads(done.stdout)["methods"]}
    assert kept == {"zero_shot", "anchored_mixture_transductive"}


def test_comparisons_leave_it_out_with_the_reason(compare, small, small_file, tmp_path):
    reason = (
        "cosmic cannot be compared: it needs features of the same images from a second encoder. Fix: zeroshift extract "
        "--second-encoder ENCODER"
    )
    done = compare(small_file, "-m", "zero_shot,cosmic")
    assert done.exit_code == 2
    assert reason in " ".join(done.stderr.split())
    small.with_extra("dinov2", ROWS).save(tmp_path / "both.safetensors")
    done = compare(small_file, tmp_path / "both.safetensors", "-m", "zero_shot,cosmic", "--json")
    assert done.exit_code == 0, done.stderr
    assert "skipped: cosmic on small: needs features of the same images" in " ".join(done.stderr.split())


def test_a_group_leaves_it_out_where_no_set_has_extra_features(compare, small_file, monkeypatch):
    monkeypatch.setattr(job_runner._JobRunner, "__call__", lambda *_: {"accuracy": float("nan")})
    done = compare(small_file, "-m", "online", "--json")
    assert "skipped: cosmic: needs features of the same images from a second encoder." in " ".join(done.stderr.split())
    assert "cosmic" not in {failed["run"].split(" on ")[0] for failed in json.loads(done.stdout)["failed"]}


def test_views_and_a_second_encoder_together(compare, seen, tmp_path):
    """Only for a method that takes both."""
    rows = normalize(np.random.default_rng(3).normal(size=(seen.n_samples, 5)))
    path = tmp_path / "seen.safetensors"
    seen.with_extra("dinov2", rows).save(path)
    done = compare(path, "-m", "zero_shot,cosmic+views", "--json")
    assert done.exit_code == 0, done.stderr
    order = np.random.default_rng(0).permutation(seen.n_samples)
    method = COSMIC(seen.prototypes_for(), logit_scale=seen.logit_scale)
    expected = method.adapt_views(seen.views[order], second=rows[order]).argmax(axis=1) == seen.labels[order]
    assert json.loads(done.stdout)["mean"][1]["accuracy"]["mean"] == pytest.approx(float(expected.mean()))


def test_adapt_with_views_and_a_second_encoder(call, seen, tmp_path):
    rows = normalize(np.random.default_rng(3).normal(size=(seen.n_samples, 5)))
    path = tmp_path / "seen.safetensors"
    seen.with_extra("dinov2", rows).save(path)
    done = call("adapt", path, "-m", "cosmic", "--views", "--second", "dinov2", "-o", tmp_path / "p.npz")
    assert done.exit_code == 0, done.stderr
    method = COSMIC(seen.prototypes_for(), logit_scale=seen.logit_scale)
    with np.load(tmp_path / "p.npz") as found:
        np.testing.assert_allclose(found["probabilities"], method.adapt_views(seen.views, second=rows), atol=1e-6)
    mixture = "anchored_mixture_online"
    done = call("adapt", path, "-m", mixture, "--views", "--second", "dinov2", "-o", tmp_path / "q.npz")
    assert done.exit_code == 2
    assert "--second cannot be combined with views" in " ".join(done.stderr.split())
