"""The registry: its list, errors for wrong names, and plug-ins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from zeroshift import OnlineADAPT, ZeroShot, methods
from zeroshift.methods import registry

PROTOTYPES = np.eye(3, 8)


@pytest.fixture
def fresh_registry():
    registry._registry.cache_clear()
    yield
    registry._registry.cache_clear()


def test_the_first_methods_are_there():
    names = [method.name for method in methods.list_methods()]
    assert names[:6] == [
        "zero_shot",
        "adapt_online",
        "adapt_transductive",
        "anchored_mixture_online",
        "anchored_mixture_transductive",
        "adapt_released_online",
    ]
    assert {method.protocol for method in methods.list_methods()} == {"online", "episodic", "transductive", "few-shot"}


def test_each_method_says_what_it_takes():
    info = methods.get("adapt_online")
    parameters = {parameter.name: parameter for parameter in info.parameters}
    assert parameters["alpha"].default == 0.9
    assert parameters["alpha"].allowed == "a number from 0 to 1"
    assert not parameters["alpha"].required
    assert info.needs == ("prototypes",)
    assert info.summary.startswith("Adapts one sample at a time")
    scale = methods.get("adapt_released_online").parameters[0]
    assert (scale.name, scale.required) == ("scale", True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: methods.create("adapt_onlin", PROTOTYPES), "Did you mean 'adapt_online'?"),
        (lambda: methods.create("qqq", PROTOTYPES), "Known: zero_shot, adapt_online"),
        (lambda: methods.create("adapt_online", PROTOTYPES, bank=3), "Did you mean 'bank_size'?"),
        (lambda: methods.create("adapt_released_online", PROTOTYPES), "ReleasedOnlineADAPT needs scale"),
        (lambda: methods.list_methods("offline"), "protocol must be one of"),
    ],
)
def test_mistakes_are_answered(call, message):
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    assert message in str(error.value)


class Coin(ZeroShot):
    """A third party's method."""

    name = "coin"


def entry_points_of(**objects):
    class Entry:
        def __init__(self, name, value):
            self.name, self.value, self._object = name, f"package:{name}", value

        def load(self):
            if isinstance(self._object, Exception):
                raise self._object
            return self._object

    return lambda group: [Entry(name, value) for name, value in objects.items()] if group == "zeroshift.methods" else []


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (ImportError("no such module"), "no such module"),
        (42, "not a subclass"),
        (type("Twin", (ZeroShot,), {"name": "zero_shot"}), "taken"),
        (type("Offline", (ZeroShot,), {"name": "offline", "protocol": "offline"}), "protocol 'offline'"),
    ],
)
def test_a_broken_plug_in_is_named_and_skipped(monkeypatch, fresh_registry, broken, reason):
    monkeypatch.setattr(registry, "entry_points", entry_points_of(broken=broken, coin=Coin))
    with pytest.warns(UserWarning, match=f"package:broken.*{reason}"):
        names = [method.name for method in methods.list_methods()]
    assert "coin" in names
    assert isinstance(methods.create("coin", PROTOTYPES), Coin)
    assert methods.get("zero_shot").cls is ZeroShot


@pytest.mark.slow
def test_the_tests_pass_where_a_plug_in_is_installed(tmp_path):
    about = tmp_path / "installed_plug_in-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-plug-in\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[zeroshift.methods]\ninstalled = installed_plug_in:Installed\n")
    (tmp_path / "installed_plug_in.py").write_text(
        "from zeroshift import ZeroShot\n\n\nclass Installed(ZeroShot):\n    name = 'installed'\n"
    )
    tests = Path(__file__).parents[1]
    source = Path(methods.__file__).parents[2]
    counting = ["cli/test_cli_listings.py", "test_frozen.py::test_documentation_lists_what_can_be_frozen"]
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{tmp_path}"}
    names = "from zeroshift.methods import list_methods; print([method.name for method in list_methods()])"
    shown = subprocess.run([sys.executable, "-c", names], env=environment, capture_output=True, text=True, check=True)
    assert "'installed'" in shown.stdout
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *(str(tests / name) for name in counting)], env=environment, capture_output=True, text=True,
        cwd=tests.parent, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]


def test_load_picks_the_class(tmp_path):
    method = OnlineADAPT(PROTOTYPES, bank_size=2)
    method.adapt(np.eye(3, 8))
    method.save(tmp_path / "state.safetensors")
    loaded = methods.load(tmp_path / "state.safetensors")
    assert type(loaded) is OnlineADAPT
    assert loaded.n_seen == 3
