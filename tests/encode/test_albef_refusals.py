"""Invalid checkpoints and vocabularies of ALBEF, and the fix in each error."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from encode.tiny_albef import VOCABULARY, WIDTH, random_tensors, save  # noqa: E402
from zeroshift.encode.families.albef import ALBEFEncoder  # noqa: E402
from zeroshift.files import FileFormatError  # noqa: E402


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    return random_tensors()


@pytest.fixture(scope="module")
def encoder(state: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> ALBEFEncoder:
    return ALBEFEncoder.load(str(save(tmp_path_factory.mktemp("albef"), state)), device="cpu")


def load(folder: Path, state: dict[str, torch.Tensor]) -> ALBEFEncoder:
    return ALBEFEncoder.load(str(save(folder, state)), device="cpu")


@pytest.mark.parametrize(
    "name",
    [
        "visual_encoder.pos_embed",
        "visual_encoder.blocks.1.attn.qkv.bias",
        "text_encoder.bert.encoder.layer.1.output.dense.weight",
        "text_proj.bias",
        "temp",
    ],
)
def test_a_missing_tensor_is_named(state, tmp_path, name):
    with pytest.raises(
        FileFormatError, match=f"lacks '{name}', so it is not a complete ALBEF checkpoint. Fix: pass one"
    ):
        load(tmp_path, {key: tensor for key, tensor in state.items() if key != name})


def test_many_missing_tensors_are_counted_and_foreign_ones_listed(state, tmp_path):
    kept = {key.replace("visual_encoder.blocks.0.norm", "backbone."): tensor for key, tensor in state.items()}
    with pytest.raises(
        FileFormatError,
        match=r"norm1.weight' and 3 more tensors, so .* It contains parts that ALBEF does not have: backbone. Fix",
    ):
        load(tmp_path, kept)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "visual_encoder.norm.bias",
            torch.zeros(5),
            r"norm.bias has shape \(5,\); \(128,\) is needed",
        ),
        ("text_proj.weight", torch.zeros(7, WIDTH), r"text_proj.weight has shape \(7, 128\); \(24, 128\) is needed"),
        ("visual_encoder.pos_embed", torch.zeros(1, 12, WIDTH), "has 11 positions besides the class token; a square"),
        ("visual_encoder.pos_embed", torch.zeros(17, WIDTH), r"has shape \(17, 128\); it must have 3 axes"),
        ("visual_encoder.patch_embed.proj.weight", torch.zeros(100, 3, 8, 8), "visual_encoder is 100 wide; .* 64 wide"),
        ("temp", torch.tensor(0.0), "temp is 0; it must be positive"),
        ("temp", torch.tensor([0.1, 0.2]), r"temp has shape \(2,\); it must have 0 axes"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(state, tmp_path, name, tensor, message):
    with pytest.raises(FileFormatError, match=f"{message}.*Fix: "):
        load(tmp_path, {**state, name: tensor})


def test_a_checkpoint_without_cross_attention_is_refused(state, tmp_path):
    with pytest.raises(FileFormatError, match=r"has no layers with cross-attention under text_encoder.bert.*Fix: pass"):
        load(tmp_path, {name: tensor for name, tensor in state.items() if "crossattention" not in name})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"state_dict": {}, "epoch": 3},
            "must contain a dictionary with the key 'model'; it contains keys state_dict, epoch",
        ),
        ([1, 2], "it contains list"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, content, message):
    save(tmp_path, {})
    torch.save(content, tmp_path / "ALBEF.pth")
    with pytest.raises(FileFormatError, match=f"{message}. Fix: "):
        ALBEFEncoder.load(str(tmp_path), device="cpu")


class Foreign:
    """Something a pickle could run code for."""


@pytest.mark.parametrize("raw", [pickle.dumps(Foreign(), protocol=2), b"not a checkpoint", b""])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, raw):
    save(tmp_path, {})
    (tmp_path / "ALBEF.pth").write_bytes(raw)
    with pytest.raises(FileFormatError, match=r"ALBEF.pth .*torch checkpoint.*Fix: copy it again"):
        ALBEFEncoder.load(str(tmp_path), device="cpu")


def test_a_file_with_code_is_refused_with_a_fix(tmp_path):
    save(tmp_path, {})
    torch.save({"model": {}, "config": Foreign()}, tmp_path / "ALBEF.pth")
    with pytest.raises(FileFormatError, match=r"contains more than tensors .* if you trust .*weights_only=False"):
        ALBEFEncoder.load(str(tmp_path), device="cpu")


def test_checkpoint_paths(state, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no ALBEF checkpoint at .*nowhere.pth. Fix: download one"):
        ALBEFEncoder.load(str(tmp_path / "nowhere.pth"), device="cpu")
    with pytest.raises(
        FileNotFoundError, match=r"must contain one checkpoint \(.pth or .pt\); it contains none. Fix: pass"
    ):
        ALBEFEncoder.load(str(tmp_path), device="cpu")
    save(save(tmp_path, state), state, "mscoco.pth")
    with pytest.raises(FileNotFoundError, match=r"it contains ALBEF.pth, mscoco.pth"):
        ALBEFEncoder.load(str(tmp_path), device="cpu")
    assert ALBEFEncoder.load(str(tmp_path / "mscoco.pth"), device="cpu").source == "mscoco.pth"


def test_the_vocabulary_can_be_in_another_folder(encoder, state, tmp_path):
    source = save(tmp_path, state)
    elsewhere = tmp_path / "bert"
    elsewhere.mkdir()
    with pytest.raises(
        FileNotFoundError, match=r"bert' is a folder without vocab.txt. Fix: copy the vocab.txt of bert"
    ):
        ALBEFEncoder.load(str(source), device="cpu", tokenizer=elsewhere)
    (source / "vocab.txt").rename(elsewhere / "vocab.txt")
    found = ALBEFEncoder.load(str(source), device="cpu", tokenizer=str(elsewhere))
    np.testing.assert_array_equal(found.encode_texts(["a cat"]), encoder.encode_texts(["a cat"]))


def test_a_vocabulary_that_does_not_fit_is_refused(state, tmp_path):
    source = save(tmp_path, state)
    (source / "vocab.txt").write_text("\n".join(VOCABULARY[:-1]), encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"the vocabulary has 15 word pieces, and .* has embeddings for 16. Fix"):
        ALBEFEncoder.load(str(source), device="cpu")
    (source / "vocab.txt").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"vocab.txt lacks \[PAD\], \[UNK\], \[CLS\], so it is not a BERT vocab"):
        ALBEFEncoder.load(str(source), device="cpu")


@pytest.mark.parametrize("reachable", [True, False])
def test_the_vocabulary_is_loaded_from_the_hub_by_default(state, tmp_path, monkeypatch, reachable):
    source = save(tmp_path, state)
    fetched = (source / "vocab.txt").rename(source / "fetched.txt")

    def cached_file(name: str, file: str) -> str:
        assert (name, file) == ("bert-base-uncased", "vocab.txt")
        if not reachable:
            raise OSError("we could not connect\nand more")
        return str(fetched)

    monkeypatch.setattr("transformers.utils.cached_file", cached_file)
    if reachable:
        assert ALBEFEncoder.load(str(source), device="cpu").tokenizer.vocabulary["cat"] == VOCABULARY.index("cat")
    else:
        with pytest.raises(OSError, match=r"'bert-base-uncased' cannot .* \(we could not connect\). Fix: .*tokenizer="):
            ALBEFEncoder.load(str(source), device="cpu")
