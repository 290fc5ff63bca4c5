"""Frames of a video, in the order in which they are shown. Needs PyAV (the extra `video`)."""

from __future__ import annotations

import os
import struct
import warnings
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zeroshift.data.image_set import ImageSet, checked_names
from zeroshift.data.images import DecodedImage, FileStat, ImageError, ImageFiles, pillow
from zeroshift.installation import install_command
from zeroshift.parameters import Number
from zeroshift.parsers import check_regular_file

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream
    from PIL.Image import Image

__all__ = ["DEFAULT_FPS", "VideoFrames", "open_video", "video_frames"]

DEFAULT_FPS = 2.0
"""Frames per second that are read: what a camera sees seldom changes faster, and neighbours would be nearly equal."""

FPS_RANGE = Number(0, 1000, above=True)

CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,asf,ogg,gif"
"""The containers that are read, by FFmpeg's names. Others are refused: FFmpeg draws any text file as a video, and
playlists name other files and addresses."""

ROTATIONS = {90: "ROTATE_90", 180: "ROTATE_180", -180: "ROTATE_180", -90: "ROTATE_270"}
"""Degrees against the clock, as a video states them, and Pillow's transposition."""

ROUNDING = 0.0005
"""Seconds by which stated times may be early: Matroska rounds them to milliseconds."""

SEEK_SECONDS = 0.5
"""Frames up to this far ahead are reached by decoding those before them, which is faster than a jump."""

TRUNCATED = 0.9
"""A video whose frames end before this share of its stated duration is reported as truncated."""


def video_frames(
    path: str | os.PathLike[str],
    fps: float = DEFAULT_FPS,
    *,
    start: float | None = None,
    end: float | None = None,
) -> Iterator[tuple[float, Image]]:
    """Read a video: (seconds, RGB image) of `fps` frames per second, one at a time, in the order they are shown.

    Of each interval of 1 / `fps` seconds, the first frame is taken; an interval without a frame is left out, as in
    videos with a variable frame rate. Images are rotated as the video states. Frames that are damaged are left out with
    a warning.

    Parameters
    ----------
    path : the file.
    fps : frames per second; all frames, if the video has fewer.
    start, end : seconds from the first frame; the frame at `end` is not read.
    """
    frames = _read(Path(path), fps, start, end)
    return _decoded(frames)


def _decoded(frames: VideoFrames) -> Iterator[tuple[float, Image]]:
    for i, seconds in enumerate(frames.times):
        try:
            image = frames.open(i).image
        except ImageError as error:
            warnings.warn(str(error), UserWarning, stacklevel=2)
            continue
        yield float(seconds), image


def open_video(
    path: str | os.PathLike[str],
    classes: Sequence[str] | None = None,
    *,
    fps: float = DEFAULT_FPS,
    start: float | None = None,
    end: float | None = None,
) -> ImageSet:
    """The frames of a video as a set, for `zeroshift.encode.extract`; the parameters are those of `video_frames`.

    The set's `images.times` are the seconds of the frames.
    """
    frames = _read(Path(path), fps, start, end)
    return ImageSet(
        name=Path(path).name,
        images=frames,
        class_names=None if classes is None else checked_names("classes", classes),
        provenance={"source": "video", "images": len(frames), "fps": float(fps), "start": start, "end": end},
    )


def _read(path: Path, fps: float, start: float | None, end: float | None) -> VideoFrames:
    """The chosen frames of a video; none is decoded."""
    fps = float(FPS_RANGE.check("fps", fps))
    begin = 0.0 if start is None else float(Number(0).check("start", start))
    if end is not None and float(Number(0, above=True).check("end", end)) <= begin:
        raise ValueError(f"end must be later than start; got end={end:g}, start={begin:g}. Fix: exchange them.")
    index = _index(path)
    times = (index.pts - index.pts[0]) * float(index.time_base)
    inside = np.flatnonzero((times >= begin - ROUNDING) & (times < (np.inf if end is None else end) - ROUNDING))
    if not len(inside):
        until = "" if end is None else f" before {end:g} s"
        raise ValueError(
            f"{path} has no frame after {begin:g} s{until}: it lasts {index.duration:.3f} s. Fix: change start or end."
        )
    _, first = np.unique(np.floor((times[inside] - begin + ROUNDING) * fps), return_index=True)
    chosen = inside[first]
    pts = index.pts[chosen]
    return VideoFrames(
        path,
        pts=pts,
        until=np.append(pts[1:], np.iinfo(np.int64).max),
        times=times[chosen],
        end=index.duration if end is None else min(end, index.duration),
        keyframes=index.keyframes,
        time_base=index.time_base,
    )


