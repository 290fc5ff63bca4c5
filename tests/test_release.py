"""What would be published: wheel and sdist build, pass twine's checks, are small and contain the licences; the
Dockerfile and the workflows name what exists."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import zipfile
from pathlib import Path

import pytest

import zeroshift

ROOT = Path(__file__).parents[1]
LARGEST_WHEEL = 8_000_000


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    pytest.importorskip("build", reason="the extra `release` brings it")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


@pytest.mark.slow
def test_twine_accepts_wheel_and_sdist(built):
    pytest.importorskip("twine", reason="the extra `release` brings it")
    files = sorted(map(str, built.iterdir()))
    assert len(files) == 2
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_wheel_is_small_and_has_licences(built):
    (wheel,) = built.glob("*.whl")
    assert wheel.stat().st_size < LARGEST_WHEEL
    names = zipfile.ZipFile(wheel).namelist()
    licences = {name.partition(".dist-info/licenses/")[2] for name in names}
    assert {"LICENSE", "src/zeroshift/data/bundle/LICENSES.txt"} <= licences
    assert {"zeroshift/data/bundle/README.md", "zeroshift/data/bundle/LICENSES.txt"} <= set(names)
    assert {f"zeroshift/serve/dashboard/{name}" for name in ("index.html", "style.css", "main.js")} <= set(names)
    assert not any(name.startswith(("tests/", "docs/")) for name in names)


@pytest.mark.slow
def test_the_sdist_has_what_make_needs(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"Makefile", "constraints.txt", "mkdocs.yml", "pyproject.toml", "docs/index.md", "tests/conftest.py"}
    assert needed <= names
    assert {"Dockerfile", ".dockerignore", ".github/workflows/test.yml"} <= names


@pytest.mark.slow
def test_the_wheel_works_alone(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "package")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "package")}
    command = [sys.executable, "-m", "zeroshift", "adapt", "pack:cifar10", "--out", "adapted.csv", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n_samples"] == 1500


def test_one_version():
    assert f"\nversion: {zeroshift.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {zeroshift.__version__}" in (ROOT / "CHANGELOG.md").read_text()


# The extras, with the versions that constraints.txt pins.

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_pin_every_direct_dependency_once():
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    pinned = [normalized(line.split("==")[0]) for line in lines]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    assert len(set(pinned)) == len(pinned)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for required in [*project["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]:
        name = normalized(re.match(r"[\w.-]+", required)[0])
        assert name in {*pinned, "zeroshift"}, f"{name} is not pinned"


@pytest.fixture(scope="module")
def bare_project(tmp_path_factory) -> Path:
    """What pip reads to resolve the extras, without the code."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "src/zeroshift/data/bundle").mkdir(parents=True)
    (folder / "src/zeroshift/__init__.py").touch()
    (folder / "src/zeroshift/_version.py").write_text('__version__ = "0"')
    (folder / "src/zeroshift/data/bundle/LICENSES.txt").touch()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_resolves_with_the_constraints(extra, bare_project):
    """Installed packages that fit, such as torch, are not downloaded again; constraints allow no other version."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "-c", "constraints.txt", f".[{extra}]"]
    try:
        done = subprocess.run(command, cwd=bare_project, capture_output=True, text=True, check=False, timeout=600)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index does not answer")
    if "No matching distribution found for hatchling" in done.stderr or "Failed to establish" in done.stderr:
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr[-2000:]


# The Dockerfile.


def instructions() -> list[tuple[str, str]]:
    """(instruction, its arguments) of the Dockerfile, with continued lines joined."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE))
    return [tuple(line.split(" ", 1)) for line in text.splitlines() if line.strip()]


def copied() -> list[str]:
    """The files and folders that the image is built from."""
    arguments = [text.split() for name, text in instructions() if name == "COPY" and not text.startswith("--from")]
    return [source for sources in arguments for source in sources[:-1]]


def test_the_image_is_built_from_files_that_exist_and_are_sent():
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    for source in copied():
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, rule[1:]) for rule in rules if rule.startswith("!")), f"{source} is not sent"


