"""Files: states, feature sets and records of runs, damaged and forged.

A damaged file is refused by one exception that names it, or loads as exactly what was written. A forged file (no
checksum, or one that fits) is refused in the same way, or gives an object that works. Neither takes much memory.
"""

from __future__ import annotations

import io
import json
import math
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fuzz.cases import METHODS, Stream, create
from fuzz.harness import fuzzed, memory_limit
from fuzz.oracles import assert_answer, assert_our_error, learned, parameters_of
from fuzz.parameters import WORK
from zeroshift import FeatureSet
from zeroshift.data.images import ImageError, decode
from zeroshift.data.readers.table import read_table
from zeroshift.encode.extraction.store import DamagedPartError, FeatureStore, content_digest
from zeroshift.encode.prompts.user_text import parse_class_names, read_descriptions
from zeroshift.evaluate import Ledger, MethodSpec, Trial
from zeroshift.evaluate.ledger import is_unverified, read_record
from zeroshift.evaluate.results import collect
from zeroshift.files import FileFormatError
from zeroshift.testing import Case
from zeroshift.testing.case import fingerprint

MEGABYTES = 512
"""What reading one of these small files may take."""

HOSTILE_JSON = {
    "null": "null", "true": "true", "false": "false", "0": "0", "1": "1", "-1": "-1", "5": "5", "0.5": "0.5",
    "2**31": str(2**31), "2**63": str(2**63), "2**70": str(2**70), "1e308": "1e308", "1e400": "1e400",
    "1e-320": "1e-320", "NaN": "NaN", "Infinity": "-Infinity", "digits": "9" * 10_000, "text": '"text"',
    "empty": '""', "numpy": '"numpy"', "torch": '"torch"', "cuda": '"cuda:7"', "long": '"' + "x" * 100_000 + '"',
    "list": "[]", "numbers": "[1, 2, 3]", "object": "{}", "object of object": '{"a": {"b": null}}',
    "deep list": "[" * 100_000 + "]" * 100_000, "deep object": '{"a":' * 20_000 + "0" + "}" * 20_000,
    "repeated": '{"a": 1, "a": 2}', "surrogate": '"\\ud800"', "nul": '"\\u0000"', "unclosed": "[1",
    "control": '"\x01"',
}  # fmt: skip
"""Text to put in the place of a JSON value, by name."""


@dataclass(frozen=True)
class Damage:
    """One change of the bytes of a file. `place` is a fraction of its length."""

    kind: str
    place: float = 0.0
    value: int = 1

    def apply(self, content: bytes) -> bytes:
        at = int(self.place * len(content))
        changed = bytearray(content)
        match self.kind:
            case "flip" if content:
                changed[at] ^= 1 << self.value % 8
            case "byte" if content:
                changed[at] = self.value % 256
            case "truncate":
                del changed[at:]
            case "extend":
                changed += bytes([self.value % 256]) * (1 + self.value)
            case "insert":
                changed[at:at] = bytes([self.value % 256])
            case "delete":
                del changed[at : at + 1 + self.value % 16]
            case "zeros":
                changed[at : at + 1 + self.value] = bytes(len(changed[at : at + 1 + self.value]))
            case "swap":
                half = bytes(changed[at : at + 8])
                changed[at : at + 8] = half[::-1]
            case "repeat":
                changed[at:at] = changed[at : at + 1 + self.value]
            case "length":  # the first eight bytes of a safetensors file
                changed[:8] = struct.pack(
                    "<Q", [0, 1, 2**32, 2**40, 2**63, 2**64 - 1, len(content), 10**8][self.value % 8]
                )
        return bytes(changed)


DAMAGE_KINDS = (
    "flip",
    "flip",
    "flip",
    "byte",
    "truncate",
    "extend",
    "insert",
    "delete",
    "zeros",
    "swap",
    "repeat",
    "length",
)

damages = st.lists(
    st.builds(
        Damage,
        st.sampled_from(DAMAGE_KINDS),
        st.floats(0, 1, exclude_max=True),
        st.one_of(st.integers(0, 7), st.integers(0, 255)),
    ),
    min_size=1,
    max_size=3,
)


