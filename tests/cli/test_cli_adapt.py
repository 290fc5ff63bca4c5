"""`zeroshift adapt` writes what the library computes, and checks everything before it computes."""

import csv
import json

import numpy as np
import pytest

from zeroshift import FeatureSet, OnlineADAPT, TransductiveAnchoredMixture, ZeroShot, methods
from zeroshift.data import packs


def read(path):
    with open(path, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def library_answer(small, method=TransductiveAnchoredMixture, **parameters):
    return method(small.prototypes_for(), logit_scale=small.logit_scale, **parameters).adapt(small.features)


def test_csv_is_what_the_library_predicts(call, small, small_file, tmp_path):
    out = tmp_path / "p.csv"
    done = call("adapt", small_file, "-m", "adapt_online", "--out", out, "-s", "bank_size=4", "-s", "beta=none")
    assert done.exit_code == 0, done.stderr
    expected = library_answer(small, OnlineADAPT, bank_size=4)
    zero_shot = ZeroShot(small.prototypes_for(), logit_scale=small.logit_scale).predict(small.features)
    rows = read(out)
    assert list(rows[0]) == [
        "row",
        "prediction",
        "probability",
        "zero_shot",
        "zero_shot_probability",
        "reject",
        "rejected",
        "best_class",
        "best_probability",
        "label",
    ]
    assert [row["best_class"] for row in rows] == [small.class_names[k] for k in expected.argmax(axis=1)]
    assert [row["zero_shot"] for row in rows] == [small.class_names[k] for k in zero_shot.argmax(axis=1)]
    assert [row["label"] for row in rows] == [small.class_names[k] for k in small.labels]
    np.testing.assert_allclose([float(row["best_probability"]) for row in rows], expected.max(axis=1), rtol=1e-5)


NOT_FEATURES = {"views", "text", "vision", "images", "towers", "second"}
FEATURES_ALONE = [
    info.name for info in methods.list_methods() if "released" not in info.name and not NOT_FEATURES & set(info.needs)
]
"""Methods that need views are in test_cli_adapt_views.py, those that need a second encoder in test_cli_second.py."""


@pytest.mark.parametrize("method", FEATURES_ALONE)
def test_every_method_writes_its_probabilities(call, small, small_file, tmp_path, method):
    out = tmp_path / "p.npz"
    takes = methods.get(method).needs
    files = [
        option
        for name in ("support", "validation", "unlabelled")
        if name in takes
        for option in (f"--{name}", small_file)
    ]
    assert call("adapt", small_file, "--method", method, "--out", out, *files).exit_code == 0
    labelled = (small.features, small.labels)
    arrays = {"support": labelled, "validation": labelled, "unlabelled": small.features}
    arrays["prompts"] = np.stack([small.prototypes_for("ensemble"), small.prototypes_for("vanilla")], axis=1)
    given = {name: array for name, array in arrays.items() if name in takes}
    if any(parameter.name == "logit_scale" for parameter in methods.get(method).parameters):
        given["logit_scale"] = small.logit_scale
    method = methods.create(method, small.prototypes_for(), **given)
    expected = method.adapt(small.features)
    with np.load(out) as archive:
        np.testing.assert_allclose(archive["probabilities"], expected, rtol=1e-12, atol=1e-15)
        np.testing.assert_array_equal(archive["best_classes"], expected.argmax(axis=1))


def test_parquet_has_the_same_content_as_csv(call, small_file, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    call("adapt", small_file, "--out", tmp_path / "p.csv")
    call("adapt", small_file, "--out", tmp_path / "p.parquet")
    table = parquet.read_table(tmp_path / "p.parquet").to_pylist()
    for row, other in zip(table, read(tmp_path / "p.csv"), strict=True):
        assert row["prediction"] == other["prediction"]
        assert (row["probability"] is None) == (other["probability"] == "") == row["rejected"]
        assert row["best_probability"] == pytest.approx(float(other["best_probability"]), rel=1e-5)


def test_prompt_chooses_the_prototypes(call, small, small_file, tmp_path):
    call("adapt", small_file, "--prompt", "vanilla", "--out", tmp_path / "p.npz")
    adapter = TransductiveAnchoredMixture(small.prototypes_for("vanilla"), logit_scale=small.logit_scale)
    with np.load(tmp_path / "p.npz") as archive:
        np.testing.assert_array_equal(archive["best_classes"], adapter.adapt(small.features).argmax(axis=1))


def test_json_is_complete_and_the_only_output(call, small, small_file, tmp_path):
    out = tmp_path / "p.csv"
    done = call("adapt", small_file, "--out", out, "--json")
    record = json.loads(done.stdout)
    expected = library_answer(small).argmax(axis=1)
    assert record["source"] == str(small_file)
    assert record["n_samples"] == 120
    assert record["n_classes"] == 6
    assert record["method"] == "anchored_mixture_transductive"
    assert (record["prompt"], record["logit_scale"], record["logit_scale_assumed"]) == ("ensemble", 20.0, False)
    assert record["warnings"] == []
    assert record["parameters"]["logit_scale"] == 20.0
    assert record["parameters"]["anchor_count"] == 1.0
    assert record["accuracy"] == pytest.approx(np.mean(expected == small.labels))
    assert record["zero_shot_accuracy"] == pytest.approx(small.zero_shot_accuracy())
    assert record["gain"] == pytest.approx(100 * (record["accuracy"] - record["zero_shot_accuracy"]))
    assert record["changed"] == sum(row["best_class"] != row["zero_shot"] for row in read(out)) > 0
    assert record["out"] == str(out)
    assert record["saved_state"] is None
    assert record["seconds"] > 0
    predicted = [row["prediction"] for row in read(out)]
    assert record["counts"] == {name: predicted.count(name) for name in small.class_names}
    assert record["rejected"] == predicted.count("none of these") == 120 - sum(record["counts"].values())


def test_the_table_shows_accuracy_gain_and_output(call, small_file, tmp_path):
    record = json.loads(call("adapt", small_file, "--out", tmp_path / "a.csv", "--json").stdout)
    done = call("adapt", small_file, "--out", tmp_path / "b.csv", env={"COLUMNS": "200"})
    assert f"{100 * record['accuracy']:.1f}%" in done.stdout
    assert f"{100 * record['zero_shot_accuracy']:.1f}%" in done.stdout
    assert f"{record['gain']:+.1f} points" in done.stdout
    assert f"{record['changed']} of 120" in done.stdout
    assert str(tmp_path / "b.csv") in done.stdout


def test_quiet_prints_nothing(call, small_file, tmp_path):
    done = call("adapt", small_file, "--out", tmp_path / "p.csv", "--quiet")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "p.csv").exists()


def test_npy_with_all_missing_parts_as_options(call, small, tmp_path):
    # Raw features, as most encoders give them: an error as they are, scaled with --normalize.
    np.save(tmp_path / "x.npy", 3 * small.features)
    np.save(tmp_path / "t.npy", small.prototypes_for())
    np.save(tmp_path / "y.npy", small.labels)
    (tmp_path / "names.txt").write_text("\n".join(small.class_names))
    options = ["--prototypes", tmp_path / "t.npy", "--labels", tmp_path / "y.npy"]
    options += ["--class-names", tmp_path / "names.txt", "--logit-scale", 20, "--out", tmp_path / "p.csv"]
    failed = call("adapt", tmp_path / "x.npy", *options)
    assert failed.exit_code == 2
    assert "unit length" in failed.stderr
    assert "--normalize" in failed.stderr
    assert not (tmp_path / "p.csv").exists()
    assert call("adapt", tmp_path / "x.npy", *options, "--normalize").exit_code == 0
    expected = library_answer(small).argmax(axis=1)
    assert [row["best_class"] for row in read(tmp_path / "p.csv")] == [small.class_names[k] for k in expected]


def test_npz_with_missing_parts_as_options(call, small, tmp_path):
    np.savez(tmp_path / "x.npz", features=small.features, prototypes=small.prototypes_for())
    np.save(tmp_path / "y.npy", small.labels)
    (tmp_path / "names.txt").write_text("\n".join(small.class_names))
    options = ["--labels", tmp_path / "y.npy", "--class-names", tmp_path / "names.txt", "--logit-scale", 20]
    done = call("adapt", tmp_path / "x.npz", *options, "--out", tmp_path / "p.csv")
    assert done.exit_code == 0, done.stderr
    expected = library_answer(small).argmax(axis=1)
    assert [row["best_class"] for row in read(tmp_path / "p.csv")] == [small.class_names[k] for k in expected]
    assert "Missing from the file" in call("adapt", "--help").stdout


def test_arrays_of_another_program_by_name(call, small, small_file, tmp_path):
    torch = pytest.importorskip("torch")
    arrays = {"image_features": small.features, "text_features": small.prototypes_for(), "targets": small.labels}
    torch.save({name: torch.tensor(array) for name, array in arrays.items()}, tmp_path / "mine.pt")
    keys = ("--features-key", "image_features", "--prototypes-key", "text_features", "--labels-key", "targets")
    scale = ("--logit-scale", f"{small.logit_scale:g}")
    done = call("adapt", tmp_path / "mine.pt", *keys, *scale, "--out", tmp_path / "p.npz")
    assert done.exit_code == 0, done.stderr
    assert np.allclose(np.load(tmp_path / "p.npz")["probabilities"], library_answer(small), atol=1e-6)
    done = call("adapt", tmp_path / "mine.pt", *keys[2:], "--out", tmp_path / "q.npz")
    assert done.exit_code == 2
    assert "--features-key image_features" in done.stderr
    # A tensor alone is the features, also for options that name a feature file.
    torch.save(torch.tensor(small.features), tmp_path / "rows.pt")
    done = call("adapt", small_file, "--second", tmp_path / "rows.pt", "--out", tmp_path / "both.csv", "--json")
    assert json.loads(done.stdout)["second"] == str(tmp_path / "rows.pt")
    done = call(
        "adapt", small_file, "-m", "tip_adapter", "--support", tmp_path / "rows.pt", "--out", tmp_path / "s.csv"
    )
    assert "rows.pt contains only features" in done.stderr


def test_class_names_as_a_list(call, small, tmp_path):
    np.savez(tmp_path / "x.npz", features=small.features, prototypes=small.prototypes_for())
    names = [f"class {k}" for k in range(small.n_classes)]
    for option in ("--classes", "--class-names"):
        done = call("adapt", tmp_path / "x.npz", option, ", ".join(names), "--out", tmp_path / "p.csv", "--force")
        assert done.exit_code == 0, done.stderr
        assert {row["best_class"] for row in read(tmp_path / "p.csv")} <= set(names)
    few = call("adapt", tmp_path / "x.npz", "--classes", "cat,dog", "--out", tmp_path / "p.csv", "--force")
    assert few.exit_code == 2
    assert "2" in few.stderr


def test_unnormalized_views_get_the_option_as_fix(call, small, tmp_path):
    views = 3 * small.features[:, None, :]
    np.savez(tmp_path / "x.npz", view_features=views, prototypes=small.prototypes_for())
    done = call("adapt", tmp_path / "x.npz", "--out", tmp_path / "p.csv")
    assert "--normalize" in done.stderr


def test_the_hint_is_about_the_prompt_mode_in_use(call, small, tmp_path):
    modes = {"ensemble": small.prototypes_for(), "slipped": np.roll(small.prototypes_for(), 1, axis=0)}
    path = tmp_path / "x.safetensors"
    FeatureSet(small.features, prototypes=modes, labels=small.labels, logit_scale=20.0).save(path)
    assert call("adapt", path, "--out", tmp_path / "1.csv").stderr == ""
    done = call("adapt", path, "--prompt", "slipped", "--out", tmp_path / "2.csv")
    assert "check the label order" in done.stderr


def test_a_bundled_pack_by_name_without_a_hint(call, tmp_path):
    pack = packs.load("cifar10c_gaussian_noise_3")
    done = call("adapt", "pack:cifar10c_gaussian_noise_3", "-m", "zero_shot", "-o", tmp_path / "p.csv", "--json")
    assert json.loads(done.stdout)["accuracy"] == pytest.approx(pack.zero_shot_accuracy())
    assert pack.hints()
    assert done.stderr == ""
    failed = call("adapt", "pack:cifar10", "--logit-scale", 3, "-o", tmp_path / "q.csv")
    assert (failed.exit_code, "--logit-scale" in failed.stderr) == (2, True)
    assert "Did you mean 'cifar10'" in call("adapt", "pack:cifar", "-o", tmp_path / "q.csv").stderr


def test_presets_are_applied_only_by_name(call, small_file, tmp_path):
    out = tmp_path / "out.npz"
    done = call("adapt", small_file, "-m", "tca", "--preset", "eurosat", "-s", "beta=3", "-o", out, "--json")
    assert json.loads(done.stdout)["parameters"] | {"logit_scale": 0} == {
        "logit_scale": 0, "reservoir_size": 2, "layer_scale": 5.0, "weight": 8.0, "beta": 3.0
    }  # fmt: skip
    failed = call("adapt", small_file, "-m", "tca", "--preset", "eurosatt", "-o", out, "--force")
    assert (failed.exit_code, "Did you mean 'eurosat'?" in failed.stderr) == (2, True)
    failed = call("adapt", small_file, "--preset", "dtd", "-o", out, "--force")
    assert "--preset dtd: anchored_mixture_transductive has no presets" in failed.stderr
    assert "Fix: leave out --preset." in failed.stderr
    failed = call("adapt", small_file, "-m", "tca", "--preset", "nope", "-o", out, "--force")
    assert "--preset must be one of caltech101, " in failed.stderr
    assert json.loads(done.stdout)["preset"] == "eurosat"


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ([], "anchored_mixture_transductive"),
        (["--online"], "anchored_mixture_online"),
        (["--save-state", "state.safetensors"], "anchored_mixture_online"),
        (["--transductive"], "anchored_mixture_transductive"),
        (["--method", "adapt_online", "--online"], "adapt_online"),
    ],
)
def test_the_default_is_the_mixture_and_it_is_online_where_the_state_is_saved(
    call, small_file, tmp_path, monkeypatch, options, method
):
    monkeypatch.chdir(tmp_path)
    assert json.loads(call("adapt", small_file, "--out", "p.csv", *options, "--json").stdout)["method"] == method


