"""`classify` and `extract` on what is cached: no model is loaded, and neither torch nor transformers is imported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("transformers")

from encode.few_sentences import TOTAL, FewSentences, use_few_names
from encode.numpy_encoder import age, noise
from pet_images import CLASSES, record, write_pets
from zeroshift.cli import _encoder_options
from zeroshift.cli.progress import progress_bar
from zeroshift.encode import registry

PROGRAM = """
import sys
from zeroshift.cli import main
try:
    main()
finally:
    print("imported:", sorted({'torch', 'transformers', 'safetensors.torch'} & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def own_model(model, tmp_path):
    """A model that a test may change, of files that are not new."""
    folder = shutil.copytree(model, tmp_path / "own-clip")
    for path in folder.iterdir():
        age(path)
    return folder


@pytest.fixture
def process(environment, tmp_path):
    """Run a command in a new process; returns what it imported of torch and transformers."""

    def process(*arguments):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *map(str, arguments)],
            env={**environment, "ZEROSHIFT_CACHE": os.environ["ZEROSHIFT_CACHE"]},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr.splitlines()[-1]

    return process


@pytest.fixture
def no_loading(monkeypatch):
    """From now on, loading an encoder is an error."""

    def forbid():
        def refuse(source, **_):
            raise AssertionError(f"loaded {source}")

        monkeypatch.setattr(registry, "load", refuse)
        monkeypatch.setattr(registry, "load_image_encoder", refuse)

    return forbid


@pytest.mark.parametrize(
    "options",
    [
        ["classify", "--second-encoder", "{vision}"],
        ["classify", "--stream", "--out", "labels.csv"],
        ["extract", "--out", "features.safetensors", "--prompts", "ensemble,vanilla"],
    ],
    ids=["classify with a second encoder and a page", "classify --stream", "extract"],
)
def test_a_second_run_imports_neither_torch_nor_transformers(
    call, process, model, vision_model, pets, tmp_path, options
):
    command, *rest = (option.replace("{vision}", str(vision_model)) for option in options)
    arguments = [command, pets, "--encoder", model, *rest]
    assert call(*arguments).exit_code == 0
    written = sorted(path for path in tmp_path.iterdir() if path.is_file())
    before = [path.read_bytes() for path in written]
    assert process(*arguments, "--force") == "imported: []"
    assert [path.read_bytes() for path in written] == before


@pytest.mark.slow
def test_a_new_image_or_class_name_loads_the_encoder(call, process, model, pets):
    assert call("classify", pets, "--encoder", model).exit_code == 0
    noise(77).save(pets / "cat" / "new.png")
    assert "torch" in process("classify", pets, "--encoder", model, "--force")
    names = ",".join((*CLASSES, "frog"))
    assert "torch" in process("classify", pets, "--encoder", model, "--classes", names, "--unlabelled", "--force")


def test_answers_are_those_of_a_run_without_a_cache(call, no_loading, own_model, pets):
    first = record(call("classify", pets, "--encoder", own_model, "--no-cache", "--json"))
    record(call("classify", pets, "--encoder", own_model, "--json", "--force"))
    no_loading()
    again = record(call("classify", pets, "--encoder", own_model, "--json", "--force"))
    assert again["computed"] == 0
    for summary in (first, again):
        for changing in ("computed", "seconds"):
            summary.pop(changing, None)
    assert again == first


def test_an_unreadable_image_does_not_load_the_encoder(call, no_loading, model, pets):
    (pets / "cat" / "broken.png").write_bytes(b"no image")
    record(call("classify", pets, "--encoder", model, "--json"))
    no_loading()
    again = record(call("classify", pets, "--encoder", model, "--json", "--force"))
    assert [one["image"] for one in again["skipped"]] == ["cat/broken.png"]


def test_a_changed_model_under_the_same_name_encodes_again(call, own_model, pets):
    record(call("classify", pets, "--encoder", own_model, "--json"))
    weights = own_model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    age(weights)
    assert record(call("classify", pets, "--encoder", own_model, "--json", "--force"))["computed"] == 9


def test_a_model_that_is_not_as_recorded_is_reported_and_used(call, own_model, pets, tmp_path):
    first = record(call("classify", pets, "--encoder", own_model, "--json"))
    (path,) = (tmp_path / "cache" / "encoders").iterdir()
    content = json.loads(path.read_text())
    content["encoder"]["logit_scale"] *= 2
    path.write_text(json.dumps(content))
    write_pets(pets, per_class=4)
    done = call("classify", pets, "--encoder", own_model, "--json", "--force")
    assert "own-clip has changed since it was last loaded" in done.stderr
    again = record(done)
    assert again["computed"] == 3
    assert again["n_samples"] == first["n_samples"] + 3


@pytest.mark.filterwarnings("default")
def test_a_damaged_record_is_reported(call, model, pets, tmp_path):
    record(call("classify", pets, "--encoder", model, "--json"))
    (path,) = (tmp_path / "cache" / "encoders").iterdir()
    path.write_text("{")
    done = call("classify", pets, "--encoder", model, "--json", "--force")
    assert record(done)["computed"] == 0
    assert "is damaged, so that the encoder is loaded and recorded again" in done.stderr


class TestFirstFit:
    """The composed encoder's map is fitted with a bar and a message of its own."""

    @pytest.fixture
    def models(self, monkeypatch, tmp_path):
        use_few_names(monkeypatch)
        return FewSentences(tmp_path / "cache")

    def test_says_what_takes_long_and_that_it_happens_once(self, models, capsys):
        with progress_bar("images", 3) as bar:
            _encoder_options._report_slow_steps(models, bar, quiet=False)
            models.finish_prototypes(np.ones((1, 384)))
        said = capsys.readouterr().err
        assert said == (
            f"fitting the composed encoder's map from text to images: {TOTAL} sentences; done once, then read from the "
            "cache\n"
        )

    def test_says_it_once_although_another_prompt_mode_needs_sentences_of_its_own(self, models, capsys):
        with progress_bar("images", 3) as bar:
            _encoder_options._report_slow_steps(models, bar, quiet=False)
            for templates in (None, ["a photo of a {}."], ["a {}."]):
                models.finish_prototypes(np.ones((1, 384)), templates)
        first, *others = capsys.readouterr().err.splitlines()
        assert "done once" in first
        what = "centring these templates for the composed encoder"
        assert [line.split(":")[0] for line in others] == [what, what]
        assert not any("once" in line for line in others)

    def test_says_nothing_when_quiet_or_when_the_map_is_cached(self, models, capsys):
        with progress_bar("images", 3, quiet=True) as bar:
            _encoder_options._report_slow_steps(models, bar, quiet=True)
            models.finish_prototypes(np.ones((1, 384)))
        again = FewSentences(models.cache)
        with progress_bar("images", 3) as bar:
            _encoder_options._report_slow_steps(again, bar, quiet=False)
            again.finish_prototypes(np.ones((1, 384)))
        assert capsys.readouterr().err == ""

    def test_has_a_bar_that_goes_away_when_it_is_full(self, models):
        with progress_bar("images", 3, unit="images") as bar:
            lines = []
            _encoder_options._report_slow_steps(models, bar, quiet=False)
            inner = models.encode_texts

            def encode_texts(prompts, **options):
                lines.append([(task.total, task.fields["unit"]) for task in bar._bars.tasks])
                return inner(prompts, **options)

            models.encode_texts = encode_texts
            models.finish_prototypes(np.ones((1, 384)))
            assert lines[0] == [(3, "images"), (TOTAL, "sentences")]
            assert len(bar._bars.tasks) == 1
