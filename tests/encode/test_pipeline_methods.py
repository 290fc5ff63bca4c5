"""`Pipeline.probabilities`: predictions of methods from images."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from encode.numpy_encoder import NumpyEncoder, adapt_images, image_set, noise  # noqa: E402
from evaluate.fake_methods import TwoEncoders  # noqa: E402
from zeroshift import OnlineADAPT, TransductiveADAPT  # noqa: E402
from zeroshift.encode import (  # noqa: E402
    Prompts,
    Views,
    extract,
    load_image_encoder,
    make_method,
)
from zeroshift.method import EpisodicMethod  # noqa: E402
from zeroshift.methods import COSMIC, TPT, ZeroShot  # noqa: E402
from zeroshift.methods._shared.image_method import ImageMethod  # noqa: E402

NAMES = ["cat", "dog", "frog"]
PROMPTS = [f"a photo of a {name}." for name in NAMES]
VIEWS = Views(12, seed=3)
IMAGES = [noise(i, 40 + i, 50) for i in range(5)]


@pytest.fixture(scope="module")
def clip(tiny_encoder):
    return tiny_encoder("clip")


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def answers(method, encoder, images, **options):
    return np.stack(list(adapt_images(method, encoder, images, **options)))


def plain_tpt(encoder, views, *, rate, ratio):
    """The loop written plainly: one graph over all prompts, torch's own AdamW. Scores of view 0."""
    model = copy.deepcopy(encoder.model)
    tokens = encoder._tokens(PROMPTS)
    table = model.text_model.embeddings.token_embedding
    start, length = 1, 8  # the tiny tokenizer has a token for each letter of most words
    words = table(tokens["input_ids"])[0, start : start + length].detach().clone().requires_grad_()
    views = torch.tensor(views)

    def scores(some):
        def replace(module, given, found):
            return torch.cat([found[:, :start], words.expand(len(found), -1, -1), found[:, start + length :]], dim=1)

        handle = table.register_forward_hook(replace)
        text = model.get_text_features(**tokens).pooler_output
        handle.remove()
        return encoder.logit_scale * some @ (text / text.norm(dim=-1, keepdim=True)).T

    optimiser = torch.optim.AdamW([words], lr=rate)
    logits = scores(views)
    entropies = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
    kept = entropies.argsort()[: int(len(views) * ratio)]
    mean = logits[kept].softmax(-1).mean(0)
    (-(mean * mean.log()).sum()).backward()
    optimiser.step()
    return scores(views[:1])[0].detach().numpy()


def test_tpt_on_a_folder_equals_a_plain_loop(clip, folder):
    paths = sorted(folder.rglob("*.png"))[:4]
    method = make_method("tpt", clip, NAMES, view_ratio=0.5)
    assert isinstance(method, TPT)
    assert method.logit_scale == clip.logit_scale
    found = answers(method, clip, paths, views=VIEWS)
    features = extract(image_set(folder), clip, Prompts.named("vanilla"), views=VIEWS, workers=0).features
    of_path = dict(zip(features.sample_names, features.views, strict=True))
    for path, answer in zip(paths, found, strict=True):
        views = np.asarray(of_path[path.relative_to(folder).as_posix()], np.float32)
        expected = softmax(plain_tpt(clip, views, rate=5e-3, ratio=0.5))
        np.testing.assert_allclose(answer, expected, atol=2e-3)
        before = softmax(clip.logit_scale * views[0] @ clip.encode_texts(PROMPTS).T)
        assert np.abs(answer - before).max() > 1e-3, "and tuning moves it"
    assert method.n_seen == 4


