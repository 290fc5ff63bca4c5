"""Build the documentation site in build/site: `python scripts/build_docs.py`, or `make docs`.

Pages stay where GitHub shows them (docs/, benchmarks/, CONTRIBUTING.md, ...). This script copies them into build/docs,
where the site's names are, changes the links between them accordingly, adds one page per method, written from the
registry and the records of the comparison, and runs Zensical, which fails on links to missing pages and anchors.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from statistics import mean

import yaml

from zeroshift.method import registered_methods
from zeroshift.methods import MethodInfo, list_methods
from zeroshift.report.formatting import describe_needs

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()(?!\w+:)([^)#\s]+)((?:#[^)]*)?\))")
RENAMED = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
    "benchmarks/RESULTS.md": "results/index.md",
    "examples/README.md": "examples/index.md",
    "src/zeroshift/data/bundle/README.md": "bundle.md",
}
"""Where files are on the site; docs/NAME is NAME, benchmarks/results/NAME is results/NAME, and examples/NAME stays."""

PROTOCOLS = {
    "online": "Online methods predict every sample when it arrives, and improve with the samples before it.",
    "transductive": "Transductive methods see a whole set before they predict any sample of it.",
    "episodic": "Episodic methods treat each image by itself, usually from several views of it.",
    "few-shot": "Few-shot methods need labelled samples of every class.",
}


def site_name(source: str) -> str | None:
    """Where a file of the repository is on the site, or None if it is not there."""
    if source in RENAMED:
        return RENAMED[source]
    for folder, target in (("docs/", ""), ("benchmarks/results/", "results/"), ("examples/", "examples/")):
        if source.startswith(folder):
            return target + source.removeprefix(folder)
    return None


def site_links(text: str, source: str, target: str) -> str:
    """The text of the page `source` with links as they must be on the page `target` of the site.

    >>> site_links("[all](../benchmarks/RESULTS.md#speed)", "docs/guide.md", "guide.md")
    '[all](results/index.md#speed)'
    >>> site_links("[order](streams.md)", "docs/methods.md", "methods/tda.md")
    '[order](../streams.md)'
    """

    def change(found: re.Match[str]) -> str:
        linked = os.path.normpath(PurePosixPath(source).parent / found[2])
        name = site_name(linked)
        if name is None:
            raise SystemExit(f"{source} links to {linked}, which is not on the site. Fix: add it to RENAMED.")
        return found[1] + os.path.relpath(name, PurePosixPath(target).parent) + found[3]

    return LINK.sub(change, text)


def copy_pages(folder: Path) -> None:
    pages = [*sorted((ROOT / "docs").rglob("*")), *sorted((ROOT / "benchmarks" / "results").glob("*.md"))]
    pages += [ROOT / name for name in RENAMED if name != "README.md"]
    pages += sorted((ROOT / "examples").glob("*.py"))
    for page in sorted((ROOT / "examples").glob("*.ipynb")):
        write_notebook(page, folder / "examples")
    for page in pages:
        if page.is_dir():
            continue
        source = page.relative_to(ROOT).as_posix()
        name = site_name(source)
        assert name is not None
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            text = site_links(page.read_text("utf-8"), source, name)
            target.write_text(link_methods(text) if source == "docs/methods.md" else text, "utf-8")
        else:
            shutil.copyfile(page, target)
    shutil.copyfile(ROOT / "CITATION.cff", folder / "CITATION.cff")


def write_notebook(path: Path, folder: Path) -> None:
    """A notebook as a page: its cells, and what they printed and showed."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}_{number}.png"
                (folder / name).write_bytes(base64.b64decode(data["image/png"]))
                parts.append(f"![What the cell shows]({name})")
            else:
                parts.append(f"```text\n{''.join(output.get('text') or data['text/plain']).rstrip()}\n```")
    title, *others = parts
    parts = [title, f"This page is the notebook [{path.name}]({path.name}).", *others]
    (folder / f"{path.stem}.md").write_text("\n\n".join(parts) + "\n", "utf-8")
    shutil.copyfile(path, folder / path.name)


def link_methods(text: str) -> str:
    """In the table of all methods, a name is a link to the page of the method."""
    names = "|".join(method.name for method in built_in_methods())
    return re.sub(rf"^\| ({names}) \|", r"| [\1](methods/\1.md) |", text, flags=re.MULTILINE)


