"""ALBEF with tiny checkpoints in the published layout: features, text, sizes and description."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from encode.tiny_albef import (  # noqa: E402
    DIMENSION,
    TEMPERATURE,
    VOCABULARY,
    as_albef_sees_it,
    image_reference,
    numbers,
    picture,
    random_tensors,
    save,
    text_reference,
)
from zeroshift.encode.families.albef import (  # noqa: E402
    ALBEFEncoder,
    CaptionTokenizer,
    clean_caption,
)
from zeroshift.encode.families.base import weights_digest  # noqa: E402


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    return random_tensors()


@pytest.fixture(scope="module")
def encoder(state: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> ALBEFEncoder:
    return ALBEFEncoder.load(str(save(tmp_path_factory.mktemp("albef"), state)), device="cpu")


def test_image_features_are_those_of_the_mathematics_written_out(encoder, state):
    images = [picture(32, 32), picture(50, 40)]
    expected = [image_reference(state, as_albef_sees_it(image, 32)) for image in images]
    np.testing.assert_allclose(encoder.encode_images(images), expected, atol=1e-5)


def test_text_features_are_those_of_the_mathematics_written_out(encoder, state):
    # Of different lengths, so that the shorter is filled up: what fills it must not be felt.
    found = encoder.encode_texts(["A photo of cats.", "the T-shirt/top, a photo of the dog!"])
    expected = [
        text_reference(state, numbers(words)) for words in ("a photo of cat ##s", "the t shirt top a photo of the dog")
    ]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_checkpoint_fine_tuned_for_retrieval_has_bert_without_a_wrapper(tmp_path):
    prefix = "text_encoder."
    state = random_tensors(text_prefix=prefix)
    encoder = ALBEFEncoder.load(str(save(tmp_path, state, "flickr30k.pth")), device="cpu")
    found = encoder.encode_texts(["a dog"])[0]
    np.testing.assert_allclose(found, text_reference(state, numbers("a dog"), prefix), atol=1e-5)


def test_a_checkpoint_in_torchs_old_format_is_read_too(encoder, state, tmp_path):
    save(tmp_path, {})
    torch.save({"model": state}, tmp_path / "ALBEF.pth", _use_new_zipfile_serialization=False)
    assert ALBEFEncoder.load(str(tmp_path), device="cpu").revision == encoder.revision


def test_the_image_size_is_read_from_the_position_embeddings(encoder, tmp_path):
    assert encoder.preprocessing.size == (32, 32)
    state = random_tensors(side=48)
    larger = ALBEFEncoder.load(str(save(tmp_path, state)), device="cpu")
    assert larger.preprocessing.size == (48, 48)
    image = picture(70, 60)
    np.testing.assert_allclose(
        larger.encode_images([image])[0], image_reference(state, as_albef_sees_it(image, 48)), atol=1e-5
    )


def test_describe_of_the_encoder(encoder):
    assert encoder.family == "albef"
    assert encoder.source == "ALBEF.pth"
    assert encoder.dimension == DIMENSION
    assert encoder.logit_scale == pytest.approx(1 / TEMPERATURE)
    assert encoder.logit_bias is None
    assert encoder.text_length == 30
    assert encoder.describe()["revision"].startswith("sha256:")


def test_the_fusion_layers_momentum_copies_and_queues_are_not_felt(encoder, state, tmp_path):
    unused = ("_m.", "queue", "itm_head", "layer.2.", "layer.3.", "cls.predictions")
    changed = {name: torch.ones_like(t) if any(part in name for part in unused) else t for name, t in state.items()}
    assert sum(not torch.equal(changed[name], state[name]) for name in state) > 100
    other = ALBEFEncoder.load(str(save(tmp_path, changed)), device="cpu")
    assert other.revision == encoder.revision
    np.testing.assert_array_equal(other.encode_texts(["a cat"]), encoder.encode_texts(["a cat"]))


def test_the_revision_is_that_of_the_weights_and_the_vocabulary(encoder, state, tmp_path):
    source = str(save(tmp_path, state))
    assert ALBEFEncoder.load(source, device="cpu", revision=encoder.revision).revision == encoder.revision
    with pytest.raises(ValueError, match=r"revision='sha256:0' was requested, but ALBEF.pth has 'sha256:.*Fix: pass"):
        ALBEFEncoder.load(source, device="cpu", revision="sha256:0")
    vocabulary = tmp_path / "other.txt"
    vocabulary.write_text("\n".join([*VOCABULARY[:-1], "##es"]), encoding="utf-8")
    assert ALBEFEncoder.load(source, device="cpu", tokenizer=vocabulary).revision != encoder.revision
    nudged = {**state, "text_proj.bias": state["text_proj.bias"] + 1e-3}
    assert ALBEFEncoder.load(str(save(tmp_path, nudged)), device="cpu").revision != encoder.revision


def test_bfloat16_is_near_float32(encoder, state, tmp_path):
    narrow = ALBEFEncoder.load(str(save(tmp_path, state)), device="cpu", dtype="bfloat16")
    cosine = (narrow.encode_images([picture(32, 32)]) * encoder.encode_images([picture(32, 32)])).sum()
    assert 0.99 < cosine < 1.01
    assert narrow.logit_scale == encoder.logit_scale


@pytest.mark.parametrize(
    ("prompt", "cleaned"),
    [
        ("A photo of a T-shirt/top.", "a photo of a t shirt top"),
        ('it\'s (really) #1: *so* "good"; ~yes~, right?!', "its really 1 so good yes right"),
        ("  two   spaces \n", "two spaces"),
        ("<PERSON> - at work", "person at work"),
        ("50% of it & more_or less", "50% of it & more_or less"),
        ("...", ""),
    ],
)
def test_prompts_are_cleaned_like_albefs_captions(prompt, cleaned):
    assert clean_caption(prompt) == cleaned


def test_captions_end_after_thirty_words():
    assert clean_caption("word " * 31) == " ".join(["word"] * 30)
    assert clean_caption("word " * 31, max_words=None) == " ".join(["word"] * 31)


def test_prompts_of_more_than_thirty_tokens_are_truncated(encoder, state):
    # [CLS] is one of the thirty, and "cats" is two.
    prompts = ["word " * 29, "word " * 30, "cats " * 14, "cats " * 15, "word " * 100]
    assert encoder.count_tokens(prompts) == [30, 31, 29, 31, 101]
    with pytest.warns(UserWarning, match="3 of 5 prompts are longer than the 30 tokens"):
        found = encoder.encode_texts(prompts)
    expected = text_reference(state, numbers("word " * 29))
    np.testing.assert_allclose(found[[0, 1, 4]], [expected] * 3, atol=1e-5)


def test_no_separator_follows_a_prompt(tmp_path):
    save(tmp_path, {})
    pieces = CaptionTokenizer(tmp_path / "vocab.txt")
    assert pieces(["A cat!", "zebra", ""]) == [[2, 5, 9], [2, VOCABULARY.index("[UNK]")], [2]]


def test_the_digest_feels_names_types_shapes_and_numbers():
    first = {"a": torch.zeros(2, 3), "b": torch.ones(4)}
    others = [
        {"a": torch.zeros(3, 2), "b": torch.ones(4)},
        {"a": torch.zeros(2, 3), "c": torch.ones(4)},
        {"a": torch.zeros(2, 3, dtype=torch.int32), "b": torch.ones(4)},
        {"a": torch.zeros(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)},
        {"a": torch.zeros(2, 3), "b": 2 * torch.ones(4)},
    ]
    digests = [weights_digest(each) for each in (first, *others)]
    assert len(set(digests)) == 6
    assert weights_digest(dict(reversed(first.items()))) == digests[0]
    assert weights_digest(first, {"cat": 0}) != weights_digest(first, {"cat": 1})
