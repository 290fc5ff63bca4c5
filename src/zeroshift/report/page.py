"""HTML pages: one file each with everything in it, from a template that extends templates/base.html.j2."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeroshift import __version__
from zeroshift.files import atomic_path
from zeroshift.report.formatting import method_label, visible
from zeroshift.report.style import METHOD_COLOURS, PAGE_COLOURS, inline_svg

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

__all__ = [
    "check_page",
    "drawing",
    "identifier",
    "is_report",
    "method_class",
    "page_script",
    "render_template",
    "starts_with_generator",
    "write_text",
]

GENERATOR = '<meta name="generator" content="zeroshift'
"""In the first lines of every report; a file without it is not replaced."""

HEAD_CHARACTERS = 2000
"""How far into a file `GENERATOR` is searched."""

LONGEST_WHOLE = 20
"""Letters of a word with hyphens that is kept on one line; longer ones would be wider than a column."""


def render_template(template: str, context: Mapping[str, Any]) -> str:
    """The page as text; the same bytes for the same context. Everything in the context is escaped."""
    # jinja2 is needed for pages alone, and takes longer to import than the rest of zeroshift.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("zeroshift.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    environment.globals.update(version=__version__, page_colours=PAGE_COLOURS)
    environment.filters.update(
        breakable=_breakable,
        identifier=identifier,
        label=method_label,
        method_class=method_class,
        minus=_minus,
        prose=_prose,
        whole=_whole,
    )
    return environment.get_template(template).render(context)


def page_script(name: str) -> dict[str, Any]:
    """The script of a page, for its template: `script`, the text of a file next to the templates, and `script_hash`, by
    which the page's Content-Security-Policy allows this script and no other."""
    from markupsafe import Markup

    text = files("zeroshift.report").joinpath("templates", name).read_text(encoding="utf-8")
    digest = hashlib.sha256(text.encode()).digest()
    return {"script": Markup(text), "script_hash": f"sha256-{base64.b64encode(digest).decode('ascii')}"}


def drawing(figure: Figure, *, name: str, text: str) -> dict[str, str]:
    """A figure for a template; `name` is unique in the page, `text` is what a screen reader says."""
    return {"svg": inline_svg(figure, name=identifier(name)), "text": text}


def identifier(name: str) -> str:
    """A name as an id of an element: letters, digits, dots, hyphens and underscores. Different names stay different.

    >>> identifier("bank-cifar10"), identifier("bank-<b>")
    ('bank-cifar10', 'bank--b-43eebd6c')
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")
    return plain if plain == name else f"{plain}-{hashlib.sha256(visible(name).encode()).hexdigest()[:8]}"


def _finalize(value: Any) -> Any:
    """Every text that a template shows: characters without a shape are spelled out."""
    return visible(value) if type(value) is str else value


def method_class(name: str) -> str:
    """The class of the style sheet that has a method's colour."""
    return name.replace("_", "-") if name in METHOD_COLOURS else "other"


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def _prose(text: str) -> Markup:
    """Text of a docstring: `code` in backticks becomes an element."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(visible(text)))))


def _whole(text: str) -> Markup:
    """Text in which words with a hyphen, such as CIFAR-10, are not broken at it."""
    from markupsafe import Markup, escape

    parts = re.split(r"(\s+)", visible(str(text)))
    spans = (
        Markup('<span class="whole">{}</span>').format(part)
        if "-" in part and len(part) <= LONGEST_WHOLE
        else escape(part)
        for part in parts
    )
    return Markup("").join(spans)


def _breakable(name: str) -> Markup:
    """A file name that may be broken after a separator, and within a word only where it has to be."""
    from markupsafe import Markup

    return Markup("<wbr>").join(re.split(r"(?<=[/\\_,;+=#-])(?=[^/\\_,;+=#-])", visible(name)))


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file completely or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def is_report(path: str | os.PathLike[str]) -> bool:
    """Whether the file is a report of zeroshift, which may be replaced by a newer one."""
    return starts_with_generator(path, GENERATOR)


def starts_with_generator(path: str | os.PathLike[str], generator: str) -> bool:
    with open(Path(path), encoding="utf-8", errors="replace") as handle:
        return generator in handle.read(HEAD_CHARACTERS)


def check_page(path: str | os.PathLike[str]) -> None:
    """Refuse to replace a file that is not a report of zeroshift."""
    # os.path treats a name that is too long as one that does not exist; the folder is checked elsewhere.
    if os.path.exists(path) and not (os.path.isfile(path) and is_report(path)):
        raise FileExistsError(f"{path} exists and is not a report of zeroshift. Fix: --out another folder.")
