"""Features of images that one machine does not hold: webdataset tars or folders in, the layout of clip-retrieval out.

Every shard of images becomes `img_emb/img_emb_N.npy` and `metadata/metadata_N.parquet`. A shard is one task: threads
decode its images while the encoder of the process works. A shard that is written is not encoded again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from zeroshift.data.images import ImageError, decode, is_image
from zeroshift.distributed import Executor, ShardError, use_executor
from zeroshift.distributed.folders import Folder, file_system, import_optional, is_url, open_file
from zeroshift.distributed.shards import list_files
from zeroshift.encode.encoder import ImageEncoder
from zeroshift.encode.preprocessing import Pixels, Preprocessing
from zeroshift.files import FileFormatError

__all__ = ["ABOUT", "IMAGES_PER_SHARD", "ImageShard", "ShardedExtraction", "extract_shards", "open_image_shards"]

ABOUT = "zeroshift.json"
"""File of an output folder that says how its features were made."""

IMAGES_PER_SHARD = 10_000
"""Images of a folder that become one file."""

MAX_MEMBER_BYTES = 256 * 2**20
"""Largest file in a tar that is read."""

DECODED_BATCHES = 3
"""Batches of decoded images that may wait for the encoder; bounds the memory."""


@dataclass(frozen=True)
class ImageShard:
    """A webdataset tar, or some image files of a folder."""

    number: int
    path: str
    """Of the tar, or of the folder."""
    names: tuple[str, ...] = ()
    """Of the files, relative to the folder; none for a tar."""
    size: int = 0
    """Bytes, of a tar."""

    def __str__(self) -> str:
        return self.path if not self.names else f"{self.path} ({self.names[0]} to {self.names[-1]})"

    def read(self) -> Iterator[tuple[str, bytes | ImageError, dict[str, str]]]:
        """The name, the content (or why it is not read) and the texts (by suffix) of every image, in order."""
        if not self.names:
            yield from self._read_tar()
            return
        for name in self.names:
            try:
                with open_file(f"{self.path}/{name}") as handle:
                    content = handle.read()
            except FileFormatError:
                content = ImageError(_encodable(name), "is a device, pipe or socket", "remove it")
            yield _encodable(name), content, {}

    def _read_tar(self) -> Iterator[tuple[str, bytes | ImageError, dict[str, str]]]:
        """Members of a sample have the same name up to the first point of the last part, and follow each other."""
        key, image, texts = "", None, dict[str, str]()
        try:
            size = self.size or _size(self.path)
            with open_file(self.path) as handle, tarfile.open(fileobj=handle, mode="r|") as tar:
                for member in tar:
                    if size and tar.offset > size:
                        raise tarfile.ReadError("unexpected end of data")
                    if not member.isfile():
                        continue
                    folder, _, last = member.name.rpartition("/")
                    stem, _, suffix = last.partition(".")
                    this = f"{folder}/{stem}" if folder else stem
                    if this != key and image is not None:
                        yield *image, texts
                    if this != key:
                        key, image, texts = this, None, {}
                    if is_image(f".{suffix}"):
                        image = (_encodable(member.name), _content(tar, member))
                    elif suffix in ("txt", "cls"):
                        text = _content(tar, member)
                        if isinstance(text, bytes):
                            texts[suffix] = text.decode(errors="replace").strip()
                if image is not None:
                    yield *image, texts
        except Exception as error:  # whatever the file system raises, or tarfile for a damaged header
            raise ShardError(self.path, f"{type(error).__name__}: {error}") from error


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | ImageError:
    """What a file in a tar contains, or why it is not read: a small tar must not need much memory."""
    name = _encodable(member.name)
    if member.issparse():
        return ImageError(name, "is a sparse file", "write the tar without --sparse")
    if member.size > MAX_MEMBER_BYTES:
        return ImageError(name, f"has {member.size:,} bytes, more than {MAX_MEMBER_BYTES:,}", "shrink it, or remove it")
    opened = tar.extractfile(member)
    return b"" if opened is None else opened.read()


def _encodable(name: str) -> str:
    r"""A name that parquet can store: bytes that are not UTF-8 are written as \udcXX."""
    return name.encode(errors="backslashreplace").decode()


def open_image_shards(
    source: str | os.PathLike[str], *, images_per_shard: int = IMAGES_PER_SHARD
) -> tuple[ImageShard, ...]:
    """The tars at `source` (one, or those in a folder), or the image files in a folder and its subfolders; on this
    machine or at an fsspec URL. A folder with both is refused."""
    path = Folder.of(source).path.rstrip("/")
    is_tar = (path.split("?")[0] if is_url(path) else path).endswith(".tar")
    tars = [path] if is_tar else list_files(path, (".tar",))
    if tars == [path] and not is_tar:
        raise ValueError(f"{source} is a file and no .tar. Fix: the folder it is in, or a .tar.")
    names = [] if is_tar else _image_names(path)
    if tars and names:
        raise ValueError(
            f"{source} has both tars ({PurePosixPath(tars[0]).name}) and images ({names[0]}), and only one kind is "
            "encoded at a time. Fix: move the tars, or the images, to another folder."
        )
    if tars:
        return tuple(ImageShard(number, tar, size=_size(tar)) for number, tar in enumerate(tars))
    if not names:
        raise FileNotFoundError(f"no .tar files and no images at {source}. Fix: check the path.")
    starts = range(0, len(names), images_per_shard)
    return tuple(ImageShard(i, path, tuple(names[start : start + images_per_shard])) for i, start in enumerate(starts))


def _size(path: str) -> int:
    return int(file_system(path).size(path) or 0) if is_url(path) else os.path.getsize(path)


def _image_names(path: str) -> list[str]:
    if is_url(path):
        system = file_system(path)
        inside = system._strip_protocol(path).rstrip("/") + "/"
        found = [str(name).removeprefix(inside) for name in system.find(path)]
    else:
        found = [
            os.path.relpath(os.path.join(top, name), path).replace(os.sep, "/")
            for top, _, files in os.walk(path)
            for name in files
        ]
    return sorted(name for name in found if is_image(name))


@dataclass
class ShardedExtraction:
    """What `extract_shards` did."""

    shards: int
    images: int
    """Encoded in this call."""
    reused: int
    """Shards that an earlier call had written."""
    skipped_images: list[dict[str, str]] = field(default_factory=list)
    skipped_shards: list[str] = field(default_factory=list)
    out: str = ""


@dataclass
class _EncodeShard:
    """Encodes one shard in a worker, which keeps the encoder for the next."""

    load: Callable[[], ImageEncoder]
    out: Folder
    storage: str
    threads: int
    stop_at_images: bool
    stop_at_shards: bool
    _loaded: list[ImageEncoder] = field(default_factory=list, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": []}

    def __call__(self, shard: ImageShard) -> tuple[int, list[ImageError], str | None]:
        """The number of images, those skipped, and the reason if the shard cannot be read."""
        if not self._loaded:
            self._loaded.append(self.load())
        try:
            return *self._encode(shard, self._loaded[0]), None
        except ShardError as error:
            if self.stop_at_shards:
                raise
            return 0, [], str(error)

    def _encode(self, shard: ImageShard, encoder: ImageEncoder) -> tuple[int, list[ImageError]]:
        rows: list[np.ndarray] = []
        batch: list[Pixels] = []
        table: list[dict[str, Any]] = []
        skipped: list[ImageError] = []

        def encode() -> None:
            rows.append(encoder.encode_pixels(tuple(np.stack(arrays) for arrays in zip(*batch, strict=True))))
            batch.clear()

        for name, texts, decoded in self._decoded(shard, encoder):
            try:
                batch.append(decoded.result())
            except ImageError as error:
                if self.stop_at_images:
                    raise
                skipped.append(error)
                continue
            table.append({"image_path": name, "caption": texts.get("txt"), "label": texts.get("cls")})
            if len(batch) >= encoder.batch_size:
                encode()
        if batch:
            encode()
        features = np.concatenate(rows) if rows else np.zeros((0, encoder.dimension))
        self._write(shard.number, features.astype(self.storage), table)
        return len(table), skipped

    def _decoded(
        self, shard: ImageShard, encoder: ImageEncoder
    ) -> Iterator[tuple[str, dict[str, str], Future[Pixels]]]:
        """Images in order, decoded ahead in threads: Pillow works on several cores at the same time."""
        ahead: deque[tuple[str, dict[str, str], Future[Pixels]]] = deque()
        with ThreadPoolExecutor(max(1, self.threads), thread_name_prefix="decode") as pool:
            for name, content, texts in shard.read():
                ahead.append((name, texts, pool.submit(_decode, content, name, encoder.preprocessing)))
                if len(ahead) >= DECODED_BATCHES * encoder.batch_size:
                    yield ahead.popleft()
            yield from ahead

    def _write(self, number: int, features: np.ndarray, table: list[dict[str, Any]]) -> None:
        pyarrow, parquet = import_optional("pyarrow", "parquet"), import_optional("pyarrow.parquet", "parquet")
        names = ("image_path", "caption", "label")
        columns = {name: pyarrow.array([row[name] for row in table], pyarrow.string()) for name in names}
        content = io.BytesIO()
        parquet.write_table(pyarrow.table(columns), content)
        (self.out / "metadata").write(f"metadata_{number}.parquet", content.getvalue())
        content = io.BytesIO()
        np.save(content, features, allow_pickle=False)
        (self.out / "img_emb").write(f"img_emb_{number}.npy", content.getvalue())  # last: it says that both are there


def _decode(content: bytes | ImageError, name: str, preprocessing: Preprocessing) -> Pixels:
    if isinstance(content, ImageError):
        raise content
    image = decode(content, name, upright=True, transparency="white").image
    try:
        return preprocessing(image)
    except ValueError as error:  # too long and thin to be resized
        raise ImageError(name, str(error).split(" Fix:")[0].rstrip("."), "remove it") from error


def extract_shards(
    shards: Sequence[ImageShard],
    encoder: ImageEncoder,
    out: str | os.PathLike[str],
    *,
    load: Callable[[], ImageEncoder],
    on: str | Executor = "local",
    threads: int = 1,
    storage: str = "float16",
    on_error: str = "skip",
    on_bad_shard: str = "raise",
    prototypes: np.ndarray | None = None,
    about: dict[str, Any] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> ShardedExtraction:
    """Encode the images of shards and write them to the folder `out`, in the layout of clip-retrieval.

    Parameters
    ----------
    encoder : says what the features are made with.
    load : loads it in another process; picklable.
    on : `local`, `local:N`, `ray`, `ray://host:port`, or an executor.
    threads : that decode images, in each process.
    on_error : "skip" leaves out images that cannot be read, "stop" raises for the first.
    on_bad_shard : "raise", or "skip" to leave out shards that cannot be read.
    prototypes : of the classes, written to `out/prototypes.npy`.
    about : more that is written to `out/zeroshift.json`; what an earlier call wrote there stays.
    progress : called after every shard with what is done, the number of shards done, and all.
    """
    folder = Folder.of(out)
    identity = {
        "encoder": encoder.key(),
        "preprocessing": encoder.describe_preprocessing(),
        "storage": storage,
        "shards": hashlib.sha256(repr([(s.number, s.path, s.names, s.size) for s in shards]).encode()).hexdigest(),
    }
    known = _check_identity(folder, json.loads(json.dumps(identity)))
    if prototypes is not None:
        content = io.BytesIO()
        np.save(content, prototypes.astype(np.float32), allow_pickle=False)
        folder.write("prototypes.npy", content.getvalue())
    folder.write(ABOUT, json.dumps({**known, "identity": identity, **(about or {})}, indent=1).encode())
    written = {name for name in (folder / "img_emb").names() if name.endswith(".npy")}
    left = [shard for shard in shards if f"img_emb_{shard.number}.npy" not in written]
    done = len(shards) - len(left)
    result = ShardedExtraction(len(shards), 0, done, out=str(folder))
    work = _EncodeShard(load, folder, storage, threads, on_error == "stop", on_bad_shard == "raise")
    gpus = 1.0 if str(encoder.device).startswith("cuda") else 0.0
    with use_executor(on, gpus=gpus) as executor:
        for index, answer, lost in executor.as_completed(work, left, twice=True):
            if lost is not None:
                raise lost
            count, skipped, reason = answer
            done += 1
            result.images += count
            result.skipped_images += [{"image": one.name, "why": one.problem} for one in skipped]
            if reason is not None:
                result.skipped_shards.append(left[index].path)
            if progress is not None:
                progress("shards", done, len(shards))
    return result


def _check_identity(folder: Folder, identity: dict[str, Any]) -> dict[str, Any]:
    """What the folder says about its features; refuse a folder of other features."""
    content = folder.read(ABOUT)
    about: dict[str, Any] = {} if content is None else json.loads(content)
    known = about.get("identity")
    if known is not None and known != identity:
        changed = ", ".join(name for name in identity if known.get(name) != identity[name])
        raise FileExistsError(
            f"{folder} has features that were made with another {changed}. Fix: write to another folder."
        )
    if known is None and (folder / "img_emb").names():
        raise FileExistsError(f"{folder} has features that zeroshift did not make. Fix: write to another folder.")
    return about