def test_without_a_step_tpt_is_zero_shot(clip):
    found = answers(make_method("tpt", clip, NAMES, rate=0.0), clip, IMAGES[:3], views=VIEWS)
    expected = softmax(clip.logit_scale * clip.encode_images(IMAGES[:3]) @ clip.encode_texts(PROMPTS).T)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_predictions_do_not_depend_on_other_images(clip):
    together = answers(make_method("tpt", clip, NAMES), clip, IMAGES[:3], views=VIEWS)
    for picture, expected in zip(IMAGES[:3], together, strict=True):
        (alone,) = adapt_images(make_method("tpt", clip, NAMES), clip, [picture], views=VIEWS)
        assert np.array_equal(alone, expected)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_a_stream_of_images_is_learned_one_by_one(clip, batch_size):
    features = clip.encode_images(IMAGES)
    expected = make_method("adapt_online", clip, NAMES).adapt(features)
    found = answers(make_method("adapt_online", clip, NAMES), clip, IMAGES, batch_size=batch_size)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_views_of_a_method_that_can_do_without(clip):
    pixels = [VIEWS(picture, clip.preprocessing, key=b"x") for picture in IMAGES]
    assert pixels[0][0].shape[0] == 12
    learned = make_method("adapt_online", clip, NAMES)
    if not hasattr(learned, "adapt_views"):
        pytest.skip("learns from single views only")
    single = answers(make_method("adapt_online", clip, NAMES), clip, IMAGES)
    several = answers(learned, clip, IMAGES, views=VIEWS)
    assert learned.n_seen == len(IMAGES)
    assert np.abs(single - several).max() > 1e-3


def test_a_transductive_method_sees_all_before_it_answers(clip):
    opened = []

    def pictures():
        for picture in IMAGES:
            opened.append(picture)
            yield picture

    method = make_method("adapt_transductive", clip, NAMES)
    found = adapt_images(method, clip, pictures(), batch_size=2)
    first = next(found)
    assert len(opened) == len(IMAGES)
    expected = make_method("adapt_transductive", clip, NAMES).adapt(clip.encode_images(IMAGES))
    np.testing.assert_allclose(np.stack([first, *found]), expected, atol=1e-4)


def test_images_are_opened_lazily(clip):
    opened = []

    def pictures():
        for picture in IMAGES:
            opened.append(picture)
            yield picture

    found = adapt_images(make_method("zero_shot", clip, NAMES), clip, pictures())
    assert not opened
    next(found)
    assert len(opened) == 1


class Recorder(EpisodicMethod):
    """Zero-shot on the mean of the views; remembers what it was given."""

    name = "recorder"

    def __init__(self, prototypes):
        super().__init__(prototypes)
        self.given = []

    def _episodes(self, views):
        self.given.append(np.array(views))
        return views.mean(axis=1) @ self.prototypes.T


@pytest.fixture
def plain():
    return NumpyEncoder()


def recorder(encoder):
    return Recorder(np.eye(3, encoder.dimension))


def test_a_method_that_needs_views_is_given_64(plain):
    method = recorder(plain)
    answers(method, plain, [noise(0)])
    assert method.given[0].shape == (1, 64, plain.dimension)
    np.testing.assert_allclose(method.given[0][0, :1], plain.encode_images([noise(0)]), atol=1e-6)


@pytest.mark.parametrize("kind", ["path", "array"])
def test_views_depend_only_on_content(plain, tmp_path, kind):
    method = recorder(plain)
    if kind == "path":
        for name in ("one.png", "two.png"):
            noise(0).save(tmp_path / name)
        images = [tmp_path / "one.png", str(tmp_path / "two.png")]
    else:
        images = [np.asarray(noise(0)), noise(0)]
    answers(method, plain, [*images, noise(1)], views=Views(5))
    assert np.array_equal(method.given[0], method.given[1])
    assert not np.allclose(method.given[0], method.given[2])
    answers(method, plain, images[:1], views=Views(5, seed=1))
    assert not np.allclose(method.given[3][:, 1:], method.given[0][:, 1:])


@pytest.mark.parametrize("augmix", [False, True])
def test_generated_views_follow_the_crops(plain, augmix):
    seen = []

    def generate(image):
        seen.append((image.mode, image.size))
        return [noise(7, 20, 9), noise(8).convert("L")]

    method = recorder(plain)
    answers(method, plain, [noise(0).convert("L")], views=Views(4, augmix=augmix), generate=generate)
    assert seen == [("RGB", (12, 9))]
    (views,) = method.given[0]
    assert views.shape == (1 + 3 + 2, plain.dimension)
    expected = plain.encode_images([noise(7, 20, 9), noise(8).convert("L")])
    np.testing.assert_allclose(views[-2:], expected, atol=1e-6)