def test_the_image_runs_as_an_ordinary_user_and_installs_known_extras():
    steps = instructions()
    assert [text for name, text in steps if name == "USER"][-1].isdecimal()
    assert int([text for name, text in steps if name == "USER"][-1]) > 0
    given = dict(text.split("=", 1) for name, text in steps if name == "ARG")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(given["EXTRAS"].split(",")) <= extras.keys()
    assert "whl/cpu" in given["TORCH_INDEX"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert f"Programming Language :: Python :: {given['PYTHON']}" in classifiers
    installs = [text for name, text in steps if name == "RUN" and "pip install" in text]
    assert all("--constraint constraints.txt" in install for install in installs)


def test_a_change_of_sources_does_not_install_torch_again():
    steps = instructions()
    (sources,) = [number for number, step in enumerate(steps) if step == ("COPY", "src src")]
    (extras,) = [number for number, (_, text) in enumerate(steps) if "pip install" in text and "EXTRAS" in text]
    assert extras < sources
    assert [text for _, text in steps[sources + 1 :] if "pip install" in text and "--no-deps" not in text] == []


@pytest.mark.slow
def test_the_empty_package_of_the_image_can_be_built(tmp_path):
    pytest.importorskip("build", reason="the extra `release` brings it")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    (step,) = [text for name, text in instructions() if name == "RUN" and "mkdir" in text]
    subprocess.run(step.partition("&& python -m venv")[0], shell=True, cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path / "dist"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_the_image_has_all_that_the_package_is_built_from(tmp_path):
    pytest.importorskip("build", reason="the extra `release` brings it")
    for source in copied():
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, tmp_path / source)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path / "dist"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_the_command_of_the_image_starts_a_healthy_service(tmp_path):
    pytest.importorskip("uvicorn", reason="the extra `serve` brings it")
    parts = {name: text for name, text in instructions() if name in ("ENTRYPOINT", "CMD", "HEALTHCHECK")}
    command = [*json.loads(parts["ENTRYPOINT"]), *json.loads(parts["CMD"])]
    assert command[0] == "zeroshift"
    assert "0.0.0.0" in command  # reached from outside the container; here it must not be
    arguments = [one.replace("/data", str(tmp_path)).replace("0.0.0.0", "127.0.0.1") for one in command[1:]]
    with subprocess.Popen(
        [sys.executable, "-m", "zeroshift", *arguments, "--port", "0"], stderr=subprocess.PIPE, text=True
    ) as service:
        try:
            found = next(re.search(r"at (http://\S+)", line) for line in service.stderr if " serves " in line)
            path = re.search(r"127\.0\.0\.1:8000(/\S+)'", parts["HEALTHCHECK"])[1]
            with urllib.request.urlopen(found[1] + path, timeout=30) as answer:
                assert json.load(answer)["status"] == "live"
        finally:
            service.terminate()


# The workflows.

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_workflows_follow_the_schema():
    assert {path.name for path in WORKFLOWS} == {"test.yml", "docs.yml", "release.yml"}
    pytest.importorskip("check_jsonschema", reason="the extra `release` brings it")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, *map(str, WORKFLOWS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_name_what_exists(path):
    yaml = pytest.importorskip("yaml", reason="the extra `release` brings it")
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 300
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w./-]+@(v\d+|release/v1)", step["uses"]), step
            run = step.get("run", "")
            assert set(re.findall(r"\bmake ([\w-]+)", run)) <= targets
            assert {one for names in re.findall(r"\.\[([\w,]+)\]", run) for one in names.split(",")} <= extras.keys()
            for name in re.findall(r"\b(?:scripts|benchmarks)/\w+\.py", run):
                assert (ROOT / name).is_file()


def test_the_tested_versions_of_python_are_those_of_the_package():
    yaml = pytest.importorskip("yaml", reason="the extra `release` brings it")
    tested = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [one.rpartition(":: ")[2] for one in project["classifiers"] if ":: Python :: 3." in one]
    assert tested["python"] == declared == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == f">={declared[0]}"


def test_a_release_is_published_without_a_password():
    yaml = pytest.importorskip("yaml", reason="the extra `release` brings it")
    text = (ROOT / ".github/workflows/release.yml").read_text()
    publish = yaml.safe_load(text)["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in text
