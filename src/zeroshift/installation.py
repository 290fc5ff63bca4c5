"""The command that adds packages to this installation: a clone, a package of an index, a file or an address."""

from __future__ import annotations

import json
import os
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

__all__ = ["install_command"]

SOURCE = Path(__file__).resolve().parents[2]
"""The clone, if this file is in one."""


def install_command(extra: str) -> str:
    """The command that installs an extra of zeroshift the way zeroshift was installed."""
    clone, editable = _clone()
    if clone is not None:
        enter = "" if Path.cwd() == clone else f"cd {shlex.quote(str(clone))} && "
        return f"{enter}pip install -c constraints.txt {'-e ' if editable else ''}'.[{extra}]'"
    origin = _origin()
    if not origin:
        return f"pip install 'zeroshift[{extra}]'"
    kind = origin.get("vcs_info", {})
    commit = f"@{kind['commit_id']}" if "commit_id" in kind else ""
    prefix = f"{kind['vcs']}+" if "vcs" in kind else ""
    return f"pip install 'zeroshift[{extra}] @ {prefix}{origin['url']}{commit}'"


def _clone() -> tuple[Path | None, bool]:
    """The clone that was installed, if it still exists, and whether the installation is editable."""
    if _is_clone(SOURCE):
        return SOURCE, True
    parts = urlsplit(_origin().get("url", ""))
    folder = Path(url2pathname(parts.path))
    return (folder if parts.scheme == "file" and _is_clone(folder) else None), False


def _is_clone(folder: Path) -> bool:
    return all(os.path.isfile(folder / name) for name in ("pyproject.toml", "constraints.txt"))


def _origin() -> dict[str, Any]:
    """What pip recorded about an installation that is not from an index; empty otherwise."""
    try:
        recorded = distribution("zeroshift").read_text("direct_url.json")
    except PackageNotFoundError:
        recorded = None
    return {} if recorded is None else json.loads(recorded)
