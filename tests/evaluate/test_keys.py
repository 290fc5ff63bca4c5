"""Keys of code change with the code of the method and its imports, not with comments or other methods."""

import importlib
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

from zeroshift.evaluate import keys
from zeroshift.evaluate.keys import _file, _source, code_digest
from zeroshift.methods import TDA, TransCLIP, ZeroShot


@pytest.fixture
def written(tmp_path, monkeypatch):
    """`written(body)`: the class of a method in a separate module, like that of a plug-in."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def written(body: str):
        for cached in (code_digest, _source, _file):
            cached.cache_clear()
        sys.modules.pop("plug_in", None)
        importlib.invalidate_caches()
        (tmp_path / "plug_in.py").write_text(
            f"from zeroshift.methods import ZeroShot\n\n\nclass Mine(ZeroShot):\n{textwrap.indent(body, '    ')}\n"
        )
        return importlib.import_module("plug_in").Mine

    yield written
    sys.modules.pop("plug_in", None)


def test_code_counts_and_comments_do_not(written):
    first = code_digest(written('"""One."""\nfactor = 1  # why'))
    assert code_digest(written('"""Another."""\n\nfactor = 1\n"""Said of it."""')) == first
    assert code_digest(written("factor = 2")) != first


def test_every_file_of_a_plug_in_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "own_methods"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "helper.py").write_text("FACTOR = 1  # why\n")
    (package / "prior.json").write_text("[1]")
    (package / "mine.py").write_text(
        "from own_methods.helper import FACTOR\nfrom zeroshift import ZeroShot\n\n\nclass Mine(ZeroShot):\n    pass\n"
    )
    importlib.invalidate_caches()
    mine = importlib.import_module("own_methods.mine").Mine

    def digest() -> str:
        code_digest.cache_clear()
        return code_digest(mine)

    digests = [digest()]
    for name, content in (("helper.py", "FACTOR = 2\n"), ("prior.json", "[2]")):
        (package / name).write_text(content)
        digests.append(digest())
    monkeypatch.setattr(keys, "_plug_in_versions", lambda top: [f"{top} 2.0"])
    digests.append(digest())
    assert len(set(digests)) == 4
    (package / "helper.py").write_text("FACTOR = 2  # another comment\n")
    assert digest() == digests[-1]
    for name in [name for name in sys.modules if name.startswith("own_methods")]:
        sys.modules.pop(name)


def test_a_folder_that_is_found_twice_counts_once(tmp_path, monkeypatch):
    (tmp_path / "own_namespace").mkdir()
    (tmp_path / "own_namespace" / "mine.py").touch()
    found = []
    for _ in range(2):
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        importlib.invalidate_caches()
        found.append(keys._plug_in_files("own_namespace"))
    assert found[0] == found[1] == [tmp_path / "own_namespace" / "mine.py"]


def test_a_module_next_to_that_of_a_method_counts(written, tmp_path):
    method = written("factor = 1")
    first = code_digest(method)
    (tmp_path / "helper.py").write_text("no Python\n")
    code_digest.cache_clear()
    assert code_digest(method) != first


def test_the_digest_covers_a_method_and_its_imports_only(monkeypatch):
    real = cache(_source.__wrapped__)  # every module is read once, and not for each of the digests

    def with_other(module: str, cls) -> str:
        code_digest.cache_clear()
        other = lambda name: real(name)._replace(code="changed") if name == module else real(name)  # noqa: E731
        monkeypatch.setattr("zeroshift.evaluate.keys._source", other)
        found = code_digest(cls)
        monkeypatch.undo()
        return found

    for module, changed in [
        ("zeroshift.methods._shared.class_memory", (TDA,)),
        ("zeroshift.methods._shared.gaussian_method", (TransCLIP,)),
        ("zeroshift.zero_shot", (TDA, TransCLIP, ZeroShot)),
        ("zeroshift.evaluate.metrics.functions", (TDA, TransCLIP, ZeroShot)),
        ("zeroshift.report.formatting", ()),
    ]:
        for cls in (TDA, TransCLIP, ZeroShot):
            code_digest.cache_clear()
            assert (with_other(module, cls) != with_other("none", cls)) == (cls in changed), (module, cls)


def test_re_exported_names_are_resolved(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "analyses.py").write_text(
        "from zeroshift import OnlineADAPT\n\n\ndef look(features, *, prompt):\n    return {'name': OnlineADAPT.name}\n"
    )
    importlib.invalidate_caches()
    look = importlib.import_module("analyses").look
    for cached in (code_digest, _source, _file):
        cached.cache_clear()
    before = code_digest(look)
    real = _source.__wrapped__
    other = lambda name: real(name)._replace(code="changed") if name == "zeroshift.adapt.bank" else real(name)  # noqa: E731
    monkeypatch.setattr("zeroshift.evaluate.keys._source", other)
    code_digest.cache_clear()
    assert code_digest(look) != before
    code_digest.cache_clear()
    sys.modules.pop("analyses")


def test_every_engine_is_part_of_online_adapt():
    from zeroshift import OnlineADAPT
    from zeroshift.adapt import engines

    folder = Path(engines.__file__).parent
    names = {f"zeroshift.adapt.engines.{path.stem}" for path in folder.glob("*.py") if path.stem != "__init__"}
    assert len(names) > 5
    assert names <= reached(OnlineADAPT)


def test_the_baseline_is_part_of_every_run():
    assert {"zeroshift.methods.zero_shot", "zeroshift.zero_shot", "zeroshift.features.feature_set"} <= reached(TDA)


def reached(cls) -> set[str]:
    """Every module whose code counts."""
    found = set()
    real = _source.__wrapped__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zeroshift.evaluate.keys._source", lambda name: found.add(name) or real(name))
        code_digest.cache_clear()
        code_digest(cls)
    code_digest.cache_clear()
    return found
