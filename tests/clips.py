"""Videos for the tests, written with PyAV."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from encode.numpy_encoder import age

LOSSLESS = {"codec": "ffv1", "pixels": "bgr0"}
"""Settings of `write_clip` for a .mkv file that keeps every pixel."""


def write_clip(
    path: Path,
    frames: Sequence[np.ndarray],
    *,
    fps: int = 10,
    times: Sequence[float] | None = None,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    every_key: int = 12,
    index_first: bool = False,
    aspect: Fraction | None = None,
) -> Path:
    """Write RGB frames; `times` in seconds, one per frame, make the frame rate variable."""
    import av

    options = {"movflags": "faststart"} if index_first else {}
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=fps)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.gop_size = pixels, every_key
        if aspect is not None:
            stream.sample_aspect_ratio = aspect
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for i, pixels_of_frame in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels_of_frame, format="rgb24")
            frame.pts = i if times is None else round(1000 * times[i])
            frame.time_base = Fraction(1, fps) if times is None else Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    age(path)  # recently changed files would be read again by the next run
    return path


def greys(count: int, *, width: int = 64, height: int = 48) -> list[np.ndarray]:
    """Frames that get brighter, so that the brightness of a frame is its place."""
    return [np.full((height, width, 3), 20 + 200 * i // count, np.uint8) for i in range(count)]


def write_sound(path: Path, *, cover: bool = False) -> Path:
    """A second of silence; with `cover`, it also has a picture, as songs do."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        stream.layout = "mono"
        picture = None
        if cover:
            picture = container.add_stream("mjpeg", rate=1)
            picture.width, picture.height, picture.pix_fmt = 64, 48, "yuvj420p"
            picture.disposition = av.stream.Disposition.attached_pic
        for i in range(8):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.rate, frame.pts = 8000, 1024 * i
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if picture is not None:
            container.mux(picture.encode(av.VideoFrame.from_ndarray(greys(1)[0], format="rgb24")))
            container.mux(picture.encode())
    return path


def rotate(path: Path) -> None:
    """Make an .mp4 state that it is to be shown turned by 90 degrees clockwise, as phones do."""
    content = bytearray(path.read_bytes())
    matrix = content.index(b"tkhd") + 44
    turned = [0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30]
    assert content[matrix : matrix + 4] == (1 << 16).to_bytes(4, "big")
    content[matrix : matrix + 36] = b"".join(number.to_bytes(4, "big", signed=True) for number in turned)
    path.write_bytes(content)
    age(path)
