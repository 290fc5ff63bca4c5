"""`ContextText`: gradients against torch's, chunks, precision and memory."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from encode.tunable_prompts import NAMES, close, moved, prompts, upstream  # noqa: E402
from tiny_clip import tiny_clip, tiny_text  # noqa: E402
from zeroshift.encode import prompted_text  # noqa: E402
from zeroshift.encode.tuning import ContextText, find_context  # noqa: E402
from zeroshift.encode.tuning.autograd_utils import powers_of_two  # noqa: E402


class Replaced(torch.nn.Module):
    """Replaces the embedding module: looks up tokens, and inserts the words."""

    def __init__(self, embedding, words, start):
        super().__init__()
        self.embedding, self.words, self.start = embedding, words, start

    def forward(self, ids):
        found = self.embedding(ids).clone()
        for i in range(len(self.words)):
            found[:, self.start + i] = self.words[i]
        return found


def plain_gradient(encoder, context, above, start):
    """All prompts at once, through torch's own graph."""
    model = copy.deepcopy(encoder.model)
    words = torch.tensor(context, dtype=encoder.dtype, requires_grad=True)
    part = model.text_model.embeddings
    part.token_embedding = Replaced(part.token_embedding, words, start)
    features = model.get_text_features(**encoder._tokens(prompts())).pooler_output
    unit = features / features.norm(dim=-1, keepdim=True)
    (unit * torch.tensor(above, dtype=encoder.dtype)).sum().backward()
    return unit.detach().numpy(), words.grad.numpy()


@pytest.fixture
def double(tiny_encoder):
    """The tiny CLIP in float64, without visible rounding errors."""
    encoder = copy.copy(tiny_encoder("clip"))
    encoder.model = copy.deepcopy(encoder.model).double()
    encoder.dtype = torch.float64
    return encoder


@pytest.mark.parametrize("chunk_size", [1, 3, 64])
def test_the_gradient_is_that_of_one_graph_over_all_prompts(double, chunk_size):
    text = prompted_text(double, NAMES, chunk_size=chunk_size)
    context, above = moved(text), upstream(text)
    features, gradient = plain_gradient(double, context, above, int(text._positions[0, 0]))
    close(text.features(context), features, 1e-12)
    close(text.pull_back(context, above), gradient, 1e-12 * np.abs(gradient).max())


def test_chunks_do_not_show():
    texts = [tiny_text(chunk) for chunk in (1, 2, 5, 64)]
    context, above = moved(texts[0]), upstream(texts[0])
    whole = texts[-1].pull_back(context, above)
    for text in texts[:-1]:
        close(text.pull_back(context, above), whole, 1e-6 * np.abs(whole).max())


def small(encode=None, *, modules=(), dtype=torch.float32, **options):
    """The golden's tiny CLIP, with an `encode` of the caller's around the model's own."""
    model = copy.deepcopy(tiny_clip()).to(dtype)
    own = tiny_text()
    inner = lambda tokens: model.get_text_features(**tokens).pooler_output  # noqa: E731
    wrapped = inner if encode is None else lambda tokens: encode(inner, tokens)
    embedding = model.text_model.embeddings.token_embedding
    return model, ContextText(
        wrapped, embedding, own._tokens, start=1, words=own.words,
        modules=(model,) if modules is None else modules, **options,
    )  # fmt: skip


@pytest.mark.parametrize("error", [MemoryError("none left"), RuntimeError("CUDA error: out of memory")], ids=repr)
def test_where_memory_runs_out_chunks_are_halved(error):
    sizes = []

    def encode(inner, tokens):
        sizes.append(len(tokens["input_ids"]))
        if len(tokens["input_ids"]) > 2:
            raise error
        return inner(tokens)

    _, text = small(encode)
    own = tiny_text()
    context, above = moved(own), upstream(own)
    close(text.features(context), own.features(context), 1e-6)
    close(text.pull_back(context, above), own.pull_back(context, above), 1e-5)
    assert text.chunk_size <= 2
    assert text.batch_size <= 2
    sizes.clear()
    text.pull_back(context, above)
    assert max(sizes) <= 2, "what memory allows is found once"


def test_too_little_memory_for_one_prompt_is_an_error():
    def encode(inner, tokens):
        if torch.is_grad_enabled():
            raise MemoryError("none left")
        return inner(tokens)

    _, text = small(encode)
    with pytest.raises(MemoryError, match="not enough memory for a single item"):
        text.pull_back(text.context, upstream(text))


def test_other_errors_are_raised_and_hooks_removed():
    def encode(inner, tokens):
        if torch.is_grad_enabled():
            raise ZeroDivisionError
        return inner(tokens)

    model, text = small(encode, modules=None)
    model.requires_grad_(True)
    with pytest.raises(ZeroDivisionError):
        text.pull_back(text.context, upstream(text))
    assert not text._embedding._forward_hooks
    assert all(weights.requires_grad for weights in model.parameters())


def test_no_gradient_is_recorded_for_weights():
    seen = []

    def encode(inner, tokens):
        seen.append([weights.requires_grad for weights in given["model"].parameters()])
        return inner(tokens)

    given = {"model": tiny_clip()}
    model, text = small(encode, modules=None)
    given["model"] = model.requires_grad_(True)
    seen.clear()
    gradient = text.pull_back(text.context, upstream(text))
    assert len(seen) == 1
    assert not any(seen[0])
    assert all(weights.requires_grad and weights.grad is None for weights in model.parameters())
    close(gradient, tiny_text().pull_back(text.context, upstream(text)), 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
def test_gradients_in_half_precision_neither_vanish_nor_overflow(dtype, scale):
    """Entropies of sure predictions have gradients far below what float16 holds."""
    _, text = small(dtype=dtype)
    assert text.context.dtype == np.float32
    assert text.features(text.context).dtype == np.float32
    above = upstream(text) * scale
    found = text.pull_back(text.context, above)
    expected = tiny_text().pull_back(tiny_text().context, above)
    assert np.isfinite(found).all()
    assert (found * expected).sum() > 0.999 * np.linalg.norm(found) * np.linalg.norm(expected)
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(expected), rel=0.05)


