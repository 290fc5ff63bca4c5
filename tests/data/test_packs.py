"""The bundled packs: descriptions, content, and the script that makes them."""

from __future__ import annotations

import builtins
import dataclasses
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import safetensors

from zeroshift.data import packs
from zeroshift.features import FeatureSet

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY.parent / "shared" / "packs" / "bundle"
SCRIPT = REPOSITORY / "scripts" / "bundle_packs.py"

needs_source = pytest.mark.skipif(not SOURCE.is_dir(), reason=f"the source packs are not at {SOURCE}")

ZERO_SHOT = {
    "cifar10": 73.5,
    "cifar10c_defocus_blur_5": 43.1,
    "cifar10c_fog_5": 40.3,
    "cifar10c_gaussian_noise_3": 28.3,
    "cifar10c_jpeg_compression_5": 42.0,
    "fmnist": 31.5,
    "views_cifar10c_fog_5": 42.7,
}
"""Accuracy of the prompt mode "ensemble", in percent: the table in the bundle's README."""

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
every_pack = pytest.mark.parametrize("name", ZERO_SHOT)


def test_list():
    listed = packs.list()
    assert type(listed) is builtins.list
    assert [pack.name for pack in listed] == sorted(ZERO_SHOT)
    for pack in listed:
        views = pack.name.startswith("views_")
        shape = (pack.n_samples, pack.n_classes, pack.dimension, pack.n_views)
        assert shape == ((150, 10, 256, 16) if views else (1500, 10, 256, 0))


def test_list_loads_no_features(monkeypatch):
    opened = []
    safe_open = safetensors.safe_open

    class HeaderOnly:
        """safe_open without the one call that reads an array."""

        def __init__(self, path, framework):
            self._context = safe_open(path, framework=framework)

        def __enter__(self):
            self._handle = self._context.__enter__()
            opened.append(self)
            return self

        def __exit__(self, *exception):
            return self._context.__exit__(*exception)

        def __getattr__(self, name):
            assert name != "get_tensor"
            return getattr(self._handle, name)

    monkeypatch.setattr(safetensors, "safe_open", HeaderOnly)
    assert len(packs.list()) == len(opened) == len(ZERO_SHOT)


@every_pack
def test_list_agrees_with_load(name):
    pack = next(pack for pack in packs.list() if pack.name == name)
    loaded = packs.load(name)
    for field in ("n_samples", "n_classes", "dimension", "n_views"):
        assert getattr(pack, field) == getattr(loaded, field)
    for field in ("title", "description", "licence"):
        assert getattr(pack, field) == loaded.provenance[field]
    with pytest.raises(dataclasses.FrozenInstanceError):
        pack.name = "other"


@every_pack
def test_load(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no hint, although the noisiest pack has a low accuracy
        loaded = packs.load(name)
    assert loaded.features.dtype == np.float16
    assert loaded.prompts == ("clip_template", "ensemble", "vanilla")
    assert loaded.default_prompt == "ensemble"
    assert loaded.logit_scale == 25.0
    assert name == "fmnist" or loaded.class_names == CIFAR10
    assert round(100 * loaded.zero_shot_accuracy("ensemble"), 1) == ZERO_SHOT[name]


@every_pack
def test_provenance(name):
    origin = packs.load(name).provenance
    statement = "a composed dual encoder, not CLIP; its numbers are not CLIP's"
    assert origin["encoder"]["statement"] == statement
    assert statement in origin["description"]
    assert "EfficientNet-Lite2" in origin["encoder"]["image"]
    assert "MiniLM" in origin["encoder"]["text"]
    fashion = name == "fmnist"
    assert origin["data_set"]["name"] == ("Fashion-MNIST" if fashion else "CIFAR-10")
    assert origin["data_set"]["licence"] == ("MIT" if fashion else "ISC")
    assert origin["order"].startswith("random permutation")
    if "cifar10c" in name:
        corruption, severity = name.split("cifar10c_")[1].rsplit("_", 1)
        assert origin["corruption"].lower().replace(" ", "_") == corruption
        assert origin["severity"] == int(severity)
    else:
        assert origin["corruption"] is None
        assert origin["severity"] is None


def test_only_the_noisiest_pack_is_below_three_times_chance():
    assert [name for name in ZERO_SHOT if packs.load(name).hints()] == ["cifar10c_gaussian_noise_3"]


@pytest.mark.parametrize(
    ("name", "guess"),
    [("cifar-10", "Did you mean 'cifar10'? "), ("xyz", ""), ("", ""), ("../bundle/cifar10", None), ("README", "")],
)
def test_unknown_name(name, guess):
    with pytest.raises(ValueError, match=r"no bundled pack is called .*Fix: one of cifar10, cifar10c_") as refusal:
        packs.load(name)
    assert repr(name) in str(refusal.value)
    assert guess is None or f"is called {name!r}. {guess}Fix: one of " in str(refusal.value)


def test_size():
    assert sum(path.stat().st_size for path in packs.BUNDLE.iterdir()) < 7_000_000


def test_readme_has_every_pack_with_its_accuracy():
    readme = (packs.BUNDLE / "README.md").read_text(encoding="utf-8")
    assert "a composed dual encoder, not CLIP; its numbers are not CLIP's" in readme
    for name, accuracy in ZERO_SHOT.items():
        row = next(line for line in readme.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"| {accuracy}%" in row


@every_pack
def test_saving_again_gives_the_same_bytes(name, tmp_path):
    packs.load(name).save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (packs.BUNDLE / f"{name}.safetensors").read_bytes()


@needs_source
@every_pack
def test_arrays_are_the_source_unchanged(name):
    loaded = packs.load(name)
    with np.load(SOURCE / f"{name}.npz", allow_pickle=False) as source:
        stored = source["view_features"] if "view_features" in source.files else source["features"]
        kept = loaded.features if loaded.views is None else loaded.views
        assert kept.dtype == stored.dtype
        np.testing.assert_array_equal(kept, stored)
        np.testing.assert_array_equal(loaded.labels, source["labels"])
        assert loaded.class_names == tuple(source["class_names"])
        assert loaded.logit_scale == source["logit_scale"]
        for mode in loaded.prompts:
            np.testing.assert_array_equal(loaded.prototypes[mode], source[f"prototypes_{mode}"])
        meta = json.loads(str(source["meta"]))
        assert loaded.provenance["encoder"]["inference_precision"] == meta["inference_precision"]


@needs_source
@pytest.mark.skipif(not SCRIPT.is_file(), reason="scripts/ is not part of the source distribution")
def test_the_script_writes_these_very_files(tmp_path):
    subprocess.run([sys.executable, SCRIPT, SOURCE, "--target", tmp_path], check=True, capture_output=True)
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == sorted(path.name for path in packs.BUNDLE.glob("*.safetensors"))
    for name in written:
        assert (tmp_path / name).read_bytes() == (packs.BUNDLE / name).read_bytes(), name


def test_list_does_not_break_the_builtin():
    assert packs.__all__ == ["PackInfo", "list", "load"]
    assert isinstance(packs.load("cifar10"), FeatureSet)
