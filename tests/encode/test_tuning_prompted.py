"""`prompted_text` for each family: features, positions of the words, and invalid arguments."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from encode import tiny_albef  # noqa: E402
from encode.numpy_encoder import NumpyEncoder  # noqa: E402
from encode.tiny import BUILDERS  # noqa: E402
from encode.tunable_prompts import NAMES, close, moved, prompts, upstream  # noqa: E402
from zeroshift.encode import load_encoder, prompted_text  # noqa: E402
from zeroshift.encode.families.albef import ALBEFEncoder  # noqa: E402
from zeroshift.encode.families.open_clip import OpenClipEncoder  # noqa: E402
from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table  # noqa: E402
from zeroshift.methods import TPT  # noqa: E402

WORDS = {"siglip2": "a"}
"""Where "a photo of a", letter by letter, leaves the tiny model no place for a name."""


@pytest.mark.parametrize("family", list(BUILDERS))
def test_original_words_give_the_encoders_features(family, tiny_encoder):
    encoder = tiny_encoder(family)
    words = WORDS.get(family, "a photo of a")
    expected = encoder.encode_texts(prompts(words))
    flags = [weights.requires_grad for weights in encoder.model.parameters()]
    text = prompted_text(encoder, NAMES, words=words, chunk_size=3)
    assert (text.n_classes, text.dimension) == (4, encoder.dimension)
    found = text.features(text.context)
    assert found.dtype == np.float32
    close(found, expected, 1e-5)
    gradient = text.pull_back(text.context, upstream(text))
    assert gradient.shape == text.context.shape
    assert np.abs(gradient).max() > 1e-3
    # Along the gradient the sum grows as the gradient says: the words reach every feature.
    step = 1e-3 * gradient / np.linalg.norm(gradient)
    change = (upstream(text) * (text.features(text.context + step) - text.features(text.context - step))).sum()
    assert change == pytest.approx(2e-3 * np.linalg.norm(gradient), rel=0.05)
    # The encoder is as it was.
    assert [weights.requires_grad for weights in encoder.model.parameters()] == flags
    assert all(weights.grad is None for weights in encoder.model.parameters())
    close(encoder.encode_texts(prompts(words)), expected, 0)


def test_identity_has_encoder_and_prompts(tiny_encoder):
    clip, other = tiny_encoder("clip"), tiny_encoder("metaclip")
    text = prompted_text(clip, NAMES)
    identity = json.loads(json.dumps(text.identity))
    assert identity["encoder"] == clip.key()
    assert identity == json.loads(json.dumps(prompted_text(clip, NAMES, chunk_size=1).identity))
    for unlike in (
        prompted_text(clip, NAMES[::-1]),
        prompted_text(clip, NAMES, words="a photo of"),
        prompted_text(other, NAMES),
    ):
        assert json.loads(json.dumps(unlike.identity)) != identity


def test_a_saved_method_is_loaded_only_with_the_same_text_encoder(tiny_encoder, tmp_path):
    encoder = tiny_encoder("clip")
    text = prompted_text(encoder, NAMES)
    views = np.eye(3, text.dimension)
    method = TPT(text.features(text.context), text=text, logit_scale=20.0)
    expected = method.adapt_views(views)
    method.save(tmp_path / "tpt.safetensors")
    again = TPT.load(tmp_path / "tpt.safetensors", text=prompted_text(encoder, NAMES))
    assert np.array_equal(again.adapt_views(views), expected)
    with pytest.raises(ValueError, match="was saved with"):
        TPT.load(tmp_path / "tpt.safetensors", text=prompted_text(encoder, NAMES[::-1]))


@pytest.mark.parametrize(
    ("template", "start"), [("{words} {name}.", 1), ("of the dog, {words} {name}", 5), ("a {words} of {name}.", 2)]
)
def test_words_are_found_in_the_template(tiny_encoder, template, start):
    encoder = tiny_encoder("align")
    text = prompted_text(encoder, NAMES, words="photo of a", template=template)
    assert text._positions[0].tolist() == [start, start + 1, start + 2]
    sentences = [template.format(words="photo of a", name=name.replace("_", " ")) for name in NAMES]
    close(text.features(text.context), encoder.encode_texts(sentences), 1e-5)


def test_the_same_word_before_the_words_is_skipped(tiny_encoder):
    text = prompted_text(tiny_encoder("align"), NAMES, words="a", template="a photo of {words} {name}.")
    assert text._positions[0].tolist() == [4]


def test_prompts_filled_up_at_their_beginning(tiny_encoder):
    """As tokenizers made for generation do it: the words stand as far from each prompt's own first token."""
    encoder = copy.copy(tiny_encoder("align"))
    encoder.tokenizer = copy.deepcopy(encoder.tokenizer)
    encoder.tokenizer.padding_side = "left"
    text = prompted_text(encoder, ["cat", "dog in a video game"])
    assert text._positions[:, 0].tolist() == [5, 1]
    sentences = prompts(names=["cat", "dog in a video game"])
    close(text.features(text.context), encoder.encode_texts(sentences), 1e-5)
    assert np.abs(text.features(moved(text)) - text.features(text.context)).max(axis=1).min() > 1e-4


