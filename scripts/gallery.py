"""Write docs/gallery.md and its images from the bundled packs: `python scripts/gallery.py [FOLDER OF RUNS]`.

Runs in the folder (by default zeroshift-experiments/runs, where `zeroshift experiment all` writes them) are read;
missing ones are executed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from zeroshift.data import packs
from zeroshift.evaluate import Ledger
from zeroshift.experiments import Chapter, Investigation, Suite, get
from zeroshift.experiments._shared.findings import Remark, Table
from zeroshift.files import atomic_path
from zeroshift.report.experiments.figures import write_figures
from zeroshift.report.experiments.headlines import finding_title

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images" / "gallery"

SHOWN = {
    "gains": ("gains", "running-cifar10c-jpeg-compression-5", "confusion"),
    "calibration": ("reliability",),
    "bank-size": ("bank-size-online",),
    "alpha": ("alpha-transductive",),
    "few-shot": ("few-shot-transductive",),
    "streams": ("gains-by-stream",),
    "decision-regions": ("regions-1",),
    "homogeneity": ("covariances-1",),
    "normality": ("rejected",),
    "oracle": ("closed",),
}
"""The images, by experiment and name of the finding."""

TOP = """# Gallery

```text
zeroshift experiment all
```

This command runs every [experiment](experiments.md) on the bundled packs and writes one file, `report.html`, with
tables, figures and remarks where our results differ from the paper's. This page shows a selection of the figures. The
features come from a composed dual encoder, so the numbers are not CLIP's. `scripts/gallery.py` writes this page.
"""


def main(folder: Path) -> None:
    suite = Suite.of({pack.name: packs.load(pack.name) for pack in packs.list() if pack.n_views == 0})
    investigation = Investigation.of([get(name) for name in SHOWN], suite)
    outcomes = list(investigation.run(Ledger(folder), processes=2))
    for old in IMAGES.glob("*.png"):
        old.unlink()  # images that are no longer shown
    parts = [TOP]
    for chapter in investigation.chapters(outcomes):
        chosen = shown(chapter)
        for path in write_figures(IMAGES, [chosen]):
            if path.suffix != ".png":
                path.unlink()  # the page needs only one format
        parts.append(section(chosen))
    with atomic_path(DOCS / "gallery.md") as temporary:
        temporary.write_text("\n".join(parts), encoding="utf-8", newline="\n")


def shown(chapter: Chapter) -> Chapter:
    """The chapter with only the images of the gallery."""
    wanted = SHOWN[chapter.experiment.name]
    kept = {f.name: f for f in chapter.findings if not isinstance(f, (Remark, Table)) and f.name in wanted}
    return Chapter(chapter.experiment, tuple(kept[name] for name in wanted))


def section(chapter: Chapter) -> str:
    experiment = chapter.experiment
    lines = [f"## {experiment.title}", "", experiment.question, ""]
    for finding in chapter.findings:
        assert not isinstance(finding, (Remark, Table))
        lines += [f"![{finding_title(finding)}](images/gallery/{experiment.name}-{finding.name}.png)", ""]
        lines += [finding.caption, ""] if finding.caption else []
    return "\n".join([*lines, "```text", f"zeroshift experiment {experiment.name}", "```", ""])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("zeroshift-experiments") / "runs")
