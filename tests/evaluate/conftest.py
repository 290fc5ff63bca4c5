import numpy as np
import pytest

from zeroshift import FeatureSet, normalize


@pytest.fixture(autouse=True)
def _cold_process(monkeypatch):
    """As a new process, which has run no method yet."""
    monkeypatch.setattr("zeroshift.evaluate.trial._WARM", set())


@pytest.fixture
def clusters() -> FeatureSet:
    """Four noisy classes in 12 dimensions whose prototypes are a little off: something to adapt to."""
    rng = np.random.default_rng(7)
    centres = normalize(rng.normal(size=(4, 12)))
    labels = rng.integers(0, 4, size=150)
    features = normalize(centres[labels] + 0.3 * rng.normal(size=(150, 12)))
    prototypes = normalize(centres + 0.35 * rng.normal(size=(4, 12)))
    return FeatureSet(features, prototypes=prototypes, labels=labels, logit_scale=20.0)
