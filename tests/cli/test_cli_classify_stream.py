"""`zeroshift classify --stream`: frames of a video or of a folder in the order of time; segments of equal labels."""

from __future__ import annotations

import csv
import html
import signal
import sys

import numpy as np
import pytest

from zeroshift.installation import install_command

pytest.importorskip("transformers")
pytest.importorskip("av", reason="the extra `video` brings it")

from clips import LOSSLESS, write_clip
from encode.numpy_encoder import age, noise
from pet_images import prototypes, record
from zeroshift import OnlineADAPT, ZeroShot, methods
from zeroshift.data import video, video_frames
from zeroshift.encode.prompts import MODES

CLASSES = ("cat", "dog", "horse")
NAMES = ("--classes", "cat,dog,horse")
SCENES = [0, 0, 0, 1, 1, 1, 1, 2, 2, 0, 0, 0]
"""The scene of each half second of the clip."""


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def scenes(model):
    """A picture per class: of a hundred random ones, that which the tiny model most clearly gives to the class."""
    from PIL import Image

    from zeroshift.encode import registry

    candidates = [np.asarray(noise(seed, 8, 6).resize((32, 24))).astype(int) for seed in range(100)]
    shades = [Image.fromarray(frame(pixels, shade)) for pixels in candidates for shade in (0, 30, 59)]
    logits = registry.load(str(model), device="cpu").encode_images(shades) @ class_texts(model).T
    margins = [logits[:, k] - np.delete(logits, k, axis=1).max(axis=1) for k in range(3)]
    return [candidates[int(margin.reshape(100, 3).min(axis=1).argmax())] for margin in margins]


def class_texts(model) -> np.ndarray:
    words = [[template.replace("{}", name) for template in MODES["ensemble"].templates] for name in CLASSES]
    return prototypes(model, words).astype(np.float32)


def frame(scene, shade: int) -> np.ndarray:
    """A frame of a scene; `shade`, from 0 to 59, makes it different from the others."""
    return (scene * 0.7 + shade).astype(np.uint8)


@pytest.fixture
def clip(scenes, tmp_path):
    """Six seconds at ten frames per second, every pixel as drawn."""
    frames = [frame(scenes[number], 5 * place + i) for place, number in enumerate(SCENES) for i in range(5)]
    return write_clip(tmp_path / "clip.mkv", frames, **LOSSLESS)


@pytest.fixture
def folder(scenes, tmp_path):
    """The first frame of every half second as frame1.png to frame12.png: sorted as text, frame10 would be second."""
    from PIL import Image

    (tmp_path / "frames").mkdir()
    for place, number in enumerate(SCENES):
        path = tmp_path / "frames" / f"frame{place + 1}.png"
        Image.fromarray(frame(scenes[number], 5 * place)).save(path)
        age(path)
    return tmp_path / "frames"


@pytest.fixture
def classify(call, model):
    def classify(source, *options, env=None):
        return call("classify", source, "--stream", "--encoder", model, *options, env=env)

    return classify


def table(path) -> list[dict]:
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle))


def runs(labels) -> list[tuple[int, int]]:
    """(first, stop) of each run of equal labels, found one by one."""
    found, first = [], 0
    for i in range(1, len(labels) + 1):
        if i == len(labels) or labels[i] != labels[first]:
            found.append((first, i))
            first = i
    return found


# What is written.


def test_a_video(classify, clip, tmp_path):
    summary = record(classify(clip, *NAMES, "--json"))
    rows = table(tmp_path / "predictions.csv")
    assert list(rows[0]) == [
        "file", "time", "prediction", "probability", "zero_shot", "zero_shot_probability", "reject", "rejected",
        "best_class", "best_probability",
    ]  # fmt: skip
    assert [row["time"] for row in rows] == [f"{0.5 * i:.3f}" for i in range(12)]
    assert [row["file"] for row in rows[:3]] == ["clip.mkv#t=0", "clip.mkv#t=0.5", "clip.mkv#t=1"]
    assert summary["n_samples"] == summary["computed"] == 12
    assert (summary["source"], summary["method"]) == ("clip.mkv", "anchored_mixture_online")
    assert (summary["lag"], summary["time_unit"]) == (None, "seconds")
    assert summary["segments_out"] == "predictions.segments.csv"


