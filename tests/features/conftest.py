import numpy as np
import pytest

from feature_sets import clusters


@pytest.fixture
def npy(tmp_path):
    """features, prototypes and labels as .npy files, and classes.txt."""
    features, prototypes, labels = clusters()
    np.save(tmp_path / "features.npy", features)
    np.save(tmp_path / "prototypes.npy", prototypes)
    np.save(tmp_path / "labels.npy", labels)
    (tmp_path / "classes.txt").write_text("".join(f"class-{k} \n" for k in range(10)), encoding="utf-8")
    return tmp_path