def test_a_class_far_smaller_than_the_others_keeps_its_gradient_in_half_precision():
    """Each prompt's is scaled by itself, before they are added up."""
    _, text = small(dtype=torch.float16)
    above = upstream(text)
    above[1:] = 0
    alone = text.pull_back(text.context, above)
    close(text.pull_back(text.context, above * 2.0**-30) * 2.0**30, alone, 0)


def test_scaling_by_powers_of_two():
    rows = torch.tensor([[0.3, -0.7], [0.0, 0.0], [3e-40, 0.0], [-1e30, 5.0], [1.0, 0.25]])
    scales = powers_of_two(rows)
    largest = (rows * scales).abs().amax(dim=1)
    assert scales.isfinite().all()
    assert largest[[0, 3, 4]].ge(0.5).all()
    assert largest.le(1).all()
    assert torch.equal(torch.log2(scales), torch.log2(scales).round())


def test_an_upstream_of_zeros_gives_zeros():
    text = tiny_text()
    assert not text.pull_back(text.context, np.zeros((text.n_classes, text.dimension))).any()


@pytest.mark.parametrize("kind", [np.float64, np.float32, torch.float64, torch.float32], ids=str)
def test_results_have_the_library_of_the_context(kind):
    text = tiny_text()
    context, above = text.context, upstream(text)
    if isinstance(kind, torch.dtype):
        given, given_above = torch.tensor(context, dtype=kind), torch.tensor(above, dtype=kind)
    else:
        given, given_above = context.astype(kind), above.astype(kind)
    for found in (text.features(given), text.pull_back(given, given_above)):
        assert type(found) is type(given)
        assert found.dtype in (np.float32, torch.float32)
    close(np.asarray(text.pull_back(given, given_above)), text.pull_back(context, above), 1e-5)


@pytest.mark.parametrize(
    "around",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_what_the_caller_is_in_the_middle_of_does_not_matter(around, tiny_encoder):
    text = prompted_text(tiny_encoder("clip"), NAMES)
    expected = text.features(text.context), text.pull_back(text.context, upstream(text))
    with around():
        inside = prompted_text(tiny_encoder("clip"), NAMES)
        context = torch.tensor(text.context)
        found = inside.features(context), inside.pull_back(context, torch.tensor(upstream(text)))
    for one, other in zip(found, expected, strict=True):
        assert not one.requires_grad
        close(one.numpy(), other, 0)


def test_another_thread_reads_its_own_sentences(tiny_encoder):
    encoder = tiny_encoder("clip")
    expected, read = encoder.encode_texts(prompts()), []
    text = prompted_text(encoder, NAMES)
    inner = text._encode

    def encode(tokens):
        thread = threading.Thread(target=lambda: read.append(encoder.encode_texts(prompts())))
        thread.start()
        thread.join()
        return inner(tokens)

    text._encode = encode
    text.features(moved(text) + 1.0)
    close(read[0], expected, 0)


def test_find_context():
    rows = [[1, 7, 8, 7, 8, 9], [1, 7, 8, 7, 8, 5]]
    assert find_context(rows, [7, 8]) == 1
    assert find_context(rows, [7, 8], 2) == 3
    assert find_context(rows, [8, 9]) is None
    assert find_context([[1, 2, 3], [2, 3, 1]], [2, 3]) is None


@pytest.mark.parametrize(
    ("context", "above", "kind", "message"),
    [
        ([[1.0]], None, TypeError, "context must be a NumPy array or a torch tensor; got list"),
        (np.zeros((3, 5)), None, ValueError, r"context must have the shape \(4, .*got \(3, 5\)"),
        (None, np.zeros((2, 2)), ValueError, r"upstream must have the shape \(7, "),
    ],
)
def test_arrays_that_do_not_fit(context, above, kind, message):
    text = tiny_text()
    context = text.context if context is None else context
    with pytest.raises(kind, match=message):
        text.pull_back(context, upstream(text) if above is None else above)


def test_non_finite_contexts_are_refused():
    text = tiny_text()
    with pytest.raises(ValueError, match="zero or non-finite feature for this context"):
        text.features(np.full_like(text.context, np.nan))
    with pytest.raises(ValueError, match="gradient of the context is not finite"):
        text.pull_back(np.full_like(text.context, np.nan), upstream(text))


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        ({"ids": torch.zeros(2, 6, dtype=torch.long)}, {}, r"tokens must have 'input_ids'"),
        (
            {"input_ids": torch.zeros(2, 6, dtype=torch.long), "mask": torch.ones(3, 6)},
            {},
            "'mask' has 3, 'input_ids' 2",
        ),
        ({"input_ids": torch.zeros(2, 6, dtype=torch.long)}, {"start": [1, 2, 3]}, "for each of 2 prompts"),
        ({"input_ids": torch.zeros(2, 6, dtype=torch.long)}, {"words": 6}, "start must be from 0 to 0"),
        ({"input_ids": torch.arange(12).reshape(2, 6)}, {}, "prompt 1 has other tokens than prompt 0"),
    ],
)
def test_tokens_that_do_not_fit(tokens, options, message):
    embedding = torch.nn.Embedding(20, 4)
    with pytest.raises(ValueError, match=message):
        ContextText(lambda t: embedding(t["input_ids"]).sum(1), embedding, tokens, **{"start": 1, "words": 2} | options)