def test_segments_are_the_runs_of_equal_predictions(classify, clip, tmp_path):
    summary = record(classify(clip, *NAMES, "--json", "--out", tmp_path / "p.csv"))
    rows, segments = table(tmp_path / "p.csv"), table(tmp_path / "p.segments.csv")
    labels = [row["prediction"] for row in rows]
    assert len(segments) == len(runs(labels)) > 1
    assert list(segments[0]) == ["start", "end", "label", "probability", "frames"]
    for segment, written, (first, stop) in zip(summary["segments"], segments, runs(labels), strict=True):
        assert list(segment) == list(written)
        assert segment["start"] == float(written["start"]) == 0.5 * first
        assert segment["end"] == float(written["end"]) == 0.5 * stop  # the clip lasts six seconds
        assert segment["label"] == written["label"] == labels[first]
        assert segment["frames"] == int(written["frames"]) == stop - first
        mean = np.mean([float(row["probability"]) for row in rows[first:stop]])
        assert segment["probability"] == pytest.approx(mean, abs=1e-5)
        assert float(written["probability"]) == pytest.approx(mean, abs=1e-5)


def expected_features(model, path, **options):
    from zeroshift.encode import registry

    images = [image for _, image in video_frames(path, **options)]
    return registry.load(str(model), device="cpu").encode_images(images).astype(np.float16)  # as `extract` keeps them


def test_labels_and_probabilities_are_those_of_the_python_interface(classify, clip, model, tmp_path):
    features = expected_features(model, clip, fps=5, start=1, end=5)
    assert len(features) == 20
    texts = class_texts(model)
    scale = float(np.exp(3.3))  # of the tiny model
    given = ("--fps", 5, "--start", 1, "--end", 5, "--method", "adapt_online", "--lag", 0)
    assert classify(clip, *NAMES, *given).exit_code == 0
    rows = table(tmp_path / "predictions.csv")
    for column, number, probabilities in (
        ("prediction", "probability", OnlineADAPT(texts, logit_scale=scale).adapt(features)),
        ("zero_shot", "zero_shot_probability", ZeroShot(texts, logit_scale=scale).predict(features)),
    ):
        assert [row[column] for row in rows] == [CLASSES[k] for k in probabilities.argmax(axis=1)]
        np.testing.assert_allclose([float(row[number]) for row in rows], probabilities.max(axis=1), atol=1e-4)


@pytest.mark.parametrize("name", [None, "zero_shot+filter"])
@pytest.mark.parametrize(
    ("options", "answer", "shown"),
    [
        ([], lambda method, rows: method.smooth(rows), "from the whole sequence; --lag 0 answers as for a live camera"),
        (["--lag", 0], lambda method, rows: method.adapt(rows), "at once, from the frames so far"),
        (["--lag", 2], lambda method, rows: [*method.adapt_late(rows), *method.finish()], "2 frames late"),
    ],
)
def test_late_answers_are_those_of_the_python_interface(classify, clip, model, tmp_path, name, options, answer, shown):
    features = expected_features(model, clip, fps=5)
    scale = float(np.exp(3.3))
    method = methods.create(name or "anchored_mixture_online", class_texts(model), logit_scale=scale, lag=2)
    probabilities = np.array(answer(method, features))
    chosen = [] if name is None else ["--method", name]
    done = classify(clip, *NAMES, "--fps", 5, *chosen, *options, env={"COLUMNS": "160"})
    assert done.exit_code == 0, (done.stderr, done.exception)
    rows = table(tmp_path / "predictions.csv")
    assert [row["prediction"] for row in rows] == [CLASSES[k] for k in probabilities.argmax(axis=1)]
    np.testing.assert_allclose([float(row["probability"]) for row in rows], probabilities.max(axis=1), atol=1e-4)
    assert f"answers {shown}" in " ".join(done.stdout.split())