def test_the_table_names_method_prompt_and_logit_scale(call, small_file, tmp_path):
    done = call("adapt", small_file, "--prompt", "vanilla", "--out", tmp_path / "p.csv", env={"COLUMNS": "160"})
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "method Transductive mixture (anchored_mixture_transductive)" in lines
    assert "prompt vanilla" in lines
    assert "logit scale 20" in lines
    assert not any(line.startswith(("order", "warning")) for line in lines)


def test_prototypes_without_a_prompt_mode_are_shown_without_one(call, small, tmp_path):
    np.save(tmp_path / "x.npy", small.features)
    np.save(tmp_path / "t.npy", small.prototypes_for())
    done = call("adapt", tmp_path / "x.npy", "--prototypes", tmp_path / "t.npy", "--out", tmp_path / "p.csv")
    assert done.exit_code == 0, done.stderr
    starts = [line.split()[0] for line in done.stdout.splitlines()]
    assert "logit" in starts
    assert "prompt" not in starts


def test_swapped_features_and_prototypes_are_a_warning(call, small, tmp_path):
    np.save(tmp_path / "x.npy", small.features)
    np.save(tmp_path / "t.npy", small.prototypes_for())
    names = tmp_path / "names.txt"
    names.write_text("".join(f"class {i}\n" for i in range(small.n_samples)))
    out = ["--out", tmp_path / "p.csv", "--force"]
    right = call("adapt", tmp_path / "x.npy", "--prototypes", tmp_path / "t.npy", *out)
    swapped = call("adapt", tmp_path / "t.npy", "--prototypes", tmp_path / "x.npy", *out)
    # As many names as prototypes: they are prototypes.
    named = call("adapt", tmp_path / "t.npy", "--prototypes", tmp_path / "x.npy", "--class-names", names, *out)
    assert [done.exit_code for done in (right, swapped, named)] == [0, 0, 0]
    assert f"more prototypes ({small.n_samples:,} in {tmp_path / 'x.npy'}) than samples" in " ".join(
        swapped.stderr.split()
    )
    assert "swapped" not in right.stderr + named.stderr