class VideoFrames:
    """Some frames of a video, as a source of images (`zeroshift.data.images.ImageSource`).

    Frames are decoded on demand: fastest in ascending order, one at a time, in one process.
    """

    sequential = True
    """Reading in several processes would decode most frames several times."""

    def __init__(
        self,
        file: Path,
        *,
        pts: np.ndarray,
        until: np.ndarray,
        times: np.ndarray,
        end: float,
        keyframes: np.ndarray,
        time_base: Fraction,
    ) -> None:
        self.file = file
        self.times = times
        """Seconds of each frame from the first one of the video."""
        self.end = end
        """Seconds at which the last frame is no longer shown."""
        self._pts, self._until = pts, until
        self._keyframes, self._time_base = keyframes, time_base
        self._reader: _Reader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def __repr__(self) -> str:
        return f"VideoFrames({str(self.file)!r}, {len(self)} frames)"

    def __len__(self) -> int:
        return len(self.times)

    def name(self, i: int) -> str:
        """The file and the second, as in links into a video: clip.mp4#t=2.5."""
        seconds = f"{self.times[i]:.6f}".rstrip("0").rstrip(".")
        return f"{self.file.name}#t={seconds}"

    def path(self, i: int) -> Path:
        """A name under which the digest of this frame can be found again. No file has it."""
        return self.file / f"frame {self._pts[i]}"

    def stat(self, i: int) -> FileStat:
        return ImageFiles(self.file.parent, (self.file.name,)).stat(0)

    def read(self, i: int) -> bytes:
        """Width, height and the pixels."""
        if self._reader is None:
            self._reader = _Reader(self.file, self._keyframes, self._time_base)
        try:
            image = self._reader.find(int(self._pts[i]), int(self._until[i]))
        except (ValueError, _pyav().error.FFmpegError) as error:  # a format that cannot be converted
            raise ImageError(self.name(i), f"cannot be decoded ({error})", "convert the video") from error
        if image is None:
            raise ImageError(self.name(i), "is damaged", "copy or download the video again")
        return SIZE.pack(*image.size) + image.tobytes()

    def decode_bytes(self, data: bytes, i: int) -> DecodedImage:
        return DecodedImage(pillow().frombytes("RGB", SIZE.unpack_from(data), data[SIZE.size :]))

    def open(self, i: int) -> DecodedImage:
        return self.decode_bytes(self.read(i), i)

    def open_reduced(self, i: int, longest: int) -> DecodedImage:
        return self.open(i)

    def take(self, indices: Sequence[int] | np.ndarray) -> VideoFrames:
        chosen = np.asarray(indices, dtype=np.int64)
        return VideoFrames(
            self.file,
            pts=self._pts[chosen],
            until=self._until[chosen],
            times=self.times[chosen],
            end=self.end,
            keyframes=self._keyframes,
            time_base=self._time_base,
        )

    def decoding_options(self) -> dict[str, Any]:
        return {"video": "rgb"}


SIZE = struct.Struct("<2I")


class _Index(NamedTuple):
    """What a video states about its frames."""

    pts: np.ndarray
    """Presentation times of all frames, ascending, in units of `time_base`."""
    keyframes: np.ndarray
    """The first, and those at which decoding can start."""
    time_base: Fraction
    duration: float
    """Seconds from the first frame to the end of the last."""


def _index(path: Path) -> _Index:
    """Read the times of all frames, without decoding any."""
    pts, keyframes, last_end = array("q"), array("q"), 0
    with _open(path) as container:
        stream = _video_stream(path, container)
        time_base, stated = Fraction(stream.time_base or 1), stream.duration
        for packet in _packets(container, stream):
            if packet.pts is None or packet.is_discard:
                continue
            pts.append(packet.pts)
            last_end = max(last_end, packet.pts + (packet.duration or 0))
            if packet.is_keyframe:
                keyframes.append(packet.pts)
    if not pts:
        raise ValueError(
            f"{path} has no frames with times. Fix: convert it, for example with ffmpeg -i {path.name} frames.mp4."
        )
    shown = np.unique(np.frombuffer(pts, np.int64))
    duration = float((max(last_end, int(shown[-1])) - int(shown[0])) * time_base)
    if stated and duration < TRUNCATED * float(stated * time_base):
        warnings.warn(
            f"{path} ends after {duration:.1f} s of {float(stated * time_base):.1f} s: it is truncated. "
            "Fix: copy or download it again.",
            UserWarning,
            stacklevel=4,
        )
    starts = np.unique(np.append(np.frombuffer(keyframes, np.int64), shown[0]))
    return _Index(shown, starts, time_base, duration)


