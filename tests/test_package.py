"""What a fresh `import zeroshift` brings along, and what it must not."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import zeroshift


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_is_light():
    heavy = ["torch", "transformers", "matplotlib", "typer", "rich", "jinja2", "scipy", "pyarrow"]
    loaded = run(f"import sys, zeroshift; print([m for m in {heavy} if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_adapting_needs_no_torch():
    """With torch made unimportable, numpy in, numpy out, save and load still work."""
    code = """
import sys, tempfile, pathlib
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("torch was made unimportable")
sys.meta_path.insert(0, NoTorch())
import numpy as np, zeroshift
from zeroshift.testing import check_method, make_problem
problem = make_problem()
adapter = zeroshift.OnlineADAPT(problem.prototypes)
adapter.adapt(problem.features)
path = pathlib.Path(tempfile.mkdtemp()) / "state.safetensors"
adapter.save(path)
print(zeroshift.OnlineADAPT.load(path).n_seen)
"""
    assert run(code).strip() == "80"


def test_public_names_exist():
    for name in zeroshift.__all__:
        assert hasattr(zeroshift, name), name


def test_dir_shows_the_public_names_only():
    assert dir(zeroshift) == sorted(zeroshift.__all__)


def test_version_is_the_installed_one():
    if version("zeroshift") != zeroshift.__version__:
        pytest.fail("the installed metadata is stale: run `make clean` and `make test` again")


def test_typing_information_is_shipped():
    from importlib.resources import files

    assert (files("zeroshift") / "py.typed").is_file()
