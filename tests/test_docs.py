"""Every code block of README and docs works: Python and commands are executed, configuration is parsed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clips import write_clip
from zeroshift.cli import app
from zeroshift.data import packs
from zeroshift.evaluate import runner

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/RESULTS.md", "examples/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
MEASUREMENTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")

PHOTOS = ("cat", "dog", "horse", "horse")
"""The pages use a folder `photos`. The tests create one, with one image for each of these classes."""


def write_photos(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    for i, name in enumerate(PHOTOS):
        (folder / "photos" / name).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((320, 240), Image.Resampling.BICUBIC)
        image.save(folder / "photos" / name / f"{i}.jpg")


def write_video(folder: Path) -> None:
    """The pages use a video `clip.mp4`: two seconds, the photographs one after the other."""
    import numpy as np
    from PIL import Image

    frames = [np.asarray(Image.open(path)) for path in sorted(folder.glob("photos/*/*.jpg")) for _ in range(5)]
    write_clip(folder / "clip.mp4", frames)


def blocks(page: Path) -> list[tuple[str, str, int]]:
    text = page.read_text()
    return [(m.group(1), m.group(2), text[: m.start()].count("\n") + 1) for m in BLOCK.finditer(text)]


def run_python(code: str, where: str, names: dict[str, object]) -> None:
    exec(compile(code, where, "exec"), names)


def run_commands(code: str, where: str) -> None:
    for line in code.replace("\\\n", " ").splitlines():
        arguments = shlex.split(line, comments=True)
        if not arguments:
            continue
        if arguments[0] == "make":
            # Running the targets inside their own tests would never end; a dry run checks that they exist.
            command = ["make", "--dry-run", *arguments[1:]]
            finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert finished.returncode == 0, f"{where}: `{line}` failed:\n{finished.stdout}{finished.stderr}"
        elif arguments[0] == "pip":
            check_pip_install(arguments, where)
        elif arguments[-2:] == [".", ".venv/bin/activate"]:
            assert arguments[:-2] in ([], ["python3", "-m", "venv", ".venv", "&&"])  # here, everything is installed
        elif arguments[0] == "zeroshift":
            # In this process: importing the libraries of an encoder takes seconds.
            result = CliRunner().invoke(app, arguments[1:])
            assert result.exit_code == 0, f"{where}: `{line}` failed:\n{result.output}"
        elif arguments[0] == "curl":
            if shutil.which("curl"):
                finished = subprocess.run(arguments, capture_output=True, text=True, check=False)
                assert finished.returncode == 0, f"{where}: `{line}` failed:\n{finished.stdout}{finished.stderr}"
        else:
            pytest.fail(f"{where}: {arguments[0]!r} is not a command the tests can run")


def check_pip_install(arguments: list[str], where: str) -> None:
    """Nothing is installed: the extras exist, and the constraints pin torch."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    requested = re.fullmatch(r"\.\[([\w,]+)\]", arguments[-1])
    assert requested, f"{where}: {arguments[-1]!r} is not .[EXTRAS]"
    assert set(requested[1].split(",")) <= set(extras), f"{where}: unknown extras in {arguments[-1]!r}"
    assert "\ntorch==" in (ROOT / arguments[arguments.index("-c") + 1]).read_text(), where


@pytest.fixture
def reduced_runs(monkeypatch, untimed_runs):
    """Packs with fewer rows, and runs in this process, because other processes would import everything again."""
    load, execute_jobs = packs.load, runner.execute_jobs
    monkeypatch.setattr(packs, "load", lambda name: load(name).subset(slice(0, 800)))
    monkeypatch.setattr(runner, "execute_jobs", lambda *arguments, processes: execute_jobs(*arguments, processes=0))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page, reduced_runs, tmp_path, monkeypatch, recwarn, request):
    run_page(page, tmp_path, monkeypatch, request)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run_on_whole_packs(page, tmp_path, monkeypatch, recwarn, request, capsys):
    """Also compares the output of Python blocks with the block `text` directly below."""
    run_page(page, tmp_path, monkeypatch, request, capsys)


def run_page(page, tmp_path, monkeypatch, request, capsys=None) -> None:
    """Run the blocks of a page in order, in one folder and one namespace, as a reader would."""
    if any("composed" in code for _, code, _ in blocks(page)):
        request.getfixturevalue("fitted_text_map")
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path)
    if "clip.mp4" in page.read_text():
        pytest.importorskip("av", reason="the extra `video` brings it")
        write_video(tmp_path)
    names: dict[str, object] = {"__name__": page.stem}
    printed, end = None, 0
    for language, code, line in blocks(page):
        where = f"{page.name}:{line}"
        if language == "python":
            run_python(code, where, names)
            printed, end = capsys.readouterr().out if capsys else None, line + code.count("\n") + 1
            continue
        if language == "text" and printed is not None and line == end + 2:
            assert_same_output(printed, code, where)
        printed = None
        if language == "text":
            continue
        if language == "sh":
            run_commands(code, where)
        elif language == "toml":
            tomllib.loads(code)
        else:
            pytest.fail(f"{where}: no test runs blocks in {language or 'no language'!r}")


def assert_same_output(printed: str, expected: str, where: str) -> None:
    """Equal words; numbers may differ by rounding, and by what another BLAS changes."""
    number = re.compile(r"\d+\.\d+")
    assert number.sub("#", printed).split() == number.sub("#", expected).split(), where
    found, wanted = (list(map(float, number.findall(text))) for text in (printed, expected))
    assert found == pytest.approx(wanted, rel=0.01, abs=0.01), where


@pytest.mark.parametrize("page", [*PAGES, *MEASUREMENTS], ids=lambda page: page.name)
def test_links_exist(page):
    for target, anchor in LINK.findall(page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name} links to {target}, which does not exist"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}#{anchor}, which does not exist"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_readme_starts_with_a_folder_of_images_and_the_two_commands():
    (first, images, _), (second, make, line) = blocks(ROOT / "README.md")[:2]
    assert first == second == "sh"
    assert [line.split()[0] for line in images.splitlines()] == ["python3", "pip", "zeroshift"]
    assert [line.split("#")[0].strip() for line in make.splitlines()] == ["make demo", "make test"]
    assert line < 30  # on the first screen
