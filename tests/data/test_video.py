"""Frames of a video: which are read, in which order, with which times; and files that are no videos."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("av", reason="the extra `video` brings it")
pytest.importorskip("PIL")

from clips import LOSSLESS, greys, rotate, write_clip, write_sound
from zeroshift.data import open_video, video, video_frames
from zeroshift.data.images import ImageError


def brightness(image) -> float:
    return float(np.asarray(image).mean())


def read(path, **options) -> tuple[list[float], list[float]]:
    """Times and brightness of the frames."""
    found = list(video_frames(path, **options))
    return [round(seconds, 6) for seconds, _ in found], [brightness(image) for _, image in found]


# Which frames.


def test_pixels_are_those_that_were_written(tmp_path):
    frames = list(np.random.default_rng(0).integers(0, 256, (5, 12, 16, 3), dtype=np.uint8))
    path = write_clip(tmp_path / "clip.mkv", frames, **LOSSLESS)
    found = list(video_frames(path, fps=10))
    assert [round(seconds, 6) for seconds, _ in found] == [0.0, 0.1, 0.2, 0.3, 0.4]
    for (_, image), pixels in zip(found, frames, strict=True):
        assert image.mode == "RGB"
        np.testing.assert_array_equal(np.asarray(image), pixels)


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.ts", "clip.mov"])
def test_frames_come_in_the_order_they_are_shown(tmp_path, name):
    # libx264 stores frames in another order than they are shown.
    times, shades = read(write_clip(tmp_path / name, greys(40)), fps=10)
    assert times == [round(0.1 * i, 6) for i in range(40)]
    assert shades == sorted(shades)
    assert shades[0] == pytest.approx(20, abs=4)
    assert shades[-1] == pytest.approx(215, abs=4)


def test_two_frames_per_second_by_default(tmp_path):
    times, shades = read(write_clip(tmp_path / "clip.mp4", greys(25)))
    assert times == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert shades == pytest.approx([20, 60, 100, 140, 180], abs=4)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"fps": 1}, [0.0, 1.0, 2.0]),
        ({"fps": 4}, [0.0, 0.3, 0.5, 0.8, 1.0, 1.3, 1.5, 1.8, 2.0, 2.3]),  # the first of each quarter of a second
        ({"fps": 100}, [round(0.1 * i, 6) for i in range(25)]),  # there are no more
        ({"fps": 0.5}, [0.0, 2.0]),
        ({"start": 0.75}, [0.8, 1.3, 1.8, 2.3]),
        ({"start": 1.0, "end": 2.0}, [1.0, 1.5]),
        ({"end": 0.01}, [0.0]),
        ({"end": 99}, [0.0, 0.5, 1.0, 1.5, 2.0]),
    ],
)
def test_chosen_frames(tmp_path, options, expected):
    assert read(write_clip(tmp_path / "clip.mp4", greys(25)), **options)[0] == expected


def test_a_variable_frame_rate(tmp_path):
    path = write_clip(tmp_path / "clip.mp4", greys(6), times=[0.0, 0.1, 0.9, 2.0, 2.033, 9.0])
    times, shades = read(path)
    assert times == pytest.approx([0.0, 0.9, 2.0, 9.0])  # nothing is shown twice where the picture stands still
    assert shades == pytest.approx([20, 86, 120, 186], abs=4)


def test_times_count_from_the_first_frame(tmp_path):
    path = write_clip(tmp_path / "clip.mkv", greys(4), times=[5.0, 5.5, 6.0, 6.5])
    assert read(path)[0] == [0.0, 0.5, 1.0, 1.5]


@pytest.mark.parametrize(
    ("name", "codec"), [("c.mp4", "libx264"), ("c.ts", "libx264"), ("c.avi", "mpeg4"), ("c.webm", "libvpx")]
)
def test_frames_are_the_same_in_any_order(tmp_path, name, codec):
    rng = np.random.default_rng(1)
    frames = list(rng.integers(0, 256, (48, 48, 64, 3), dtype=np.uint8))
    images = open_video(write_clip(tmp_path / name, frames, codec=codec), fps=10).images
    in_order = [images.read(i) for i in range(len(images))]
    assert len(set(in_order)) == 48
    for i in rng.permutation(48):
        assert images.read(i) == in_order[i]
    sparse = open_video(images.file, fps=0.5).images  # jumps from keyframe to keyframe
    assert [sparse.read(i) for i in range(len(sparse))] == [in_order[0], in_order[20], in_order[40]]


def test_a_turned_video_is_upright(tmp_path):
    frame = np.zeros((48, 64, 3), np.uint8)
    frame[:, :32] = 255  # the left half is white
    path = write_clip(tmp_path / "phone.mp4", [frame] * 3)
    rotate(path)
    _, image = next(video_frames(path))
    assert image.size == (48, 64)
    assert brightness(image.crop((0, 0, 48, 28))) > 240  # clockwise: left becomes top
    assert brightness(image.crop((0, 36, 48, 64))) < 15


def test_pixels_that_are_not_square(tmp_path):
    path = write_clip(tmp_path / "wide.mkv", greys(2), aspect=Fraction(4, 3))
    assert next(video_frames(path))[1].size == (85, 48)


def test_only_requested_frames_are_decoded(tmp_path, monkeypatch):
    path = write_clip(tmp_path / "clip.mp4", greys(40))
    count, find = [], video._Reader.find
    monkeypatch.setattr(video._Reader, "find", lambda *given: count.append(1) or find(*given))
    frames = video_frames(path)
    assert count == []
    next(frames)
    assert count == [1]


# The set.


def test_the_set(tmp_path):
    images = open_video(write_clip(tmp_path / "clip.mp4", greys(25)), ["cat", "dog"], fps=4)
    assert (images.name, len(images), images.class_names, images.labels) == ("clip.mp4", 10, ("cat", "dog"), None)
    assert images.images.name(1) == "clip.mp4#t=0.3"
    assert images.images.times == pytest.approx([0.0, 0.3, 0.5, 0.8, 1.0, 1.3, 1.5, 1.8, 2.0, 2.3])
    assert images.images.end == pytest.approx(2.5)
    some = images.subset([1, 8]).images
    assert [some.name(i) for i in range(2)] == ["clip.mp4#t=0.3", "clip.mp4#t=2"]
    assert some.read(1) == images.images.read(8)
    again = pickle.loads(pickle.dumps(some))
    assert again.read(0) == images.images.read(1)


def test_the_end_of_a_part(tmp_path):
    path = write_clip(tmp_path / "clip.mp4", greys(25))
    assert open_video(path, end=1.2).images.end == pytest.approx(1.2)
    assert open_video(path, end=99).images.end == pytest.approx(2.5)


# Damaged files.


def test_the_frames_before_the_end_of_a_truncated_video_are_read(tmp_path):
    frames = list(np.random.default_rng(2).integers(0, 256, (40, 48, 64, 3), dtype=np.uint8))
    path = write_clip(tmp_path / "clip.mp4", frames, index_first=True)
    whole = [image.tobytes() for _, image in video_frames(path, fps=10)]
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    with pytest.warns(UserWarning, match=r"ends after 2\.\d s of 4\.0 s: it is truncated"):
        images = open_video(path, fps=10).images
    found = [images.read(i) for i in range(len(images) - 4)]
    assert 15 <= len(found) < 35
    assert [content[video.SIZE.size :] for content in found] == whole[: len(found)]


def test_damaged_frames_are_left_out(tmp_path):
    frames = list(np.random.default_rng(3).integers(0, 256, (36, 48, 64, 3), dtype=np.uint8))
    path = write_clip(tmp_path / "clip.mp4", frames, index_first=True)
    whole = {round(seconds, 6): image.tobytes() for seconds, image in video_frames(path, fps=10)}
    content = bytearray(path.read_bytes())
    middle = slice(len(content) // 2, len(content) // 2 + 6000)
    content[middle] = b"\xff" * 6000
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="is damaged"):
        found = {round(seconds, 6): image.tobytes() for seconds, image in video_frames(path, fps=10)}
    assert 20 <= len(found) < 36
    assert found.keys() < whole.keys()
    assert [found[0.1 * i] == whole[0.1 * i] for i in (0, 1, 2)] == [True] * 3
    assert found[3.5] == whole[3.5]  # from the next keyframe on, all is well
    images = open_video(path, fps=10).images
    damaged = next(i for i in range(36) if round(images.times[i], 6) not in found)
    with pytest.raises(ImageError, match=rf"clip\.mp4#t={images.times[damaged]:g}.*: is damaged"):
        images.read(damaged)


def write_text(path):
    path.write_text("hello\n" * 1000)


def write_noise(path):
    path.write_bytes(np.random.default_rng(0).bytes(5000))


def write_without_index(path):
    write_clip(path, list(np.random.default_rng(0).integers(0, 256, (9, 48, 64, 3), dtype=np.uint8)))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def write_with_half_an_index(path):
    write_clip(path, greys(20))
    path.write_bytes(path.read_bytes()[:1500])


def write_picture(path):
    from PIL import Image

    Image.new("RGB", (64, 48)).save(path, format="JPEG")


def write_playlist(path):
    path.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nother.ts\n#EXT-X-ENDLIST\n")
    write_clip(path.with_name("other.ts"), greys(20))


NOT_A_VIDEO = "cannot be read as a video"


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (write_text, NOT_A_VIDEO),
        (write_noise, NOT_A_VIDEO),
        (write_without_index, NOT_A_VIDEO),
        (write_with_half_an_index, "has no pictures that can be decoded; it may be truncated"),
        (write_picture, NOT_A_VIDEO),
        (write_playlist, NOT_A_VIDEO),
        (lambda path: path.touch(), r"it is empty \(0 bytes\)"),
        (write_sound, r"has sound but no pictures\. Fix: pass a video\."),
        (lambda path: write_sound(path, cover=True), "has sound but no pictures"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: os.mkfifo(path), "is a device, pipe or socket"),
        (lambda path: None, r"no video at .*clip\.mp4\. Fix: check the path"),
    ],
)
def test_files_that_are_no_videos(tmp_path, write, message):
    write(tmp_path / "clip.mp4")
    with pytest.raises((ValueError, OSError), match=message) as caught:
        video_frames(tmp_path / "clip.mp4")  # before the first frame is requested
    assert "clip.mp4" in str(caught.value)
    assert "Fix: " in str(caught.value)


def test_a_name_that_looks_like_an_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_clip(tmp_path / "clip.mp4", greys(3))
    (tmp_path / "clip.mp4").rename("concat:clip.mp4")
    assert len(list(video_frames("concat:clip.mp4"))) == 1
    with pytest.raises(FileNotFoundError):
        video_frames("file:concat:clip.mp4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fps": 0}, "fps must be a number greater than 0 and at most 1000; got 0"),
        ({"fps": float("nan")}, "fps must be"),
        ({"fps": "2"}, "fps must be"),
        ({"start": -1}, "start must be"),
        ({"end": 0}, "end must be"),
        ({"start": 2, "end": 1}, "end must be later than start; got end=1, start=2"),
        ({"start": 5}, r"has no frame after 5 s: it lasts 1\.000 s"),
        ({"start": 0.95, "end": 0.99}, r"has no frame after 0\.95 s before 0\.99 s"),
    ],
)
def test_wrong_arguments(tmp_path, options, message):
    path = write_clip(tmp_path / "clip.mp4", greys(10))
    with pytest.raises((ValueError, TypeError), match=message):
        video_frames(path, **options)


def test_without_pyav(tmp_path, monkeypatch):
    path = write_clip(tmp_path / "clip.mp4", greys(3))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"pip install .*\[video\]'; a folder of frames needs nothing"):
        video_frames(path)


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.ts"])
def test_randomly_damaged_files_give_frames_or_errors_with_a_fix(tmp_path, name):
    rng = np.random.default_rng(len(name))
    path = write_clip(tmp_path / name, greys(30))
    whole, read_some, messages = path.read_bytes(), 0, []
    for _ in range(30):
        content = bytearray(whole)
        for place in rng.integers(0, len(content), 12):
            content[place] = rng.integers(256)
        path.write_bytes(content[: rng.integers(len(content) // 2, len(content) + 1)])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                images = open_video(path, fps=20).images
            for i in rng.permutation(len(images))[:20]:
                images.open(i)
                read_some += 1
        except (ValueError, OSError) as error:
            messages.append(str(error))
    assert read_some
    assert [message for message in messages if "Fix: " not in message] == []
