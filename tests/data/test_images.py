"""Decoding of images, including damaged and unusual files, and the two image sources."""

import io
import os
import pickle
import struct
import sys
import threading
import types
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("PIL")
from PIL import Image, ImageFile

from zeroshift.data import images as images_module
from zeroshift.data.images import ImageArrays, ImageError, ImageFiles, decode, is_image

NOISE = np.random.default_rng(0).integers(0, 256, size=(24, 36, 3), dtype=np.uint8)


def encoded(image, kind, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(decoded) -> np.ndarray:
    assert decoded.image.mode == "RGB"
    return np.asarray(decoded.image)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_lossless_formats_round_trip_without_a_note(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    decoded = decode(encoded(Image.fromarray(NOISE), kind, **options), "a")
    np.testing.assert_array_equal(pixels(decoded), NOISE)
    assert decoded.note is None


def test_jpeg_is_read_as_pillow_reads_it():
    data = encoded(Image.fromarray(NOISE), "JPEG")
    np.testing.assert_array_equal(pixels(decode(data, "a")), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"^x\.jpg: is empty \(0 bytes\)\. Fix: copy or download it again, or delete it\.$"),
        (b"<html>404</html>", r"^x\.jpg: is not an image \(it looks like a web page or text\)\. Fix: .*JPEG"),
        (b"\x00\x01zeros", r"^x\.jpg: is not an image \(it starts with b'\\x00\\x01zeros'\)"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", "is not an image"),
    ],
)
def test_files_that_are_no_images_are_refused(data, message):
    with pytest.raises(ImageError, match=message):
        decode(data, "x.jpg")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("padding_elsewhere", [False, True])
def test_truncated_files_are_refused_not_padded(kind, kept, padding_elsewhere, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", padding_elsewhere)
    data = encoded(Image.fromarray(NOISE), kind)
    with pytest.raises(ImageError, match=r"^a: is truncated or damaged \(.+\)\. Fix: copy or download it again"):
        decode(data[: int(kept * len(data))], "a")
    assert padding_elsewhere == ImageFile.LOAD_TRUNCATED_IMAGES


def test_a_decompression_bomb_is_refused_and_a_large_image_gets_a_note(monkeypatch):
    data = encoded(Image.fromarray(NOISE), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(
        ImageError, match=r"^a: is too large to be opened safely .*864 pixels.* Fix: shrink it first\.$"
    ):
        decode(data, "a")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 600)
    assert "864 pixels" in decode(data, "a").note


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation_is_used_with_a_note(kind):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    decoded = decode(data, "a")
    assert (pixels(decoded) == [255, 0, 0]).all()
    assert decoded.note == "animated, 3 frames: the first is used"


def test_the_first_page_of_a_tiff_is_used_with_a_note():
    pages = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green")]
    decoded = decode(encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:]), "a")
    assert (pixels(decoded) == [255, 0, 0]).all()
    assert decoded.note == "2 pages: the first is used"


def test_a_stereo_photograph_gets_no_note():
    eyes = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green")]
    decoded = decode(encoded(eyes[0], "MPO", save_all=True, append_images=eyes[1:]), "a")
    assert (pixels(decoded) == [254, 0, 0]).all()
    assert decoded.note is None


def test_cmyk_is_converted_with_a_note():
    # Full cyan, no other ink: red is absorbed whole.
    decoded = decode(encoded(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "JPEG", quality=100), "a")
    np.testing.assert_allclose(pixels(decoded)[4, 4], [0, 255, 255], atol=3)
    assert decoded.note == "CMYK: converted to RGB without a colour profile"


def test_lab_is_converted_with_a_note():
    decoded = decode(encoded(Image.new("LAB", (8, 8), (255, 128, 128)), "TIFF"), "a")
    np.testing.assert_allclose(pixels(decoded)[0, 0], [255, 255, 255], atol=2)
    assert decoded.note.startswith("LAB: converted")