@dataclass(frozen=True)
class Edit:
    """One change of a JSON document: the value number `path` (of all, in order) is replaced, removed or renamed."""

    path: int
    action: str
    text: str = "null"

    def apply(self, document: Any) -> str:
        """The text of the changed document."""
        holder = json.loads(json.dumps([document]))
        places = list(_places(holder))
        container, key = places[self.path % len(places)]
        match self.action:
            case "replace":
                container[key] = _MARK
            case "remove":
                del container[key]
            case "rename" if isinstance(container, dict):
                container[f"{key}_"] = container.pop(key)
            case "add" if isinstance(container, dict):
                container["added"] = _MARK
            case "shift" if isinstance(container[key], int | float):
                container[key] += 1
            case "negate" if isinstance(container[key], int | float):
                container[key] = -container[key]
            case _:
                container[key] = [container[key]]
        text = json.dumps(holder[0] if holder else None)
        return text.replace(json.dumps(_MARK), HOSTILE_JSON[self.text])


_MARK = "replaced by the fuzz suite"


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Container and key of every value."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], (dict, list)):
            yield from _places(node[key])


edits = st.builds(
    Edit,
    st.integers(0, 200),
    st.sampled_from(["replace", "replace", "replace", "remove", "rename", "add", "shift", "negate", "wrap"]),
    st.sampled_from(sorted(HOSTILE_JSON)),
)


# States


@cache
def _state_file(name: str) -> tuple[bytes, Any, np.ndarray, Any, Any]:
    """Content, the method, its predictions, and what it learned."""
    stream = Stream(classes=3, dimension=4, samples=14, seed=4)
    method = create(name, stream.prototypes)
    method.adapt(stream.features[:12])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        method.save(path)
        content = path.read_bytes()
    return content, method, method.predict(stream.features), learned(method), parameters_of(method)


def _load_state(name: str, content: bytes, folder: Path) -> Any:
    """The method in the file; None where it was refused."""
    path = folder / "state.safetensors"
    path.write_bytes(content)
    method = _state_file(name)[1]
    with memory_limit(MEGABYTES):
        try:
            return Case(METHODS[name]).load(path, method)
        except Exception as error:
            # A model that does not fit is the caller's, so the error is a ValueError that names the file too.
            assert_our_error(error, str(path), kinds=(FileFormatError, ValueError, TypeError))
            return None


def _check_same_state(name: str, loaded: Any) -> None:
    _, _, predicted, state, parameters = _state_file(name)
    assert learned(loaded) == state, f"a damaged {name} file loads as another state"
    assert parameters_of(loaded) == parameters, f"a damaged {name} file loads with other parameters"
    assert np.array_equal(loaded.predict(Stream(classes=3, dimension=4, samples=14, seed=4).features), predicted)


state_names = st.sampled_from(tuple(METHODS))


@fuzzed("files", 250, name=state_names, damage=damages)
def damaged_states_are_refused(name: str, damage: list[Damage]) -> None:
    content = _state_file(name)[0]
    for one in damage:
        content = one.apply(content)
    with tempfile.TemporaryDirectory() as folder:
        loaded = _load_state(name, content, Path(folder))
        if loaded is not None:
            _check_same_state(name, loaded)


