"""Chromium, driven through its debugging pipe: real widths, colour schemes, keys and mouse clicks, and everything that
a page requests or reports."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory


class Browser:
    """One page of a Chromium. `reports` collects its console, errors and violations of policies, `requests` what it
    loads."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._number, self._buffer = 0, b""
        self.reports: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _call(self, method: str, session: str | None = None, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def call(self, method: str, **parameters):
        return self._call(method, self._session, **parameters)

    def _receive(self) -> dict:
        while b"\0" not in self._buffer:
            part = os.read(self._answers, 2**20)
            assert part, "the browser ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        answer = json.loads(text)
        found = answer.get("params", {})
        match answer.get("method"):
            case "Runtime.consoleAPICalled":
                self.reports.append(str([one.get("value") for one in found["args"]]))
            case "Runtime.exceptionThrown":
                self.reports.append(str(found["exceptionDetails"]))
            case "Log.entryAdded":
                self.reports.append(found["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(found["request"]["url"])
        return answer

    def open(self, url: str, *, width: int, height: int = 900, scheme: str = "light", script: bool = True) -> None:
        self.reports.clear()
        self.requests.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + 60
        while self.evaluate("document.readyState") != "complete":
            assert time.monotonic() < deadline, "the page does not load"

    def evaluate(self, expression: str):
        """The value of a JavaScript expression; it also works where the page may not run scripts."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def _settle(self) -> None:
        """Wait until events have been handled and the page has been drawn."""
        drawn = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
        self.call("Runtime.evaluate", expression=drawn, awaitPromise=True)

    def press(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                **({"text": text} if text and kind == "keyDown" else {}),
            )  # fmt: skip
        self._settle()

    def type(self, selector: str, text: str) -> None:
        self.evaluate(f"document.querySelector({selector!r}).focus()")
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        self.evaluate(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        self._settle()  # what comes into sight may change its size
        x, y = self.evaluate(
            f"(() => {{ const box = document.querySelector({selector!r}).getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self._settle()

    def select(self, selector: str, value: str) -> None:
        """Choose an option of a list, which a headless browser does not draw."""
        self.evaluate(
            f"(() => {{ const list = document.querySelector({selector!r}); list.value = {value!r};"
            " list.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )


@contextmanager
def _chromium(folder, *flags, **options):
    """A Chromium without a window, ended with the block. Its profile is in `folder` until then; nothing is left."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *flags)
    profile = folder / "profile"
    with TemporaryDirectory() as temporary:  # not in `folder`: paths of sockets have to be short
        running = subprocess.Popen(
            ["chromium", f"--user-data-dir={profile}", *flags],
            env={**os.environ, "TMPDIR": temporary}, start_new_session=True, **options,
        )  # fmt: skip
        try:
            yield running
        finally:
            running.terminate()
            running.wait(timeout=30)
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)  # its other processes, which might still write
            shutil.rmtree(profile, ignore_errors=True)


@contextmanager
def browser(folder):
    """A Chromium with its profile in `folder`, ended with the block."""
    (command_end, commands), (answers, answer_end) = os.pipe(), os.pipe()

    def connect() -> None:  # Chromium reads commands from 3 and writes answers to 4
        copies = [fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (command_end, answer_end)]
        os.dup2(copies[0], 3), os.dup2(copies[1], 4)

    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with _chromium(folder, "--remote-debugging-pipe", preexec_fn=connect, close_fds=False, **silent):
        os.close(command_end), os.close(answer_end)
        try:
            yield Browser(commands, answers)
        finally:
            os.close(commands), os.close(answers)


def dump_page(page, *flags) -> tuple[str, str]:
    """A page in a wide window as HTML after its scripts ran, and Chromium's messages."""
    flags += ("--allow-file-access-from-files", "--window-size=1400,1000", "--dump-dom", page.as_uri())
    with _chromium(page.parent, *flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        text, messages = running.communicate(timeout=180)
    assert running.returncode == 0, messages
    return text, messages