def built_in_methods() -> list[MethodInfo]:
    return [method for method in list_methods() if method.name in registered_methods()]


class Measurements:
    """Accuracies of all methods on the sets of the comparison (benchmarks/compare.json), and its columns of costs."""

    def __init__(self) -> None:
        records = json.loads((ROOT / "benchmarks" / "compare.json").read_text())
        self.accuracy = {
            name: {method: mean(values.values()) for method, values in methods.items()}
            for name, methods in records.items()
        }
        self.costs = dict(table_rows((ROOT / "benchmarks" / "results" / "comparison.md").read_text()))
        self.views = dict(table_rows((ROOT / "benchmarks" / "results" / "views.md").read_text()))

    def gains(self, method: str) -> dict[str, float]:
        """Points over zero-shot by set, the largest first."""
        gains = {name: one[method] - one["zero_shot"] for name, one in self.accuracy.items() if method in one}
        return dict(sorted(gains.items(), key=lambda item: -item[1]))


def table_rows(text: str) -> Iterable[tuple[str, dict[str, str]]]:
    """The rows of the first table whose first column is `method`, by method."""
    lines = iter(text.splitlines())
    titles = next(cells(line) for line in lines if line.startswith("| method |"))
    next(lines)
    for line in lines:
        if not line.startswith("|"):
            return
        row = dict(zip(titles, cells(line), strict=True))
        yield row["method"].strip("`*"), row


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|\n ").split("|")]


def method_page(method: MethodInfo, measured: Measurements, notes: str) -> str:
    """The page of a method in Markdown: idea, use, parameters, cost, measurements, notes."""
    where = f"zeroshift.{method.cls.__name__}" if method.name in FIRST_LEVEL else f"methods.{method.cls.__name__}"
    parts = [
        f"# {method.name}",
        f"**{method.headline}.** {PROTOCOLS[method.protocol]}",
        "## Idea",
        method.summary,
        *([f"This is a reconstruction: {method.reconstructed.rstrip('.')}."] if method.reconstructed else []),
        notes,
        "## Use it",
        *usage(method),
        "## Needs and cost",
        table(
            ("", ""),
            [
                ("class", f"`{where}`"),
                ("protocol", method.protocol),
                ("inputs, optional ones in brackets", describe_needs(method) or "features and prototypes only"),
                ("size of the state", method.state_size),
                ("cost", method.complexity),
                ("scored", f"each sample {method.scored} the method learns from it"),
                ("presets", ", ".join(method.presets) or "none: one default for all data"),
            ],
        ),
        "K is the number of classes, d the dimension, N the number of samples; other letters are parameters.",
        "## Parameters",
        table(
            ("name", "default", "allowed", "meaning"),
            [
                (f"`{one.name}`", "required" if one.required else f"`{one.default}`", one.allowed, one.meaning)
                for one in method.parameters
            ],
        )
        if method.parameters
        else "None.",
        "## Where it wins and loses",
        *measurements(method, measured),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


FIRST_LEVEL = {"zero_shot", "adapt_online", "adapt_transductive", "anchored_mixture_online"} | {
    "anchored_mixture_transductive", "adapt_released_online", "adapt_released_transductive",
}  # fmt: skip


def usage(method: MethodInfo) -> list[str]:
    required = (*method.needs, *(one.name for one in method.parameters if one.required))
    more = [name for name in dict.fromkeys(required) if name not in ("features", "prototypes")]
    if more:
        return [
            f"It needs more than features and prototypes: {', '.join(more)}. [How methods get them](../methods.md)."
        ]
    return [
        f"```text\nzeroshift adapt FEATURES --method {method.name} --out predictions.csv\n"
        f"zeroshift compare FEATURES --methods zero_shot,{method.name}\n```",
        f"```text\nmethod = zeroshift.methods.create({method.name!r}, prototypes, logit_scale=100.0)\n"
        "probabilities = method.adapt(features)\n```",
    ]


def measurements(method: MethodInfo, measured: Measurements) -> list[str]:
    gains = measured.gains(method.name)
    if method.name == "zero_shot":
        return ["Gains of all other methods are measured against it. [All numbers](../results/comparison.md)."]
    if not gains:
        row = measured.views.get(method.name)
        if row is None:
            return ["It was not measured on the sets of [the comparison](../results/comparison.md)."]
        return [
            f"On two small sets with views, its mean gain over zero-shot is {row['gain']} points, at "
            f"{row['µs per sample']} µs per image. [All methods with views](../results/views.md)."
        ]
    same = [one.name for one in built_in_methods() if one.protocol == method.protocol]
    means = sorted((mean(found.values()) for one in same if (found := measured.gains(one))), reverse=True)
    cost = measured.costs[method.name]
    rows = [(name.replace("_", " "), f"{gain:+.1f}") for name, gain in gains.items()]
    lost = sum(gain < 0 for gain in gains.values())
    return [
        f"Mean gain over zero-shot on {len(gains)} sets of features: **{mean(gains.values()):+.1f} points**, place "
        f"{means.index(mean(gains.values())) + 1} of {len(means)} measured {method.protocol} methods. It is below "
        f"zero-shot on {lost} of them. Calibration error {cost['ECE']} % (zero-shot: "
        f"{measured.costs['zero_shot']['ECE']} %), {cost['µs per sample']} µs per sample, {cost['MB']} MB.",
        table(("set", "gain in points"), rows),
        "One default setting, two CPU cores that were shared with other work. [All methods, and how this was "
        "measured](../results/comparison.md).",
    ]


def table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    escaped = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [titles, ["---"] * len(titles), *escaped])