def _split(content: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The tensors' part of a safetensors header, our header, and the data."""
    length = struct.unpack("<Q", content[:8])[0]
    outer = json.loads(content[8 : 8 + length])
    inner = json.loads(outer.pop("__metadata__")["zeroshift"])
    return outer, inner, content[8 + length :]


def _joined(tensors: str, header: str, data: bytes) -> bytes:
    metadata = json.dumps({"__metadata__": {"zeroshift": header}}, ensure_ascii=False)
    text = metadata[:-1] + ", " + tensors[1:] if tensors.startswith("{") and len(tensors) > 2 else metadata
    raw = text.encode("utf-8", "surrogatepass")
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + data


@fuzzed("files", 200, name=state_names, edit=edits, part=st.sampled_from(["header", "header", "tensors"]))
def edited_states_are_refused(name: str, edit: Edit, part: str) -> None:
    """The checksum stays as it was written."""
    content = _state_file(name)[0]
    tensors, header, data = _split(content)
    texts = {"header": json.dumps(header, sort_keys=True), "tensors": json.dumps(tensors)}
    texts[part] = edit.apply(header if part == "header" else tensors)
    with tempfile.TemporaryDirectory() as folder:
        loaded = _load_state(name, _joined(texts["tensors"], texts["header"], data), Path(folder))
        if loaded is not None:
            _check_same_state(name, loaded)


@fuzzed("files", 200, name=state_names, edit=edits, data_damage=st.lists(damages, max_size=1))
def forged_states_are_refused_or_work(name: str, edit: Edit, data_damage: list[list[Damage]]) -> None:
    """As a file of schema version 1, which has no checksum: what it contains must make sense."""
    tensors, header, data = _split(_state_file(name)[0])
    unsigned = {key: value for key, value in header.items() if "checksum" not in key and "digest" not in key}
    if data_damage:
        for one in data_damage[0]:
            changed = one.apply(data)
            data = changed[: len(data)].ljust(len(data), b"\0")
    text = edit.apply({**unsigned, "schema": 1})
    with tempfile.TemporaryDirectory() as folder:
        loaded = _load_state(name, _joined(json.dumps(tensors), text, data), Path(folder))
        if loaded is None:
            return
        k, d = loaded.prototypes.shape
        counts = [value for key, value in loaded.get_params().items() if any(word in key for word in WORK)]
        if (k, d) != (3, 4) or any(isinstance(value, int) and value > 1000 for value in counts):
            return
        _check_works(name, loaded)


def _check_works(name: str, loaded: Any) -> None:
    stream = Stream(classes=3, dimension=4, samples=6, seed=9)
    with memory_limit(MEGABYTES), np.errstate(all="ignore"):
        assert_answer(loaded.predict(stream.features), 6, 3, f"predict of a forged {name}")
        assert_answer(loaded.adapt(stream.features), 6, 3, f"adapt of a forged {name}")


OTHER_NUMBERS = (0.0, 1e-320, 1e-160, 1e-30, 1e-8, 0.5, 1.0, 2.0, 1e3, 1e8, 1e16, 1e30, 1e160, 1e308)


@fuzzed(
    "files",
    100,
    name=state_names,
    which=st.integers(0, 30),
    number=st.tuples(st.sampled_from(OTHER_NUMBERS), st.sampled_from([1.0, -1.0])).map(math.prod),
    place=st.one_of(st.none(), st.floats(0, 1, exclude_max=True)),
)
def states_with_other_numbers_are_refused_or_work(name: str, which: int, number: float, place: float | None) -> None:
    """One number of an array, or with `place` None all of them, as a file of schema version 1, without a checksum."""
    tensors, header, data = _split(_state_file(name)[0])
    unsigned = {key: value for key, value in header.items() if "checksum" not in key and "digest" not in key}
    floats = [one for one in tensors.values() if one["dtype"] in ("F32", "F64") and 0 not in one["shape"]]
    if not floats:
        return
    chosen = floats[which % len(floats)]
    start, end = chosen["data_offsets"]
    with np.errstate(over="ignore"):
        numbers = np.frombuffer(data[start:end], {"F32": "<f4", "F64": "<f8"}[chosen["dtype"]]).copy()
        numbers[slice(None) if place is None else int(place * len(numbers))] = number
    forged = data[:start] + numbers.tobytes() + data[end:]
    text = json.dumps({**unsigned, "schema": 1})
    with tempfile.TemporaryDirectory() as folder:
        loaded = _load_state(name, _joined(json.dumps(tensors), text, forged), Path(folder))
        if loaded is not None:
            _check_works(name, loaded)


# Feature sets


def _feature_set(views: bool) -> FeatureSet:
    stream = Stream(classes=3, dimension=4, samples=8, seed=2)
    features = stream.features.astype("float32")
    return FeatureSet(
        None if views else features,
        views=np.stack([features, features[::-1]], axis=1) if views else None,
        prototypes={"ensemble": stream.prototypes, "vanilla": stream.prototypes[:, ::-1].copy()},
        labels=[0, 1, 2, 0, 1, 2, 0, 1],
        class_names=["cat", "dog", "bird"],
        sample_names=[f"image {i}.jpg" for i in range(8)],
        extra={"dinov2": np.eye(8, 5)[[0, 1, 2, 3, 4, 0, 1, 2]]},
        logit_scale=30.0,
        provenance={"title": "made", "list": [1, {"a": None}]},
    )


@cache
def _feature_files(kind: str) -> dict[str, bytes]:
    """File names and contents; the first is the one to load."""
    made = _feature_set(kind == "views")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if kind in ("set", "views"):
            made.save(folder / "set.safetensors")
        elif kind in ("npz", "compressed"):
            write = np.savez if kind == "npz" else np.savez_compressed
            write(
                folder / "set.npz", features=made.features, prototypes=made.prototypes_for(), labels=made.labels,
                class_names=np.array(made.class_names), logit_scale=np.array(30.0), meta=np.array('{"title": "made"}'),
                extra_features_dinov2=made.extra["dinov2"],
            )  # fmt: skip
        else:
            np.save(folder / "features.npy", made.features)
            np.save(folder / "labels.npy", made.labels)
            np.save(folder / "prototypes.npy", made.prototypes_for())
            (folder / "names.txt").write_text("cat\ndog\nbird\n")
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _load_features(contents: dict[str, bytes], folder: Path) -> FeatureSet | None:
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    first = folder / next(iter(contents))
    extra = {}
    if first.suffix == ".npy":
        extra = {
            "labels": folder / "labels.npy",
            "prototypes": folder / "prototypes.npy",
            "class_names": folder / "names.txt",
        }
    with memory_limit(MEGABYTES):
        try:
            return FeatureSet.load(first, **extra)
        except Exception as error:
            assert_our_error(error, *(str(folder / name) for name in contents), kinds=(FileFormatError,))
            return None


def _content(features: FeatureSet) -> Any:
    return fingerprint({name: getattr(features, name) for name in features.__dataclass_fields__})


@cache
def _written_features(kind: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        loaded = _load_features(_feature_files(kind), Path(folder))
        assert loaded is not None
        return _content(loaded)


@fuzzed("files", 200, kind=st.sampled_from(["set", "views", "npz", "compressed"]), damage=damages)
def damaged_feature_sets_are_refused(kind: str, damage: list[Damage]) -> None:
    ((name, content),) = _feature_files(kind).items()
    for one in damage:
        content = one.apply(content)
    with tempfile.TemporaryDirectory() as folder:
        loaded = _load_features({name: content}, Path(folder))
        if loaded is not None:
            assert _content(loaded) == _written_features(kind), f"a damaged {kind} file loads as something else"


@fuzzed("files", 60, which=st.integers(0, 3), damage=damages)
def damaged_plain_arrays_are_refused_or_valid(which: int, damage: list[Damage]) -> None:
    """An .npy file has no checksum: what it contains must be unit rows, or labels in range."""
    contents = dict(_feature_files("npy"))
    name = sorted(contents)[which]
    for one in damage:
        contents[name] = one.apply(contents[name])
    with tempfile.TemporaryDirectory() as folder:
        loaded = _load_features(contents, Path(folder))
        if loaded is not None:
            _check_valid(loaded)


def _check_valid(features: FeatureSet) -> None:
    for matrix in (features.features, *features.prototypes.values(), *features.extra.values()):
        assert np.abs(np.linalg.norm(matrix.astype(float), axis=1) - 1).max() < 0.011, "rows of another length"
    if features.labels is not None:
        assert set(features.labels) <= set(range(features.n_classes)), "labels out of range"


@fuzzed("files", 60, kind=st.sampled_from(["set", "views"]), edit=edits, signed=st.booleans())
def edited_feature_sets_are_refused_or_valid(kind: str, edit: Edit, signed: bool) -> None:
    """With the checksum of what was written, or as a file of schema version 1 without one."""
    ((name, content),) = _feature_files(kind).items()
    tensors, header, data = _split(content)
    if not signed:
        header = {key: value for key, value in header.items() if "checksum" not in key and "digest" not in key}
        header["schema"] = 1
    with tempfile.TemporaryDirectory() as folder:
        loaded = _load_features({name: _joined(json.dumps(tensors), edit.apply(header), data)}, Path(folder))
        if loaded is not None:
            if signed:
                assert _content(loaded) == _written_features(kind), "an edited file loads as something else"
            _check_valid(loaded)


NPY_SHAPES = (
    "(8, 4)", "()", "(0, 4)", "(8,)", "(-1, 4)", "(10**12, 4)", "(2**62, 4)", "(1000000000000, 4)",
    "(4611686018427387904,)", "(9223372036854775807, 2)", "(1e3, 4)", "(True, 4)", "[8, 4]", "'8, 4'", "None",
    "(8, 4, 1)", "(" * 3000 + ")" * 3000, "(" + "1, " * 70 + ")", "(99999999999999999999999999, 1)", "(8, 4",
    "(__import__('os'), 4)",
)  # fmt: skip
NPY_TYPES = (
    "'<f4'", "'<f8'", "'>f4'", "'<f2'", "'|O'", "'<c8'", "'<i8'", "'|V4'", "'<U5'", "[('a', '<f4')]", "'<f3'", "'x'",
    "4", "'<f16'", "'|b1'", "'|S4'", "'<M8[s]'", "'<U99999999'", "[('a', '<f4', (2**40,))]",
)  # fmt: skip


@st.composite
def npy_contents(draw: Any) -> tuple[str, str, str, int, int]:
    return (
        draw(st.sampled_from(NPY_SHAPES)),
        draw(st.sampled_from(NPY_TYPES)),
        draw(st.sampled_from(["False", "True", "0", "None", "'x'"])),
        draw(st.sampled_from([1, 2, 3, 4, 255])),
        draw(st.sampled_from([0, 0, 0, -8, 8, 10**6])),
    )


def _npy(parts: tuple[str, str, str, int, int]) -> bytes:
    """An .npy file with this header. The last number is added to the stated length of the header."""
    shape, dtype, order, version, wrong = parts
    text = f"{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    length = max(0, len(text) + wrong)
    size = struct.pack("<H", length % 2**16) if version == 1 else struct.pack("<I", length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + bytes(np.full(32, 0.5, "<f4"))


@fuzzed(
    "files",
    80,
    parts=npy_contents(),
    where=st.sampled_from(["npy", "labels.npy", "prototypes.npy", "npz", "compressed"]),
)
def forged_arrays_are_refused_or_valid(parts: tuple[str, str, str, int, int], where: str) -> None:
    if where.endswith("npy"):
        contents = dict(_feature_files("npy"))
        contents["features.npy" if where == "npy" else where] = _npy(parts)
    else:
        ((name, content),) = _feature_files("npz").items()
        contents = {name: _with_member(content, "features.npy", _npy(parts), where == "compressed")}
    with tempfile.TemporaryDirectory() as folder:
        loaded = _load_features(contents, Path(folder))
        if loaded is not None:
            _check_valid(loaded)


def _with_member(archive: bytes, name: str, content: bytes, compressed: bool) -> bytes:
    target = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(io.BytesIO(archive)) as given, zipfile.ZipFile(target, "w", method) as written:
        for member in given.namelist():
            written.writestr(member, content if member == name else given.read(member))
        if name not in given.namelist():
            written.writestr(name, content)
    return target.getvalue()


@fuzzed(
    "files",
    6,
    megabytes=st.sampled_from([1, 16, 64]),
    claimed=st.sampled_from(["as stored", "less", "far more"]),
    member=st.sampled_from(["features.npy", "labels.npy", "class_names.npy", "meta.npy", "other.npy"]),
)
def bombs_take_little_memory(megabytes: int, claimed: str, member: str) -> None:
    """An archive of a few kilobytes whose member inflates to `megabytes`, whatever its header says."""
    rows = {"as stored": megabytes * 2**16, "less": 8, "far more": 10**11}[claimed]
    header = _npy((f"({rows}, 4)", "'<f4'", "False", 1, 0))[:-128]
    ((name, content),) = _feature_files("npz").items()
    with tempfile.TemporaryDirectory() as folder:
        bomb = _with_member(content, member, header + bytes(megabytes * 2**20), True)
        loaded = _load_features({name: bomb}, Path(folder))
        if loaded is not None:
            _check_valid(loaded)


# Records of runs


@cache
def _record_file() -> tuple[str, bytes, Trial, Any]:
    features = _feature_set(False)
    trial = Trial("made", "0" * 64, "ensemble", MethodSpec("zero_shot"), 0, None)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(folder)
        ledger.write(trial, trial.run(features))
        path = ledger.path(trial)
        return path.name, path.read_bytes(), trial, ledger.read(trial)


def _check_record(content: bytes, *, same: bool) -> None:
    """With `same`, a record that is read must be the one that was written."""
    name, _, trial, written = _record_file()
    with tempfile.TemporaryDirectory() as folder, memory_limit(MEGABYTES):
        path = Path(folder) / name
        path.write_bytes(content)
        ledger = Ledger(folder)
        try:
            record = ledger.read(trial)
        except Exception as error:
            assert_our_error(error, str(path), kinds=(FileFormatError,))
        else:
            # A record of an earlier version has no checksum: its job runs again.
            noted = ledger.damaged or is_unverified(read_record(path))
            assert record is not None or noted, "a record is ignored without a note"
            assert not same or record is None or record == written, "a damaged record is read as another one"
        found = collect([folder])
        assert len(found.rows) + len(found.damaged) + len(found.newer) == 1, f"not counted: {found}"
        if same and found.rows:
            assert found.rows == _written_rows(), "a damaged record is collected as another one"


@cache
def _written_rows() -> Any:
    name, content, *_ = _record_file()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(content)
        return collect([folder]).rows


@fuzzed("files", 100, damage=damages)
def damaged_records_are_not_read(damage: list[Damage]) -> None:
    content = _record_file()[1]
    for one in damage:
        content = one.apply(content)
    _check_record(content, same=True)


@fuzzed("files", 100, edit=edits, signed=st.booleans())
def edited_records_are_not_read(edit: Edit, signed: bool) -> None:
    """With the checksum of what was written; or without one, as earlier versions wrote them."""
    record = json.loads(_record_file()[1])
    if not signed:
        record = {key: value for key, value in record.items() if "checksum" not in key}
    _check_record(edit.apply(record).encode("utf-8", "surrogatepass"), same=signed)


# Images, texts and the cache


@cache
def _image(kind: str) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, size=(12, 10, 3)).astype("uint8")
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, kind)
    return target.getvalue()


@fuzzed("files", 60, kind=st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]), damage=damages)
def damaged_images_are_read_or_refused(kind: str, damage: list[Damage]) -> None:
    content = _image(kind)
    for one in damage:
        content = one.apply(content)
    with memory_limit(2 * MEGABYTES):
        try:
            image = decode(content, "a.img", upright=True).image
        except Exception as error:
            assert_our_error(error, "a.img", kinds=(ImageError,))
        else:
            assert image.mode == "RGB", f"an image of mode {image.mode}"


