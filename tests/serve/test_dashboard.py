"""The dashboard in Chromium: live numbers, keys, rollback, names that contain HTML, narrow windows, dark colours."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urljoin

import numpy as np
import pytest
from free_port import free_port

import zeroshift.serve
from report.browser import browser
from serve.running import PATIENCE, wait_until
from zeroshift import normalize
from zeroshift.serve.demo import STREAMS, Feeder
from zeroshift.serve.keys import add_key, list_keys, remove_key
from zeroshift.serve.service import Limits
from zeroshift.serve.store import open_store

needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")

HOSTILE = ("<b>cat</b>", "<img src=x onerror=alert(1)>", "'\"&amp;", "${alert(1)}", "d" * 120)
"""Names of classes that would do harm if they became HTML, and one that is wide."""

FOLDER = Path(zeroshift.serve.__file__).parent / "dashboard"

WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


class Page:
    """The dashboard of a service in a browser."""

    def __init__(self, chromium, running) -> None:
        self.chromium, self.running = chromium, running

    def open(self, path: str = "/", *, width: int = 1280, scheme: str = "light", key: str | None = None) -> None:
        self.chromium.open("about:blank", width=width)  # otherwise only the part after # would change
        stored = "" if key is None else f"sessionStorage.setItem('zeroshift-key', {key!r});"
        prepare = f"try {{ sessionStorage.clear(); localStorage.clear(); {stored} }} catch {{}}"
        made = self.chromium.call("Page.addScriptToEvaluateOnNewDocument", source=prepare)["identifier"]
        self.chromium.open(self.running.url + path, width=width, scheme=scheme)
        self.chromium.call("Page.removeScriptToEvaluateOnNewDocument", identifier=made)
        self.wait("document.querySelector('h1')")

    def evaluate(self, expression: str):
        return self.chromium.evaluate(expression)

    def wait(self, expression: str, value=True) -> None:
        """Wait until an expression has a value."""
        deadline = time.monotonic() + PATIENCE
        while (found := self.evaluate(f"({expression})" if value is not True else f"Boolean({expression})")) != value:
            assert time.monotonic() < deadline, f"{expression} is {found!r}, not {value!r}:\n{self.text('body')}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return self.evaluate(f"document.querySelector({selector!r})?.innerText")

    def wait_for_text(self, selector: str, text: str) -> None:
        self.wait(f"document.querySelector({selector!r})?.innerText.includes({text!r})")

    def tab_to(self, selector: str) -> int:
        """Press Tab until the element has the focus; how often."""
        for pressed in range(1, 200):
            self.chromium.press("Tab", 9)
            if self.evaluate(f"document.activeElement.matches({selector!r})"):
                return pressed
        raise AssertionError(f"Tab does not reach {selector}")

    def assert_clean(self) -> None:
        """Nothing was reported on the console, and nothing was asked of another host."""
        self.evaluate("0")  # receives what was reported until now
        assert self.chromium.reports == []
        others = [url for url in self.chromium.requests if not url.startswith((self.running.url, "blob:"))]
        assert others == []


@pytest.fixture
def page(chromium, running):
    made = Page(chromium, running)
    yield made
    chromium.open("about:blank", width=1280)  # ends its connections, so that the service can stop


@pytest.fixture
def fed(running, problem):
    """A stream with snapshots, whose classes have hostile names."""
    stream = running.client().stream("cam-1")
    stream.create(HOSTILE, problem[1], logit_scale=5.0, snapshot_every=100)
    for start in range(0, 320, 32):
        keys = [f"<i>frame</i>-{start + row}" for row in range(32)]
        stream.samples(problem[0][start : start + 32], keys=keys)
    return stream


STREAM = "/#/streams/cam-1"


# Without a browser


def test_every_file_has_the_policy_and_no_inline_code(running):
    names = sorted(path.name for path in FOLDER.iterdir())
    assert {"index.html", "style.css", "main.js", "icon.svg"} <= set(names)
    for name in names:
        address = "/" if name == "index.html" else f"/dashboard/{name}"
        with urllib.request.urlopen(running.url + address) as answer:
            content = answer.read().decode()
            policy = answer.headers["Content-Security-Policy"]
        assert "script-src 'self'; style-src 'self';" in policy
        assert "unsafe" not in policy
        assert content == (FOLDER / name).read_text()
        addresses = re.findall(r"https?://[^\s\"'`)$]+", content)
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, name
        if name.endswith(".js"):
            forbidden = (
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|setAttribute\(\"style"
            )
            assert not re.search(forbidden, content), name
    page = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*src=)", page)
    for missing in ("/dashboard/index.html", "/dashboard/..%2fapp.py", "/dashboard/app.py"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(running.url + missing)


def test_docs_lists_all_requests(running):
    with urllib.request.urlopen(f"{running.url}/docs") as answer:
        page = answer.read().decode()
        assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
    with urllib.request.urlopen(f"{running.url}/openapi.json") as answer:
        described = json.load(answer)["paths"]
    assert all(f"<code>{path}</code>" in page for path in described)
    assert not re.search(r"<script|<style| style=| on\w+=|https?://", page)
    for address in re.findall(r'(?:href|src)="([^"]+)"', page):
        with urllib.request.urlopen(urljoin(f"{running.url}/docs", address)) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("width", [390, 1280])
def test_docs_fits_the_window(page, width):
    page.open("/docs", width=width)
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_an_overview_is_sent_when_something_changes(running, problem):
    client = running.client()
    client.stream("a/one").create(("a", "b", "c", "d", "e"), problem[1])
    with urllib.request.urlopen(f"{running.url}/v1/events") as events:

        def changed(shown):
            """The next event that shows this; those before it may show samples that wait."""
            while not (line := events.readline().decode()).startswith("data: ") or not shown(json.loads(line[6:])):
                assert line
            return json.loads(line[6:])

        assert [one["id"] for one in changed(lambda _: True)["streams"]] == ["a/one"]
        client.stream("a/one").samples(problem[0][:64])
        learned = changed(lambda content: [one["n_seen"] for one in content["streams"]] == [64])
        assert len(learned["streams"][0]["trend"]) == 1
        client.stream("a/one").delete()
        assert changed(lambda content: content["deleted"])["deleted"] == ["a/one"]
    listed = client.request("GET", "/v1/methods")["methods"]
    assert {"tda", "zero_shot", "anchored_mixture_online"} <= {one["name"] for one in listed}


def test_the_demo_shows_what_it_says(running):
    """Drift is noticed soon after the fog comes, and bursts are an order. A feeder that starts again continues."""
    fast = [replace(one, per_second=1e6, batch=16) for one in STREAMS[1:3]]
    client = running.client()
    for samples in (800, 1600):
        ending = threading.Event()
        feeders = [Feeder(one, running.url, ending.is_set) for one in fast]
        wait_until(
            lambda count=samples, running=feeders: (
                any(one.error for one in running) or [one["n_seen"] > count for one in client.streams()] == [True, True]
            )
        )
        ending.set()
        for one in feeders:
            one.join()
            assert one.error is None
    bursts, fog = (one["health"] for one in client.streams())
    assert bursts["order"] > 0.5
    assert fog["status"] == "alarm"
    assert 500 < fog["alarm"]["seq"] < 800
    assert client.stream("cifar10/fog").statistics()["labelled"]["samples"] >= 40


# In a browser


@needs_chromium
def test_numbers_change_without_a_reload(page, problem):
    page.open()
    page.wait_for_text("main", "No streams yet")
    page.wait("document.getElementById('connection').innerText", "Live")
    page.evaluate("window.before = true")
    stream = page.running.client().stream("cam-1")
    stream.create(HOSTILE, problem[1], logit_scale=5.0)
    stream.samples(problem[0][:40])
    page.wait_for_text(".streams tbody tr", "40")
    stream.samples(problem[0][40:100])
    page.wait_for_text(".streams tbody tr", "100")
    page.chromium.click(".streams tbody a")
    page.wait_for_text("h1", "cam-1")
    page.wait_for_text(".tiles", "100")
    page.evaluate("window.points = document.querySelector('.chart .line').getAttribute('d')")
    stream.samples(problem[0][100:200])
    page.wait_for_text(".tiles", "200")
    page.wait("document.querySelector('.chart .line').getAttribute('d') !== window.points")
    stream.take_snapshot()
    page.wait("document.querySelectorAll('.snapshots tbody tr').length", 1)
    page.assert_clean()
    stream.delete()
    page.wait_for_text("main", "The stream cam-1 was deleted.")
    assert page.evaluate("window.before") is True


@needs_chromium
def test_rollback_by_mouse_and_by_keyboard(page, fed):
    chromium, first = page.chromium, fed.snapshots()[-1]["id"]
    page.open(STREAM)
    button = f'[aria-label="Roll back to snapshot {first}"]'
    page.wait(f"document.querySelector('{button}')")
    chromium.click(button)
    assert f"Roll back to snapshot {first}?" in page.text("dialog")
    chromium.click("dialog .primary")
    page.wait_for_text(".heading", "epoch 1")
    page.wait_for_text(".messages", f"Epoch 1 began with the state of snapshot {first}.")
    assert fed.describe()["epoch"] == 1
    reason, *_ = [one["reason"] for one in fed.client.request("GET", "/v1/streams/cam-1/snapshots")["epochs"]][1:]
    assert reason == f"rollback to {first}"
    # The state before it was stored, so that it can be undone: by keyboard.
    undo = max(one["id"] for one in fed.snapshots() if one["epoch"] == 0)
    button = f'[aria-label="Roll back to snapshot {undo}"]'
    page.wait(f"document.querySelector('{button}')")
    page.evaluate("document.activeElement.blur()")
    page.tab_to(button)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    chromium.press("Enter", 13, "\r")
    page.wait("document.querySelector('dialog[open]')")
    chromium.press("Escape", 27)
    page.wait("document.querySelector('dialog') === null")
    assert page.evaluate(f"document.activeElement.matches('{button}')")
    assert fed.describe()["epoch"] == 1
    chromium.press("Enter", 13, "\r")
    page.wait("document.querySelector('dialog[open]')")
    page.tab_to("dialog .primary")
    chromium.press("Enter", 13, "\r")
    page.wait_for_text(".heading", "epoch 2")
    assert fed.describe()["epoch"] == 2
    page.assert_clean()


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_and_has_the_colours_of_the_system(page, fed, width, scheme):
    for path in ("/", STREAM):
        page.open(path, width=width, scheme=scheme)
        page.wait("document.querySelector('.sparkline path, .chart .line')")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        shown = "[...document.querySelectorAll('main *')].filter(one => one.checkVisibility())"
        cut = page.evaluate(
            f"{shown}.filter(one => !one.closest('svg, .hidden, .streams thead'))"
            f".filter(one => one.getBoundingClientRect().right > {width} + 0.5).map(one => one.outerHTML.slice(0, 200))"
        )
        assert cut == []
        rgb = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number)")
        assert (sum(rgb[:3]) < 180) == (scheme == "dark")
    page.chromium.click("#theme")  # always light
    page.chromium.click("#theme")  # always dark
    rgb = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number)")
    assert sum(rgb[:3]) < 180
    page.assert_clean()
    page.evaluate("document.body.setAttribute('style', 'color: red')")
    page.evaluate("0")
    assert ["Content Security Policy" in one for one in page.chromium.reports] == [True]  # a violation is noticed


@needs_chromium
def test_names_are_only_text(page, fed, problem):
    # The interface accepts no such id; a store that somebody else wrote could have it.
    name = "<img src=x onerror='window.hacked=1'>"
    service = page.running.service
    record = service.store.create_stream(name, dict(service.streams["cam-1"].config), problem[1])
    service.streams["cam-1"]._task.get_loop().call_soon_threadsafe(service._add, record)
    page.open()
    page.wait_for_text(".streams tbody", name)
    assert (
        page.evaluate("[...document.querySelectorAll('.streams tbody a')].map(one => one.textContent)").count(name) == 1
    )
    page.open(STREAM)
    page.wait_for_text(".cases", "<i>frame</i>-")
    for label in HOSTILE:
        page.wait_for_text(".classes", label)
    inserted = page.evaluate("document.querySelectorAll('main b b, main i, main img, main script').length")
    assert inserted == 0
    assert page.evaluate("window.hacked") is None
    page.assert_clean()


@needs_chromium
def test_labels_drift_and_what_if(page, fed, problem):
    chromium = page.chromium
    page.open(STREAM)
    page.wait("document.querySelectorAll('.cases li').length > 3")
    time.sleep(0.4)  # a click just after the rows have moved is taken for a mistake
    chromium.click(".cases li:nth-child(2) .zero-shot")
    page.wait("document.querySelector('.cases li:nth-child(2) .zero-shot').getAttribute('aria-pressed')", "true")
    page.wait_for_text(".tiles", "1 confirmed label")
    assert fed.statistics()["labelled"] == {"samples": 1, "accuracy": 0.0, "zero_shot_accuracy": 1.0}
    chromium.click(".replay button")
    page.wait_for_text(".result", "of 320 samples")
    replayed = fed.replay("tda")
    assert f"{replayed['changed']} of 320 samples" in page.text(".result")
    noise = normalize(np.random.default_rng(0).normal(size=(300, 16))).astype(np.float32)
    fed.samples(noise)
    page.wait_for_text("[aria-label='Drift alarm']", "has changed")
    page.wait_for_text(".signals", "raised the alarm")
    chromium.click(".notice .primary")
    chromium.click("dialog .primary")
    page.wait("document.querySelector('[aria-label=\"Drift alarm\"]').hidden")
    assert fed.describe()["health"]["alarm"] is None
    page.assert_clean()


@needs_chromium
def test_a_chart_is_read_by_keyboard(page, fed):
    page.open(STREAM)
    page.tab_to(".lines")
    last = page.evaluate("document.activeElement.getAttribute('aria-valuetext')")
    page.chromium.press("ArrowLeft", 37)
    before = page.evaluate("document.activeElement.getAttribute('aria-valuetext')")
    curve = fed.statistics()["curve"]
    assert last.startswith("up to sample 320: same answer")
    assert before == f"up to sample 288: same answer {100 * curve[-2]['agreement']:.1f}%"
    assert page.text(".place").startswith("Samples 257 to 288")
    page.chromium.press("Escape", 27)
    assert page.text(".place").startswith("Each point")


@needs_chromium
def test_keys(chromium, run_service, problem):
    running = run_service(auth=True)
    keys = {scope: add_key(running.store, scope) for scope in ("read", "write", "admin")}
    tenant = add_key(running.store, "read", "team-a/")
    stream = running.client(keys["admin"]).stream("cam-1")
    stream.create(("a", "b", "c", "d", "e"), problem[1], logit_scale=5.0)
    stream.samples(problem[0][:100])
    stream.take_snapshot()
    page = Page(chromium, running)
    page.open()
    page.wait_for_text("main", "This service needs an API key")
    for wrong in ("zs_…", "zs_wrong"):
        chromium.type("#api-key", wrong)
        chromium.press("Enter", 13, "\r")
        page.wait("document.querySelector('[role=alert]') && !document.getElementById('api-key').value")
        assert page.text("[role=alert]").startswith("This key is not accepted.")
    chromium.type("#api-key", keys["read"])
    chromium.press("Enter", 13, "\r")
    page.wait_for_text(".streams tbody", "cam-1")
    page.wait("document.getElementById('connection').innerText", "Live")
    assert page.evaluate("[Object.keys(sessionStorage).length, Object.keys(localStorage).length, document.cookie]") == [
        1, 0, "",
    ]  # fmt: skip
    offered = (
        "[...document.querySelectorAll('main button')].filter(one => one.checkVisibility()).map(one => one.textContent)"
    )
    expected = {
        "read": (),
        "write": ("Take a snapshot",),
        "admin": ("Take a snapshot", "Roll back…"),
    }
    for scope, buttons in expected.items():
        page.open(STREAM, key=keys[scope])
        page.wait("document.querySelectorAll('.snapshots tbody tr').length", 1)
        found = page.evaluate(offered)
        assert [one for one in found if one in ("Take a snapshot", "Roll back…", "Reset the alarm…")] == list(buttons)
        assert page.evaluate("document.querySelectorAll('.cases button').length > 0") == (scope != "read")
    page.open(STREAM, key=tenant)
    page.wait_for_text("main", "This key may use the streams that start with 'team-a/'.")
    page.open("/", key=keys["write"])
    page.wait_for_text(".streams tbody", "cam-1")
    for entry in list_keys(running.store):
        remove_key(running.store, entry["id"])
    running.service.keys._read_at = float("-inf")  # as if two seconds had passed
    page.evaluate("location.hash = '#/streams/cam-1'")
    page.wait_for_text("main", "This key is not accepted.")
    assert page.evaluate("sessionStorage.length") == 0
    chromium.open("about:blank", width=1280)


@needs_chromium
def test_thumbnails_are_shown_where_they_are_kept(chromium, run_service, problem):
    from PIL import Image

    features, prototypes = problem
    encoder = SimpleNamespace(
        dimension=16, logit_scale=5.0,
        preprocessing=lambda image: (np.array(image.getpixel((0, 0))[0]),),
        encode_pixels=lambda pixels: features[pixels[0]],
    )  # fmt: skip
    running = run_service(encoder=encoder)
    stream = running.client().stream("cam-1")
    stream.create(("a", "b", "c", "d", "e"), prototypes, logit_scale=5.0, thumbnails={"count": 20, "bytes": 10**5})
    images = []
    for value in range(250):
        written = io.BytesIO()
        Image.new("RGB", (40, 30), (value, 90, 160)).save(written, "PNG")
        images.append(written.getvalue())
    for start in range(0, 250, 50):
        stream.samples(images[start : start + 50])
    assert any(one["thumbnail"] for one in stream.statistics()["disagreements"])
    page = Page(chromium, running)
    page.open(STREAM)
    page.wait("document.querySelector('.picture img')?.naturalWidth", 40)
    page.assert_clean()
    chromium.open("about:blank", width=1280)


@needs_chromium
@pytest.mark.slow
def test_it_continues_when_the_service_does(chromium, run_service, problem):
    port = free_port()
    running = run_service(port=port)
    stream = running.client().stream("cam-1")
    stream.create(("a", "b", "c", "d", "e"), problem[1])
    stream.samples(problem[0][:50])
    page = Page(chromium, running)
    page.open(STREAM)
    page.wait("document.getElementById('connection').innerText", "Live")
    page.evaluate("window.before = true")
    running.stop()
    page.wait_for_text("#connection", "does not answer")
    again = run_service(port=port)
    page.wait("document.getElementById('connection').innerText", "Live")
    again.client().stream("cam-1").samples(problem[0][50:150])
    page.wait_for_text(".tiles", "150")
    assert page.evaluate("window.before") is True
    chromium.open("about:blank", width=1280)


@needs_chromium
@pytest.mark.slow
def test_without_events_it_asks(chromium, run_service, problem):
    running = run_service(limits=Limits(subscribers=0))
    stream = running.client().stream("cam-1")
    stream.create(("a", "b", "c", "d", "e"), problem[1])
    stream.samples(problem[0][:50])
    page = Page(chromium, running)
    for path, place in (("/", ".streams tbody"), (STREAM, ".tiles")):
        page.open(path)
        page.wait_for_text("#connection", "Updated every 3 s")
        seen = stream.describe()["n_seen"]
        stream.samples(problem[0][seen : seen + 50])
        page.wait_for_text(place, str(seen + 50))
    chromium.open("about:blank", width=1280)


@needs_chromium
@pytest.mark.slow
def test_the_first_steps_work_as_they_are_shown(page):
    page.open()
    page.wait_for_text("main", "No streams yet")
    python, shell = page.evaluate("[...document.querySelectorAll('pre')].map(one => one.textContent)")
    subprocess.run([sys.executable, "-c", python], check=True, timeout=120)
    page.wait_for_text(".streams tbody", "1,500")
    if shutil.which("curl"):
        done = subprocess.run(["bash", "-ec", shell], check=True, timeout=60, capture_output=True, text=True)
        assert '"seq":2' in done.stdout
        page.wait_for_text(".streams tbody", "first")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as a POSIX signal")
def test_serve_demo_and_its_end(tmp_path):
    command = [sys.executable, "-m", "zeroshift", "serve", "demo", "--port", "0", "--store", str(tmp_path / "store")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http://[\d.:]+", process.stderr.readline())[0]
        client = zeroshift.serve.Client(address, retry=5.0)
        wait_until(lambda: "alarm" in {one["health"]["status"] for one in client.streams()})
        assert len(client.streams()) == len(STREAMS)
        client.close()
        port = address.rpartition(":")[2]
        second = subprocess.run([*command[:5], "--port", port], capture_output=True, text=True, timeout=60)
        assert second.returncode == 2
        assert f"error: the service could not start at 127.0.0.1:{port}." in second.stderr
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in said
    assert said.rstrip().endswith("store")
    store = open_store(str(tmp_path / "store"), read_only=True)
    assert list(store.check()) == []
    store.close()
