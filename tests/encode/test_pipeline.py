"""`zeroshift.pipeline`: one call from images to answers."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from PIL import Image  # noqa: E402

import zeroshift  # noqa: E402
from encode.numpy_encoder import NumpyEncoder, noise  # noqa: E402
from zeroshift import OnlineAnchoredMixture, Pipeline, TransductiveAnchoredMixture, pipeline  # noqa: E402
from zeroshift.encode import make_method  # noqa: E402
from zeroshift.encode.pipeline import SCHEMA  # noqa: E402
from zeroshift.files import FileFormatError  # noqa: E402
from zeroshift.tensor_files import read_tensors, write_tensors  # noqa: E402

NAMES = ["cat", "dog", "frog"]
IMAGES = [noise(i, 20 + i, 24) for i in range(30)]


@pytest.fixture
def plain():
    return NumpyEncoder()


def table(answers):
    """Scores (N, K) in the order of the class names."""
    return np.array([[{one["label"]: one["score"] for one in answer}[name] for name in NAMES] for answer in answers])


def test_answers_have_the_form_of_transformers(tiny_folder):
    pipe = pipeline(str(tiny_folder("clip")), NAMES, device="cpu")
    answer = pipe(IMAGES[0])
    assert [set(one) for one in answer] == [{"label", "score"}] * 3
    assert sorted(one["label"] for one in answer) == NAMES
    scores = [one["score"] for one in answer]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1, abs=1e-5)
    assert isinstance(scores[0], float)
    assert [len(answer) for answer in pipe(IMAGES[:2], top_k=1)] == [1, 1]


def test_auto_learns_from_the_first_list_as_a_whole_and_then_continues_online(plain):
    features = plain.encode_images(IMAGES)
    prototypes = make_method("zero_shot", plain, NAMES).prototypes
    mixture = TransductiveAnchoredMixture(prototypes, logit_scale=plain.logit_scale)
    expected = mixture.adapt(features[:20])
    pipe = pipeline(plain, NAMES)
    np.testing.assert_allclose(table(pipe(IMAGES[:20])), expected, atol=1e-6)
    online = OnlineAnchoredMixture.from_set(mixture)
    np.testing.assert_allclose(table(pipe(IMAGES[20:29])), online.adapt(features[20:29]), atol=1e-6)
    np.testing.assert_allclose(table([pipe(IMAGES[29])]), online.adapt(features[29:]), atol=1e-6)
    assert pipe.method.n_seen == 30


def test_auto_adapts_to_an_iterator_as_it_goes(plain):
    pipe = pipeline(plain, NAMES)
    found = pipe(image for image in IMAGES)
    first = next(found)
    assert pipe.method.n_seen == 1
    expected = make_method("anchored_mixture_online", plain, NAMES).adapt(plain.encode_images(IMAGES))
    # float32 products of one row and of all rows round differently
    np.testing.assert_allclose(table([first, *found]), expected, atol=2e-5)


def test_a_transductive_method_answers_single_images_from_the_last_list(plain):
    pipe = pipeline(plain, NAMES, "adapt_transductive")
    pipe(IMAGES[:20])
    assert pipe.method.n_seen == 20
    expected = pipe.method.predict(plain.encode_images(IMAGES[20:21]))
    np.testing.assert_allclose(table([pipe(IMAGES[20])]), expected, atol=1e-6)
    assert pipe.method.n_seen == 20


def test_without_learning_nothing_changes(plain):
    pipe = pipeline(plain, NAMES)
    pipe(IMAGES[:20])
    before = pipe(IMAGES[20:], learn=False)
    assert pipe(IMAGES[20:], learn=False) == before
    assert pipe.method.n_seen == 20


def test_all_kinds_of_images_give_the_same_answer(plain, tmp_path):
    path = tmp_path / "a.png"
    IMAGES[0].save(path)
    pipe = pipeline(plain, NAMES)
    kinds = [path, str(path), path.read_bytes(), IMAGES[0], np.asarray(IMAGES[0])]
    answers = [pipe(kind, learn=False) for kind in kinds]
    assert all(answer == answers[0] for answer in answers)
    np.testing.assert_allclose(table(pipe(kinds, learn=False)), table(answers), atol=1e-6)
    several = [noise(i) for i in range(3)]
    assert pipe(np.stack([np.asarray(image) for image in several]), learn=False) == pipe(several, learn=False)


@pytest.fixture
def photos(tmp_path):
    """Images of several formats in folders, two that cannot be read, and other files."""
    folder = tmp_path / "photos"
    (folder / "more" / ".thumbnails").mkdir(parents=True)
    for i, name in enumerate(("b.png", "more/a.JPG", "more/c.webp", "d.gif", "more/.thumbnails/e.png")):
        IMAGES[i].save(folder / name)
    (folder / "empty.jpg").touch()
    (folder / "more" / "text.png").write_text("no image")
    (folder / "notes.txt").write_text("no image")
    return folder


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("method", ["auto", "adapt_online", "tpt"])
def test_a_folder_gives_the_answers_by_path_and_skips_what_cannot_be_read(tiny_folder, photos, kind, method):
    options = {"views": zeroshift.encode.Views(3)} if method == "tpt" else {}
    encoder = zeroshift.encode.load_encoder(str(tiny_folder("clip")), device="cpu")
    pipe = pipeline(encoder, NAMES, method, batch_size=2, **options)
    message = r"2 of 6 images were skipped:\nempty.jpg: is empty .*\nmore/text.png: is not an image .*Fix: "
    with pytest.warns(UserWarning, match=message) as caught:
        found = pipe(kind(photos), top_k=2)
    assert caught[0].filename == __file__
    assert list(found) == [photos / name for name in ("b.png", "d.gif", "more/a.JPG", "more/c.webp")]
    assert list(found.values()) == pipeline(encoder, NAMES, method, batch_size=2, **options)(list(found), top_k=2)
    assert pipe.method.n_seen == 4


def test_a_folder_without_images_that_can_be_read(plain, photos, tmp_path):
    for name in ("c.webp", "a.JPG"):
        (photos / "more" / name).unlink()
    with pytest.raises(ValueError, match=r"none of the 1 images can be used. The first: text.png: is not an image"):
        pipeline(plain, NAMES)(photos / "more")
    for i in range(7):
        (photos / "more" / f"{i}.jpg").touch()
    IMAGES[0].save(photos / "more" / "z.png")
    with pytest.warns(UserWarning, match=r"^8 of 9 images.*(?:\n.*){4}\n4.jpg: .*\nand 3 more$"):
        assert len(pipeline(plain, NAMES)(photos / "more", learn=False)) == 1
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ValueError, match=r"no images found in .*nothing"):
        pipeline(plain, NAMES)(tmp_path / "nothing")


def test_a_second_encoder_sees_the_images_of_a_folder(plain, photos):
    pipe = pipeline(plain, NAMES, "auto", second=NumpyEncoder())
    with pytest.warns(UserWarning, match="2 of 6 images were skipped"):
        found = pipe(photos)
    assert list(found.values()) == pipeline(plain, NAMES, "auto", second=NumpyEncoder())(list(found))


def test_no_images_give_no_answers(plain):
    pipe = pipeline(plain, NAMES)
    assert pipe([]) == [] == list(pipe(iter([])))
    assert pipe.method.n_seen == 0


def test_transparency_and_orientation(plain):
    clear = Image.new("RGBA", (9, 9), (0, 0, 0, 0))
    white, black = Image.new("RGB", (9, 9), "white"), Image.new("RGB", (9, 9), "black")
    pipe = pipeline(plain, NAMES)
    assert pipe(clear, learn=False) == pipe(white, learn=False) != pipe(black, learn=False)
    assert pipe(np.asarray(clear), learn=False) == pipe(white, learn=False)
    dropping = pipeline(plain, NAMES, transparency="drop")
    assert dropping(clear, learn=False) == pipe(black, learn=False)
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    IMAGES[0].save(file, "PNG", exif=exif)
    turned = IMAGES[0].transpose(Image.Transpose.ROTATE_270)
    for given in (file.getvalue(), Image.open(file)):
        assert pipe(given, learn=False) == pipe(turned, learn=False) != pipe(IMAGES[0], learn=False)
    assert pipeline(plain, NAMES, upright=False)(file.getvalue(), learn=False) == pipe(IMAGES[0], learn=False)


class Given(NumpyEncoder):
    """Red is the angle from the first to the second axis, green from their plane to the third: blue does not count."""

    def encode_pixels(self, batch):
        angle, height = (batch[0][:, channel, 0, 0] / 255 * np.pi / 2 for channel in (0, 1))
        plane = [np.cos(angle) * np.cos(height), np.sin(angle) * np.cos(height), np.sin(height)]
        return np.stack([*plane, *([0 * angle] * 5)], axis=1).astype(np.float32)


def colour(red, green=0):
    return Image.new("RGB", (8, 8), (red, green, 0))


def test_rejected_images_are_none_of_these(tmp_path):
    encoder = Given()
    method = zeroshift.ZeroShot(np.eye(2, 8), logit_scale=20.0)
    pipe = Pipeline(encoder, ["cat", "dog"], method, reject=True)
    members, stranger = [colour(i % 12) for i in range(40)], colour(0, 255)
    answers = pipe([*members, stranger])
    assert all(answer[0]["label"] == "cat" for answer in answers[:40])
    assert [one["label"] for one in answers[-1]] == ["none of these", "cat", "dog"]
    assert answers[-1][0]["score"] > 0.5
    assert sum(one["score"] for one in answers[-1]) == pytest.approx(1)
    pipe.save(tmp_path / "pipe")
    again = Pipeline.load(tmp_path / "pipe", encoder)
    assert again(stranger) == pipe(stranger)
    assert again.reject_rule == pipe.reject_rule
    pipe.reject = False
    assert pipe(stranger)[0]["label"] == "cat"
    few = Pipeline(encoder, ["cat", "dog"], method, reject=0.1)  # there is no cut up to the 20th image
    assert all(answer[0]["label"] == "cat" for answer in [*few(members[:20]), few(stranger, learn=False)])
    assert few(stranger)[0]["label"] == "none of these"
    with pytest.raises(ValueError, match="reject must be a number from 0 to 1"):
        pipe.reject = 3


@pytest.mark.parametrize("method", ["auto", "adapt_online", "tpt"])
def test_a_saved_pipeline_continues(tiny_folder, tmp_path, method):
    options = {} if method != "tpt" else {"views": zeroshift.encode.Views(3)}
    pipe = pipeline(str(tiny_folder("clip")), NAMES, method, device="cpu", transparency="black", **options)
    pipe(IMAGES[:6])
    pipe.save(tmp_path / "pipe")
    again = Pipeline.load(tmp_path / "pipe", device="cpu", **options)
    assert again.classes == tuple(NAMES)
    assert again(IMAGES[6:9]) == pipe(IMAGES[6:9])
    clear = Image.new("RGBA", (9, 9), (255, 255, 255, 0))
    assert again(clear) == pipe(clear)
    with pytest.raises(ValueError, match="was saved with another encoder"):
        Pipeline.load(tmp_path / "pipe", NumpyEncoder())


@pytest.mark.parametrize("name", ["classes", "key", "reject", "whole_first", "upright", "state", "distances"])
def test_a_file_that_lacks_something_is_refused(plain, tmp_path, name):
    pipeline(plain, NAMES).save(tmp_path / "pipe")
    arrays, header = read_tensors(tmp_path / "pipe", kind="pipeline", schema=SCHEMA)
    (arrays if name in arrays else header).pop(name)
    header.pop("checksum")
    write_tensors(tmp_path / "less", arrays, header)
    with pytest.raises(FileFormatError, match=f"less has no usable {name}. Fix: save the pipeline again."):
        Pipeline.load(tmp_path / "less", plain)


def test_a_damaged_state_is_named_by_the_file(plain, tmp_path):
    pipeline(plain, NAMES).save(tmp_path / "pipe")
    arrays, header = read_tensors(tmp_path / "pipe", kind="pipeline", schema=SCHEMA)
    header.pop("checksum")
    write_tensors(tmp_path / "other", {**arrays, "state": arrays["state"][:-9]}, header)
    with pytest.raises(FileFormatError, match=r"^the state in .*other is not a readable safetensors file"):
        Pipeline.load(tmp_path / "other", plain)


@pytest.mark.parametrize(
    ("image", "kind", "message"),
    [
        ("https://example.org/cat.png", ValueError, r"not a URL; got https://.*Fix: download it and pass the bytes"),
        ("data:image/png;base64,AAAA", ValueError, "not a URL"),
        ("no.png", FileNotFoundError, r"no image at no.png. Fix: check the path"),
        (["."], IsADirectoryError, r"\. is a folder; an image is needed\. Fix: .* a pipeline takes a folder"),
        (b"no image", ValueError, "the image: is not an image"),
        (3, TypeError, "images must be an image, or several"),
        ({"a.png": 1}, TypeError, "images must be an image, or several"),
        ([3], TypeError, "an image must be a path"),
        (io.BytesIO(b"x"), TypeError, r"an image must not be an open file; got BytesIO. Fix: file.read\(\)"),
        ([io.BytesIO(b"x")], TypeError, r"got BytesIO. Fix: file.read\(\)"),
        (np.zeros((3, 8, 9), np.uint8), ValueError, "with the channels last"),
    ],
)
def test_invalid_images(plain, image, kind, message):
    pipe = pipeline(plain, NAMES)
    with pytest.raises(kind, match=message):
        pipe(image)
    assert pipe.method.n_seen == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidate_labels": NAMES}, r"got 'candidate_labels'. Fix: pipeline\(ENCODER, classes=\['cat', 'dog'\]\)"),
        ({"hypothesis_template": "a {}"}, r"got 'hypothesis_template'. Fix: pipeline\(..., prompts=.*from_templates"),
        ({"batch_size": 8}, r"got 'batch_size'. Fix: pipeline\(..., batch_size=...\)"),
        ({"topk": 1}, "got 'topk'. Did you mean 'top_k'"),
    ],
)
def test_arguments_of_transformers_at_the_call(plain, options, message):
    pipe = pipeline(plain, NAMES)
    with pytest.raises(TypeError, match="a pipeline is called with images, top_k and learn; " + message):
        pipe(IMAGES, **options)
    assert pipe.method.n_seen == 0


def test_arguments_of_transformers_when_a_pipeline_is_made(plain):
    """The error says what to write, before classes are missed or anything is downloaded."""
    with pytest.raises(ValueError, match=r"not a task; .*Fix: pipeline\('some/clip', classes=\['cat', 'dog'\]\)"):
        pipeline("zero-shot-image-classification", model="some/clip")
    with pytest.raises(ValueError, match=r"Fix: pipeline\('openai/clip-vit-base-patch16', classes="):
        pipeline("zero-shot-image-classification", NAMES)
    with pytest.raises(TypeError, match=r"no argument 'task'. Fix: pipeline\('openai/clip-vit-base-patch16', classes="):
        pipeline(task="zero-shot-image-classification", model="some/clip")
    with pytest.raises(TypeError, match=r"no argument 'candidate_labels'. Fix: pipeline\(ENCODER, classes="):
        pipeline(plain, candidate_labels=NAMES)
    with pytest.raises(TypeError, match=r"no argument 'hypothesis_template'. Fix: .*prompts="):
        pipeline(plain, NAMES, hypothesis_template="a photo of a {}.")


def test_invalid_arguments(plain):
    method = make_method("zero_shot", plain, NAMES)
    for options, kind, message in [
        ({"classes": []}, (ValueError, TypeError), "class"),
        ({"classes": ["cat"]}, ValueError, "classes has only 'cat'; a classifier needs at least two classes. Fix: "),
        ({"classes": NAMES[:2], "method": method}, ValueError, "classes has 2 names, but the method has 3"),
        ({"classes": NAMES, "method": "nothing"}, ValueError, "nothing"),
        ({"classes": NAMES, "method": method, "prompts": "vanilla"}, ValueError, "prompts cannot be given with"),
        ({"classes": NAMES, "device": "cpu"}, ValueError, "device cannot be given with a loaded encoder"),
        ({"classes": NAMES, "transparency": "red"}, ValueError, "transparency must be one of"),
        ({"classes": NAMES, "reject": 2}, ValueError, "reject must be"),
        ({"classes": NAMES, "metod": "tda"}, TypeError, "pipeline has no argument 'metod'.* Did you mean 'method'"),
        ({"classes": NAMES, "method": "tda", "lag": 3}, TypeError, "no argument 'lag', and tda no such parameter"),
        ({"classes": NAMES, "method": None}, TypeError, "the name of a method must be a string; got None"),
    ]:
        with pytest.raises(kind, match=message):
            pipeline(plain, **options)
    for options in ({"method": "nothing"}, {"metod": "tda"}):  # before the encoder is loaded
        with pytest.raises((ValueError, TypeError), match=r"nothing|metod"):
            pipeline("someone/no-such-model", NAMES, **options)
    with pytest.raises(ValueError, match="encoder must be a hub id, a folder or a name such as 'composed'; got 3"):
        pipeline(3, NAMES)
    with pytest.raises(ValueError, match="top_k must be"):
        pipeline(plain, NAMES)(IMAGES[0], top_k=0)
