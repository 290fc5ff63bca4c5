"""The registry of encoders: families, missing packages, and errors for wrong names and folders."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zeroshift.encode import registry
from zeroshift.installation import install_command

NAMES = [
    *("clip", "siglip", "siglip2", "blip", "align", "altclip", "chinese_clip", "metaclip"),
    *("open_clip", "albef", "composed", "vision", "efficientnet_lite"),
]


def test_every_family_is_listed_and_found_by_name():
    assert [family.name for family in registry.list_families()] == NAMES
    for family in registry.list_families():
        assert registry.get(family.name) is family
        assert family.title
        assert family.example


def test_model_types_belong_to_one_family_each():
    kinds = [kind for family in registry.list_families() for kind in family.model_types]
    assert len(set(kinds)) == len(kinds) == 8 + 11


@pytest.mark.parametrize("name", [name for name in NAMES if name != "composed"])
def test_the_class_of_a_family_calls_itself_so(name):
    pytest.importorskip("torch")
    assert registry.get(name).cls().family == name


def test_the_list_given_out_is_a_copy():
    registry.list_families().clear()
    assert len(registry.list_families()) == len(NAMES)


def test_the_folder_of_the_compiler_is_in_the_cache(tiny_folder, tmp_path, monkeypatch):
    model = str(tiny_folder("clip"))
    monkeypatch.setenv("ZEROSHIFT_CACHE", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    registry.load(model, device="cpu")
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) == tmp_path / "torchinductor"


@pytest.mark.slow
def test_loading_an_encoder_leaves_nothing_in_the_temporary_folder(tiny_folder, tmp_path):
    """transformers imports torch's compiler, which makes a folder, by default in the temporary folder."""
    program = "import sys, zeroshift.encode; zeroshift.encode.load_encoder(sys.argv[1], device='cpu')"
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary"), "ZEROSHIFT_CACHE": str(tmp_path / "cache")}
    environment.pop("TORCHINDUCTOR_CACHE_DIR")
    command = [sys.executable, "-c", program, str(tiny_folder("clip"))]
    subprocess.run(command, env=environment, check=True)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert (tmp_path / "cache" / "torchinductor").is_dir()


