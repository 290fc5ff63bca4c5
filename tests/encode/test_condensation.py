"""Token condensation: the layers against the model itself, and each step by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from encode.numpy_encoder import noise  # noqa: E402
from zeroshift.arrays import normalize  # noqa: E402
from zeroshift.encode.condensation import (  # noqa: E402  # noqa: E402
    CondensedVision,
    adapt_with_condensation,
    choose_centres,
    condense,
    merge_tokens,
    token_counts,
)
from zeroshift.methods import TCA, ZeroShot  # noqa: E402

IMAGES = [noise(i, 40, 50) for i in range(12)]


def pixels(encoder, image):
    return encoder._to_device(encoder.preprocessing(image)[0][None], first=True)[0]


def test_token_counts_of_a_vit_b_16():
    counts, tokens = [], 197
    for _ in range(3):
        tokens = 1 + token_counts(tokens, 0.1).kept + 4 + 1
        counts.append(tokens)
    assert counts == [143, 104, 77]


@pytest.mark.parametrize("tokens", range(2, 60))
@pytest.mark.parametrize("drop", [0.0, 0.1, 0.3, 0.5])
def test_every_patch_has_one_fate(tokens, drop):
    split = token_counts(tokens, drop)
    assert min(split) >= 0
    assert sum(split) == tokens - 1


def test_without_dropping_it_is_the_model(tiny_encoder):
    encoder = tiny_encoder("clip")
    vision = CondensedVision(encoder, layers=(1,), drop=0.0)
    with torch.inference_mode():
        for image in IMAGES[:3]:
            given = pixels(encoder, image)
            output = vision.encode(given)
            whole = encoder.model.vision_model(given[None], output_hidden_states=True)
            for layer, token in enumerate(output.tokens):
                torch.testing.assert_close(token, whole.hidden_states[layer + 1][0, 0], atol=1e-5, rtol=1e-4)
            expected = encoder.encode_images([image])[0]
            np.testing.assert_allclose(normalize(output.feature.numpy()), expected, atol=1e-5)


@pytest.fixture
def deep(tiny_encoder):
    """The tiny model with its two layers twice."""
    encoder = copy.copy(tiny_encoder("clip"))
    encoder.model = copy.deepcopy(encoder.model)
    layers = encoder.model.vision_model.encoder.layers
    layers.extend(copy.deepcopy(list(layers)))
    return encoder


def test_condensed_tokens_are_fewer_in_the_layers_after(deep):
    vision = CondensedVision(deep, layers=(1, 2), drop=0.3)
    counts = []
    for layer in deep.model.vision_model.encoder.layers:
        layer.self_attn.q_proj.register_forward_hook(lambda module, given, out: counts.append(given[0].shape[0]))
    with torch.inference_mode():
        output = vision.encode(pixels(deep, IMAGES[0]))
        again = vision.encode(pixels(deep, IMAGES[0]))
        untouched = CondensedVision(deep, layers=(1,), drop=0.0).encode(pixels(deep, IMAGES[0]))
    # 17 tokens: 12 of 16 patches left, so 2 stay, 10 are merged into 4 and 4 fused into one.
    # Of the 7 patches then left none stays: 6 are merged and 1 is fused.
    assert counts[:4] == [17, 17, 8, 6]
    assert torch.equal(output.feature, again.feature)
    assert torch.equal(output.tokens[:2], untouched.tokens[:2]), "condensed only after its attention"
    assert not torch.allclose(output.tokens[2], untouched.tokens[2])
    assert not torch.allclose(output.feature, untouched.feature)


def test_the_attended_stay_the_next_merge_the_rest_fuse():
    tokens = torch.eye(11)
    attention = torch.linspace(0.1, 1.0, 10)
    kept, merged, fused = token_counts(11, 0.2)
    assert (kept, merged, fused) == (2, 6, 2)
    done = condense(tokens, attention, 0.2)
    assert torch.equal(done[:3], tokens[[0, 10, 9]])
    assert done.shape == (1 + 2 + 4 + 1, 11)
    assert torch.allclose(done[-1], attention[0] * tokens[1] + attention[1] * tokens[2])


def test_merging_by_hand():
    tokens = torch.tensor([[0.0], [10.0], [1.0], [2.0], [20.0], [30.0]])
    assert choose_centres(tokens, 4) == [0, 5, 1, 4]
    # 1 and 2 belong to 0, which weighs 1 at distance 0: (0 * 1 + 1 * 1 + 2 / 2) / (1 + 1 + 1/2).
    torch.testing.assert_close(merge_tokens(tokens), torch.tensor([[0.8], [30.0], [10.0], [20.0]]))


def test_equal_tokens_merge_into_one():
    assert choose_centres(torch.ones(5, 3), 4) == [0]
    assert torch.equal(merge_tokens(torch.ones(5, 3)), torch.ones(1, 3))


def test_an_anchor_takes_part_in_the_attention(tiny_encoder):
    encoder = tiny_encoder("clip")
    vision = CondensedVision(encoder, layers=(1,), drop=0.2)
    with torch.inference_mode():
        given = pixels(encoder, IMAGES[0])
        alone = vision.encode(given)
        anchors = torch.stack([alone.tokens, alone.tokens.flip(0) * 3 + 1])
        guided = vision.encode(given, anchors)
        farther = vision.encode(given, anchors[1:])
    assert not torch.allclose(alone.feature, guided.feature)
    assert not torch.allclose(guided.feature, farther.feature), "the nearest anchor counts, not the first"
    assert torch.equal(alone.tokens[0], guided.tokens[0])


def test_images_are_processed_one_after_the_other(tiny_encoder):
    encoder = tiny_encoder("clip")
    prototypes = normalize(encoder.encode_texts(["a photo of a cat", "dog"]))
    vision = CondensedVision(encoder, layers=(1,), drop=0.2)
    method = TCA(prototypes, logit_scale=encoder.logit_scale, reservoir_size=2)
    answers = adapt_with_condensation(method, vision, IMAGES)
    first = next(answers)
    assert method.n_seen == 1
    rest = list(answers)
    assert method.n_seen == 12
    assert first.shape == (2,)
    by_hand = TCA(prototypes, logit_scale=encoder.logit_scale, reservoir_size=2)
    for image, answer in zip(IMAGES, [first, *rest], strict=True):
        with torch.inference_mode():
            anchors = None if by_hand.anchors is None else torch.as_tensor(by_hand.anchors)
            output = vision.encode(pixels(encoder, image), anchors)
        expected = by_hand.adapt_tokens(normalize(output.feature.numpy()[None]), output.tokens.numpy()[None])[0]
        np.testing.assert_array_equal(answer, expected)


def test_invalid_arguments(tiny_encoder):
    clip = tiny_encoder("clip")
    with pytest.raises(TypeError, match=r"encoder must be of the family clip; got SigLIPEncoder"):
        CondensedVision(tiny_encoder("siglip"))
    with pytest.raises(ValueError, match=r"layers must be an integer from 1 to 1; got 3"):
        CondensedVision(clip)
    with pytest.raises(ValueError, match=r"drop must be a number from 0 to 0\.5; got 0\.9"):
        CondensedVision(clip, layers=(1,), drop=0.9)
    vision = CondensedVision(clip, layers=(1,))
    with pytest.raises(ValueError, match=r"d = 8, the encoder has d = 16"):
        adapt_with_condensation(TCA(np.eye(3, 8)), vision, IMAGES)
    with pytest.raises(TypeError, match="method must be a TCA; got ZeroShot"):
        adapt_with_condensation(ZeroShot(np.eye(3, 16)), vision, IMAGES)
    with pytest.raises(TypeError, match=r"images must be a list.*Fix: \[image\]"):
        adapt_with_condensation(TCA(np.eye(3, 16)), vision, "cat.png")
