"""`zeroshift compare`: the numbers, the files, resuming, and what is skipped."""

import json

import numpy as np
import pytest

from evaluate import fake_methods
from zeroshift import FeatureSet, methods
from zeroshift.cli import compare as compare_module
from zeroshift.evaluate import run_plan
from zeroshift.evaluate import runner as job_runner
from zeroshift.evaluate.ledger import read_record
from zeroshift.files import with_checksum

CHOSEN = "zero_shot,adapt_online,adapt_transductive,adapt_online+support"


@pytest.fixture
def two(small, tmp_path):
    """A folder of two sets, and one without labels, one with views and a text file among them."""
    folder = tmp_path / "sets"
    folder.mkdir()
    small.save(folder / "whole.safetensors")
    small.subset(slice(0, 80)).save(folder / "part.safetensors")
    FeatureSet(small.features, prototypes=small.prototypes).save(folder / "bare.safetensors")
    views = np.stack([small.features, small.features], axis=1)
    FeatureSet(views=views, prototypes=small.prototypes, labels=small.labels).save(folder / "views.safetensors")
    (folder / "readme.txt").write_text("two sets")
    return folder


@pytest.fixture
def compare(call, tmp_path, monkeypatch):
    """In this process, so that what a test puts in place is seen."""
    monkeypatch.setattr(compare_module, "run_plan", lambda *given, jobs, **more: run_plan(*given, jobs=0, **more))

    def compare(*arguments, env=None):
        return call("compare", *arguments, "--out", tmp_path / "out", env=env)

    return compare


def test_one_file(compare, small, small_file, tmp_path):
    done = compare(small_file, "--methods", "zero_shot,adapt_transductive", "--orders", "2", "--json")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    method = methods.create("adapt_transductive", small.prototypes_for(), logit_scale=small.logit_scale)
    expected = float((method.adapt(small.features).argmax(axis=1) == small.labels).mean())
    zero_shot, transductive = record["mean"]
    assert zero_shot["accuracy"]["mean"] == pytest.approx(small.zero_shot_accuracy())
    assert transductive["accuracy"]["mean"] == pytest.approx(expected)
    assert transductive["gain"]["mean"] == pytest.approx(100 * (expected - small.zero_shot_accuracy()))
    assert [entry["name"] for entry in record["sets"]] == ["small"]
    assert len(record["runs"]) == 3
    assert (tmp_path / "out" / "compare.html").exists()
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 3


def test_unusable_files_of_a_folder_are_skipped_with_a_reason(compare, two):
    done = compare(two, "--methods", "zero_shot", "--orders", "1", "--json")
    assert done.exit_code == 0, done.stderr
    assert [entry["name"] for entry in json.loads(done.stdout)["sets"]] == ["part", "whole"]
    assert "bare.safetensors: it has no labels" in done.stderr
    assert "views.safetensors: it contains views (name the file itself" in done.stderr
    done = compare(two / "views.safetensors", "--methods", "zero_shot", "--orders", "1", "--json", "--force")
    assert [entry["n_samples"] for entry in json.loads(done.stdout)["sets"]] == [120]


def test_the_table_fits_a_terminal(compare, two):
    done = compare(two, "--orders", "2", "--methods", CHOSEN, "--by-set", env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines if not line.startswith("written: ")) <= 80
    for word in ("online", "transductive", "few-shot", "adapt_online+support", "min to max"):
        assert any(word in line for line in lines), word
    assert "part: 80 samples, 6 classes, prompts ensemble" in lines
    order = "2 random orders or draws (seeds 0 to 1); zeroshift adapt keeps the stored order, so its accuracies differ."
    assert order in " ".join(done.stdout.split())
    assert "4 labelled samples per class" in " ".join(done.stdout.split())


def test_resuming_runs_only_what_is_missing(compare, small_file, monkeypatch):
    first = compare(small_file, "--methods", "zero_shot", "--json")
    monkeypatch.setattr(job_runner._JobRunner, "__call__", lambda *_: pytest.fail("run again"))
    second = compare(small_file, "--methods", "zero_shot", "--json")
    assert json.loads(second.stdout) == json.loads(first.stdout)
    assert second.stderr == "3 of 3 runs read from records\n"


