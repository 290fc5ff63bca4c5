"""`zeroshift classify`: a folder and class names in; a table of labels and a page out."""

from __future__ import annotations

import csv
import html

import numpy as np
import pytest

pytest.importorskip("transformers")

from pet_images import CLASSES, PER_CLASS, encoded, prototypes, record, write_pets
from zeroshift import OnlineADAPT, OnlineAnchoredMixture, TransductiveADAPT, TransductiveAnchoredMixture, ZeroShot
from zeroshift.encode.prompts import MODES
from zeroshift.reject import RejectRule, class_distances

COLUMNS = [
    "file", "prediction", "probability", "zero_shot", "zero_shot_probability", "reject", "rejected", "best_class",
    "best_probability",
]  # fmt: skip


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def photos(tmp_path):
    write_pets(tmp_path / "photos", labelled=False)
    return tmp_path / "photos"


@pytest.fixture
def classify(call, model):
    def classify(source, *options, env=None):
        return call("classify", source, "--encoder", model, *options, env=env)

    return classify


def table(path) -> list[dict]:
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle))


# What is written.


@pytest.mark.parametrize(
    ("requested", "method"),
    [
        (["--transductive"], TransductiveAnchoredMixture),
        (["--online"], OnlineAnchoredMixture),
        (["--method", "adapt_transductive"], TransductiveADAPT),
        (["--method", "adapt_online", "--online"], OnlineADAPT),
    ],
)
def test_labels_and_probabilities_are_those_of_the_python_interface(
    classify, photos, tmp_path, model, requested, method
):
    assert classify(photos, "--classes", ",".join(CLASSES), *requested).exit_code == 0
    rows = table(tmp_path / "predictions.csv")
    paths = sorted(photos.iterdir())
    assert list(rows[0]) == COLUMNS
    assert [row["file"] for row in rows] == [path.name for path in paths]

    features = encoded(model, paths).astype(np.float16)  # as `extract` keeps them
    words = [[template.replace("{}", name) for template in MODES["ensemble"].templates] for name in CLASSES]
    texts = prototypes(model, words).astype(np.float32)
    scale = float(np.exp(3.3))  # of the tiny model
    for column, number, probabilities in (
        ("prediction", "probability", method(texts, logit_scale=scale).adapt(features)),
        ("zero_shot", "zero_shot_probability", ZeroShot(texts, logit_scale=scale).predict(features)),
    ):
        assert [row[column] for row in rows] == [CLASSES[k] for k in probabilities.argmax(axis=1)]
        written = [float(row[number]) for row in rows]
        np.testing.assert_allclose(written, probabilities.max(axis=1), atol=1e-4)
    distances = class_distances(features, texts)
    scores = RejectRule.fit(distances).scores(distances)
    np.testing.assert_allclose([float(row["reject"]) for row in rows], scores, rtol=1e-4)


def test_transductive_is_the_default_and_parameters_can_be_set(classify, photos):
    names = ("--classes", "cat,dog,horse", "--json", "--force")
    assert record(classify(photos, *names))["method"] == "anchored_mixture_transductive"
    assert record(classify(photos, *names, "--online"))["method"] == "anchored_mixture_online"
    assert record(classify(photos, *names, "--method", "adapt_online", "--set", "bank_size=4"))["computed"] == 0
    wrong = classify(photos, *names, "--set", "anchor_cuont=4")
    assert (wrong.exit_code, "Did you mean 'anchor_count'?" in wrong.stderr) == (2, True)


def test_table_and_page_name_the_method(classify, photos, tmp_path):
    names = ("--classes", "cat,dog", "--out", tmp_path / "p.csv", "--force")
    for options, label in (
        ([], "Transductive mixture (anchored_mixture_transductive)"),
        (["--method", "adapt_transductive"], "Transductive ADAPT (adapt_transductive)"),
    ):
        done = classify(photos, *names, *options, env={"COLUMNS": "160"})
        assert f"method {label}" in " ".join(done.stdout.split())
        page = (tmp_path / "p.html").read_text()
        assert f"method {label.split(' (')[0]}" in page
        assert ("--method adapt_transductive" in page) == bool(options)