def test_a_folder_is_read_by_the_numbers_in_its_names(classify, clip, folder, tmp_path):
    of_folder = record(classify(folder, *NAMES, "--json", "--out", tmp_path / "folder.csv"))
    rows = table(tmp_path / "folder.csv")
    assert [row["file"] for row in rows] == [f"frame{i}.png" for i in range(1, 13)]
    assert "time" not in rows[0]
    of_video = record(classify(clip, *NAMES, "--json", "--out", tmp_path / "video.csv"))
    expected = table(tmp_path / "video.csv")  # of the same pictures
    for column in ("prediction", "probability", "zero_shot", "zero_shot_probability", "reject"):
        assert [row[column] for row in rows] == [row[column] for row in expected]
    assert of_folder["time_unit"] == "frames"
    assert of_folder["segments"] == [
        {**segment, "start": round(2 * segment["start"]), "end": round(2 * segment["end"])}
        for segment in of_video["segments"]
    ]
    first = table(tmp_path / "folder.segments.csv")[0]
    assert (first["start"], first["end"]) == ("0", first["frames"])


@pytest.mark.parametrize("rate", [("--fps", 4), ("--every", 0.25)])
def test_a_folder_with_a_rate_has_times(classify, folder, tmp_path, rate):
    summary = record(classify(folder, *NAMES, *rate, "--json"))
    assert [row["time"] for row in table(tmp_path / "predictions.csv")] == [f"{0.25 * i:.3f}" for i in range(12)]
    assert (summary["time_unit"], summary["segments"][-1]["end"]) == ("seconds", 3.0)


def test_times_of_the_other_frames_stay_where_one_is_unreadable(classify, folder, tmp_path):
    (folder / "frame3.png").write_bytes(b"")
    summary = record(classify(folder, *NAMES, "--fps", 2, "--json"))
    rows = table(tmp_path / "predictions.csv")
    assert [row["time"] for row in rows[:4]] == ["0.000", "0.500", "1.500", "2.000"]
    assert [one["image"] for one in summary["skipped"]] == ["frame3.png"]
    assert sum(segment["frames"] for segment in summary["segments"]) == 11
    assert summary["segments"][-1]["end"] == 6.0


def test_a_table_keeps_its_order(classify, folder, tmp_path):
    (tmp_path / "list.csv").write_text("path\n" + "".join(f"frames/frame{i}.png\n" for i in (3, 12, 1)))
    assert classify(tmp_path / "list.csv", *NAMES).exit_code == 0
    rows = table(tmp_path / "predictions.csv")
    assert [row["file"] for row in rows] == ["frames/frame3.png", "frames/frame12.png", "frames/frame1.png"]


