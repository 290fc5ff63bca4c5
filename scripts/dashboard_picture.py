"""Draw docs/images/dashboard.png: `python scripts/dashboard_picture.py`.

`zeroshift serve demo` runs for a while, and Chromium shows one of its streams: light in a wide window, dark in a narrow
one. Needs Chromium and the extra `serve`.
"""

from __future__ import annotations

import base64
import io
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from report.browser import browser  # noqa: E402

TARGET = ROOT / "docs" / "images" / "dashboard.png"
STREAM = "/#/streams/cifar10/fog"
WINDOWS = ((1280, "light"), (390, "dark"))
HEIGHT, GAP = 1120, 24
SECONDS = 38
"""Until the fog has come, gone, and come again."""


def screenshots(address: str) -> list[Image.Image]:
    found = []
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as chromium:
        for width, scheme in WINDOWS:
            chromium.open("about:blank", width=width)
            chromium.open(address + STREAM, width=width, height=HEIGHT, scheme=scheme)
            time.sleep(3)
            content = base64.b64decode(chromium.call("Page.captureScreenshot", format="png")["data"])
            found.append(Image.open(io.BytesIO(content)).convert("RGB"))
    return found


def main() -> None:
    command = [sys.executable, "-m", "zeroshift", "serve", "demo", "--port", "0"]
    service = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http://[\d.:]+", service.stderr.readline())[0]
        time.sleep(SECONDS)
        wide, narrow = screenshots(address)
    finally:
        service.terminate()
        service.communicate()
    picture = Image.new("RGB", (wide.width + GAP + narrow.width, HEIGHT), "white")
    picture.paste(wide, (0, 0))
    picture.paste(narrow, (wide.width + GAP, 0))
    picture.save(TARGET, optimize=True)
    print(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
