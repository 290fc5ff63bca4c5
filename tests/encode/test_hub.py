"""Loading models from the hub, and errors when that fails."""

from __future__ import annotations

import socket
from pickle import UnpicklingError

import pytest

from zeroshift.encode.families import base as hub

logging = pytest.importorskip("transformers").utils.logging

HUB = "openai/clip-vit-base-patch16"
PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


@pytest.fixture(autouse=True)
def resolved(monkeypatch):
    """Names that were to be resolved; none of them can be."""
    for name in (*PROXIES, "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    names: list[tuple[str, int]] = []

    def unknown(host, port):
        names.append((host, port))
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    return names


def test_without_the_hub_only_local_files_are_used(resolved):
    assert hub.hub_arguments(HUB, "main") == {"revision": "main", "local_files_only": True}
    assert resolved == [("huggingface.co", 443)]


def test_with_the_hub_the_network_is_used(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: [])
    assert hub.hub_arguments(HUB, None) == {"revision": None}


def test_a_mirror_replaces_the_hub(resolved, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example:8443/hub")
    assert hub.hub_arguments(HUB, None)["local_files_only"]
    assert resolved == [("mirror.example", 443)]


@pytest.mark.parametrize("name", PROXIES)
def test_names_are_not_resolved_with_a_proxy(resolved, monkeypatch, name):
    monkeypatch.setenv(name, "http://proxy.example:3128")
    assert hub.hub_arguments(HUB, None) == {"revision": None}
    assert resolved == []


def test_a_folder_needs_no_network(resolved, tmp_path):
    assert hub.hub_arguments(str(tmp_path), None) == {"revision": None}
    assert resolved == []


@pytest.mark.parametrize("kind", [OSError, ValueError, KeyError, RuntimeError, UnpicklingError])
def test_what_the_hub_raises_is_one_line_with_the_fix(kind):
    with pytest.raises(OSError) as refused, hub.convert_load_errors(HUB, None):
        raise kind("\n\nno such thing\nand forty lines more")
    line = str(refused.value)
    assert line.startswith(f"{HUB} cannot be loaded from the hub (")
    assert "no such thing" in line
    assert "Fix: check the id and the network, or pass the folder of a downloaded model; `--encoder composed`" in line
    assert "\n" not in line


def test_a_revision_is_named():
    with pytest.raises(OSError, match="patch16 at revision v2 cannot be loaded"), hub.convert_load_errors(HUB, "v2"):
        raise OSError("gone")


def test_an_empty_message_shows_the_error_type():
    with pytest.raises(OSError, match=r"\(RuntimeError\)"), hub.convert_load_errors(HUB, None):
        raise RuntimeError


def test_an_incomplete_model_folder(tmp_path):
    with pytest.raises(ValueError, match=r"is not a complete model folder \(no vocab\)\. Fix: it needs config"):  # noqa: SIM117
        with hub.convert_load_errors(str(tmp_path), None):
            raise OSError("no vocab")


def test_a_missing_package():
    with pytest.raises(ImportError, match=r"needs a package that is not installed \(No module named 'x'\)\. Fix:"):  # noqa: SIM117
        with hub.convert_load_errors(HUB, None):
            raise ModuleNotFoundError("No module named 'x'")


def test_a_full_device_is_for_others_to_mend():
    import torch

    with pytest.raises(torch.OutOfMemoryError), hub.convert_load_errors(HUB, None):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_bug_is_not_dressed_up():
    with pytest.raises(ZeroDivisionError), hub.convert_load_errors(HUB, None):
        raise ZeroDivisionError


def test_transformers_is_quiet_meanwhile_and_afterwards_as_before():
    logging.set_verbosity_info()
    logging.enable_progress_bar()
    try:
        with hub.convert_load_errors(HUB, None):
            assert logging.get_verbosity() == logging.ERROR
            assert not logging.is_progress_bar_enabled()
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.INFO, True)
        logging.disable_progress_bar()
        with hub.convert_load_errors(HUB, None):
            pass
        assert not logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity_warning()
        logging.enable_progress_bar()
