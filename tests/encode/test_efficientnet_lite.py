"""EfficientNet-Lite0 as a second encoder: its features by hand, and the package that contains its weights."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")
lite = pytest.importorskip("efficientnet_lite_pytorch")

from encode.numpy_encoder import noise  # noqa: E402
from zeroshift.encode import load_image_encoder  # noqa: E402
from zeroshift.encode.families.composed_models import source_mean  # noqa: E402
from zeroshift.encode.families.efficientnet_lite import WEIGHTS  # noqa: E402

PACKAGE, FILE = WEIGHTS


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    made = lite.EfficientNet.from_name("efficientnet-lite0").eval()
    with torch.no_grad():
        made._bn1.bias.uniform_(-1, 1)  # of a trained network it is not zero
    return made


@pytest.fixture
def package(network, tmp_path, monkeypatch):
    """A package with random weights where the published one has its own."""
    path = tmp_path / PACKAGE / FILE
    path.parent.mkdir(parents=True)
    (tmp_path / PACKAGE / "__init__.py").touch()
    torch.save(network.state_dict(), path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    importlib.invalidate_caches()
    return path


def test_features_by_hand(package, network):
    encoder = load_image_encoder("efficientnet-lite0", device="cpu")
    images = [noise(0, 224, 224), noise(1, 300, 260)]
    found = encoder.encode_images(images)
    whole = images[1].resize((258, 224), Image.Resampling.BICUBIC)
    cropped = [images[0], whole.crop((17, 0, 241, 224))]
    pixels = torch.stack([torch.from_numpy((np.asarray(i, np.float32) - 127) / 128).permute(2, 0, 1) for i in cropped])
    with torch.inference_mode():
        pooled = network.extract_features(pixels).mean(dim=(2, 3)).numpy()
    centred = pooled - source_mean(network._bn1.weight.detach().numpy(), network._bn1.bias.detach().numpy())
    weights = network._fc.weight.detach().numpy().astype(np.float64)
    directions = weights - weights.mean(axis=0)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    axes = np.linalg.svd(directions, full_matrices=False)[2][:256]
    axes *= np.sign(axes[np.arange(256), np.abs(axes).argmax(axis=1)])[:, None]
    expected = centred @ axes.T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert found.shape == (2, 256) == (2, encoder.dimension)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_revision_depends_on_the_weights(package, network):
    first = load_image_encoder("efficientnet-lite0", device="cpu").revision
    state = network.state_dict()
    torch.save({**state, "_fc.bias": state["_fc.bias"] + 1}, package)
    assert load_image_encoder("efficientnet-lite0", device="cpu").revision != first


def test_a_missing_package_is_named_with_the_fix(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == PACKAGE else found(name))
    with pytest.raises(
        ImportError, match=rf"the encoder efficientnet-lite0 needs {PACKAGE}.*Fix: pip install .*\[second\]'"
    ):
        load_image_encoder("efficientnet-lite0")
