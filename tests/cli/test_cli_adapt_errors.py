"""`zeroshift adapt` with wrong options or files: an error before anything is computed, in one line, with the fix."""

import numpy as np
import pytest

from zeroshift.installation import install_command


@pytest.fixture(autouse=True)
def never_computes(monkeypatch):
    def computes(*_, **__):
        raise AssertionError("computed before everything was checked")

    monkeypatch.setattr("zeroshift.method.Method.adapt", computes)


@pytest.fixture
def error_message(call, small_file, tmp_path):
    """The error line of an `adapt` that must fail."""

    def error_message(*options, out="p.csv", features=None):
        before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        done = call("adapt", features or small_file, "--out", tmp_path / out, *options)
        assert done.exit_code == 2, (done.stdout, done.stderr, done.exception)
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
        return done.stderr

    return error_message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["bank_sise=4"], "no parameter 'bank_sise'. Did you mean 'bank_size'?"),
        (["bank_size=many"], "--set bank_size must be an integer of at least 0; got 'many'"),
        (["bank_size=4.5"], "--set bank_size must be an integer of at least 0; got '4.5'"),
        (["alpha=2"], "--set alpha must be a number from 0 to 1; got 2.0"),
        (["update_mean=maybe"], "--set update_mean must be True or False; got 'maybe'"),
        (["prune=3"], "--set prune must be None or a pair"),
        (["covariance=full"], "one of 'shared', 'per_class'; got 'full'"),
        (["bank_size"], "--set takes name=value"),
        (["bank_size=4", "bank_size=5"], "given twice"),
        (["support=x.npy"], "holds arrays"),
        (["covariance=per_class", "bank_size=0"], "bank_size=0 keeps no bank"),
    ],
)
def test_a_bad_parameter(error_message, settings, message):
    options = [option for setting in settings for option in ("--set", setting)]
    assert message in error_message("--method", "adapt_online", *options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "adapt_onlin"], "Did you mean 'adapt_online'?"),
        (["--method", "adapt_released_online"], "needs scale"),
        (
            ["--method", "mint"],
            "Fix: in Python, zeroshift.pipeline(encoder, classes, 'mint', ...), with an encoder that has CLIP's vision "
            "transformer.",
        ),
        (["--method", "selftpt"], "class_names, source=zeroshift.methods.selftpt_source(text, support))."),
        (
            ["--method", "transclip", "--save-state", "state.safetensors"],
            "--save-state: transclip learns from each set separately and cannot resume from a state. "
            "Fix: leave out --save-state, or choose an online method.",
        ),
        (
            ["--transductive", "--save-state", "state.safetensors"],
            "--transductive and --save-state contradict each other",
        ),
        (["--prompt", "ensembl"], "Did you mean 'ensemble'?"),
        (
            ["--prototypes", "t.npy"],
            "--prototypes cannot be passed with small.safetensors: a .safetensors file contains",
        ),
        (["--classes", "t.txt"], "--classes cannot be passed with"),
        (["--class-names", "cat,dog"], "--classes cannot be passed with"),
        (["--logit-scale", "3", "--set", "logit_scale=4"], "--logit-scale 3 and --set logit_scale=4 set the same"),
        (["--logit-scale", "-1"], "--logit-scale must be a number greater than 0; got -1"),
        (["--state-in", "nowhere.safetensors"], "no file at nowhere.safetensors"),
        (["--online", "--transductive"], "--online and --transductive contradict each other. Fix: give one"),
        (["--online", "--method", "transclip"], "--online and --method transclip contradict each other"),
    ],
)
def test_a_bad_option(error_message, options, message):
    assert message in error_message(*options)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ("pack:cifar11", "no bundled pack is called 'cifar11'. Did you mean 'cifar10'? Fix: one of cifar10, "),
        ("cifar10", "no file at cifar10; it is the name of a bundled pack. Fix: pack:cifar10."),
        ("nowhere", "no file at nowhere. Fix: check the path; bundled packs are named as pack:cifar10."),
    ],
)
def test_packs_and_files_that_do_not_exist(error_message, features, message):
    assert message in error_message(features=features)