def method_notes() -> dict[str, str]:
    """The sections of docs/methods.md about single methods, by method."""
    text = (ROOT / "docs" / "methods.md").read_text("utf-8")
    sections = re.findall(r"^### ([\w, ]+)\n(.*?)(?=^##)", text + "\n##", re.DOTALL | re.MULTILINE)
    return {name.strip(): body.strip() for names, body in sections for name in names.split(",")}


def write_method_pages(folder: Path) -> list[str]:
    measured, notes = Measurements(), method_notes()
    (folder / "methods").mkdir()
    pages = []
    for method in built_in_methods():
        pages.append(f"methods/{method.name}.md")
        about = re.sub(r"\]\(#", "](methods.md#", notes.get(method.name, ""))
        text = method_page(method, measured, site_links(about, "docs/methods.md", pages[-1]))
        (folder / pages[-1]).write_text(text, "utf-8")
    return pages


def write_config(folder: Path, method_pages: list[str], results: list[str]) -> Path:
    """mkdocs.yml with the pages of methods and results in its navigation, and paths that hold in every folder."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    sections = {title: pages for section in config["nav"] for title, pages in section.items()}
    protocols = {method.name: method.protocol for method in built_in_methods()}
    for protocol in PROTOCOLS:
        pages = [page for page in method_pages if protocols[Path(page).stem] == protocol]
        sections["Methods"].append({protocol.capitalize(): [{Path(page).stem: page} for page in pages]})
    sections["Results"] += [{Path(page).stem.replace("_", " ").capitalize(): page} for page in results]
    python = next(one["mkdocstrings"] for one in config["plugins"] if "mkdocstrings" in one)["handlers"]["python"]
    python["paths"] = [str(ROOT / "src")]
    python["options"]["extensions"] = [str(ROOT / "scripts" / "doctest_blocks.py")]
    path = folder / "mkdocs.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    return path


def build(folder: Path) -> None:
    """Collect the pages in `folder`/docs and build the site in `folder`/site; raise SystemExit if a link is broken."""
    pages = folder / "docs"
    for old in (pages, folder / "site", folder / ".cache"):
        shutil.rmtree(old, ignore_errors=True)
    pages.mkdir(parents=True)
    copy_pages(pages)
    results = [f"results/{page.name}" for page in sorted((ROOT / "benchmarks" / "results").glob("*.md"))]
    config = write_config(folder, write_method_pages(pages), results)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(config)]
    finished = subprocess.run(command, cwd=folder, env={**os.environ, "NO_COLOR": "1"}, check=False)
    if finished.returncode:
        raise SystemExit("The site was not built. Fix: the pages and anchors named above.")
    for page in pages.rglob("*.md"):  # llms.txt links to the Markdown of the pages
        shutil.copyfile(page, folder / "site" / page.relative_to(pages))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="folder to build in (default: build)")
    arguments = parser.parse_args()
    build(arguments.out.resolve())
    site = shlex.quote(os.path.relpath(arguments.out / "site"))
    print(f"Show it, with search, on http://127.0.0.1:8000: python -m http.server --bind 127.0.0.1 --directory {site}")