def test_other_formats_have_the_times(classify, clip, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    assert classify(clip, *NAMES, "--out", tmp_path / "p.parquet").exit_code == 0
    assert classify(clip, *NAMES, "--out", tmp_path / "p.npz", "--force").exit_code == 0
    times = [0.5 * i for i in range(12)]
    assert pq.read_table(tmp_path / "p.parquet")["time"].to_pylist() == times
    assert np.load(tmp_path / "p.npz")["times"].tolist() == times


def test_frames_are_neither_decoded_nor_encoded_again(classify, clip, tmp_path, monkeypatch):
    first = record(classify(clip, *NAMES, "--json", "--no-sheet"))
    before = (tmp_path / "predictions.csv").read_bytes()
    find = video._Reader.find

    def refuse(*_):
        raise AssertionError("decoded a frame whose features are in the cache")

    monkeypatch.setattr(video._Reader, "find", refuse)
    again = record(classify(clip, *NAMES, "--json", "--no-sheet", "--force"))
    assert (first["computed"], again["computed"]) == (12, 0)
    assert (tmp_path / "predictions.csv").read_bytes() == before
    monkeypatch.setattr(video._Reader, "find", find)
    finer = record(classify(clip, *NAMES, "--fps", 10, "--json", "--no-sheet", "--force"))
    assert finer["computed"] == 60 - 12  # frames of the same moments are not encoded again


def test_what_is_shown(classify, clip, tmp_path):
    shown = classify(clip, *NAMES, env={"COLUMNS": "120"}).stdout
    words = " ".join(shown.split())
    assert "frames clip.mkv: 12 frames, 3 classes order 2 per second; --fps or --every changes it answers " in words
    assert " segments predictions.segments.csv page predictions.html " in words
    assert "start end label probability frames" in words
    assert "0:00.0" in words.split("probability frames")[1]
    segments = len(table(tmp_path / "predictions.segments.csv"))
    assert f"({segments} segment{'s' * (segments > 1)} {'are' if segments > 1 else 'is'} too few to find" in words
    sparse = classify(clip, *NAMES, "--every", 2, "--force", env={"COLUMNS": "120"}).stdout
    assert "one every 2 seconds" in " ".join(sparse.split())


def test_of_many_segments_the_first_are_shown(classify, scenes, tmp_path):
    frames = [frame(scenes[number], 0) for number in [0, 2] * 40]
    clip = write_clip(tmp_path / "clip.mkv", frames, **LOSSLESS)
    done = classify(clip, *NAMES, "--fps", 10, "--method", "zero_shot", env={"COLUMNS": "120"})
    count = len(table(tmp_path / "predictions.segments.csv"))
    assert count == 80  # the two scenes have different labels
    assert "and 60 more segments: see predictions.segments.csv" in " ".join(done.stdout.split())
    assert len([line for line in done.stdout.splitlines() if line.split()[:1] and line.split()[0][:3] == "0:0"]) == 20


def test_the_page_has_a_timeline(classify, clip, model, tmp_path):
    assert classify(clip, *NAMES, "--every", 0.5, "--lag", 0).exit_code == 0
    page = (tmp_path / "predictions.html").read_text()
    assert '<svg class="timeline" role="img"' in page
    assert page.count("data:image/jpeg") == 12  # each frame once, though segments show some again
    command = f"zeroshift classify {clip} --stream --lag 0 --every 0.5 --classes cat,dog,horse --encoder {model}"
    assert f"<code>{command}</code>" in html.unescape(page)
    segments = table(tmp_path / "predictions.segments.csv")
    drawn = page.split('<svg class="timeline"')[1].split("</svg>")[0]
    assert drawn.count("<title>") == len(segments)


# Truncated and damaged videos.


@pytest.mark.filterwarnings("always:.*truncated")
def test_a_truncated_video_is_reported(classify, tmp_path):
    frames = list(np.random.default_rng(2).integers(0, 256, (40, 48, 64, 3), dtype=np.uint8))
    clip = write_clip(tmp_path / "clip.mp4", frames, index_first=True)
    clip.write_bytes(clip.read_bytes()[: clip.stat().st_size * 6 // 10])
    done = classify(clip, *NAMES)
    assert done.exit_code == 0
    assert "warning: " in done.stderr
    assert "it is truncated" in " ".join(done.stderr.split())
    assert 3 <= len(table(tmp_path / "predictions.csv")) <= 6


def test_damaged_frames_are_skipped(classify, tmp_path):
    frames = list(np.random.default_rng(3).integers(0, 256, (36, 48, 64, 3), dtype=np.uint8))
    clip = write_clip(tmp_path / "clip.mp4", frames, index_first=True)
    content = bytearray(clip.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 6000] = b"\xff" * 6000
    clip.write_bytes(content)
    summary = record(classify(clip, *NAMES, "--fps", 10, "--json"))
    assert summary["skipped"]
    assert summary["skipped"][0]["why"] == "is damaged"
    assert summary["n_samples"] + len(summary["skipped"]) == 36
    stopped = classify(clip, *NAMES, "--fps", 10, "--force", "--on-error", "stop")
    assert (stopped.exit_code, "is damaged" in stopped.stderr) == (2, True)


def test_ctrl_c_leaves_nothing_half_written(classify, clip, tmp_path, monkeypatch):
    before = {path for path in tmp_path.iterdir() if path.name != "cache"}
    find, count = video._Reader.find, []

    def interrupt(*given):
        count.append(1)
        if len(count) == 4:
            raise KeyboardInterrupt
        return find(*given)

    monkeypatch.setattr(video._Reader, "find", interrupt)
    done = classify(clip, *NAMES)
    assert done.exit_code == 128 + signal.SIGINT
    assert "no file is left half-written" in done.stderr
    assert {path for path in tmp_path.iterdir() if path.name != "cache"} == before
    monkeypatch.setattr(video._Reader, "find", find)
    assert record(classify(clip, *NAMES, "--json"))["n_samples"] == 12


# Errors.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "clip.mkv does not say what its classes are. Fix: --classes cat,dog,horse"),
        ([*NAMES, "--transductive"], "--stream and --transductive contradict each other"),
        (
            [*NAMES, "--method", "adapt_transductive"],
            "--stream and --method adapt_transductive contradict each other: adapt_transductive is transductive",
        ),
        ([*NAMES, "--fps", 2, "--every", 1], "--fps and --every contradict each other"),
        ([*NAMES, "--fps", 0], "--fps must be a number greater than 0 and at most 1000; got 0"),
        ([*NAMES, "--every", 0], "--every must be a number of at least 0.001; got 0"),
        ([*NAMES, "--start", -1], "--start must be a number of at least 0; got -1"),
        ([*NAMES, "--start", 3, "--end", 2], "--end must be later than --start; got --end 2, --start 3"),
        ([*NAMES, "--start", 30], "has no frame after 30 s: it lasts 6.000 s"),
        (
            [*NAMES, "--lag", 3, "--method", "adapt_online"],
            "--lag 3: adapt_online answers every frame at once. Fix: --method adapt_online+filter, or --lag 0",
        ),
        (
            [*NAMES, "--lag", 3, "--method", "tda+filter", "--set", "lag=2"],
            "--lag 3 and --set lag=2 set the same parameter",
        ),
        ([*NAMES, "--set", "lag=2"], "--set lag=2: with --stream, --lag sets it. Fix: --lag 2"),
        ([*NAMES, "--lag", 0, "--set", "lag=2"], "--lag 0 and --set lag=2 set the same parameter"),
        ([*NAMES, "--data", "."], "--data is for data sets and tables; "),
        ([*NAMES, "--unlabelled"], "--labelled and --unlabelled are for folders"),
        ([*NAMES, "--out", "clip.mkv"], ".csv, .parquet or .npz"),
    ],
)
def test_errors_come_before_the_model_is_loaded(classify, clip, tmp_path, monkeypatch, options, message):
    def loads(*_, **__):
        raise AssertionError("loaded a model before everything was checked")

    monkeypatch.setattr("zeroshift.cli._encoder_options.load_when_needed", loads)
    before = sorted(tmp_path.iterdir())
    done = classify(clip, *options)
    assert done.exit_code == 2, (done.stderr, done.exception)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("option", [("--lag", 2), ("--fps", 2), ("--every", 2), ("--start", 2), ("--end", 2)])
def test_options_of_a_stream_need_one(call, folder, model, option):
    done = call("classify", folder, *NAMES, "--encoder", model, *option)
    assert (done.exit_code, f"{option[0]} is for frames in the order of time. Fix: add --stream" in done.stderr) == (
        2, True,
    )  # fmt: skip


def test_a_video_needs_stream(call, clip, model):
    done = call("classify", clip, *NAMES, "--encoder", model)
    assert done.exit_code == 2
    assert "--stream" in done.stderr


def test_a_folder_has_no_start(classify, folder):
    done = classify(folder, *NAMES, "--start", 1)
    assert (done.exit_code, "--start is for videos; " in done.stderr) == (2, True)


def test_existing_segments_are_replaced_only_with_force(classify, clip, tmp_path):
    (tmp_path / "predictions.segments.csv").write_text("precious")
    done = classify(clip, *NAMES)
    assert (done.exit_code, "predictions.segments.csv exists. Fix: pass --force" in done.stderr) == (2, True)
    assert (tmp_path / "predictions.segments.csv").read_text() == "precious"


def test_a_video_without_pyav(classify, clip, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    done = classify(clip, *NAMES)
    assert (done.exit_code, install_command("video") in done.stderr) == (2, True)
    assert classify(folder, *NAMES).exit_code == 0