def test_an_unknown_suffix(error_message):
    assert "written as .csv, .parquet or .npz" in error_message(out="p.xlsx")


def test_a_folder_that_does_not_exist(error_message, tmp_path):
    assert f"the folder {tmp_path / 'no'} does not exist" in error_message(out="no/p.csv")
    assert "does not exist" in error_message("--save-state", tmp_path / "no" / "s.safetensors")


def test_a_name_that_is_too_long(error_message, tmp_path):
    long = f"{'p' * 252}.csv"
    assert f"{tmp_path / long} cannot be written (File name too long)" in error_message(out=long)
    assert "cannot be written (File name too long)" in error_message("--save-state", tmp_path / f"{'s' * 300}")


def test_a_folder_that_cannot_be_written_to(error_message, tmp_path, monkeypatch):
    def read_only(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    # Not by chmod: the super-user may write everywhere.
    monkeypatch.setattr("zeroshift.files.open", read_only, raising=False)
    assert f"{tmp_path / 'p.csv'} cannot be written (Permission denied). Fix: check the space" in error_message()


def test_npy_without_prototypes_names_the_option(error_message, tmp_path):
    np.save(tmp_path / "x.npy", np.eye(3))
    message = error_message(features=tmp_path / "x.npy")
    assert (
        "--prototypes is missing: x.npy contains only features. Fix: pass --prototypes prototypes.npy, the" in message
    )


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (MemoryError("Unable to allocate 9 TiB"), "error: not enough memory: Unable to allocate 9 TiB. Fix: "),
        (MemoryError(), "error: not enough memory: Python does not say for what. Fix: "),
        (OverflowError("int too large"), "error: a number is too large: int too large. Fix: "),
    ],
)
def test_too_large_for_the_machine(error_message, monkeypatch, raised, message):
    def fails(*_, **__):
        raise raised

    monkeypatch.setattr("zeroshift.cli.adapt.load_features", fails)
    assert error_message().startswith(message)


def test_a_folder_in_place_of_a_file(error_message, tmp_path):
    (tmp_path / "p.csv").mkdir()
    assert "is a folder" in error_message("--force")


def test_features_that_do_not_exist(error_message, tmp_path):
    assert "no file at" in error_message(features=tmp_path / "nothing.npz")


def test_an_existing_file_without_force(error_message, tmp_path):
    (tmp_path / "p.csv").write_text("precious")
    assert "exists. Fix: pass --force" in error_message()


def test_an_existing_state_without_force(error_message, tmp_path):
    (tmp_path / "s.safetensors").write_text("precious")
    assert "exists. Fix: pass --force" in error_message("--save-state", tmp_path / "s.safetensors")


def test_an_input_is_never_overwritten_even_with_force(error_message, small_file, tmp_path):
    assert "also an input" in error_message("--save-state", small_file, "--force")
    (tmp_path / "features.npz").write_bytes(b"precious")
    assert "also an input" in error_message("--force", features=tmp_path / "features.npz", out="features.npz")


def test_one_file_for_two_outputs(error_message, tmp_path):
    assert "is named for two outputs" in error_message("--save-state", tmp_path / "p.csv")


def test_missing_pyarrow(error_message, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert install_command("parquet") in error_message(out="p.parquet")


def test_debug_shows_the_traceback(call, small_file, tmp_path):
    done = call("adapt", small_file, "--out", tmp_path / "p.txt", env={"ZEROSHIFT_DEBUG": "1"})
    assert isinstance(done.exception, ValueError)


def test_a_missing_option_is_a_usage_error(call, small_file):
    done = call("adapt", small_file)
    assert done.exit_code == 2
    assert "--out" in done.stderr


def test_images_are_for_classify(error_message, tmp_path):
    for name in ("flat/1.jpg", "sorted/cat/1.JPG", "sorted/dog/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for folder in ("flat", "sorted"):
        line = error_message(features=tmp_path / folder)
        assert f"is a folder of images, and adapt takes features. Fix: zeroshift classify {tmp_path / folder}; " in line
    assert "images are for zeroshift classify." in error_message(features=tmp_path / "flat" / "1.jpg")