def test_a_cache_that_cannot_be_written_to_does_not_matter(tiny_folder, tmp_path, monkeypatch):
    model = str(tiny_folder("clip"))
    (tmp_path / "file").touch()
    monkeypatch.setenv("ZEROSHIFT_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    registry.load(model, device="cpu")
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_what_is_missing_and_how_to_get_it(monkeypatch):
    clip, open_clip, composed = (registry.get(name) for name in ("clip", "open_clip", "composed"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("transformers", "open_clip") else 1)
    assert clip.missing == ("transformers",)
    assert open_clip.missing == ("open_clip",)
    assert clip.fix == install_command("encoders")
    assert open_clip.fix == "pip install open_clip_torch"
    assert composed.fix == install_command("offline")
    # Not even the kind of a model can be read without transformers; raised before any file is read.
    for source, message in [
        (
            "openai/clip-vit-base-patch16",
            rf"needs transformers, which is not installed. Fix: {re.escape(install_command('encoders'))}",
        ),
        ("open_clip:ViT-B-32/x", r"needs open_clip, which is not installed. Fix: pip install open_clip_torch"),
        ("composed", rf"needs transformers, which is not installed. Fix: {re.escape(install_command('offline'))}"),
        ("albef:model.pth", r"needs transformers"),
    ]:
        with pytest.raises(ImportError, match=message):
            registry.load(source)


def test_an_unknown_family_is_answered_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"family must be one of clip, siglip, .*; got 'siglap'. Did you mean 'siglip'\?"
    ):
        registry.get("siglap")


@pytest.mark.parametrize("source", ["", "  ", None, 3])
def test_a_source_must_be_a_name(source):
    with pytest.raises(ValueError, match="encoder must be a hub id, a folder or a name such as 'composed'; got"):
        registry.load(source)


@pytest.mark.parametrize(
    ("source", "fix"),
    [
        ("https://huggingface.co/openai/clip-vit-base-patch16", "Fix: 'openai/clip-vit-base-patch16'."),
        ("https://huggingface.co/openai/clip-vit-base-patch16/tree/main", "Fix: 'openai/clip-vit-base-patch16'."),
        ("s3://bucket/model", "Fix: a hub id such as '"),
    ],
)
def test_a_source_is_no_url(source, fix):
    with pytest.raises(ValueError, match=f"encoder must not be a URL; got {source}. {fix}"):
        registry.load(source)


def test_a_name_that_is_nothing():
    pytest.importorskip("transformers")
    with pytest.raises(
        ValueError, match=r"'compsed' is neither .* Did you mean 'composed'\? Fix: `zeroshift encoders`"
    ):
        registry.load("compsed")
    with pytest.raises(ValueError, match=r"'xyzzyx' is neither a folder, nor a hub id \(OWNER/NAME\)"):
        registry.load("xyzzyx")


def test_the_hub_out_of_reach(monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # it was read when the module was imported
    for revision, named in ((None, "someone/no-such-model"), ("v2", "someone/no-such-model at revision v2")):
        with pytest.raises(
            OSError, match=rf"^{named} cannot be loaded from the hub \(.*\). Fix: check the id and the net"
        ):
            registry.load("someone/no-such-model", revision=revision)


class TestFolders:
    @pytest.fixture
    def copied(self, tiny_folder, tmp_path):
        return shutil.copytree(tiny_folder("clip"), tmp_path / "copied")

    def refused(self, folder, message, error=ValueError):
        with pytest.raises(error, match=message):
            registry.load(str(folder), device="cpu")

    def test_without_a_configuration(self, copied):
        (copied / "config.json").unlink()
        message = r"copied is a folder without config.json, so it contains no model. Fix: pass the folder that save"
        self.refused(copied, message, FileNotFoundError)

    @pytest.mark.parametrize("content", [b'{"model_type": ', b"[1]", b"\xff\xfe{}"])
    def test_with_a_damaged_configuration(self, copied, content):
        (copied / "config.json").write_bytes(content)
        self.refused(copied, r"config.json cannot be read \(.*\). Fix: copy the model again.")

    @pytest.mark.parametrize("kind", ["bert", None])
    def test_of_a_kind_that_is_not_supported(self, copied, kind):
        (copied / "config.json").write_text(json.dumps({} if kind is None else {"model_type": kind}))
        self.refused(copied, f"is a model of type '{kind}', which is not supported .clip, siglip, .*FeatureSet")

    @pytest.mark.parametrize(
        ("file", "reason"),
        [
            ("model.safetensors", "no file named model.safetensors"),
            ("preprocessor_config.json", "image processor"),
            # transformers would make up a tokenizer without words, and every prompt would mean the same.
            ("tokenizer.json", "the files of its tokenizer are missing or contain no words"),
        ],
    )
    def test_with_a_file_missing(self, copied, file, reason):
        (copied / file).unlink()
        self.refused(
            copied, rf"copied is not a complete model folder \(.*{reason}.*\). Fix: it needs config.json, the weights"
        )

    def test_with_truncated_weights(self, copied):
        weights = copied / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
        self.refused(copied, r"is not a complete model folder \(")

    def test_with_weights_missing_that_transformers_would_draw_at_random(self, copied):
        from safetensors.torch import load_file, save_file

        tensors = load_file(copied / "model.safetensors")
        for name in ("visual_projection.weight", "text_projection.weight"):
            del tensors[name]
        save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
        self.refused(copied, r"its weights lack text_projection.weight and 1 more: it was made for another task")

    def test_with_weights_of_another_shape(self, copied):
        import torch
        from safetensors.torch import load_file, save_file

        tensors = load_file(copied / "model.safetensors")
        tensors["visual_projection.weight"] = torch.zeros(3, 3)
        save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
        self.refused(copied, r"is not a complete model folder \(")


def test_the_hash_of_a_folder_is_that_of_its_content(tiny_folder, tmp_path):
    from zeroshift.encode.families.base import folder_digest

    original = tiny_folder("siglip")
    copied = shutil.copytree(original, tmp_path / "elsewhere")
    assert folder_digest(copied) == folder_digest(original)
    assert folder_digest(original).startswith("sha256:")
    (copied / "README.md").write_text("Other files do not matter.")
    assert folder_digest(copied) == folder_digest(original)
    for file in ("model.safetensors", "tokenizer.json", "config.json", "preprocessor_config.json"):
        content = (copied / file).read_bytes()
        (copied / file).write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        assert folder_digest(copied) != folder_digest(original), file
        (copied / file).write_bytes(content)
    assert folder_digest(copied) == folder_digest(original)


def test_describe_has_no_path(tiny_folder, tiny_encoder, monkeypatch):
    folder, encoder = tiny_folder("clip"), tiny_encoder("clip")
    described = encoder.describe()
    assert described == {"family": "clip", "source": "tiny-clip", "revision": encoder.revision, "dtype": "float32"}
    assert encoder.revision.startswith("sha256:")
    assert str(folder.parent) not in json.dumps(described) + repr(encoder)
    monkeypatch.chdir(folder)
    here = registry.load(".", device="cpu", batch_size=7)
    assert here.describe() == described
    assert here.batch_size == 7


def test_a_batch_size_of_zero_is_refused(tiny_folder):
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1; got 0"):
        registry.load(str(tiny_folder("clip")), batch_size=0)