class _Reader:
    """Decodes frames of a video by their times."""

    def __init__(self, path: Path, keyframes: np.ndarray, time_base: Fraction) -> None:
        self.path, self.keyframes = path, keyframes
        self.jump = int(SEEK_SECONDS / time_base)
        self.can_jump = True
        self._open()

    def _open(self) -> None:
        self.container = _open(self.path)
        self.stream = _video_stream(self.path, self.container)
        self.stream.thread_type = "AUTO"
        self.frames = self._decode()
        self.ahead: Any = None
        """A frame that was decoded and not used yet."""
        self.position = int(self.keyframes[0]) - 1
        """All frames up to this time are behind."""

    def find(self, wanted: int, until: int) -> Image | None:
        """The first frame from `wanted` on, before `until`; None if there is none that can be decoded."""
        key = int(self.keyframes[max(0, int(np.searchsorted(self.keyframes, wanted, "right")) - 1)])
        if wanted <= self.position or (self.can_jump and key > self.position + self.jump):
            self._seek(key, wanted)
        while (frame := self.ahead or next(self.frames, None)) is not None:
            if frame.pts >= until:
                self.ahead, self.position = frame, until - 1
                return None
            self.ahead, self.position = None, frame.pts
            if frame.pts >= wanted and not frame.is_corrupt:
                return self._to_image(frame)
        return None

    def _seek(self, key: int, wanted: int) -> None:
        self.ahead = None
        with suppress(_pyav().error.FFmpegError):
            self.container.seek(key, stream=self.stream)
            self.frames = self._decode()
            self.ahead = next(self.frames, None)
        if self.ahead is None or self.ahead.pts > wanted:  # not every container can be searched: start again
            self.can_jump = False
            self.container.close()
            self._open()

    def _decode(self) -> Iterator[Any]:
        """Frames from here on; what is damaged is left out."""
        damaged = _pyav().error.FFmpegError
        for packet in _packets(self.container, self.stream):
            try:
                frames = packet.decode()
            except damaged:
                continue
            yield from (frame for frame in frames if frame.pts is not None)

    def _to_image(self, frame: Any) -> Image:
        shape = self.stream.sample_aspect_ratio  # pixels of some cameras are wider than high
        image = frame.to_image(width=round(frame.width * shape) if shape and 0.25 <= shape <= 4 else frame.width)
        turn = ROTATIONS.get(round(frame.rotation / 90) * 90)
        return image.transpose(pillow().Transpose[turn]) if turn else image


def _packets(container: InputContainer, stream: VideoStream) -> Iterator[Any]:
    """The stored parts of a video, up to where it ends or cannot be read."""
    with suppress(_pyav().error.FFmpegError, IndexError):  # the latter for a stream that is announced nowhere
        yield from container.demux(stream)


def _pyav() -> ModuleType:
    """PyAV, or an error that says how to get it."""
    try:
        import av
    except ImportError as error:
        raise ImportError(
            f"reading a video needs PyAV. Fix: {install_command('video')}; a folder of frames needs nothing."
        ) from error
    return av


def _open(path: Path) -> InputContainer:
    av = _pyav()
    try:
        check_regular_file(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"no video at {path}. Fix: check the path.") from None
    try:
        # As an absolute path, so that no name is taken for an address.
        name = os.fspath(path.absolute())
        options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
        return av.open(name, options=options, metadata_errors="replace")
    except PermissionError as error:
        raise PermissionError(f"{path} cannot be read. Fix: check its permissions.") from error
    except av.error.FFmpegError as error:
        size = path.stat().st_size
        why = f"{error.strerror}; the file has {size:,} bytes" if size else "it is empty (0 bytes)"
        raise ValueError(
            f"{path} cannot be read as a video ({why}): it is none, or it is truncated. Fix: check that it plays, copy "
            f"or download it again, or convert it, for example with ffmpeg -i {path.name} frames.mp4."
        ) from error


def _video_stream(path: Path, container: InputContainer) -> VideoStream:
    """The video's pictures; the cover of a song is not a video."""
    av = _pyav()
    for stream in container.streams.video:
        if not stream.disposition & av.stream.Disposition.attached_pic and stream.codec_context is not None:
            return stream
    has_sound = bool(container.streams.audio)
    container.close()
    if has_sound:
        raise ValueError(f"{path} has sound but no pictures. Fix: pass a video.")
    raise ValueError(f"{path} has no pictures that can be decoded; it may be truncated. Fix: check that it plays.")
