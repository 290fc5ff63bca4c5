"""`zeroshift experiment --data`: data sets found on the disk, encoded once, kept as feature files."""

import json
import shutil

import pytest

pytest.importorskip("transformers")

from data import miniatures
from encode import numpy_encoder
from pet_images import load
from zeroshift.cli import experiment as experiment_module
from zeroshift.cli._experiment_data import CatalogueSource, encoder_slugs

# Parts of data sets and a model that reads few words: both are warned of, as they should be.
pytestmark = pytest.mark.filterwarnings("default")

NAME = "input-order"


@pytest.fixture
def root(tmp_path):
    """Two fine-grained sets."""
    for id in ("eurosat", "dtd"):
        miniatures.build(tmp_path / "root", id)
    for path in (tmp_path / "root").rglob("*.jpg"):
        numpy_encoder.age(path)
    return tmp_path / "root"


@pytest.fixture
def experiment(call, tmp_path, model, monkeypatch):
    monkeypatch.setattr(experiment_module, "count_processes", lambda jobs: 0)

    def experiment(*arguments):
        given = ["--orders", "1", "--workers", "0", "--device", "cpu", "--json", "--out", tmp_path / "out"]
        return call("experiment", NAME, *arguments, "--encoder", model, *given)

    return experiment


def find_data_sets(root, **options):
    given = {"data_sets": None, "severities": None, "encoders": ["composed"], "prompts": None, "descriptions": None}
    source = CatalogueSource.from_options(root, **{**given, **options})
    return [tuple(found.arguments.values()) or found.info.id for found in source.found]


def test_every_data_set_is_encoded_and_saved(experiment, root, tmp_path, model):
    done = experiment("--data", root, "--prompts", "vanilla")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert [one["name"] for one in record["sets"]] == ["dtd", "eurosat"]
    assert {one["task"] for one in record["sets"]} == {"fine_grained"}
    assert f"--data {root}" in record["command"]
    assert record["command"].endswith("--device cpu --orders 1")
    kept = tmp_path / "out" / "features" / f"eurosat-{model.name}.safetensors"
    features = load(kept)
    assert features.labels.tolist() == miniatures.labels_of("eurosat")
    assert (features.prompts, features.provenance["images"]["data_set"]) == (("vanilla",), "eurosat")
    assert "features 1 of 2: dtd" in done.stderr
    # Again: all of it is known.
    again = experiment("--data", root, "--prompts", "vanilla", "--data-sets", "eurosat")
    assert [one["name"] for one in json.loads(again.stdout)["sets"]] == ["eurosat"]
    assert ", 0 encoded now" in again.stderr
    assert "read from records" in again.stderr


@pytest.mark.slow
def test_a_file_and_a_data_set_of_one_name_get_unique_names(experiment, root, tmp_path, small):
    for folder in ("mine", "yours"):
        (tmp_path / folder / "sets").mkdir(parents=True)
    small.save(tmp_path / "mine" / "sets" / "dtd.safetensors")
    small.subset(slice(0, 60)).save(tmp_path / "yours" / "sets" / "dtd.safetensors")
    done = experiment(
        tmp_path / "mine" / "sets", tmp_path / "yours" / "sets", "--data", root, "--data-sets", "dtd",
        "--prompts", "vanilla",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert [one["name"] for one in json.loads(done.stdout)["sets"]] == [
        str(tmp_path / "mine" / "sets" / "dtd.safetensors"),
        str(tmp_path / "yours" / "sets" / "dtd.safetensors"),
        "dtd",
    ]
    one = experiment(tmp_path / "mine" / "sets", "--data", root, "--data-sets", "dtd", "--prompts", "vanilla")
    names = [one["name"] for one in json.loads(one.stdout)["sets"]]
    assert names[0] == "sets/dtd.safetensors"
    assert names[1].startswith("features/dtd-")


def test_an_unreadable_data_set_is_skipped_unless_it_was_named(experiment, root):
    next((root / "fine-grained" / "dtd").rglob("banded_0000.jpg")).unlink()
    done = experiment("--data", root, "--prompts", "vanilla")
    assert done.exit_code == 0, done.stderr
    assert [one["name"] for one in json.loads(done.stdout)["sets"]] == ["eurosat"]
    assert "skipped: dtd: 1 of the 3 test images of dtd are missing from" in done.stderr
    named = experiment("--data", root, "--prompts", "vanilla", "--data-sets", "dtd")
    assert named.exit_code == 2
    assert "1 of the 3 test images of dtd are missing from" in named.stderr


def test_no_readable_data_set_is_an_error(experiment, root, tmp_path):
    for path in root.rglob("*.jpg"):
        path.unlink()
    done = experiment("--data", root, "--prompts", "vanilla")
    assert done.exit_code == 2, done.stderr
    assert "skipped: dtd" in done.stderr
    assert "there is no set to run experiments on: all were skipped. Fix" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_descriptions_of_another_set_are_ignored(experiment, root, tmp_path):
    from zeroshift.data.catalogue import get
    from zeroshift.data.catalogue.files import class_list

    names = class_list(get("eurosat").class_lists["adapt"]).names
    (tmp_path / "descriptions.json").write_text(json.dumps({name: [f"{name} from above"] for name in names}))
    done = experiment("--data", root, "--descriptions", tmp_path / "descriptions.json")
    assert done.exit_code == 0, done.stderr
    prompts = {one["name"]: one["prompts"] for one in json.loads(done.stdout)["sets"]}
    assert sorted(prompts["dtd"]) == ["clip_template", "ensemble", "vanilla"]
    assert "descriptions_ensemble" in prompts["eurosat"]
    assert "dtd: without descriptions: " in done.stderr
    assert json.loads(done.stdout)["sets"][0]["prompt"] == "ensemble"


def test_corruptions_and_severities_on_the_disk(tmp_path):
    miniatures.build(tmp_path, "imagenet_c")
    folder = tmp_path / "corruption" / "imagenet-c"
    shutil.copytree(folder / "fog" / "5", folder / "snow" / "2")
    miniatures.build(tmp_path, "dtd")
    assert find_data_sets(tmp_path) == [("snow", 2), ("fog", 5), "dtd"]
    assert find_data_sets(tmp_path, severities="5") == [("fog", 5), "dtd"]
    assert find_data_sets(tmp_path, severities="1, 2", data_sets="ImageNet-C") == [("snow", 2)]
    with pytest.raises(FileNotFoundError, match="imagenet_c is not in"):
        find_data_sets(tmp_path, severities="1", data_sets="imagenet_c")
    for requested in ({"severities": "1"}, {"severities": "5", "data_sets": "dtd"}):
        with pytest.raises(FileNotFoundError, match=r"--severities .: no imagenet_c of that severity is chosen"):
            find_data_sets(tmp_path, **requested)


def test_the_root_may_come_from_the_environment(tmp_path, monkeypatch):
    miniatures.build(tmp_path, "dtd")
    monkeypatch.setenv("ZEROSHIFT_DATA", str(tmp_path))
    assert find_data_sets(None, data_sets="dtd") == ["dtd"]


def test_encoder_slugs_are_unique():
    assert encoder_slugs(["/models/a b/", "x/y"]) == ["a-b", "y"]
    assert encoder_slugs(["a/b", "a-b"]) == ["b", "a-b"]
    assert encoder_slugs(["a/b", "c/b"]) == ["a-b", "c-b"]
    assert encoder_slugs(["a!/b", "a?/b"]) == ["a-b-1", "a-b-2"]