def test_a_log_file_gets_one_line_per_run(compare, small, small_file):
    compare(small_file, "--methods", "zero_shot", "--orders", "1", "--quiet")
    done = compare(small_file, "--methods", "zero_shot", "--orders", "2")
    found = f"{100 * small.zero_shot_accuracy():.1f}%"
    assert done.stderr.splitlines() == [
        "1 of 2 runs read from records",
        f"run 2 of 2: zero_shot on small, seed 1, {found}",
    ]
    assert compare(small_file, "--methods", "zero_shot", "--again", "--quiet").stderr == ""
    terminal = compare(small_file, "--methods", "zero_shot", "--again", env={"FORCE_COLOR": "1"})
    assert "run 1 of" not in terminal.stderr


def test_again_runs_everything(compare, small_file, monkeypatch):
    assert compare(small_file, "--methods", "zero_shot", "--quiet").stdout == ""

    def bug(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(job_runner._JobRunner, "__call__", bug)
    done = compare(small_file, "--methods", "zero_shot", "--again")
    assert done.exit_code == 1
    assert done.stderr.count("failed: zero_shot on small, seed") == 3


def test_a_failing_method_is_named_and_the_others_shown(compare, small_file, monkeypatch):
    fake_methods.register(monkeypatch, fake_methods.Stream, fake_methods.Fails)
    done = compare(small_file, "--orders", "1")
    assert done.exit_code == 1
    assert "warning: failed: fails on small, seed 0: ZeroDivisionError: a bug" in done.stderr
    assert "stream" in done.stdout


def test_all_skips_methods_that_cannot_run_with_a_reason(compare, small_file, monkeypatch):
    fake_methods.register(
        monkeypatch, fake_methods.Whole, fake_methods.Shots, fake_methods.Pool, fake_methods.Tuned, fake_methods.Tokens
    )
    done = compare(small_file, "--methods", "all", "--orders", "1", "--json")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert [mean["method"] for mean in record["mean"]] == ["zero_shot", "whole", "shots", "pool"]
    assert [left["method"] for left in record["left_out"]] == ["tuned", "tokens"]
    assert "skipped: tuned: needs scale (a number of at least 0), which has no default" in done.stderr
    done = compare(small_file, "--methods", "tuned", "--set", "tuned.scale=2", "--orders", "1", "--json", "--force")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["runs"][0]["settings"] == {"logit_scale": 20.0, "scale": 2.0}


def test_markdown_is_written_and_then_replaced_between_its_marks(compare, two, tmp_path):
    target = tmp_path / "results.md"
    target.write_text("# Results\n\n<!-- compare -->\nold\n<!-- /compare -->\n\nMore.\n")
    command = [two, "--methods", "zero_shot,adapt_online", "--orders", "2", "--markdown", target]
    assert compare(*command).exit_code == 0
    text = target.read_text()
    assert text.startswith("# Results\n\n<!-- compare -->\n")
    assert text.endswith("<!-- /compare -->\n\nMore.\n")
    assert "old" not in text
    assert "| method | part | whole |" in text
    assert "| `adapt_online` | online | 2 |" in text
    assert compare(*command).exit_code == 0
    assert target.read_text() == text
    new = tmp_path / "new.md"
    assert compare(*command[:-1], new).exit_code == 0
    assert new.read_text().startswith("<!-- compare -->\n")


def test_equal_sets_count_once_and_equal_names_are_made_unique(compare, small, small_file, tmp_path):
    (tmp_path / "other").mkdir()
    small.save(tmp_path / "other" / "copy.safetensors")
    small.subset(slice(0, 50)).save(tmp_path / "other" / "small.safetensors")
    done = compare(small_file, tmp_path / "other", "--methods", "zero_shot", "--orders", "1", "--json")
    assert done.exit_code == 0, done.stderr
    names = [entry["name"] for entry in json.loads(done.stdout)["sets"]]
    assert names == [f"{tmp_path.name}/small.safetensors", "other/small.safetensors"]
    assert "copy.safetensors has the same content as" in done.stderr


def test_packs_and_files_together(compare, small_file):
    done = compare(small_file, "--packs", "views_cifar10c_fog_5", "--methods", "zero_shot", "--orders", "1", "--json")
    assert [entry["name"] for entry in json.loads(done.stdout)["sets"]] == ["views_cifar10c_fog_5", "small"]


def test_another_prompt(compare, small, small_file):
    done = compare(small_file, "--methods", "zero_shot", "--orders", "1", "--prompt", "vanilla", "--json")
    record = json.loads(done.stdout)
    assert record["mean"][0]["accuracy"]["mean"] == pytest.approx(small.zero_shot_accuracy("vanilla"))
    assert record["sets"][0]["prompt"] == "vanilla"


@pytest.mark.slow
def test_a_narrow_terminal_gets_fewer_columns_and_whole_numbers(compare, two, tmp_path):
    command = [two, "--orders", "2", "--methods", f"{CHOSEN},adapt_transductive+support"]
    record = json.loads(compare(*command, "--json").stdout)
    # What fits depends on how wide the times are, and those on what else the machine does.
    for path in (tmp_path / "out" / "runs").glob("*.json"):
        run = read_record(path)
        changed = {**run, "seconds": 123e-6 * run["scored"], "peak_bytes": 1_200_000}
        path.write_text(json.dumps(with_checksum(changed)))
    for width, shown in [(66, "min to max ECE us"), (50, "ECE"), (44, ""), (38, "")]:
        lines = compare(*command, env={"COLUMNS": str(width)}).stdout.splitlines()
        assert "…" not in "".join(lines)
        assert max(len(line) for line in lines if not line.startswith("written: ")) <= width
        assert lines[1].split() == ["method", "acc", "gain", *shown.split()]
        for mean in record["mean"]:
            numbers = f"{100 * mean['accuracy']['mean']:.1f}", f"{mean['gain']['mean']:+.1f}".replace("+0.0", "0.0")
            row = next(line.split() for line in lines if line.startswith(f" {mean['method'][: width - 14]} "))
            assert row[1:3] == list(numbers)


def test_the_inputs_of_few_shot_methods_are_described_correctly(compare, small_file):
    def printed(*options):
        return " ".join(
            json.loads(compare(small_file, *options, "--orders", "1", "--json", "--force").stdout)["remarks"]
        )

    assert "Few-shot: 1 labelled sample per class" in printed("-m", "tip_adapter", "--shots", "1")
    assert "Few-shot: 4 labelled samples per class" in printed("-m", "tip_adapter")
    many = printed("-m", "tip_adapter,timo_s", "--shots", "100")
    assert "Few-shot: up to 100 labelled samples per class" in many
    assert "need validation take every other labelled sample for it" in many
    assert "validation" not in printed("-m", "tip_adapter")


def test_sets_with_one_prompt_are_named_for_methods_that_weigh_several(compare, small, small_file, tmp_path):
    prototypes = {"vanilla": small.prototypes_for("vanilla")}
    FeatureSet(small.features, prototypes=prototypes, labels=small.labels).save(tmp_path / "single.safetensors")
    command = [small_file, tmp_path / "single.safetensors", "--orders", "1", "-m"]
    done = compare(*command, "zero_shot,histo_transclip")
    assert "Only one prompt per class in single: less than histo_transclip can use." in " ".join(done.stdout.split())
    assert "One prompt" not in compare(*command, "zero_shot", "--force").stdout


def test_on_an_executor(call, small_file, tmp_path):
    """The same accuracies as in this process, and --jobs says the same thing a second time."""
    command = ("compare", small_file, "-m", "zero_shot,adapt_online", "--orders", 1, "--json")
    found = []
    for number, options in enumerate(((), ("--on", "local:2"))):
        done = call(*command, *options, "--out", tmp_path / str(number))
        assert done.exit_code == 0, done.stderr
        found.append([one["accuracy"]["mean"] for one in json.loads(done.stdout)["sets"][0]["methods"]])
    assert found[0] == found[1]
    refused = call(*command, "--on", "local:2", "--jobs", 2, "--out", tmp_path / "2")
    assert refused.exit_code == 2
    assert "--on local:2 and --jobs both say how many processes work" in refused.stderr
