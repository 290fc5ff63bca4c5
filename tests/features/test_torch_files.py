"""Files of torch.save, and arrays that other programs have given other names."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.numpy import save_file

from feature_sets import assert_same, clusters, unit
from zeroshift.features import FeatureSet
from zeroshift.features.torch_files import read_torch
from zeroshift.files import FileFormatError
from zeroshift.tensor_files import write_tensors

NAMES = {"features_key": "image_features", "prototypes_key": "text_features", "labels_key": "targets"}


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    features, prototypes, labels = clusters()
    return {"image_features": features, "text_features": prototypes, "targets": labels}


@pytest.fixture
def expected(arrays) -> FeatureSet:
    return FeatureSet(arrays["image_features"], prototypes=arrays["text_features"], labels=arrays["targets"])


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(array) for name, array in arrays.items()}


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_a_tensor_is_the_features(tmp_path, arrays, expected, suffix):
    parts = dict(zip(("features", "prototypes", "labels"), tensors(arrays).values(), strict=True))
    paths = {name: tmp_path / f"{name}{suffix}" for name in parts}
    for name, tensor in parts.items():
        torch.save(tensor, paths[name])
    assert_same(FeatureSet.load(paths.pop("features"), **paths, check=False), expected)


def test_a_dictionary_has_the_names_of_an_npz_file(tmp_path):
    made = {
        "features": torch.as_tensor(unit(6, 4)), "prototypes_a": torch.as_tensor(unit(3, 4)),
        "labels": [0, 1, 2, 0, 1, 2], "class_names": ["x", "y", "z"], "logit_scale": torch.tensor(20.0),
        "epoch": 3, "optimizer": {"lr": 0.1},
    }  # fmt: skip
    torch.save(made, tmp_path / "set.pt")
    found = FeatureSet.load(tmp_path / "set.pt", check=False)
    wanted = FeatureSet(
        unit(6, 4), prototypes={"a": unit(3, 4)}, labels=made["labels"], class_names=["x", "y", "z"], logit_scale=20
    )
    assert_same(found, wanted)


def test_other_entries_of_a_dictionary(tmp_path):
    """Names that other programs use too, for what is no array."""
    made = {
        "features": torch.as_tensor(unit(6, 4)), "prototypes": torch.as_tensor(unit(3, 4)), "meta": {"model": "ViT"},
        "labels": None, "class_names": None, "logit_scale": None, "prototypes_note": "x", "prototypes_of": ["a", "b"],
        "extra_features_note": "y",
    }  # fmt: skip
    torch.save(made, tmp_path / "set.pt")
    found = FeatureSet.load(tmp_path / "set.pt", check=False)
    assert_same(found, FeatureSet(unit(6, 4), prototypes=unit(3, 4), provenance={"model": "ViT"}))
    assert found.provenance == {"model": "ViT"}
    torch.save(made | {"meta": None}, tmp_path / "set.pt")
    assert FeatureSet.load(tmp_path / "set.pt", check=False).provenance == {}


@pytest.mark.parametrize("suffix", [".pt", ".npz", ".safetensors"])
def test_arrays_of_other_names(tmp_path, arrays, expected, suffix):
    path = tmp_path / f"mine{suffix}"
    if suffix == ".pt":
        torch.save(tensors(arrays), path)
    elif suffix == ".npz":
        np.savez(path, **arrays)
    else:
        save_file(arrays, path)
    assert_same(FeatureSet.load(path, **NAMES, check=False), expected)
    with pytest.raises(FileFormatError, match="text_features"):
        FeatureSet.load(path, features_key="image_features")
    with pytest.raises(ValueError, match=r"has no 'image_feature'; it contains .*Did you mean 'image_features'\?"):
        FeatureSet.load(path, features_key="image_feature")
    np.save(tmp_path / "prototypes.npy", arrays["text_features"])
    with pytest.raises(ValueError, match=r"prototypes.* cannot be passed"):
        FeatureSet.load(path, prototypes=tmp_path / "prototypes.npy", **NAMES)


def test_the_message_names_what_is_probably_meant(tmp_path, arrays):
    torch.save(tensors(arrays) | {"prototypes": torch.as_tensor(arrays["text_features"])}, tmp_path / "mine.pt")
    with pytest.raises(
        FileFormatError, match=r"features_key='image_features' \(`zeroshift adapt --features-key image_features`\)"
    ):
        FeatureSet.load(tmp_path / "mine.pt")


def test_a_key_replaces_the_array_of_our_name(tmp_path, arrays):
    others = {"features": torch.zeros(2, 2), "prototypes": torch.zeros(2, 2), "prototypes_a": torch.zeros(2, 2)}
    torch.save(tensors(arrays) | others, tmp_path / "mine.pt")
    loaded = FeatureSet.load(tmp_path / "mine.pt", **NAMES, check=False)
    assert np.array_equal(loaded.features, arrays["image_features"])
    assert loaded.prompts == ("default",)


@pytest.mark.parametrize("key", [3, ("image_features",)])
def test_a_key_must_be_a_name(tmp_path, arrays, key):
    torch.save(tensors(arrays), tmp_path / "mine.pt")
    with pytest.raises(TypeError, match=r"features_key must be the name of an array in mine\.pt; got (int|tuple)"):
        FeatureSet.load(tmp_path / "mine.pt", features_key=key)


def test_keys_for_a_file_with_one_array(tmp_path, arrays):
    torch.save(torch.as_tensor(arrays["image_features"]), tmp_path / "one.pt")
    np.save(tmp_path / "one.npy", arrays["image_features"])
    for name in ("one.pt", "one.npy"):
        with pytest.raises(ValueError, match=r"one array without a name\. Fix: leave it out"):
            FeatureSet.load(tmp_path / name, features_key="features", prototypes=tmp_path / "one.npy")


@pytest.mark.parametrize("suffix", [".pt", ".npz", ".safetensors"])
def test_a_key_of_another_file_is_a_name_in_that_file(tmp_path, arrays, expected, suffix):
    images = {"image_features": arrays["image_features"]}
    other = {"text_features": arrays["text_features"], "targets": arrays["targets"]}
    if suffix == ".pt":
        torch.save(tensors(images), tmp_path / "images.pt")
        torch.save(tensors(other), tmp_path / "text.pt")
    elif suffix == ".npz":
        np.savez(tmp_path / "images.npz", **images)
        np.savez(tmp_path / "text.npz", **other)
    else:
        save_file(images, tmp_path / "images.safetensors")
        save_file(other, tmp_path / "text.safetensors")
    text = tmp_path / f"text{suffix}"
    loaded = FeatureSet.load(tmp_path / f"images{suffix}", prototypes=text, labels=text, **NAMES, check=False)
    assert_same(loaded, expected)
    np.save(tmp_path / "images.npy", arrays["image_features"])
    others = {name: key for name, key in NAMES.items() if name != "features_key"}
    loaded = FeatureSet.load(tmp_path / "images.npy", prototypes=text, labels=text, **others, check=False)
    assert_same(loaded, expected)
    with pytest.raises(ValueError, match=r"text\.\w+ has no 'text_feature'; .* Did you mean 'text_features'\?"):
        FeatureSet.load(tmp_path / "images.npy", prototypes=text, prototypes_key="text_feature")


def test_a_dictionary_in_place_of_a_tensor(tmp_path, arrays):
    torch.save(tensors(arrays), tmp_path / "text.pt")
    np.save(tmp_path / "images.npy", arrays["image_features"])
    with pytest.raises(
        FileFormatError, match=r"prototypes must be one tensor\. Fix: prototypes_key='NAME' \(`zeroshift ad"
    ):
        FeatureSet.load(tmp_path / "images.npy", prototypes=tmp_path / "text.pt")
    torch.save({"state": tensors(arrays)}, tmp_path / "nested.pt")
    with pytest.raises(FileFormatError, match=r"state is a dictionary with .*image_features.*Fix: torch\.save\(torch"):
        FeatureSet.load(tmp_path / "nested.pt", features_key="state", prototypes=tmp_path / "text.pt")


def test_files_of_zeroshift_have_fixed_names(tmp_path, expected):
    expected.save(tmp_path / "own.safetensors")
    with pytest.raises(FileFormatError, match="was written by zeroshift"):
        FeatureSet.load(tmp_path / "own.safetensors", features_key="features")
    write_tensors(tmp_path / "state.safetensors", {"a": unit(2, 2)}, {"kind": "state", "schema": 1})
    with pytest.raises(FileFormatError, match="was written by zeroshift"):
        FeatureSet.load(tmp_path / "state.safetensors", features_key="a")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types(tmp_path, dtype):
    rows = torch.as_tensor(unit(6, 4)).to(dtype)
    torch.save(rows, tmp_path / "rows.pt")
    found = read_torch(tmp_path / "rows.pt")
    assert np.array_equal(found.astype(np.float64), rows.double().numpy())


class Evil:
    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_code_in_a_file_is_not_executed(tmp_path):
    for content in (Evil(tmp_path / "done"), {"features": torch.eye(2), "x": [Evil(tmp_path / "done")]}):
        torch.save(content, tmp_path / "evil.pt")
        with pytest.raises(
            FileFormatError, match=r"contains an object of posix\.mkdir; only tensors.* can execute code"
        ):
            read_torch(tmp_path / "evil.pt")
        assert not (tmp_path / "done").exists()
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Evil(tmp_path / "done")))
    with pytest.raises(FileFormatError, match=r"plain\.pt .*Fix: "):
        read_torch(tmp_path / "plain.pt")
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"features": np.eye(2)}, r"contains a NumPy array; .*torch\.as_tensor\(features\)"),
        ([torch.eye(2)] * 2, r"contains list; a tensor or a dictionary"),
        (3, "contains int; a tensor"),
        (torch.eye(3).to_sparse(), "sparse"),
        ({"features": torch.empty(2, 2, device="meta")}, "features is a sparse, nested or meta tensor"),
        (torch.zeros(1, 4).expand(10**9, 4), r"would take 16,000,000,000 in memory; .*Fix: if you trust the file"),
    ],
    ids=["numpy", "list", "number", "sparse", "meta", "repeated"],
)
def test_content_that_is_refused(tmp_path, content, message):
    torch.save(content, tmp_path / "bad.pt")
    with pytest.raises(FileFormatError, match=message):
        read_torch(tmp_path / "bad.pt")


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "rows.pt"
    torch.save(torch.eye(50), path)
    whole = path.read_bytes()
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(
            FileFormatError, match=r"rows\.pt (cannot be read as a file of torch\.save|is damaged).*Fix: "
        ):
            read_torch(path)
    for place in range(0, len(whole), 37):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with contextlib.suppress(FileFormatError):
            assert np.array_equal(read_torch(path), np.eye(50)), place
    with pytest.raises(FileNotFoundError, match=r"no file at .*missing\.pt"):
        FeatureSet.load(tmp_path / "missing.pt")


def without_torch(name, package=None, imported=importlib.import_module):
    if name == "torch":
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    return imported(name, package)


def test_without_torch_the_error_says_what_to_install(tmp_path, monkeypatch):
    torch.save(torch.eye(2), tmp_path / "rows.pt")
    monkeypatch.setattr(importlib, "import_module", without_torch)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[torch\]', or save the features as \.npy"):
        read_torch(tmp_path / "rows.pt")


def test_a_torch_with_known_flaws_is_not_used(tmp_path, monkeypatch):
    torch.save(torch.eye(2), tmp_path / "rows.pt")
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(ValueError, match=r"CVE-2026-24747.*Fix: pip install 'torch>=2\.10'"):
        read_torch(tmp_path / "rows.pt")
