"""Choice of device and precision."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from zeroshift.encode.encoder import choose_device, choose_dtype, gpu_batch_size  # noqa: E402


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_picks_the_best_available_device(monkeypatch, cuda, mps, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert choose_device() == torch.device(chosen)


def test_a_device_by_name():
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("device", ["cuda:99", "toaster", "cpu:x", "meta"])
def test_a_device_that_is_not_there(device):
    with pytest.raises(
        ValueError, match=rf"device='{device}' cannot be used \(.+\). Fix: device='auto' \(--device auto\) picks"
    ):
        choose_device(device)


@pytest.mark.parametrize(
    ("requested", "chosen"), [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)]
)
def test_precisions(requested, chosen):
    assert choose_dtype(requested, torch.device("cpu")) is chosen
    assert choose_dtype(requested) is chosen


def test_halves_are_for_gpus():
    assert choose_dtype("float16", torch.device("cuda")) is torch.float16
    with pytest.raises(
        ValueError, match=r"dtype='float16' is for GPUs.*Fix: dtype='float32' \(--dtype float32\), or 'bfloat16'"
    ):
        choose_dtype("float16", torch.device("cpu"))


def test_an_unknown_precision():
    with pytest.raises(ValueError, match=r"dtype must be 'auto', 'float32', 'float16', 'bfloat16'; got 'float8'"):
        choose_dtype("float8")


@pytest.mark.parametrize(
    ("memory", "size", "expected"),
    [
        (139 * 2**30, (224, 224), 256),  # as many as keep the largest GPUs busy
        (4 * 10**9, (224, 224), 64),  # 79 would fit
        (4 * 10**9, (448, 448), 16),  # four times the pixels, a quarter of the images
        (10**6, (224, 224), 1),
    ],
)
def test_gpu_batch_size_depends_on_memory(monkeypatch, memory, size, expected):
    properties = SimpleNamespace(total_memory=memory)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert gpu_batch_size(torch.device("cuda"), size) == expected