TEXTS = {
    "names.txt": "cat\ndog\nhot_dog\n",
    "descriptions.json": json.dumps({"cat": ["It purrs.", "It has whiskers."], "dog": ["It barks."]}),
    "table.csv": "path,label\na.png,cat\na.png,dog\n",
}


@fuzzed("files", 80, name=st.sampled_from(sorted(TEXTS)), damage=st.lists(damages, max_size=1), edit=edits)
def damaged_texts_are_read_or_refused(name: str, damage: list[list[Damage]], edit: Edit) -> None:
    """Lists of classes, descriptions and tables of images."""
    content = TEXTS[name].encode()
    if name.endswith("json") and not damage:
        content = edit.apply(json.loads(content)).encode("utf-8", "surrogatepass")
    for one in damage[0] if damage else ():
        content = one.apply(content)
    with tempfile.TemporaryDirectory() as folder, memory_limit(MEGABYTES):
        path = Path(folder) / name
        path.write_bytes(content)
        (Path(folder) / "a.png").write_bytes(_image("PNG"))
        read = {"names.txt": parse_class_names, "descriptions.json": read_descriptions, "table.csv": read_table}[name]
        try:
            read(path)
        except Exception as error:
            assert_our_error(error, str(path), name, kinds=(ValueError, TypeError, FileNotFoundError))


@fuzzed("files", 30, damage=damages, check=st.booleans())
def damaged_parts_of_the_cache_are_computed_again(damage: list[Damage], check: bool) -> None:
    rows = Stream(classes=3, dimension=4, samples=5, seed=1).features.astype("float16")
    digests = [content_digest(bytes([i])) for i in range(5)]
    with tempfile.TemporaryDirectory() as folder, memory_limit(MEGABYTES):
        FeatureStore(Path(folder)).add(digests, rows)
        (path,) = Path(folder).iterdir()
        content = path.read_bytes()
        for one in damage:
            content = one.apply(content)
        path.write_bytes(content)
        store = FeatureStore(Path(folder), check=check)
        present = [i for i, digest in enumerate(digests) if digest in store]
        try:
            found = store.rows([digests[i] for i in present]) if present else None
        except DamagedPartError:
            assert not path.exists(), "a damaged part is kept"
        else:
            assert found is None or np.array_equal(found, rows[present]), "a damaged part gives other rows"