def test_swapped_features_and_prototypes_of_one_file_are_a_warning(call, small, tmp_path):
    file = tmp_path / "clip.npz"
    np.savez(file, image_features=small.features, text_features=small.prototypes_for())
    out = ["--out", tmp_path / "p.csv", "--force"]
    right = call("adapt", file, "--features-key", "image_features", "--prototypes-key", "text_features", *out)
    swapped = call("adapt", file, "--features-key", "text_features", "--prototypes-key", "image_features", *out)
    assert [done.exit_code for done in (right, swapped)] == [0, 0], right.stderr + swapped.stderr
    counts = f"({small.n_samples:,} in {file}) than samples ({small.n_classes:,} in {file})"
    assert f"more prototypes {counts}" in " ".join(swapped.stderr.split())
    assert "the two arrays are not swapped" in swapped.stderr
    assert "swapped" not in right.stderr
    # A file with the names of its classes says which are the prototypes.
    names = [f"kind {k}" for k in range(small.n_classes)]
    FeatureSet(small.features[:2], prototypes=small.prototypes, class_names=names).save(tmp_path / "few.safetensors")
    assert "swapped" not in call("adapt", tmp_path / "few.safetensors", *out).stderr


def test_an_assumed_logit_scale_is_reported(call, small, tmp_path):
    np.save(tmp_path / "x.npy", small.features)
    np.save(tmp_path / "t.npy", small.prototypes_for())
    np.savez(tmp_path / "without.npz", features=small.features, prototypes=small.prototypes_for())
    np.savez(tmp_path / "with.npz", features=small.features, prototypes=small.prototypes_for(), logit_scale=30.0)
    out = ["--out", tmp_path / "p.csv", "--force"]
    arrays = ["adapt", tmp_path / "x.npy", "--prototypes", tmp_path / "t.npy", *out]
    note = "logit scale  100 (assumed, because none is stored or given; --logit-scale sets it)"
    for command, expected in (
        (arrays, note),
        (["adapt", tmp_path / "without.npz", *out], note),
        ([*arrays, "--logit-scale", 20], "logit scale  20"),
        ([*arrays, "--set", "logit_scale=20"], "logit scale  20"),
        (["adapt", tmp_path / "with.npz", *out], "logit scale  30"),
    ):
        shown = call(*command, env={"COLUMNS": "160"}).stdout
        assert expected in [line.rstrip() for line in shown.splitlines()], shown
        assert json.loads(call(*command, "--json").stdout)["logit_scale_assumed"] == (expected == note)


