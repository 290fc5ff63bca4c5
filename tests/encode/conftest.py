"""Tiny models, created and loaded once per session; images to extract."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """`tiny_folder(family)`: the folder of a tiny random model, as `save_pretrained` writes it."""
    pytest.importorskip("transformers")
    import torch

    from encode import tiny

    top, built = tmp_path_factory.mktemp("models"), {}
    # More threads than one only wait for each other over matrices this small.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def folder(family):
        if family not in built:
            builders = {**tiny.BUILDERS, **tiny.VISION_BUILDERS}
            built[family] = builders[family](top / f"tiny-{family}")
        return built[family]

    yield folder
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_encoder(tiny_folder):
    """`tiny_encoder(family)`: the same model, loaded by zeroshift."""
    from zeroshift.encode import registry

    loaded = {}

    def encoder(family):
        if family not in loaded:
            loaded[family] = registry.load(str(tiny_folder(family)), device="cpu")
        return loaded[family]

    return encoder


@pytest.fixture
def folder(tmp_path):
    """Images of two classes."""
    from encode import numpy_encoder

    numpy_encoder.write_images(tmp_path / "pets", numpy_encoder.COUNT)
    return tmp_path / "pets"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"