def test_the_record(classify, photos, tmp_path):
    summary = record(classify(photos, "--classes", "cat,dog,horse", "--json", "--out", tmp_path / "p.csv"))
    rows = table(tmp_path / "p.csv")
    assert summary["n_samples"] == len(rows) == summary["computed"] == len(CLASSES) * PER_CLASS
    assert summary["class_names"] == list(CLASSES)
    assert (summary["source"], summary["prompt"], summary["logit_scale_assumed"]) == ("photos", "ensemble", False)
    assert summary["counts"] == {name: sum(row["prediction"] == name for row in rows) for name in CLASSES}
    assert summary["changed"] == sum(row["prediction"] != row["zero_shot"] for row in rows)
    assert (summary["accuracy"], summary["zero_shot_accuracy"]) == (None, None)
    assert (summary["out"], summary["sheet"]) == (str(tmp_path / "p.csv"), str(tmp_path / "p.html"))
    assert summary["encoder"]["family"] == "clip"
    assert summary["skipped"] == summary["notes"] == []


def test_a_labelled_folder_gives_an_accuracy(classify, pets, tmp_path):
    done = classify(pets, env={"COLUMNS": "160"})
    rows = table(tmp_path / "predictions.csv")
    assert list(rows[0]) == [*COLUMNS, "label"]
    assert all(row["file"].startswith(f"{row['label']}/") for row in rows)
    right = sum(row["prediction"] == row["label"] for row in rows) / len(rows)
    shown = " ".join(done.stdout.split())
    assert f"accuracy {100 * right:.1f}%, by the names of the sub-folders zero-shot " in shown
    assert "3 classes, which are the names of the sub-folders; --classes names others" in shown
    assert "prompt ensemble logit scale 27.1" in shown
    summary = record(classify(pets, "--force", "--json"))
    assert summary["accuracy"] == pytest.approx(right)


def test_the_names_of_sub_folders_can_be_ignored(classify, pets, tmp_path):
    summary = record(classify(pets, "--unlabelled", "--classes", "dog,frog", "--json"))
    assert summary["accuracy"] is None
    assert {row["prediction"] for row in table(tmp_path / "predictions.csv")} <= {"dog", "frog"}


def test_the_record_has_the_fields_of_adapt(call, classify, photos, small_file, tmp_path):
    classified = record(classify(photos, "--classes", "cat,dog,horse", "--json"))
    adapted = record(call("adapt", small_file, "--out", tmp_path / "p.csv", "--json"))
    assert classified.keys() - adapted.keys() == {"computed", "skipped", "notes", "sheet"}
    assert adapted.keys() - classified.keys() == {
        "setup_seconds", "chosen", "support", "validation", "unlabelled", "preset", "text_encoder", "n_views",
        "saved_state",
    }  # fmt: skip


def test_of_many_classes_the_most_frequent_are_shown(classify, photos):
    names = ",".join([*CLASSES, *(f"thing {i}" for i in range(9))])
    shown = " ".join(classify(photos, "--classes", names, env={"COLUMNS": "250"}).stdout.split())
    assert "photos: 9 images, 12 classes found" in shown
    counts = record(classify(photos, "--classes", names, "--json", "--force"))["counts"]
    often = max(counts, key=counts.get)
    assert f"found {counts[often]} {often}" in shown
    assert " 0 " not in shown.split("found ")[1].split(" method ")[0]


def test_a_tables_labels_are_named_as_such(classify, pets, tmp_path):
    (tmp_path / "list.csv").write_text("path,label\npets/cat/0.png,cat\npets/dog/0.png,dog\n")
    done = classify(tmp_path / "list.csv", env={"COLUMNS": "160"})
    assert "by the table's labels" in done.stdout
    assert "sub-folders" not in done.stdout


