"""Errors of `zeroshift extract`, mostly before a model is loaded: one line with the fix, never a traceback."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

pytest.importorskip("transformers")


from data import miniatures


def line_of(done) -> str:
    assert done.exit_code == 2, (done.stdout, done.stderr, done.exception)
    assert isinstance(done.exception, SystemExit)  # anything else is a traceback
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture
def error_message(call, pets, tmp_path, monkeypatch):
    """The error line of an `extract` that must fail before the encoder is loaded."""

    def loads(*_, **__):
        raise AssertionError("loaded a model before everything was checked")

    monkeypatch.setattr("zeroshift.cli._encoder_options.load_when_needed", loads)

    def error_message(*options, source=pets, out="f.safetensors"):
        before = sorted(tmp_path.rglob("*"))
        line = line_of(call("extract", source, "--out", tmp_path / out, *options))
        assert sorted(tmp_path.rglob("*")) == before
        return line

    return error_message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--classes", "cat,dog,cat"], "--classes has 'cat' twice (names 1 and 3). Fix: remove or rename one"),
        (["--classes", "hot dog,hot_dog"], "'hot dog' and 'hot_dog', which are the same name"),
        (["--classes", "cat"], "--classes has only 'cat'; a classifier needs at least two classes. Fix: add the"),
        (["--classes", "Bird,bird"], "--classes has 'Bird' and 'bird', which are the same name (names 1 and 2). Fix:"),
        (["--classes", ""], "--classes is empty"),
        (["--classes", "names.txt"], "no file at names.txt"),
        (["--classes", "cat,dog", "--labelled"], "the label 'horse' is none of the 2 classes ('cat', 'dog'). Fix: re"),
        (["--classes", "cat,dog", "--labelled"], "or pass labelled=False (--unlabelled) if subfolders are not"),
        (["--unlabelled"], "pets does not say what its classes are. Fix: --classes cat,dog,horse"),
        (["--prompts", "ensembel"], "got 'ensembel'. Did you mean 'ensemble'? Fix: use one of them"),
        (["--prompts", ""], "--prompts is empty"),
        (["--prompts", "descriptions"], "--prompts descriptions needs --descriptions FILE. Fix: add the JSON file"),
        (["--prompts", "custom"], "needs the data set's template, and pets has none. Fix: --template 'a photo of a"),
        (
            ["--template", "a {}."],
            "--template is for the modes custom, descriptions; the chosen modes are ensemble. Fix:",
        ),
        (["--prompts", "custom", "--template", "a pet."], "a pet."),
        (["--templates", "nowhere.txt"], "no file at nowhere.txt. Fix: check the path of the file of templates"),
        (["--descriptions", "nowhere.json"], "no file at nowhere.json"),
        (["--augmix"], "--augmix needs --views. Fix: add --views 64"),
        (["--severity", "3"], "--severity needs --corruption. Fix: add --corruption fog"),
        (["--corruption", "fogg"], "got 'fogg'. Did you mean 'fog'?"),
        (["--on-error", "ignore"], "--on-error must be one of 'skip', 'stop'; got 'ignore'"),
        (["--storage", "int8"], "--storage must be one of 'float16', 'float32'; got 'int8'"),
        (["--cache", "kept", "--no-cache"], "--cache and --no-cache contradict each other. Fix: give one"),
        (
            ["--encoder", "composed", "--revision", "v2"],
            "--revision is for models of the hub; composed is not one. Fix:",
        ),
        (["--prompts", "vanilla,vanilla"], "--prompts names a mode twice; got vanilla,vanilla. Fix: keep one of each"),
        (["--split", "test"], "--split is for data sets of the catalogue;"),
        (["--data", "."], "--data is for data sets and tables;"),
        (["--labels", "y.npy"], "labels cannot be used with a folder"),
    ],
)
def test_a_bad_option(error_message, options, message):
    assert message in error_message(*options)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--workers", -1), ("--batch-size", 0), ("--views", 1), ("--severity", 9), ("--seed", -1), ("--views", "many")],
)
def test_a_number_out_of_range_is_a_usage_error(call, pets, tmp_path, option, value):
    done = call("extract", pets, "--out", tmp_path / "f.safetensors", option, value, env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert f"Invalid value for '{option}'" in done.stderr
    assert not (tmp_path / "f.safetensors").exists()


def test_descriptions_that_lack_a_class(error_message, tmp_path):
    (tmp_path / "descriptions.json").write_text(json.dumps({"cat": ["It purrs."], "Dog": ["It barks."]}))
    line = error_message("--descriptions", tmp_path / "descriptions.json")
    assert f"{tmp_path / 'descriptions.json'} lacks 2 of 3 classes: 'dog', 'horse'" in line
    assert "for 'dog', did you mean 'Dog'?" in line
    assert "--descriptions is for the modes" in error_message(
        "--prompts", "vanilla", "--descriptions", tmp_path / "descriptions.json"
    )


def test_the_file_to_write(error_message, tmp_path, pets):
    assert "--out must end in .safetensors; got" in error_message(out="f.npz")
    assert f"Fix: {tmp_path / 'f.safetensors'}." in error_message(out="f.npz")
    assert f"the folder {tmp_path / 'no'} does not exist" in error_message(out="no/f.safetensors")
    (tmp_path / "f.safetensors").write_text("precious")
    assert "f.safetensors exists. Fix: pass --force" in error_message()
    assert (tmp_path / "f.safetensors").read_text() == "precious"


def test_sources_that_do_not_exist(error_message, tmp_path):
    line = error_message(source=tmp_path / "nowhere")
    assert "nowhere is neither a file or folder nor a data set of the catalogue. Fix: check the path" in line
    assert "Did you mean 'imagenet_a'?" in error_message(source="imagnet_a")
    (tmp_path / "notes.txt").write_text("x")
    assert "got the file" in error_message(source=tmp_path / "notes.txt")
    (tmp_path / "empty").mkdir()
    assert f"no images found in {tmp_path / 'empty'}. Fix: pass another folder" in error_message(
        source=tmp_path / "empty"
    )
    (tmp_path / "empty" / "notes.txt").write_text("x")
    assert "; it contains 1 other file." in error_message(source=tmp_path / "empty")


@pytest.mark.parametrize("way", ["chmod", "summary"])
def test_a_folder_that_cannot_be_read(error_message, pets, monkeypatch, way):
    if way == "chmod":
        if not hasattr(os, "geteuid") or os.geteuid() == 0:
            pytest.skip("the super-user may read everything")
        (pets / "dog").chmod(0)
    else:
        scandir = os.scandir

        def locked(path):
            if os.path.basename(path) == "dog":
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path)

        monkeypatch.setattr("zeroshift.data.readers.folder.os.scandir", locked)
        # What was there before and after is looked at through the same function, by its name elsewhere.
        monkeypatch.setattr("pathlib.Path.rglob", lambda *_: [])
    try:
        line = error_message()
    finally:
        (pets / "dog").chmod(0o755)
    assert f"the folder {pets / 'dog'} cannot be read (Permission denied). Fix: check its permissions." in line


def test_data_sets(error_message, tmp_path):
    root = tmp_path / "data"
    miniatures.build(root, "imagenet_c")
    line = error_message(source="dtd")
    assert "dtd is a data set; the folder that contains it is needed. Fix: --data ROOT, or ZEROSHIFT_DATA=ROOT;" in line
    assert "dtd was not found in" in error_message("--data", root, source="dtd")
    assert "no folder at" in error_message("--data", root / "no", source="dtd")
    for options in (["--classes", "cat,dog"], ["--unlabelled"], ["--labels", "y.npy"]):
        line = error_message("--data", root, *options, source="dtd")
        assert "dtd has its own classes and labels; got --" in line
    assert "Fix: for example corruption='fog' (--corruption fog)" in error_message("--data", root, source="imagenet_c")
    line = error_message("--data", root, "--corruption", "fog", "--split", "train", source="imagenet_c")
    assert "Fix: split='test' (--split test)." in line


def test_tables_and_arrays(error_message, tmp_path):
    (tmp_path / "list.csv").write_text("path,label\npets/gone.png,cat\ngone.png,dog\n")
    line = error_message(source=tmp_path / "list.csv")
    assert "list.csv, line 2: no file pets/gone.png in" in line
    assert "Fix: pass root= (--data), the folder the paths are relative to" in line
    (tmp_path / "numbers.csv").write_text("path,label\npets/cat/0.png,0\n")
    assert "Fix: pass classes= (--classes), the names in the order" in error_message(source=tmp_path / "numbers.csv")
    np.save(tmp_path / "x.npy", np.zeros((2, 8, 8, 3), np.uint8))
    np.save(tmp_path / "y.npy", np.array([0, 7]))
    labelled = ("--labels", tmp_path / "y.npy")
    assert "Fix: pass class_names= (--classes), in the order of the labels" in error_message(
        *labelled, source=tmp_path / "x.npy"
    )
    assert "is 7; with 2 classes" in error_message(*labelled, "--classes", "a,b", source=tmp_path / "x.npy")
    assert "labelled cannot be used with an array" in error_message("--labelled", source=tmp_path / "x.npy")


# With a model.


@pytest.fixture
def extract(call, model, tmp_path):
    def extract(source, *options, encoder=model):
        return call("extract", source, "--encoder", encoder, "--out", tmp_path / "f.safetensors", *options)

    return extract


def test_encoders_that_do_not_exist(extract, pets, tmp_path):
    assert "encoder 'compsed' is neither a folder, nor a hub id" in line_of(extract(pets, encoder="compsed"))
    assert "Did you mean 'composed'?" in line_of(extract(pets, encoder="compsed"))
    assert "is a folder without config.json, so it contains no model" in line_of(extract(pets, encoder=pets))
    assert "--encoder is empty" in line_of(extract(pets, encoder=""))
    assert "dtype must be 'auto'" in line_of(extract(pets, "--dtype", "int8"))
    assert "device='gpu' cannot be used" in line_of(extract(pets, "--device", "gpu"))


def test_a_cache_that_is_a_file(extract, pets, tmp_path):
    (tmp_path / "kept").write_text("precious")
    line = line_of(extract(pets, "--cache", tmp_path / "kept"))
    assert f"the cache {tmp_path / 'kept'} cannot be written" in line
    assert "Fix: choose another folder with --cache or ZEROSHIFT_CACHE, or use --no-cache" in line