def test_only_generated_views(plain):
    method = recorder(plain)
    answers(method, plain, [noise(0)], views=Views(1), generate=lambda image: (noise(i) for i in range(3)))
    assert method.given[0].shape == (1, 4, plain.dimension)


def test_numbers_of_generated_views_may_differ_between_images_but_not_within_a_batch(plain):
    counts = iter([1, 2, 1, 2])
    generate = lambda image: [noise(i) for i in range(next(counts))]  # noqa: E731
    method = recorder(plain)
    answers(method, plain, [noise(0), noise(1)], views=Views(2), generate=generate)
    assert [given.shape[1] for given in method.given] == [3, 4]
    with pytest.raises(ValueError, match=r"need the same number of views; generate made from 3 to 4.*batch_size=1"):
        answers(method, plain, [noise(0), noise(1)], views=Views(2), generate=generate, batch_size=2)


class Looker:
    """An image encoder that uses only the shape of the pixels."""

    identity = {"encoder": NumpyEncoder().key()}  # noqa: RUF012


class Watcher(ZeroShot):
    """Stands for a method that takes images: it is given pixels."""

    takes_images = True
    batch_size = 2

    def __init__(self, prototypes):
        super().__init__(prototypes)
        self.vision, self.given = Looker(), []

    def adapt(self, images):
        self.given.append(images)
        return np.full((len(images), self.n_classes), 1 / self.n_classes)


def test_a_method_with_an_image_encoder_gets_pixels_in_its_batches(plain):
    assert ImageMethod.takes_images
    method = Watcher(np.eye(3, plain.dimension))
    assert answers(method, plain, [noise(i) for i in range(5)]).shape == (5, 3)
    assert [given.shape for given in method.given] == [(2, 3, 6, 6), (2, 3, 6, 6), (1, 3, 6, 6)]
    (pixels,) = plain.preprocessing(noise(0))
    assert np.array_equal(method.given[0][0], pixels)
    answers(method, plain, [noise(i) for i in range(3)], batch_size=3)
    assert method.given[-1].shape[0] == 3


def test_images_of_several_arrays_are_no_images_for_it(tiny_encoder):
    encoder = tiny_encoder("siglip2")
    method = Watcher(np.eye(3, encoder.dimension))
    method.vision.identity = {}
    with pytest.raises(ValueError, match=r"takes images as one array, and the family 'siglip2' makes 3"):
        answers(method, encoder, [noise(0)])


def test_an_encoder_must_be_loaded(clip):
    with pytest.raises(TypeError, match="encoder must be a loaded encoder; got str"):
        adapt_images(ZeroShot(np.eye(3, 8)), "clip", IMAGES)


def test_wrong_arguments_are_refused_before_an_image_is_opened(clip, tiny_encoder):
    fitting = ZeroShot(np.eye(3, clip.dimension))
    tuned = make_method("tpt", clip, NAMES)
    for method, options, kind, message in [
        ("zero_shot", {}, TypeError, "method must be a method"),
        (ZeroShot(np.eye(3, 5)), {}, ValueError, r"prototypes of d = 5, the encoder gives d = 16"),
        (fitting, {"views": VIEWS}, ValueError, "views cannot be given to zero_shot"),
        (fitting, {"generate": list}, ValueError, "generate cannot be given to zero_shot"),
        (fitting, {"batch_size": 0}, ValueError, "batch_size must be an integer of at least 1"),
        (tuned, {"views": 64}, TypeError, r"views must be Views; got int\. Fix: zeroshift\.encode\.Views\(64\)"),
        (tuned, {"generate": 3}, TypeError, "generate must be a function"),
    ]:
        with pytest.raises(kind, match=message):
            adapt_images(method, clip, IMAGES, **options)
    for images in ("cat.png", b"cat", {"cat.png": 0}):
        with pytest.raises(TypeError, match=r"images must be an image, or several"):
            adapt_images(fitting, clip, images)
    with pytest.raises(ValueError, match=r"text of tpt was made from another encoder"):
        adapt_images(tuned, tiny_encoder("metaclip"), IMAGES)