def test_grey_of_16_bits_is_scaled_not_clipped():
    grey = np.array([[0, 128, 129, 257], [25700, 32768, 65278, 65535]], np.uint16)
    decoded = decode(encoded(Image.fromarray(grey), "PNG"), "a")
    # 65535 = 255 * 257, so v / 257 rounded: computed by hand.
    np.testing.assert_array_equal(pixels(decoded)[..., 0], [[0, 0, 1, 1], [100, 128, 254, 255]])
    assert decoded.note == "more than 8 bits of grey: scaled to 8"


def test_grey_of_16_bits_in_a_pgm_is_scaled():
    data = b"P5 2 1 65535\n" + struct.pack(">HH", 257 * 7, 65535)
    np.testing.assert_array_equal(pixels(decode(data, "a"))[0, :, 0], [7, 255])


def tiff(values: np.ndarray, sample_format: int) -> bytes:
    """A minimal TIFF of one strip, grey; sample format 1 unsigned, 2 signed, 3 floating point."""
    rows, columns = values.shape
    bits = 8 * values.dtype.itemsize
    body = values.tobytes()
    entries = [(256, columns), (257, rows), (258, bits), (259, 1), (262, 1), (273, 8), (277, 1), (278, rows)]
    entries += [(279, len(body)), (339, sample_format)]
    directory = struct.pack("<H", len(entries))
    directory += b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries) + struct.pack("<I", 0)
    return b"II*\x00" + struct.pack("<I", 8 + len(body)) + body + directory


@pytest.mark.parametrize(
    ("dtype", "sample_format", "values", "expected"),
    [
        ("<u2", 1, [0, 257, 65535], [0, 1, 255]),
        ("<u4", 1, [0, 2**31, 2**32 - 1], [0, 128, 255]),
        ("<i4", 2, [0, 2**30, 2**31 - 1], [0, 128, 255]),
    ],
)
def test_deep_grey_is_scaled_from_the_full_range_of_its_type(dtype, sample_format, values, expected):
    decoded = decode(tiff(np.array([values], dtype), sample_format), "a")
    np.testing.assert_array_equal(pixels(decoded)[0, :, 0], expected)


def test_negative_and_floating_grey_are_refused():
    with pytest.raises(ImageError, match=r"^a: has negative values\. Fix: shift them"):
        decode(tiff(np.array([[-1, 2]], "<i4"), 2), "a")
    with pytest.raises(ImageError, match=r"^a: has floating-point values.* Fix: save it with 8 or 16 bits"):
        decode(tiff(np.array([[0.5, 1.0]], "<f4"), 3), "a")


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA"])
def test_other_modes_become_rgb(mode):
    image = Image.fromarray(NOISE).convert(mode)
    decoded = decode(encoded(image, "PNG"), "a")
    np.testing.assert_array_equal(pixels(decoded), np.asarray(image.convert("RGB")))


def test_transparency_is_dropped_not_blended():
    decoded = decode(encoded(Image.new("RGBA", (2, 2), (10, 20, 30, 0)), "PNG"), "a")
    assert (pixels(decoded) == [10, 20, 30]).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
@pytest.mark.parametrize(("transparency", "shown"), [("white", 255), ("black", 0)])
def test_transparency_is_blended_on_request(mode, transparency, shown):
    opaque = encoded(Image.fromarray(NOISE).convert(mode), "PNG")
    assert np.array_equal(pixels(decode(opaque, "a", transparency=transparency)), pixels(decode(opaque, "a")))
    if mode in ("P", "RGB"):
        data = encoded(Image.new(mode, (2, 2), 0), "PNG", transparency=0 if mode == "P" else (0, 0, 0))
    else:
        data = encoded(Image.new(mode, (2, 2), (90, 0) if mode == "LA" else (10, 20, 30, 0)), "PNG")
    assert (pixels(decode(data, "a", transparency=transparency)) == shown).all()


