"""`zeroshift compare` on sets with views, and with an encoder: the methods that run, their costs, and errors."""

import json

import numpy as np
import pytest

from evaluate import view_fixtures
from zeroshift import FeatureSet, methods, normalize
from zeroshift.cli import compare as compare_module
from zeroshift.evaluate import run_plan
from zeroshift.evaluate import runner as job_runner

EXTRACT = "Fix: zeroshift extract --views 64"


@pytest.fixture
def compare(call, tmp_path, monkeypatch):
    """In this process, so that what a test puts in place is seen."""
    monkeypatch.setattr(compare_module, "run_plan", lambda *given, jobs, **more: run_plan(*given, jobs=0, **more))

    def compare(*arguments, env=None):
        return call("compare", *arguments, "--orders", "1", "--out", tmp_path / "out", env=env)

    return compare


@pytest.fixture
def encoder(seen, monkeypatch) -> str:
    """The one the features come from, by name."""
    view_fixtures.stand_in_encoder(monkeypatch, seen.prototypes_for("ensemble"))
    return "no-encoder"


def test_views_and_plain_features_together(compare, seen, seen_file):
    done = compare(seen_file, "-m", "zero_shot,tda,tda+views", "--json")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    zero_shot, plain, given = record["mean"]
    assert [row["method"] for row in record["mean"]] == ["zero_shot", "tda", "tda+views"]
    order = np.random.default_rng(0).permutation(24)
    method = methods.create("tda", seen.prototypes_for(), logit_scale=seen.logit_scale)
    expected = method.adapt_views(seen.views[order]).argmax(axis=1) == seen.labels[order]
    assert given["accuracy"]["mean"] == pytest.approx(float(expected.mean()))
    assert [row["image_passes"] for row in (zero_shot, plain, given)] == [1, 1, view_fixtures.N_VIEWS]
    assert {row["gradient_steps"] for row in record["mean"]} == {0}
    assert record["sets"][0]["n_views"] == view_fixtures.N_VIEWS
    assert f"those that need views see {view_fixtures.N_VIEWS} of each image, the others the image alone" in " ".join(
        record["remarks"]
    )


@pytest.mark.parametrize("group", ["all", "online"])
def test_a_group_has_rows_with_views_where_a_set_has_views(compare, seen_file, small_file, monkeypatch, group):
    monkeypatch.setattr(
        job_runner._JobRunner, "__call__", lambda *_: {"accuracy": float("nan")}
    )  # who is run is the question
    for file, there in ((seen_file, True), (small_file, False)):
        done = compare(file, "-m", group, "--json")
        ran = {failed["run"].split(" on ")[0] for failed in json.loads(done.stdout)["failed"]}
        assert ({"tda+views", "dmn+views"} < ran) == there
        assert "tda" in ran
        assert "skipped: tda+views" not in done.stderr  # without views they are not listed


def test_methods_that_need_an_encoder_are_skipped_from_a_group(compare, seen_file, monkeypatch):
    monkeypatch.setattr(job_runner._JobRunner, "__call__", lambda *_: {"accuracy": float("nan")})
    done = compare(seen_file, "-m", "episodic,zero_shot")
    line = "skipped: tpt: needs the encoder the features come from, to tune its prompts. Fix: --encoder SOURCE"
    assert f"warning: {line}" in done.stderr.splitlines()


def test_a_column_is_shown_if_it_has_content(compare, seen_file, tmp_path):
    wide = {"COLUMNS": "120"}
    with_views = compare(seen_file, "-m", "zero_shot,tda+views", env=wide).stdout
    assert with_views.splitlines()[1].split()[-1] == "views"
    row = next(line for line in with_views.splitlines() if line.startswith(" tda+views"))
    assert row.split()[-1] == str(view_fixtures.N_VIEWS)
    assert "For each image: views of it that are encoded (views)." in " ".join(with_views.split())
    narrow = compare(seen_file, "-m", "zero_shot,tda+views", env={"COLUMNS": "32"}).stdout
    assert narrow.splitlines()[1].split()[:3] == ["method", "acc", "gain"]
    assert "views" not in narrow.splitlines()[1]
    printed = " ".join(narrow.split())
    assert "MB, views: widen the terminal." in printed
    assert "peak memory" not in printed  # nothing is explained that is not there
    assert "For each image" not in printed
    plain = compare(seen_file, "-m", "zero_shot,tda", "--force", env=wide).stdout
    assert plain.splitlines()[1].split()[-1] == "MB"
    assert "For each image" not in plain