def test_unreadable_images_are_skipped(classify, photos, tmp_path):
    (photos / "bird.png").touch()
    done = classify(photos, "--classes", "cat,dog", env={"COLUMNS": "160"})
    assert done.exit_code == 0
    assert "warning: bird.png: is empty (0 bytes)." in done.stderr
    assert "skipped      1 image that cannot be read" in done.stdout
    assert "bird.png" not in {row["file"] for row in table(tmp_path / "predictions.csv")}
    page = (tmp_path / "predictions.html").read_text()
    assert page.count("data:image/jpeg") == len(CLASSES) * PER_CLASS  # each found, though rows and files differ by one
    stopped = classify(photos, "--classes", "cat,dog", "--force", "--on-error", "stop")
    assert (stopped.exit_code, stopped.stderr.startswith("error: bird.png: is empty")) == (2, True)


def test_parquet(classify, photos, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    assert classify(photos, "--classes", "cat,dog", "--out", tmp_path / "p.parquet").exit_code == 0
    assert pq.read_table(tmp_path / "p.parquet").column_names == COLUMNS


# The page.


def test_the_page_is_next_to_the_table_and_shows_each_image(classify, photos, tmp_path, model):
    assert classify(photos, "--classes", "cat,dog", "--online", "--out", tmp_path / "p.csv").exit_code == 0
    page = (tmp_path / "p.html").read_text()
    assert page.count("data:image/jpeg") == len(CLASSES) * PER_CLASS
    command = f"zeroshift classify {photos} --online --classes cat,dog --encoder {model}"
    assert f"<code>{command}</code>" in html.unescape(page)


def test_the_page_elsewhere_or_not_at_all(classify, photos, tmp_path):
    names = ("--classes", "cat,dog", "--out", tmp_path / "p.csv", "--force")
    assert classify(photos, *names, "--sheet", tmp_path / "page.html").exit_code == 0
    assert (tmp_path / "page.html").exists()
    assert record(classify(photos, *names, "--no-sheet", "--json"))["sheet"] is None
    assert not (tmp_path / "p.html").exists()


def test_only_pages_of_zeroshift_are_replaced(classify, photos, tmp_path):
    names = ("--classes", "cat,dog", "--out", tmp_path / "p.csv", "--force")
    assert classify(photos, *names).exit_code == 0
    other = ("--out", tmp_path / "other.csv", "--sheet", tmp_path / "p.html")  # also without --force
    assert classify(photos, "--classes", "cat,dog", "--online", *other).exit_code == 0
    assert "--online" in (tmp_path / "p.html").read_text()
    (tmp_path / "p.html").write_text("<title>my page</title>")
    (tmp_path / "p.csv").write_text("before")
    done = classify(photos, *names)
    assert done.exit_code == 2
    assert "p.html exists and is not a contact sheet of zeroshift. Fix: write to another file" in done.stderr
    assert (tmp_path / "p.html").read_text() == "<title>my page</title>"
    assert (tmp_path / "p.csv").read_text() == "before"


# Errors.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "photos does not say what its classes are. Fix: --classes cat,dog,horse"),
        (["--classes", "cat"], "--classes has only 'cat'; a classifier needs at least two classes"),
        (["--classes", "cat,dog,cat"], "--classes has 'cat' twice (names 1 and 3)"),
        (["--classes", "Cat,cat"], "--classes has 'Cat' and 'cat', which are the same name"),
        (
            ["--classes", "cat,dog", "--online", "--transductive"],
            "--online and --transductive contradict each other",
        ),
        (["--classes", "cat,dog", "--method", "adapt_onlin"], "Did you mean 'adapt_online'?"),
        (
            ["--classes", "cat,dog", "--method", "adapt_transductive", "--online"],
            "--online and --method adapt_transductive contradict each other: adapt_transductive is transductive",
        ),
        (
            ["--classes", "cat,dog", "--method", "tpt"],
            "--method tpt needs several views of each image. Fix: `zeroshift extract`, then `zeroshift adapt`",
        ),
        (
            ["--classes", "cat,dog", "--method", "batclip"],
            "--method batclip needs the images themselves, not their features. Fix: in Python, zeroshift.pipeline("
            "encoder, classes, 'batclip', ...), with an encoder that has CLIP's vision transformer; or another method.",
        ),
        (
            ["--classes", "cat,dog", "--method", "selftpt"],
            "class_names, source=zeroshift.methods.selftpt_source(text, support)); or another method.",
        ),
        (["--classes", "cat,dog", "--method", "gda_clip"], "--method gda_clip needs labelled samples (support)"),
        (
            ["--classes", "cat,dog", "--method", "adapt_released_online"],
            "needs scale (a number greater than 0), which has no default. Fix: --set scale=VALUE",
        ),
        (["--classes", "cat,dog", "--sheet", "x.html", "--no-sheet"], "--sheet and --no-sheet contradict each other"),
        (["--classes", "cat,dog", "--sheet", "predictions.csv"], "predictions.csv is named for two outputs"),
        (["--classes", "cat,dog", "--sheet", "no/x.html"], "the folder no does not exist"),
        (["--classes", "cat,dog", "--sheet", "photos"], "photos is a folder; the name of a file is needed"),
        (["--classes", "cat,dog", "--out", "p.txt"], ".csv, .parquet or .npz"),
        (["--classes", "cat,dog", "--out", "photos"], "which is a folder. Fix: photos/predictions.csv."),
        (["--classes", "cat,dog", "--data", "."], "--data is for data sets and tables; "),
        (["--classes", "cat,dog", "--out", "no/p.csv"], "the folder no does not exist"),
        (["--classes", "cat,dog", "--prompts", "custm"], "Did you mean 'custom'?"),
        (["--classes", "cat,dog", "--cache", "c", "--no-cache"], "--cache and --no-cache contradict each other"),
    ],
)
def test_errors_come_before_the_model_is_loaded(classify, photos, tmp_path, monkeypatch, options, message):
    def loads(*_, **__):
        raise AssertionError("loaded a model before everything was checked")

    monkeypatch.setattr("zeroshift.cli._encoder_options.load_when_needed", loads)
    before = sorted(tmp_path.iterdir())
    done = classify(photos, *options)
    assert done.exit_code == 2, (done.stderr, done.exception)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("https://example.org/a.jpg", "images must be a path, not a URL; got https://example.org/a.jpg. Fix: download"),
        ("photos/*.png", "no file is called photos/*.png; patterns are not expanded. Fix: pass the folder, photos."),
        ("dtd", "dtd is a data set; the folder that contains it is needed. Fix: --data ROOT"),
    ],
)
def test_sources_that_are_no_path(classify, photos, source, message):
    done = classify(source, "--classes", "cat,dog", env={"ZEROSHIFT_DATA": ""})
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


