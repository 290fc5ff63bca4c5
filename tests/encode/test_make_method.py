"""`make_method`: any registered method from a loaded encoder and class names."""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from encode.numpy_encoder import adapt_images, noise  # noqa: E402
from zeroshift import methods  # noqa: E402
from zeroshift.encode import Prompts, Views, make_method, prompted_text, prompted_vision  # noqa: E402

NAMES = ["cat", "dog", "frog"]
PROMPTS = [f"a photo of a {name}." for name in NAMES]


@pytest.fixture(scope="module")
def clip(tiny_encoder):
    return tiny_encoder("clip")


def made_from_encoder():
    for info in methods.list_methods():
        wanted = {name for name, p in inspect.signature(info.cls).parameters.items() if p.default is p.empty}
        extra = wanted | set(info.needs)
        if extra <= {"prototypes", "prompts", "views", "text", "vision"}:
            yield info.name


@pytest.mark.parametrize("name", list(made_from_encoder()))
def test_every_method_that_needs_no_more_than_an_encoder(clip, name):
    method = make_method(name, clip, NAMES)
    assert method.name == name
    assert (method.n_classes, method.dimension) == (3, clip.dimension)
    if hasattr(method, "logit_scale"):
        assert method.logit_scale == clip.logit_scale
    options = {"views": Views(4)} if "views" in method.needs else {}
    images = [noise(i, 40 + i, 50) for i in range(3)]
    found = np.stack(list(adapt_images(method, clip, images, **options)))
    assert found.shape == (3, 3)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)


def labelled(encoder):
    pixels = np.stack([encoder.preprocessing(noise(i, 40, 50))[0] for i in range(6)])
    features = encoder.encode_pixels((pixels,))
    return features, np.arange(6) % 3


@pytest.mark.parametrize("name", ["coop", "cocoop"])
def test_prompts_are_learned_from_labelled_features(clip, name):
    features, labels = labelled(clip)
    method = make_method(name, clip, NAMES, support=(features, labels), epochs=2)
    np.testing.assert_allclose(method.prototypes, clip.encode_texts(PROMPTS), atol=1e-5)
    assert np.abs(method.context - method.text.context).max() > 0
    assert method.predict(features).shape == (6, 3)


def test_selftpt_gets_a_prompt_for_each_place_of_the_name(clip):
    source_names = ["a dog", "a frog", "a cat", "a hat"]
    source_text = prompted_text(clip, source_names, position=methods.SelfTPT.name_positions)
    features, labels = labelled(clip)
    source = methods.selftpt_source(source_text, (features, labels), epochs=1)
    method = make_method("selftpt", clip, NAMES, source=source)
    assert method.text.n_prompts == 3
    np.testing.assert_allclose(method.prototypes, methods.SelfTPT.prototypes_of(method.text), atol=1e-6)
    assert method.predict(features).shape == (6, 3)


def test_required_parameters_are_requested(clip):
    message = (
        r"tip_adapter needs labelled samples \(support\)\. "
        r"Fix: zeroshift.encode.make_method\('tip_adapter', encoder, class_names, support=\.\.\.\)"
    )
    with pytest.raises(TypeError, match=message):
        make_method("tip_adapter", clip, NAMES)


def test_prototypes_are_those_of_the_prompts(clip):
    for prompts in (None, "vanilla", Prompts.from_templates(["a video game of the {}."])):
        named = Prompts.named(prompts or "ensemble") if not isinstance(prompts, Prompts) else prompts
        rows = [clip.encode_texts(of_class).mean(axis=0) for of_class in named.for_classes(NAMES)]
        expected = np.stack([row / np.linalg.norm(row) for row in rows])
        found = make_method("zero_shot", clip, NAMES, prompts=prompts).prototypes
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_each_prompt_is_given_to_methods_that_weigh_them(clip):
    method = make_method("frolic", clip, NAMES, prompts="vanilla")
    assert method.prompts.shape == (3, 1, clip.dimension)
    np.testing.assert_allclose(method.prompts[:, 0], clip.encode_texts(PROMPTS), atol=1e-6)
    assert make_method("frolic", clip, NAMES).prompts.shape == (3, 7, clip.dimension)
    given = np.stack([clip.encode_texts(PROMPTS)] * 2, axis=1)
    assert make_method("frolic", clip, NAMES, prompts=given).prompts.shape == (3, 2, clip.dimension)


def test_a_custom_text_encoder(clip):
    text = prompted_text(clip, NAMES, template="{words} {name}, a pet.")
    method = make_method("tpt", clip, NAMES, text=text, logit_scale=7.0)
    assert method.text is text
    assert method.logit_scale == 7.0
    np.testing.assert_allclose(
        method.prototypes, clip.encode_texts([f"a photo of a {name}, a pet." for name in NAMES]), atol=1e-5
    )


@pytest.mark.parametrize(
    ("name", "names", "options", "kind", "message"),
    [
        ("tqt", NAMES, {}, ValueError, r"no method is called 'tqt'. Did you mean 'tnt'"),
        ("tpt", "cat", {}, TypeError, r"class_names must be a sequence"),
        ("zero_shot", ["cat", "cat"], {}, ValueError, r"which are the same name"),
        ("tpt", NAMES, {"prompts": "vanilla"}, ValueError, r"prompts cannot be given to tpt"),
        ("zero_shot", NAMES, {"prompts": 3}, TypeError, r"prompts must be Prompts or the name of a mode; got int"),
        ("zero_shot", NAMES, {"prompts": "vanila"}, ValueError, r"mode must be one of"),
        ("tpt", NAMES, {"ratio": 0.1}, TypeError, r"TPT has no parameter 'ratio'"),
        ("mta", NAMES, {"prototypes": np.eye(4, 16)}, ValueError, r"prototypes must be of the 3 classes.* got 4 x 16"),
        ("mta", NAMES, {"prototypes": np.eye(3, 5)}, ValueError, r"in the encoder's d = 16; got 3 x 5\. Fix: leave"),
    ],
)
def test_methods_that_cannot_be_made(clip, name, names, options, kind, message):
    with pytest.raises(kind, match=message):
        make_method(name, clip, names, **options)


def test_a_text_encoder_of_other_classes_is_refused(clip):
    message = r"text must be of the 3 classes in class_names, in the encoder's d = 16; got 2 x 16\. Fix: leave text out"
    with pytest.raises(ValueError, match=message):
        make_method("tpt", clip, NAMES, text=prompted_text(clip, NAMES[:2]))


def test_a_method_with_a_model_is_saved_and_not_pickled(clip):
    for name in ("tpt", "b2tpt"):
        with pytest.raises(TypeError, match=r"which cannot be pickled.*Fix: method\.save\(path\)"):
            pickle.dumps(make_method(name, clip, NAMES))
    with pytest.raises(TypeError, match=r"vision is part of a loaded encoder, which cannot be pickled"):
        pickle.dumps(prompted_vision(clip))


def test_a_repeated_name_on_request(clip):
    assert make_method("zero_shot", clip, ["cat", "dog", "cat"], repeated_names=True).n_classes == 3
    assert make_method("tpt", clip, ["cat", "dog", "cat"], repeated_names=True).n_classes == 3


def test_an_encoder_must_be_loaded():
    with pytest.raises(TypeError, match="encoder must be a loaded encoder; got str"):
        make_method("zero_shot", "clip", NAMES)