def test_with_an_encoder_prompt_tuning_methods_run(compare, seen, seen_file, encoder, tmp_path):
    page, text = tmp_path / "out" / "compare.html", tmp_path / "results.md"
    command = [seen_file, "-m", "zero_shot,tda+views,tpt", "--encoder", encoder, "--markdown", text]
    done = compare(*command, env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split()[-4:] == ["views", "steps", "prompts", "grads"]
    K = seen.n_classes
    costs = [str(number) for number in (view_fixtures.N_VIEWS, 1, K, K)]
    assert next(line for line in lines if line.startswith(" tpt")).split()[-4:] == costs
    assert next(line for line in lines if line.startswith(" zero_shot")).split()[-4:] == ["1", "0", "0", "0"]
    assert any(line.strip() == "episodic" for line in lines)
    printed = " ".join(done.stdout.split())
    assert "their gain is over zero-shot with that prompt: tpt" in printed
    assert 'tpt with "a photo of a".' in printed
    assert "prompts with a gradient, each encoded once more for it (grads)" in printed
    assert f" | {' | '.join(costs)} |" in text.read_text()
    assert "| MB | views | steps | prompts | grads |" in text.read_text()
    cells = "".join(f"<td>{cell}</td>" for cell in costs)
    assert cells in page.read_text()
    assert '<th scope="col">Grads</th>' in page.read_text()
    assert 'class="key episodic"' in page.read_text()
    record = json.loads(compare(*command[:-2], "--json").stdout)
    assert record["encoder"]["source"] == encoder
    assert record["mean"][-1]["prompt_gradients"] == K
    assert record["mean"][-1]["setup_prompts"] >= K
    runs = {run["method"]: run for run in record["runs"]}
    assert runs["tpt"]["encoder"]["revision"] == "1234"
    assert "encoder" not in runs["tda"]


def test_other_class_names_make_another_set_if_prompts_depend_on_them(compare, seen, encoder, tmp_path):
    given = {"views": np.array(seen.views), "prototypes": seen.prototypes, "labels": seen.labels}
    for name, letters in (("seen", "abc"), ("renamed", "xyz")):
        names = [f"kind {letters}{k}" for k in range(seen.n_classes)]
        FeatureSet(**given, class_names=names, logit_scale=seen.logit_scale).save(tmp_path / f"{name}.safetensors")
    files = (tmp_path / "seen.safetensors", tmp_path / "renamed.safetensors")
    runs = json.loads(compare(*files, "-m", "tpt,mta", "--encoder", encoder, "--json").stdout)["runs"]
    assert len({run["key"] for run in runs if run["method"] == "tpt"}) == 2
    assert "renamed.safetensors has the same content as seen" in compare(*files, "-m", "mta").stderr


def test_ordinary_pages_have_no_columns_of_costs(compare, small_file, tmp_path):
    text = tmp_path / "results.md"
    assert compare(small_file, "-m", "zero_shot", "--markdown", text).exit_code == 0
    assert "| set-up, ms | MB |\n" in text.read_text()
    page = (tmp_path / "out" / "compare.html").read_text()
    assert '<th scope="col">MB</th></tr>' in page
    assert "For each image" not in page + text.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-m", "tda+views"], f"tda+views cannot be compared: it needs several views of each image. {EXTRACT}."),
        (
            ["-m", "tpt"],
            "tpt cannot be compared: it needs the encoder the features come from, to tune its prompts.",
        ),
        (
            ["-m", "tpt", "-e", "no-encoder"],
            f"tpt cannot be compared: it needs several views of each image. {EXTRACT}",
        ),
        (["-m", "zero_shot+views"], "zero_shot takes no views. It takes features alone. Fix: --methods"),
        (["-m", "tda+view"], "tda takes no view. Did you mean 'views'?"),
        (
            ["-m", "zero_shot", "--encoder", "no-encoder"],
            "for methods that tune its prompts, and none is compared.",
        ),
        (["--device", "cpu"], "--device needs an encoder. Fix: add --encoder SOURCE."),
        (["--revision", "main"], "--revision needs an encoder."),
        (
            ["-m", "dpcore", "-e", "no-encoder"],
            "the images themselves, not their features. Fix: leave it out; in Python, zeroshift",
        ),
        (["--set", "tpt.text=x"], "--set text: this parameter holds a model. Fix: --encoder SOURCE."),
    ],
)
def test_errors(call, small_file, tmp_path, monkeypatch, options, message):
    monkeypatch.setattr(job_runner._JobRunner, "__call__", lambda *_: pytest.fail("run"))
    done = call("compare", small_file, "--out", tmp_path / "out", *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]


def test_an_encoder_of_other_features_is_an_error(compare, seen, seen_file, monkeypatch):
    view_fixtures.stand_in_encoder(monkeypatch, normalize(np.roll(seen.prototypes_for(), 1, axis=1)))
    done = compare(seen_file, "-m", "tpt", "--encoder", "other")
    assert done.exit_code == 2
    assert "seen does not say which encoder its features come from, and its prototypes are not those of other" in (
        done.stderr
    )


def test_from_images_to_a_table_with_a_real_text_model(compare, call, pets, model, tmp_path):
    out = tmp_path / "pets.safetensors"
    done = call("extract", pets, "--encoder", model, "--views", "3", "--workers", "0", "--out", out, "--quiet")
    assert done.exit_code == 0, done.stderr
    done = compare(out, "-m", "zero_shot,tda+views,tpt", "--encoder", model, "--json")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    tuned = record["mean"][-1]
    n_classes = record["sets"][0]["n_classes"]
    assert (tuned["method"], tuned["protocol"], tuned["runs"]) == ("tpt", "episodic", 1)
    assert [tuned[name] for name in ("image_passes", "prompt_passes", "prompt_gradients", "gradient_steps")] == [
        3, n_classes, n_classes, 1,
    ]  # fmt: skip
    assert record["encoder"]["family"] == "clip"