def test_one_image_that_cannot_be_read(classify, photos):
    (photos / "bird.png").write_text("<html>")
    done = classify(photos / "bird.png", "--classes", "cat,dog")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: bird.png: is not an image (it looks like a web page or text). Fix: ")


def test_the_paths_of_a_table_can_start_from_another_folder(classify, photos, tmp_path):
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "list.csv").write_text(f"path\ncat-0.png\n{photos / 'dog-1.png'}\n")
    options = ("--classes", ",".join(CLASSES), "--data", photos)
    assert classify(tmp_path / "lists" / "list.csv", *options).exit_code == 0
    assert [row["file"] for row in table(tmp_path / "predictions.csv")] == ["cat-0.png", "dog-1.png"]
    assert f"--data {photos}" in (tmp_path / "predictions.html").read_text()


def test_existing_predictions_are_replaced_only_with_force(classify, photos, tmp_path):
    (tmp_path / "predictions.csv").write_text("precious")
    done = classify(photos, "--classes", "cat,dog")
    assert (done.exit_code, "predictions.csv exists. Fix: pass --force" in done.stderr) == (2, True)
    assert (tmp_path / "predictions.csv").read_text() == "precious"


def test_the_list_of_images_is_never_overwritten(classify, photos, tmp_path):
    (tmp_path / "list.csv").write_text("path\nheap/cat-0.png\n")
    done = classify(tmp_path / "list.csv", "--classes", "cat,dog", "--out", tmp_path / "list.csv", "--force")
    assert (done.exit_code, "list.csv is also an input" in done.stderr) == (2, True)


