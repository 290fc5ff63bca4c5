"""What `import zeroshift` loads, and what it must not load."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

import zeroshift
from zeroshift.installation import install_command


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_loads_no_heavy_library():
    heavy = ["numpy", "torch", "transformers", "matplotlib", "typer", "rich", "jinja2", "scipy", "pyarrow"]
    heavy += ["sklearn", "onnx", "river", "supervision"]
    loaded = run(f"import sys, zeroshift; print([m for m in {heavy} if m in sys.modules])")
    assert loaded.strip() == "[]"


@pytest.mark.parametrize("use", ["OnlineADAPT", "methods.create", "data.packs.load", "encode.Prompts", "normalize"])
def test_using_a_name_imports_its_module_and_no_heavy_library(use):
    heavy = ["torch", "transformers", "matplotlib", "typer", "rich", "jinja2", "scipy", "pyarrow", "sklearn", "onnx"]
    loaded = run(f"import sys, zeroshift; zeroshift.{use}; print([m for m in {heavy} if m in sys.modules])")
    assert loaded.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "missing", "fix"),
    [
        ("onnx", "onnx", install_command("onnx")),
        ("river", "river", install_command("river")),
        ("sklearn", "sklearn.base", install_command("sklearn")),
        ("supervision", "supervision", "pip install supervision"),
        ("torch", "torch", install_command("torch")),
    ],
)
def test_a_missing_tool_is_named_with_the_fix(module, missing, fix, monkeypatch):
    monkeypatch.delitem(sys.modules, f"zeroshift.{module}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=re.escape(f"Fix: {fix}")):
        importlib.import_module(f"zeroshift.{module}")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'OnlinADAPT'"):
        zeroshift.OnlinADAPT  # noqa: B018


def test_adapt_works_without_torch():
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


def test_dir_lists_only_public_names():
    assert dir(zeroshift) == sorted(zeroshift.__all__)


def test_version_is_that_of_the_installed_package():
    if version("zeroshift") != zeroshift.__version__:
        pytest.fail("the installed metadata is stale: run `make clean` and `make test` again")


def test_typing_information_is_included():
    from importlib.resources import files

    assert (files("zeroshift") / "py.typed").is_file()
