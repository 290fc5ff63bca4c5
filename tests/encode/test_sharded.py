"""Images in tars or folders become features in the layout of clip-retrieval."""

from __future__ import annotations

import io
import json
import os
import tarfile
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

pytest.importorskip("transformers")

from PIL import Image

from zeroshift.distributed import FeatureShards, ShardError
from zeroshift.encode import registry, sharded
from zeroshift.encode.sharded import extract_shards, open_image_shards


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from encode import tiny

    return tiny.clip(tmp_path_factory.mktemp("model") / "tiny-clip")


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, size=(40, 48, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "png")
    return content.getvalue()


def write_tar(path, samples, pax_headers=None, format=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w", format=format) as tar:
        for name, content in samples:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.pax_headers = pax_headers or {}
            tar.addfile(info, io.BytesIO(content))


@pytest.fixture
def tars(tmp_path):
    folder = tmp_path / "tars"
    folder.mkdir()
    for number in range(3):
        samples = []
        for index in range(5):
            key = f"{number:03d}{index:03d}"
            samples += [(f"{key}.png", picture(10 * number + index)), (f"{key}.txt", f"a picture {key}".encode())]
            samples += [(f"{key}.cls", str(index).encode())]
        write_tar(folder / f"{number:05d}.tar", samples)
    return folder


def run(source, model, out, **options):
    load = partial(registry.load_image_encoder, str(model), device="cpu")
    return extract_shards(open_image_shards(source), load(), out, load=load, **{"on": "local:0", **options})


def expected(model, seeds):
    encoder = registry.load_image_encoder(str(model), device="cpu")
    return encoder.encode_images([np.asarray(Image.open(io.BytesIO(picture(seed)))) for seed in seeds])


@pytest.mark.parametrize("on", ["local:0", "local:2"])
def test_tars(tars, model, tmp_path, on):
    from pyarrow import parquet

    result = run(tars, model, tmp_path / "out", on=on, threads=2, storage="float32")
    assert (result.shards, result.images, result.reused) == (3, 15, 0)
    shards = FeatureShards.open(tmp_path / "out")
    rows = np.concatenate([shard.read(0, shard.rows) for shard in shards.shards])
    assert np.abs(rows - expected(model, [10 * n + i for n in range(3) for i in range(5)])).max() < 1e-5
    table = parquet.read_table(tmp_path / "out" / "metadata" / "metadata_2.parquet")
    assert table["image_path"].to_pylist()[1] == "002001.png"
    assert table["caption"].to_pylist()[1] == "a picture 002001"
    assert table["label"].to_pylist()[1] == "1"


def test_resumes_by_shard(tars, model, tmp_path):
    out = tmp_path / "out"

    def stop(what, shards, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tars, model, out, progress=stop)
    first = (out / "img_emb" / "img_emb_0.npy").stat().st_mtime_ns
    result = run(tars, model, out)
    assert (result.reused, result.images) == (1, 10)
    assert (out / "img_emb" / "img_emb_0.npy").stat().st_mtime_ns == first
    assert run(tars, model, out).images == 0
    with pytest.raises(FileExistsError, match="another storage"):
        run(tars, model, out, storage="float32")


def test_damaged_images_and_tars(tars, model, tmp_path):
    write_tar(tars / "00001.tar", [("a.png", picture(1)), ("b.png", b"no image"), ("c.png", picture(2))])
    whole = (tars / "00002.tar").read_bytes()
    (tars / "00002.tar").write_bytes(whole[: len(whole) // 4 + 100])
    with pytest.raises(ShardError, match=r"00002\.tar cannot be used"):
        run(tars, model, tmp_path / "a")
    result = run(tars, model, tmp_path / "b", on_bad_shard="skip")
    assert result.images == 5 + 2
    assert [one["image"] for one in result.skipped_images] == ["b.png"]
    assert result.skipped_shards == [str(tars / "00002.tar")]
    assert sorted(path.name for path in (tmp_path / "b" / "img_emb").iterdir()) == ["img_emb_0.npy", "img_emb_1.npy"]
    with pytest.raises(sharded.ImageError, match=r"b\.png: is not an image"):
        run(tars, model, tmp_path / "c", on_error="stop", on_bad_shard="skip")


@pytest.mark.parametrize(
    "headers",
    [{"GNU.sparse.map": "abc"}, {"GNU.sparse.map": "0,1", "GNU.sparse.size": "zz"},
     {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}],
    ids=["map", "size", "major"],
)  # fmt: skip
def test_a_tar_with_damaged_headers(tars, model, tmp_path, headers):
    write_tar(tars / "00001.tar", [("a.png", picture(1))], headers)
    with pytest.raises(ShardError, match=r"00001\.tar cannot be used: \w+Error: "):
        run(tars, model, tmp_path / "a")
    result = run(tars, model, tmp_path / "b", on_bad_shard="skip")
    assert (result.images, result.skipped_shards) == (10, [str(tars / "00001.tar")])


SPARSE = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(2**40)}
"""A file of one byte that would take 1 TiB when it is read."""


def test_large_files_in_tars_are_not_read(model, tmp_path, monkeypatch):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, content, headers in [
            ("a.png", b"1", SPARSE), ("b.png", picture(1), {}), ("b.txt", b"1", SPARSE), ("b.json", b"1", SPARSE),
            ("c.png", bytes(10_000), {}), ("d.mp4", bytes(10_000), {}),
        ]:  # fmt: skip
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(content), headers
            tar.addfile(info, io.BytesIO(content))
    monkeypatch.setattr(sharded, "MAX_MEMBER_BYTES", 9_999)
    result = run(tmp_path, model, tmp_path / "out")
    assert result.images == 1
    assert result.skipped_images == [
        {"image": "a.png", "why": "is a sparse file"},
        {"image": "c.png", "why": "has 10,000 bytes, more than 9,999"},
    ]


def test_a_file_that_ends_after_the_tar(tmp_path):
    """Its data would be skipped block by block, without an end."""
    info = tarfile.TarInfo("a.mp4")
    info.size = 2**60
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(10_240))
    with pytest.raises(ShardError, match="unexpected end of data"):
        list(open_image_shards(tmp_path)[0].read())


def test_names_that_are_not_utf_8(model, tmp_path):
    from pyarrow import parquet

    name = os.fsdecode(b"caf\xe9.png")
    for folder in ("tars", "photos"):
        (tmp_path / folder).mkdir()
    write_tar(tmp_path / "tars" / "a.tar", [(name, picture(1))], format=tarfile.GNU_FORMAT)
    folders = ["tars"]
    with suppress(OSError):  # file systems of macOS and Windows have no such names
        (tmp_path / "photos" / name).write_bytes(picture(1))
        folders.append("photos")
    for folder in folders:
        assert run(tmp_path / folder, model, tmp_path / "out" / folder).images == 1
        table = parquet.read_table(tmp_path / "out" / folder / "metadata" / "metadata_0.parquet")
        assert table["image_path"].to_pylist() == ["caf\\udce9.png"]


def test_a_folder_of_images(model, tmp_path):
    folder = tmp_path / "photos" / "cats"
    folder.mkdir(parents=True)
    for seed in range(5):
        (folder / f"{seed}.png").write_bytes(picture(seed))
    shards = open_image_shards(tmp_path / "photos", images_per_shard=2)
    assert [shard.names for shard in shards][2] == ("cats/4.png",)
    load = partial(registry.load_image_encoder, str(model), device="cpu")
    result = extract_shards(shards, load(), tmp_path / "out", load=load, on="local:0")
    assert (result.shards, result.images) == (3, 5)
    os.mkfifo(folder / "5.png")
    shards = open_image_shards(tmp_path / "photos", images_per_shard=2)
    result = extract_shards(shards, load(), tmp_path / "out2", load=load, on="local:0")
    assert (result.images, result.skipped_images) == (
        5, [{"image": "cats/5.png", "why": "is a device, pipe or socket"}]
    )  # fmt: skip


def test_urls(tars, model):
    import fsspec

    for path in tars.iterdir():
        with fsspec.open(f"memory://tars-of-images/{path.name}", "wb") as handle:
            handle.write(path.read_bytes())
    result = run("memory://tars-of-images", model, "memory://features-of-tars")
    assert result.images == 15
    assert FeatureShards.open("memory://features-of-tars").rows == 15
    about = json.loads(fsspec.open("memory://features-of-tars/zeroshift.json").open().read())
    assert about["identity"]["encoder"]["family"] == "clip"


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \.tar files and no images"):
        open_image_shards(tmp_path)


def test_tars_and_images_in_one_folder(tmp_path):
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "1.png").write_bytes(picture(1))
    write_tar(tmp_path / "old.tar", [("a.png", picture(2))])
    with pytest.raises(ValueError, match=r"both tars \(old\.tar\) and images \(cats/1\.png\).*Fix: move"):
        open_image_shards(tmp_path)
    assert len(open_image_shards(tmp_path / "old.tar")) == len(open_image_shards(tmp_path / "cats")) == 1


def test_a_single_file_must_be_a_tar(tmp_path):
    import fsspec

    with fsspec.open("memory://one-image/a.png", "wb") as handle:
        handle.write(picture(1))
    (tmp_path / "a.png").write_bytes(picture(1))
    for source in ("memory://one-image/a.png", tmp_path / "a.png"):
        with pytest.raises(ValueError, match=r"a\.png is a file and no \.tar\. Fix: the folder"):
            open_image_shards(source)