@pytest.mark.parametrize("method", ["adapt_online", "adapt_transductive", "oga"])
def test_over_confident_probabilities_are_warned_about(call, small_file, tmp_path, method):
    done = call("adapt", small_file, "-m", method, "--out", tmp_path / "p.csv", env={"COLUMNS": "250"})
    ones = sum(row["probability"] == "1" for row in read(tmp_path / "p.csv"))
    instead = "anchored_mixture_transductive" if "transductive" in method else "anchored_mixture_online"
    assert (
        f"probabilities of {method} are over-confident ({ones} of 120 are written as 1): use them only to rank "
        f"classes, or use --method {instead}"
    ) in done.stdout


def test_an_online_method_says_in_which_order_it_ran(call, small_file, tmp_path):
    done = call("adapt", small_file, "--online", "--out", tmp_path / "p.csv", env={"COLUMNS": "160"})
    assert "order        as stored; `zeroshift compare` shuffles the rows, so its accuracies differ" in done.stdout


def test_a_parameter_of_another_method_names_that_method(call, small_file, tmp_path):
    done = call("adapt", small_file, "--set", "bank_size=8", "--out", tmp_path / "p.csv")
    assert done.exit_code == 2
    assert (
        "anchored_mixture_transductive has no parameter 'bank_size'. It is a parameter of adapt_online and others. "
        in done.stderr
    )