def test_one_prompt_mode(classify, photos):
    done = classify(photos, "--classes", "cat,dog", "--prompts", "vanilla,ensemble")
    assert (done.exit_code, "classify takes one prompt mode; got 2" in done.stderr) == (2, True)


# A second encoder.


@pytest.mark.parametrize(
    ("requested", "method"),
    [(["--transductive"], TransductiveAnchoredMixture), (["--online"], OnlineAnchoredMixture)],
)
def test_a_second_encoder_is_used(classify, photos, tmp_path, model, vision_model, requested, method):
    from zeroshift.encode import load_image_encoder

    options = ["--classes", ",".join(CLASSES), "--second-encoder", vision_model, "--out", "p.npz", *requested]
    done = classify(photos, *options, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.stderr
    assert "second encoder  tiny-dinov2, d = 32" in done.stdout
    assert f"--second-encoder {vision_model}" in html.unescape((tmp_path / "p.html").read_text())
    paths = sorted(photos.iterdir())
    rows = encoded(model, paths).astype(np.float16)
    second = load_image_encoder(vision_model, device="cpu").encode_images(paths).astype(np.float16)
    prompts = [[template.replace("{}", name) for template in MODES["ensemble"].templates] for name in CLASSES]
    made = method(prototypes(model, prompts).astype(np.float32), logit_scale=np.exp(3.3))
    with np.load(tmp_path / "p.npz") as archive:
        np.testing.assert_allclose(archive["probabilities"], made.adapt(rows, second=second), atol=1e-3)


def test_a_second_encoder_needs_a_method_that_takes_it(classify, photos, vision_model):
    done = classify(photos, "--classes", "cat,dog", "--second-encoder", vision_model, "--method", "adapt_online")
    assert done.exit_code == 2
    message = " ".join(done.stderr.split())
    assert "--second-encoder: adapt_online takes no second encoder." in message
    assert "or --method anchored_mixture_online or anchored_mixture_transductive or cosmic." in message


@pytest.mark.parametrize("lag", [None, 0, 2])
def test_a_second_encoder_is_used_for_frames(classify, photos, tmp_path, model, vision_model, lag):
    from zeroshift.encode import load_image_encoder

    late = [] if lag is None else ["--lag", lag]
    options = ["--classes", ",".join(CLASSES), "--second-encoder", vision_model, "--out", "p.npz", "--stream"]
    done = classify(photos, *options, *late)
    assert done.exit_code == 0, done.stderr
    paths = sorted(photos.iterdir())
    rows = encoded(model, paths).astype(np.float16)
    second = load_image_encoder(vision_model, device="cpu").encode_images(paths).astype(np.float16)
    prompts = [[template.replace("{}", name) for template in MODES["ensemble"].templates] for name in CLASSES]
    made = OnlineAnchoredMixture(
        prototypes(model, prompts).astype(np.float32), logit_scale=np.exp(3.3), lag=2 if lag is None else lag
    )
    if lag is None:
        expected = made.smooth(rows, second=second)
    else:
        expected = np.concatenate([made.adapt_late(rows, second=second), made.finish()])
    with np.load(tmp_path / "p.npz") as archive:
        np.testing.assert_allclose(archive["probabilities"], expected, atol=1e-3)
