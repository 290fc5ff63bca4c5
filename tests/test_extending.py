"""docs/extending.md: a new file in `zeroshift/methods` is all that a new method needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import zeroshift

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
PACKAGE = Path(zeroshift.__file__).parent

PROGRAM = """
import json
import numpy as np
import zeroshift
from zeroshift.methods import RunningPrior, create, list_methods

method = create("running_prior", np.eye(2, 4), strength=0.5)
method.adapt(np.eye(2, 4)[[0, 0, 1]])
method.save("state.safetensors")
print(json.dumps({
    "package": zeroshift.__file__,
    "class": type(method) is RunningPrior,
    "names": [info.name for info in list_methods()],
    "parameters": [
        parameter.name for info in list_methods() if info.name == "running_prior" for parameter in info.parameters
    ],
    "loaded": zeroshift.methods.load("state.safetensors").n_seen,
}))
"""


def copy_package(target: Path) -> None:
    """A copy of the package made of links. Only the folder `methods` is real, so that a file can be added to it."""
    (target / "methods").mkdir(parents=True)
    for folder, parent in ((PACKAGE, target), (PACKAGE / "methods", target / "methods")):
        for path in folder.iterdir():
            if path.name not in ("methods", "__pycache__"):
                (parent / path.name).symlink_to(path)


@pytest.fixture
def documented_class() -> str:
    block = re.search(r"^```python\n(.*?^class RunningPrior.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    return block.group(1)


def test_a_file_in_the_methods_folder_is_a_new_method(documented_class, tmp_path):
    copy_package(tmp_path / "zeroshift")
    (tmp_path / "zeroshift" / "methods" / "running_prior.py").write_text(documented_class)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    assert Path(found["package"]).parent == tmp_path / "zeroshift"
    assert found["class"]
    assert found["parameters"] == ["logit_scale", "strength"]
    assert found["loaded"] == 3
    built_in = {info.name for info in zeroshift.methods.list_methods()}
    assert built_in < set(found["names"])
    assert set(found["names"]) - built_in == {"running_prior"}
