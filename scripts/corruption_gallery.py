"""Draw docs/images/corruptions.png: `python scripts/corruption_gallery.py`.

One generated image, 224 x 224, with each of the fifteen corruptions at severities 1, 3 and 5. Running the script again
writes the same image, with the same version of Pillow.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from zeroshift.data.corruptions import KINDS, corrupt
from zeroshift.files import atomic_path

TARGET = Path(__file__).resolve().parents[1] / "docs" / "images" / "corruptions.png"
SIDE = 224
"""Image size that the constants of the corruptions are made for."""
SHOWN = 112
"""Displayed size: fifteen rows of three images must fit on a page and in 400 kB."""
SHOWN_SEVERITIES = (1, 3, 5)
COLUMNS = 3
"""Corruptions per row."""
GAP, TITLE = 6, 18
"""Pixels between images, and for the title above the images of a corruption."""
COLOURS = 256
"""Size of the palette: a third of the bytes of full colour."""


def scene() -> Image.Image:
    """A house by a lake in the evening: smooth sky, hard edges, fine texture, round and straight things."""
    rng = np.random.default_rng(0)
    rows = np.linspace(0, 1, SIDE)[:, None, None]
    sky = (1 - rows) * np.array([70, 120, 200]) + rows * np.array([250, 190, 140])
    image = Image.fromarray(np.broadcast_to(sky, (SIDE, SIDE, 3)).astype(np.uint8).copy())
    draw = ImageDraw.Draw(image)
    draw.ellipse((24, 22, 62, 60), fill=(255, 236, 150))
    draw.polygon([(0, 150), (60, 82), (120, 150)], fill=(88, 96, 120))
    draw.polygon([(46, 98), (60, 82), (74, 98), (60, 104)], fill=(240, 240, 250))
    draw.rectangle((0, 146, SIDE, SIDE), fill=(70, 120, 60))
    for x, y in rng.uniform((0, 148), (SIDE, SIDE), size=(900, 2)):
        draw.line((x, y, x + rng.uniform(-2, 2), y - 5), fill=(50, int(rng.uniform(90, 170)), 40))
    draw.ellipse((-40, 182, 120, 236), fill=(60, 110, 160))
    draw.rectangle((118, 108, 196, 178), fill=(190, 80, 60))
    for y in range(112, 178, 8):
        draw.line((118, y, 196, y), fill=(150, 60, 45))
    draw.polygon([(110, 110), (157, 68), (204, 110)], fill=(80, 45, 40))
    for x in (126, 166):
        draw.rectangle((x, 120, x + 22, 140), fill=(250, 240, 170), outline=(60, 40, 30))
        draw.line((x + 11, 120, x + 11, 140), fill=(60, 40, 30))
    draw.rectangle((148, 146, 166, 178), fill=(70, 50, 110))
    draw.rectangle((206, 90, 212, 178), fill=(90, 60, 40))
    for x, y in rng.normal((209, 84), (10, 14), size=(160, 2)):
        draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=(30, int(rng.uniform(80, 150)), 50))
    return image


def gallery(image: Image.Image) -> Image.Image:
    """Every corruption with its name and its severities next to each other, three corruptions per row."""
    block_width = len(SHOWN_SEVERITIES) * SHOWN + 3 * GAP
    block_height = SHOWN + TITLE + GAP
    rows = -(-len(KINDS) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * block_width, rows * block_height), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=13)
    for k, kind in enumerate(KINDS):
        left, top = (k % COLUMNS) * block_width, (k // COLUMNS) * block_height
        name = kind.replace("_", " ")
        draw.text((left + GAP, top + 2), f"{name}, severity 1, 3, 5", fill="black", font=font)
        for column, severity in enumerate(SHOWN_SEVERITIES):
            small = corrupt(image, kind, severity).resize((SHOWN, SHOWN), Image.Resampling.LANCZOS)
            sheet.paste(small, (left + GAP + column * (SHOWN + 1), top + TITLE))
    return sheet


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=TARGET, help="file to write (default: the documentation's own)")
    target = parser.parse_args().target
    drawn = gallery(scene())
    # In two steps: Pillow dithers only if it is given a palette.
    sheet = drawn.quantize(palette=drawn.quantize(COLOURS), dither=Image.Dither.FLOYDSTEINBERG)
    with atomic_path(target) as temporary:
        sheet.save(temporary, "PNG", optimize=True)
    print(f"{target}: {target.stat().st_size:,} bytes")