def test_half_transparent_pixels_are_mixed():
    data = encoded(Image.new("RGBA", (1, 1), (0, 100, 200, 51)), "PNG")  # a fifth of it
    assert pixels(decode(data, "a", transparency="white")).tolist() == [[[204, 224, 244]]]
    with pytest.raises(ValueError, match=r"transparency must be one of.*got 'red'"):
        decode(data, "a", transparency="red")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_only_with_upright(orientation):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(NOISE), "PNG", exif=exif)
    np.testing.assert_array_equal(pixels(decode(data, "a")), NOISE)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    np.testing.assert_array_equal(pixels(decode(data, "a", upright=True)), expected)


def with_exif(block: bytes) -> bytes:
    """A PNG with these bytes as its EXIF."""
    data = encoded(Image.fromarray(NOISE), "PNG")
    chunk = b"eXIf" + block
    chunk = struct.pack(">I", len(block)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return data[:33] + chunk + data[33:]  # 8 bytes of signature, 25 of the header chunk


def test_broken_exif_gives_a_note():
    for block in (b"II*\x00\x08\x00\x00\x00\xff\x7f", b"garbage!", b"II*\x00\xff\xff\xff\x7f"):
        decoded = decode(with_exif(block), "a", upright=True)
        np.testing.assert_array_equal(pixels(decoded), NOISE)
    assert decode(with_exif(b"garbage!"), "a", upright=True).note


def test_warnings_of_pillow_become_the_note():
    image = Image.fromarray(NOISE).convert("P")
    data = encoded(image, "PNG", transparency=bytes(range(256)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "Transparency" in decode(data, "a").note


def test_threads_that_decode_at_the_same_time_do_not_share_their_settings(monkeypatch):
    """The first thread ends while the second decodes, which warns and must still refuse truncated images."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    before = warnings.filters, warnings.showwarning
    first_decodes, second_decodes, first_ended = (threading.Event() for _ in range(3))
    load = images_module._decode_first_frame

    def in_turns(data, name, *options):
        if name == "first":
            first_decodes.set()
            assert second_decodes.wait(60)
        else:
            second_decodes.set()
            assert first_ended.wait(60)
            warnings.warn(f"about {name}", UserWarning, stacklevel=1)
        return load(data, name, *options)

    monkeypatch.setattr(images_module, "_decode_first_frame", in_turns)
    data = encoded(Image.fromarray(NOISE), "PNG")
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(decode, data, "first")
        assert first_decodes.wait(60)
        others = [threads.submit(decode, data, "second"), threads.submit(decode, data[:-100], "third")]
        assert first.result(60).note is None
        first_ended.set()
        assert others[0].result(60).note == "about second"
        with pytest.raises(ImageError, match="truncated"):
            others[1].result(60)
    assert (warnings.filters, warnings.showwarning) == before
    assert ImageFile.LOAD_TRUNCATED_IMAGES


def test_missing_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"needs pillow\. Fix: pip install .*\[encoders\]'\."):
        decode(b"x", "a")


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
"""How photographs of an iPhone start."""


def test_photographs_of_telephones_need_pillow_heif(monkeypatch):
    monkeypatch.setattr(images_module, "find_spec", lambda name: None)
    images_module._formats.cache_clear()
    with pytest.raises(ImageError, match=r"a\.heic: is not an image .* Fix: pip install pillow-heif, or convert"):
        decode(HEIC, "a.heic")
    assert not is_image("a.heic")
    images_module._formats.cache_clear()


def test_photographs_of_telephones_are_read_with_pillow_heif(monkeypatch):
    class Reader(ImageFile.ImageFile):
        format = "HEIF"

        def _open(self):
            self._size, self._mode = (2, 1), "RGB"
            self.tile = [ImageFile._Tile("raw", (0, 0, 2, 1), len(HEIC), ("RGB", 0, 1))]

    module = types.ModuleType("pillow_heif")
    module.register_heif_opener = lambda: Image.register_open("HEIF", Reader, lambda start: start[4:12] == b"ftypheic")
    monkeypatch.setitem(sys.modules, "pillow_heif", module)
    monkeypatch.setattr(images_module, "find_spec", lambda name: module)
    monkeypatch.setattr(Image, "OPEN", dict(Image.OPEN))
    monkeypatch.setattr(Image, "ID", list(Image.ID))
    images_module._formats.cache_clear()
    assert is_image("IMG_1.HEIC")
    assert decode(HEIC + bytes([1, 2, 3, 4, 5, 6]), "a.heic").image.tobytes() == bytes([1, 2, 3, 4, 5, 6])
    images_module._formats.cache_clear()


def test_image_errors_can_be_pickled():
    error = pickle.loads(pickle.dumps(ImageError("a.jpg", "is odd", "mend it")))
    assert str(error) == "a.jpg: is odd. Fix: mend it."


@pytest.fixture
def files(tmp_path) -> ImageFiles:
    names = ("b/1.png", "a/2.png", "c.png")
    for shade, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4), (shade, 0, 0)).save(tmp_path / name)
    return ImageFiles(tmp_path, names)


def test_files_are_read_by_position(files):
    assert len(files) == 3
    assert [files.name(i) for i in range(3)] == ["b/1.png", "a/2.png", "c.png"]
    assert [int(pixels(files.open(i))[0, 0, 0]) for i in range(3)] == [0, 1, 2]
    assert files.read(2) == (files.root / "c.png").read_bytes()
    status = os.stat(files.root / "c.png")
    assert files.stat(2) == (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    np.testing.assert_array_equal(pixels(files.decode_bytes(files.read(1), 0)), pixels(files.open(1)))


def test_files_can_be_selected_and_pickled(files):
    taken = files.take(np.array([2, 0, 2]))
    assert taken == ImageFiles(files.root, ("c.png", "b/1.png", "c.png"))
    assert pickle.loads(pickle.dumps(taken)) == taken


def test_files_apply_the_orientation_with_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(NOISE).save(tmp_path / "a.jpg", exif=exif)
    assert ImageFiles(tmp_path, ("a.jpg",)).open(0).image.size == (36, 24)
    assert ImageFiles(tmp_path, ("a.jpg",), upright=True).open(0).image.size == (24, 36)


def test_a_file_that_vanished_or_cannot_be_read_is_an_image_error(files):
    (files.root / "c.png").unlink()
    (files.root / "c.png").mkdir()
    (files.root / "a" / "2.png").unlink()
    for action in (files.read, files.stat, files.open):
        with pytest.raises(ImageError, match=r"^a/2\.png: is not \(or no longer\) in .* Fix: restore it"):
            action(1)
    with pytest.raises(ImageError, match=r"^c\.png: cannot be read \(.+\)\. Fix: check its permissions"):
        files.read(2)


@pytest.mark.parametrize("shape", [(5, 6, 7, 3), (5, 6, 7, 1), (5, 6, 7)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_read_by_position(shape, order, tmp_path):
    array = np.random.default_rng(1).integers(0, 256, size=shape, dtype=np.uint8)
    np.save(tmp_path / "images.npy", np.asarray(array, order=order))
    source = ImageArrays(tmp_path / "images.npy")
    assert len(source) == 5
    assert source.name(3) == "images.npy[3]"
    assert source.stat(3) is None
    assert source.read(3) == array[3].tobytes()
    expected = np.broadcast_to(array[3] if array.ndim == 4 else array[3][..., None], (6, 7, 3))
    np.testing.assert_array_equal(pixels(source.open(3)), expected)
    taken = pickle.loads(pickle.dumps(source.take([4, 3]).take([1])))
    assert (len(taken), taken.name(0), taken.read(0)) == (1, "images.npy[3]", array[3].tobytes())
    assert repr(taken).endswith("1 of 5 images)")


def test_pickled_array_sources_are_small(tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((4, 200, 200, 3), np.uint8))
    assert len(pickle.dumps(ImageArrays(tmp_path / "images.npy"))) < 1000


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 4, 4, 3)), r"type float64; images must be uint8\. Fix: np\.save\(\(255 \* images\)"),
        (np.zeros((8, 8, 3), np.uint8), r"single image\. Fix: np\.save\(images\[None\]\)"),
        (np.zeros((2, 3, 8, 8), np.uint8), r"channels must come last\. Fix: .*transpose\(0, 2, 3, 1\)"),
        (np.zeros((2, 8, 8, 4), np.uint8), r"shape \(2, 8, 8, 4\).* Fix: reshape them to \(N, H, W, 3\)"),
        (np.zeros(8, np.uint8), r"shape \(8,\)"),
        (np.zeros((2, 0, 8), np.uint8), "have no pixels"),
        (np.array([{}]), r"not a readable \.npy file of numbers"),
    ],
)
def test_arrays_that_are_no_images_are_refused(array, message, tmp_path):
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(ImageError, match=rf"^x\.npy: .*{message}"):
        ImageArrays(tmp_path / "x.npy")


def test_files_without_an_array_are_refused(tmp_path):
    with pytest.raises(ImageError, match=r"^x\.npy: is not in .*Fix: check the path\.$"):
        ImageArrays(tmp_path / "x.npy")
    for content in (b"", b"text"):
        (tmp_path / "x.npy").write_bytes(content)
        with pytest.raises(ImageError, match=r"^x\.npy: is not a readable \.npy file"):
            ImageArrays(tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    with pytest.raises(ImageError, match=r"^x\.npz: is not a readable .* but an \.npz archive"):
        ImageArrays(tmp_path / "x.npz")
    with pytest.raises(ImageError, match=r"cannot be read"):
        ImageArrays(tmp_path)


# For thumbnails.


@pytest.mark.parametrize("upright", [False, True])
def test_photographs_can_be_decoded_at_a_fraction_of_their_size(upright, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    smooth = Image.fromarray(NOISE).resize((1600, 1200))
    (tmp_path / "a.jpg").write_bytes(encoded(smooth, "JPEG", exif=exif))
    files = ImageFiles(tmp_path, ("a.jpg",), upright)
    whole, small = files.open(0).image, files.open_reduced(0, 320).image
    assert whole.size == ((1200, 1600) if upright else (1600, 1200))
    assert 320 <= min(small.size) < min(whole.size)
    shrunk = np.asarray(whole.resize(small.size, Image.Resampling.BOX), float)
    assert np.abs(shrunk - np.asarray(small, float)).mean() < 3


def test_other_formats_and_small_photographs_are_decoded_as_they_are(tmp_path):
    image = Image.fromarray(NOISE)
    (tmp_path / "a.png").write_bytes(encoded(image, "PNG"))
    (tmp_path / "b.jpg").write_bytes(encoded(image, "JPEG"))
    files = ImageFiles(tmp_path, ("a.png", "b.jpg"))
    for i in range(2):
        np.testing.assert_array_equal(pixels(files.open_reduced(i, 320)), pixels(files.open(i)))
    np.save(tmp_path / "images.npy", NOISE[None])
    arrays = ImageArrays(tmp_path / "images.npy")
    np.testing.assert_array_equal(pixels(arrays.open_reduced(0, 8)), NOISE)


def test_a_damaged_photograph_is_an_error_at_any_size(tmp_path):
    data = encoded(Image.fromarray(NOISE).resize((1600, 1200)), "JPEG")
    (tmp_path / "a.jpg").write_bytes(data[: len(data) // 2])
    with pytest.raises(ImageError, match=r"a\.jpg: is truncated or damaged"):
        ImageFiles(tmp_path, ("a.jpg",)).open_reduced(0, 320)
