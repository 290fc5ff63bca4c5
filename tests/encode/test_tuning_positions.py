"""Prompts with the name elsewhere, several prompts per class, a context for each class, and gradients in one graph."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from encode.tunable_prompts import NAMES, close, upstream  # noqa: E402
from tiny_clip import exact_prompts, moved_text  # noqa: E402
from zeroshift.encode import prompted_text  # noqa: E402
from zeroshift.encode.tuning import ContextText  # noqa: E402
from zeroshift.methods._shared.towers import PromptedText  # noqa: E402
from zeroshift.testing.examples import ExampleText  # noqa: E402

PLACES = ("end", "middle", "front")


WORDS = "a a"
"""Two tokens for every tokenizer here, unlike most words."""


def sentence(name, place):
    name = name.replace("_", " ")
    return {"end": f"a a {name}.", "middle": f"a {name} a.", "front": f"{name} a a."}[place]


@pytest.mark.parametrize("family", ["clip", "align", "altclip"])
@pytest.mark.parametrize("position", [*PLACES, PLACES, ("front", "end")])
def test_features_are_those_of_the_sentence_with_the_name_there(tiny_encoder, family, position):
    encoder = tiny_encoder(family)
    text = prompted_text(encoder, NAMES, words=WORDS, position=position, chunk_size=3)
    places = (position,) if isinstance(position, str) else position
    sentences = [sentence(name, place) for place in places for name in NAMES]
    assert (text.n_classes, text.n_prompts) == (4, len(places))
    close(text.features(text.context), encoder.encode_texts(sentences), 1e-5)


def test_the_representation_tells_the_prompts(tiny_encoder):
    text = prompted_text(tiny_encoder("clip"), NAMES, position=PLACES)
    assert repr(text).startswith("<text of 4 classes, 3 prompts each, ")


def context_of(text, per_class, seed=0):
    shape = ((text.n_classes,) if per_class else ()) + text.context.shape
    return text.context + np.random.default_rng(seed).normal(scale=0.1, size=shape)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("positions", [("end",), ("middle",), PLACES])
@pytest.mark.parametrize("chunk_size", [2, 64])
def test_gradients_are_those_of_one_graph(positions, per_class, chunk_size):
    text = moved_text(*positions, precision="float64", chunk_size=chunk_size)
    context = context_of(text, per_class)
    above = np.random.default_rng(1).normal(size=(7 * len(positions), text.dimension))
    leaf = torch.tensor(context).requires_grad_()
    features = exact_prompts(leaf, *positions)
    (features * torch.tensor(above)).sum().backward()
    features, gradient = features.detach().numpy(), leaf.grad.numpy()
    close(text.features(context), features, 1e-10)
    close(text.pull_back(context, above), gradient, 1e-9)
    found, pull_back = text.linearize(context)
    close(found, features, 1e-10)
    for factor in (1.0, 1e-30):  # twice: the graph stays
        close(pull_back(factor * above) / factor, gradient, 1e-9)
    assert np.abs(gradient).max() > 1e-3


def test_the_gradient_is_a_difference_quotient():
    text = moved_text(*PLACES, precision="float64")
    context, draw = context_of(text, True), np.random.default_rng(2)
    above, direction = draw.normal(size=(21, text.dimension)), draw.normal(size=context.shape)
    up, down = ((above * text.features(context + step * direction)).sum() for step in (1e-5, -1e-5))
    assert (text.pull_back(context, above) * direction).sum() == pytest.approx((up - down) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("chunk_size", [4, 64])
def test_layer_norms_with_several_prompts_per_class(chunk_size):
    text, draw = moved_text(*PLACES, precision="float64", chunk_size=chunk_size), np.random.default_rng(4)
    above, direction = draw.normal(size=(21, text.dimension)), draw.normal(size=text.norms.shape)
    close(text.features_with_norms(text.norms), text.features(text.context), 1e-12)
    features, pull_back = text.linearize_norms(text.norms)
    close(features, text.features(text.context), 1e-12)
    gradient = pull_back(above)
    close(text.pull_back_norms(text.norms, above), gradient, 1e-10)
    up, down = ((above * text.features_with_norms(text.norms + step * direction)).sum() for step in (1e-5, -1e-5))
    assert (gradient * direction).sum() == pytest.approx((up - down) / 2e-5, rel=1e-6)


def test_the_example_text_has_the_gradients_of_its_features():
    text, draw = ExampleText(np.eye(4), n_prompts=3), np.random.default_rng(5)
    above = draw.normal(size=(12, 4))
    for start, features, pull_back in (
        (text.context + 0.1, text.features, text.pull_back),
        (np.stack([text.context + 0.1 * k for k in range(4)]), text.features, text.pull_back),
        (text.norms + 0.2, text.features_with_norms, text.pull_back_norms),
    ):
        direction, gradient = draw.normal(size=start.shape), pull_back(start, above)
        assert gradient.shape == start.shape
        up, down = ((above * features(start + step * direction)).sum() for step in (1e-5, -1e-5))
        assert (gradient * direction).sum() == pytest.approx((up - down) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("fails", ["forward", "backward"])
def test_where_one_graph_does_not_fit_prompts_are_encoded_in_chunks(fails, monkeypatch):
    own = moved_text("end", precision="float64")
    text = copy.copy(own)
    text.chunk_size = 64
    context, above = context_of(text, False), np.random.default_rng(3).normal(size=(7, text.dimension))
    unit, grad, sizes = text._unit, torch.autograd.grad, []

    def limited_unit(words, rows):
        size = len(range(*rows.indices(7)))
        sizes.append(size)
        if fails == "forward" and size > 3 and torch.is_grad_enabled():
            raise MemoryError("none left")
        return unit(words, rows)

    def limited_grad(outputs, *arguments, **options):
        if fails == "backward" and len(outputs) > 3:
            raise RuntimeError("CUDA error: out of memory")
        return grad(outputs, *arguments, **options)

    monkeypatch.setattr(text, "_unit", limited_unit, raising=False)
    monkeypatch.setattr(torch.autograd, "grad", limited_grad)
    features, pull_back = text.linearize(context)
    found = [pull_back(above), pull_back(above)]
    monkeypatch.undo()
    close(features, own.features(context), 1e-12)
    for gradient in found:
        close(gradient, own.pull_back(context, above), 1e-10)
    assert text.chunk_size <= 3


def test_other_errors_of_one_graph_are_raised(monkeypatch):
    text = copy.copy(moved_text("end", precision="float64"))

    def broken(words, rows):
        raise RuntimeError("a bug")

    monkeypatch.setattr(text, "_unit", broken, raising=False)
    with pytest.raises(RuntimeError, match="a bug"):
        text.linearize(text.context)


def test_identities_differ_by_place(tiny_encoder):
    encoder = tiny_encoder("clip")
    found = [prompted_text(encoder, NAMES, position=place).identity for place in (*PLACES, PLACES)]
    assert len({json.dumps(identity, sort_keys=True) for identity in found}) == 4
    assert found[0] == prompted_text(encoder, NAMES).identity  # as saved states have it
    assert set(found[0]) == {"encoder", "prompts", "start", "words"}


@pytest.mark.parametrize("position", ["back", "", (), ("end", "end"), ("end", 3)])
def test_invalid_positions(tiny_encoder, position):
    with pytest.raises(ValueError, match=r"position must be one of 'end', 'middle', 'front', or several different"):
        prompted_text(tiny_encoder("clip"), NAMES, position=position)


def test_a_name_that_does_not_follow_the_words_cannot_be_moved(tiny_encoder):
    with pytest.raises(ValueError, match=r"name 'cat' does not follow the words .* Fix: position='end'"):
        prompted_text(tiny_encoder("clip"), NAMES, template="{words} big {name}.", position="middle")


def test_tokens_must_be_complete_for_all_classes():
    tokens, embedding = {"input_ids": torch.tensor([[1, 5, 6, 2]] * 3)}, torch.nn.Embedding(8, 4)

    def encode(given):
        return embedding(given["input_ids"]).sum(1)

    with pytest.raises(ValueError, match="n_prompts = 2 rows for every class; got 3 rows"):
        ContextText(encode, embedding, tokens, n_prompts=2, start=1, words=1)
    with pytest.raises(ValueError, match=r"start must be from 0 to 3.*got \[4, 4, 4\]"):
        ContextText(encode, embedding, tokens, start=[[4]] * 3, words=1)


def test_contexts_and_gradients_of_other_shapes_raise(tiny_encoder):
    text = prompted_text(tiny_encoder("clip"), NAMES, position=PLACES)
    with pytest.raises(ValueError, match=r"context must have the shape \(.*\) or \(4, "):
        text.features(np.zeros((3, *text.context.shape)))
    with pytest.raises(ValueError, match=r"upstream must have the shape \(12, "):
        text.pull_back(text.context, upstream(text))


def test_a_text_of_ones_own_gets_both_functions():
    class Linear(PromptedText):
        context, n_classes, dimension, identity = np.ones((1, 2)), 2, 2, {}

        def features(self, context):
            return np.eye(2) * context

        def pull_back(self, context, upstream):
            return (np.eye(2) * upstream).sum(axis=0, keepdims=True)

    features, pull_back = Linear().linearize(np.full((1, 2), 3.0))
    close(features, 3 * np.eye(2), 0)
    close(pull_back(np.ones((2, 2))), np.ones((1, 2)), 0)