class OpenClipText(torch.nn.Module):
    """With the names open_clip gives to the parts of a text model."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token_embedding = torch.nn.Embedding(60, 8)
        self.mix = torch.nn.Linear(8, 5)
        self.logit_scale = torch.nn.Parameter(torch.tensor(3.0))

    def encode_text(self, ids, normalize=False):
        return self.mix(torch.tanh(self.token_embedding(ids).cumsum(dim=1)).mean(dim=1))


class LetterTokenizer:
    """The first letter of each word, between a start and an end."""

    def encode(self, text):
        return [ord(word[0].lower()) - ord("a") for word in text.split()]

    def __call__(self, texts):
        rows = [[30, *self.encode(text), 31] for text in texts]
        return torch.tensor([(row + [0] * 10)[:10] for row in rows])


def open_clip_encoder(tokenizer):
    return OpenClipEncoder(
        "open_clip:TINY/none", None, OpenClipText(), tokenizer,
        PixelPreprocessing(("exact", 8, 8), None, "bicubic", affine_table([0.5] * 3, [0.5] * 3)),
        device=torch.device("cpu"), dtype=torch.float32,
    )  # fmt: skip


def test_open_clip():
    encoder = open_clip_encoder(LetterTokenizer())
    text = prompted_text(encoder, ["cat", "dog", "hot_dog"])
    assert text._positions.tolist() == [[1, 2, 3, 4]] * 3
    close(text.features(text.context), encoder.encode_texts(prompts(names=["cat", "dog", "hot_dog"])), 1e-6)
    assert np.abs(text.pull_back(text.context, upstream(text))).max() > 1e-3


def test_open_clip_with_another_librarys_text_model_is_refused():
    encoder = open_clip_encoder(LetterTokenizer())
    encoder.model.text = torch.nn.Identity()  # which has no embedding of tokens
    with pytest.raises(ValueError, match=r"cannot be tuned in open_clip:TINY/none, of the family 'open_clip'"):
        prompted_text(encoder, NAMES)


def test_albef(tmp_path):
    encoder = ALBEFEncoder.load(str(tiny_albef.save(tmp_path, tiny_albef.random_tensors())), device="cpu")
    text = prompted_text(encoder, ["cat", "dog"], words="a photo of")
    sentences = [f"a photo of {name}." for name in ("cat", "dog")]
    assert text._positions.tolist() == [[1, 2, 3]] * 2
    close(text.features(text.context), encoder.encode_texts(sentences), 1e-5)
    assert np.abs(text.pull_back(text.context, upstream(text))).max() > 1e-4


def test_other_families_are_refused_by_name():
    with pytest.raises(ValueError, match=r"cannot be tuned in the family 'plain'"):
        prompted_text(NumpyEncoder(), NAMES)


@pytest.mark.parametrize(
    ("names", "kind", "message"),
    [
        ("cat", TypeError, r"sequence of names, in order; got the string 'cat'"),
        ({"cat": 1}, TypeError, r"got dict"),
        ([], ValueError, r"class_names is empty"),
        (["cat", 3], TypeError, r"class_names\[1\] must be a string; got 3"),
        (["cat", "_ "], ValueError, r"class_names\[1\] is blank"),
        (["hot dog", "cat", "hot_dog"], ValueError, r"'hot dog' and 'hot_dog', .* \(numbers 0 and 2\).*repeated_names"),
        (["Cat", "cat"], ValueError, r"'Cat' and 'cat', which are the same name"),
    ],
)
def test_invalid_class_names(tiny_encoder, names, kind, message):
    with pytest.raises(kind, match=message):
        prompted_text(tiny_encoder("clip"), names)


def test_repeated_names_on_request(tiny_encoder):
    text = prompted_text(tiny_encoder("clip"), ["cat", "dog", "cat"], repeated_names=True)
    features = text.features(text.context)
    close(features[0], features[2], 1e-6)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"words": 4}, TypeError, "words must be a string; got 4"),
        ({"words": " "}, ValueError, "words must be one or more words"),
        ({"template": "a photo of a {}."}, ValueError, r"\{words\} and \{name\} once each"),
        ({"template": "{words} {words} {name}"}, ValueError, "once each"),
        ({"template": "{words} {name}, a {kind}."}, ValueError, r"no other braces; got .*Fix: template='\{words\}"),
        ({"words": "a {name}"}, ValueError, "without braces; got 'a {name}'"),
        ({"template": None}, TypeError, "template must be a string"),
        ({"template": "{name} {words}"}, ValueError, r"are not at the same position.*before \{name\}"),
        ({"template": "{words}{name}"}, ValueError, "are not at the same position"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be None or an integer of at least 1; got 0"),
        ({"repeated_names": "yes"}, TypeError, "repeated_names must be True or False"),
    ],
)
def test_invalid_words_and_templates(tiny_encoder, options, kind, message):
    with pytest.raises(kind, match=message):
        prompted_text(tiny_encoder("clip"), NAMES, **options)


def test_an_encoder_must_be_loaded():
    with pytest.raises(TypeError, match=r"encoder must be a loaded encoder; got str\. Fix: zeroshift\.encode\.load_en"):
        prompted_text("openai/clip-vit-base-patch16", NAMES)


def test_truncated_prompts_are_counted(tiny_encoder):
    encoder = tiny_encoder("clip")
    names = ["cat", "dog and a horse and a frog"]
    with pytest.warns(UserWarning, match=r"1 of 2 prompts are longer than the 24 tokens"):
        text = prompted_text(encoder, names)
    close(text.features(text.context), encoder.encode_texts(prompts(names=names), warn=False), 1e-5)


def test_truncation_within_the_words_is_refused(tiny_encoder):
    with (
        pytest.warns(UserWarning, match="4 of 4"),
        pytest.raises(ValueError, match=r"truncated, perhaps within the words"),
    ):
        prompted_text(tiny_encoder("clip"), NAMES, words="a photo of a very long and winding road to a")


def test_equal_truncated_prompts_are_refused(tiny_encoder):
    words = "a photo of a " + "a " * 14
    with pytest.warns(UserWarning, match="2 of 2"), pytest.raises(ValueError, match=r"'cat' and 'dog' have the same"):
        prompted_text(tiny_encoder("clip"), ["cat", "dog"], words=words.strip())


def test_a_loaded_narrow_encoder(tiny_folder):
    encoder = load_encoder(str(tiny_folder("clip")), device="cpu", dtype="bfloat16")
    text = prompted_text(encoder, NAMES)
    close(text.features(text.context), encoder.encode_texts(prompts()), 1e-5)
    assert np.isfinite(text.pull_back(text.context, upstream(text) * 1e-10)).all()