@pytest.mark.parametrize(
    ("image", "kind", "message"),
    [
        ("no.png", FileNotFoundError, "no image at no.png"),
        (3, TypeError, r"an image must be a path, the bytes.*got int\. Fix: PIL"),
        (np.zeros((4, 0, 3), np.uint8), ValueError, r"at least one pixel; got an array of shape \(4, 0, 3\)"),
        (np.zeros((4, 4, 3)), ValueError, "must be uint8"),
    ],
    ids=["missing", "number", "nothing", "floats"],
)
def test_invalid_images_are_refused_when_they_are_reached(clip, image, kind, message):
    method = OnlineADAPT(np.eye(3, clip.dimension))
    found = adapt_images(method, clip, iter([IMAGES[0], image]))
    assert next(found).shape == (3,)
    with pytest.raises(kind, match=message):
        next(found)
    assert method.n_seen == 1


def test_generate_must_answer_with_images(plain):
    with pytest.raises(TypeError, match="generate must return a list of images; got int"):
        answers(recorder(plain), plain, [noise(0)], generate=lambda image: 3)


def test_no_images_give_no_predictions(clip):
    assert list(adapt_images(make_method("zero_shot", clip, NAMES), clip, [])) == []
    assert list(adapt_images(TransductiveADAPT(np.eye(3, clip.dimension)), clip, [])) == []


# A second encoder.


@pytest.mark.parametrize("protocol", ["online", "transductive"])
def test_a_second_encoder_is_given_the_same_images(clip, tiny_folder, tmp_path, protocol):
    vision = load_image_encoder(tiny_folder("dinov2"), device="cpu")
    method = type("Two", (TwoEncoders,), {"name": "two", "protocol": protocol})(np.eye(3, clip.dimension))
    paths = [tmp_path / f"{i}.png" for i in range(len(IMAGES))]
    for image, path in zip(IMAGES, paths, strict=True):
        image.save(path)
    found = answers(method, clip, [*paths[:3], *IMAGES[3:]], second=vision, batch_size=2)
    given = np.concatenate(method.seconds)
    np.testing.assert_allclose(given, vision.encode_images(IMAGES), atol=1e-5)
    assert [len(rows) for rows in method.seconds] == ([2, 2, 1] if protocol == "online" else [5])
    np.testing.assert_allclose(method.rows, clip.encode_images(IMAGES), atol=1e-5)
    assert found.shape == (5, 3)


def test_a_second_encoder_that_does_not_fit_is_refused(clip, tiny_folder):
    vision = load_image_encoder(tiny_folder("dinov2"), device="cpu")
    two = TwoEncoders(np.eye(3, clip.dimension))
    with pytest.raises(ValueError, match=r"second cannot be given to zero_shot, which takes one encoder. Fix: leave"):
        adapt_images(ZeroShot(np.eye(3, clip.dimension)), clip, IMAGES, second=vision)
    with pytest.raises(TypeError, match=r"second must be an encoder of images; got 'x'. Fix: encode.load_image"):
        adapt_images(two, clip, IMAGES, second="x")
    with pytest.raises(ValueError, match="second cannot be given together with views"):
        adapt_images(two, clip, IMAGES, second=vision, views=Views(2))
    with pytest.raises(TypeError, match=r"cosmic needs a second encoder. Fix: second=encode.load_image_encoder"):
        adapt_images(COSMIC(np.eye(3, clip.dimension)), clip, IMAGES)
    found = list(adapt_images(COSMIC(np.eye(3, clip.dimension)), clip, IMAGES, second=vision))
    assert np.stack(found).shape == (len(IMAGES), 3)
