import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import zeroshift
from evaluate import view_fixtures
from zeroshift import FeatureSet, normalize
from zeroshift.cli import app

NAMES = ("cat", "dog [red]", "a, b", 'say "x"', "fish", "bird")
"""Names that break what forgets to escape: terminal markup, CSV."""


@pytest.fixture
def small() -> FeatureSet:
    """Six noisy classes in 12 dimensions, two prompt modes."""
    rng = np.random.default_rng(5)
    centres = normalize(rng.normal(size=(6, 12)))
    labels = rng.integers(0, 6, size=120)
    features = normalize(centres[labels] + 0.3 * rng.normal(size=(120, 12)))
    prototypes = {mode: normalize(centres + 0.35 * rng.normal(size=(6, 12))) for mode in ("ensemble", "vanilla")}
    return FeatureSet(features, prototypes=prototypes, labels=labels, class_names=NAMES, logit_scale=20.0)


@pytest.fixture
def small_file(small, tmp_path) -> Path:
    path = tmp_path / "small.safetensors"
    small.save(path)
    return path


@pytest.fixture
def call():
    """Run a command in this process: `call("adapt", path, "--out", out)` gives exit_code, stdout and stderr."""

    def call(*arguments, env=None):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)

    return call


@pytest.fixture
def environment() -> dict[str, str]:
    """For commands in a separate process: the zeroshift under test, installed or not."""
    return {**os.environ, "PYTHONPATH": str(Path(zeroshift.__file__).parents[1])}


@pytest.fixture
def shell(environment, tmp_path):
    """Run `python -m zeroshift` in a separate process."""

    def shell(*arguments):
        command = [sys.executable, "-m", "zeroshift", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)

    return shell


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A tiny random CLIP on disk."""
    pytest.importorskip("transformers")
    from encode import tiny

    return tiny.clip(tmp_path_factory.mktemp("model") / "tiny-clip")


@pytest.fixture(scope="session")
def vision_model(tmp_path_factory) -> Path:
    """A tiny random DINOv2 on disk."""
    pytest.importorskip("transformers")
    from encode import tiny

    return tiny.dinov2(tmp_path_factory.mktemp("model") / "tiny-dinov2")


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch) -> None:
    """A cache of the test's own, and no data sets of whoever runs it."""
    monkeypatch.setenv("ZEROSHIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ZEROSHIFT_DATA", raising=False)


@pytest.fixture
def pets(tmp_path) -> Path:
    """A folder of images, one sub-folder per class."""
    from pet_images import write_pets

    write_pets(tmp_path / "pets")
    return tmp_path / "pets"


@pytest.fixture
def seen(small) -> FeatureSet:
    """A few images of the small set, with views."""
    return view_fixtures.with_views(small.subset(slice(0, 24)))


@pytest.fixture
def seen_file(seen, tmp_path):
    path = tmp_path / "seen.safetensors"
    seen.save(path)
    return path
