"""Hints how to install an extra work where zeroshift was installed."""

import json

import pytest

from zeroshift import installation
from zeroshift.installation import install_command


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """`installed(origin)`: zeroshift outside of a clone, with this content of pip's direct_url.json."""

    def installed(origin):
        class Installed:
            def read_text(self, name):
                assert name == "direct_url.json"
                return None if origin is None else json.dumps(origin)

        monkeypatch.setattr(installation, "SOURCE", tmp_path / "site-packages")
        monkeypatch.setattr(installation, "distribution", lambda name: Installed())

    return installed


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("pyproject.toml", "constraints.txt"):
        (folder / name).touch()
    return folder


def test_code_that_runs_in_a_clone_stays_editable(clone, monkeypatch):
    monkeypatch.setattr(installation, "SOURCE", clone)
    assert install_command("video") == f"cd '{clone}' && pip install -c constraints.txt -e '.[video]'"
    monkeypatch.chdir(clone)
    assert install_command("video") == "pip install -c constraints.txt -e '.[video]'"


def test_an_installed_clone_is_named(installed, clone):
    installed({"url": clone.as_uri(), "dir_info": {}})
    assert install_command("onnx") == f"cd '{clone}' && pip install -c constraints.txt '.[onnx]'"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'zeroshift[serve]'"),
        (
            {"url": "file:///w/zeroshift-0.2.0-py3-none-any.whl", "archive_info": {}},
            "pip install 'zeroshift[serve] @ file:///w/zeroshift-0.2.0-py3-none-any.whl'",
        ),
        (
            {"url": "https://host/z.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'zeroshift[serve] @ git+https://host/z.git@abc'",
        ),
    ],
)
def test_an_index_a_wheel_and_a_repository(origin, command, installed):
    installed(origin)
    assert install_command("serve") == command


def test_no_message_names_an_index_by_itself():
    sources = installation.SOURCE / "src" / "zeroshift"
    literal = [path for path in sources.rglob("*.py") if "install 'zeroshift[" in path.read_text()]
    assert literal == [sources / "installation.py"]
