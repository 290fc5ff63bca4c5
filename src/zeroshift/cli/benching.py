"""What `zeroshift bench` is to measure, read from its options; and its progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from zeroshift.arrays import Home
from zeroshift.benchmarks.bench import Progress
from zeroshift.benchmarks.clip_like import ClipLike
from zeroshift.benchmarks.settings import DEFAULT, FULL, QUICK, Settings, Where, checked_engines, sizes
from zeroshift.cli.progress import progress_bar
from zeroshift.cli.sources import load_features
from zeroshift.parameters import Choice, Number

__all__ = ["checked_where", "chosen_cells", "progress"]

GIVEN = {"classes": "1000", "dimensions": "512", "samples": "5000"}
"""What the sizes that are not named are, where one is."""


def checked_where(library: str, device: str, threads: int | None) -> Where:
    Choice(("numpy", "torch")).check("--library", library)
    if threads is not None:
        Number(1, integer=True).check("--threads", threads)
    try:
        Home.named(library, device)
    except ImportError:
        raise ImportError("--library torch needs torch. Fix: pip install 'zeroshift[torch]'.") from None
    except (RuntimeError, AssertionError, ValueError) as error:
        first = (str(error).splitlines() or ["no reason given"])[0]
        fix = "--device cpu" if library == "torch" else "--library torch, or --device cpu"
        raise ValueError(
            f"--device must be one that {library} can use here; got {device!r} ({first}). Fix: {fix}."
        ) from None
    return Where(library, device, threads)


def chosen_cells(
    where: Where,
    *,
    quick: bool,
    full: bool,
    classes: str | None,
    dimensions: str | None,
    samples: str | None,
    sources: Sequence[str],
    engines: str | None,
    steps: int,
    repeats: int,
    memory: bool,
) -> tuple[list[Settings], dict[str, ClipLike]]:
    """The cells, and the real features of those that are not made up."""
    given = {"classes": classes, "dimensions": dimensions, "samples": samples}
    named = {name: text for name, text in given.items() if text is not None}
    ways = [f"--{way}" for way, wanted in (("quick", quick), ("full", full)) if wanted]
    if sources and (ways or set(named) - {"samples"}):
        fixed = [*ways, *(f"--{name}" for name in named if name != "samples")]
        raise ValueError(f"--on takes features as they are; leave out {', '.join(fixed)}.")
    ways += [f"--{name}" for name in named][:1]
    if len(ways) > 1:
        raise ValueError(f"{' and '.join(ways)} each say which sizes to measure. Fix: give one of them.")
    Number(1, integer=True).check("--steps", steps)
    Number(1, integer=True).check("--repeats", repeats)
    chosen = checked_engines(None if engines is None else _names(engines))
    how = {"where": where, "engines": chosen, "steps": steps, "repeats": repeats, "memory": memory}
    if sources:
        limit = None if samples is None else max(_numbers("samples", samples))
        problems = {source: _problem(source, limit) for source in sources}
        return [_of(source, problem, how) for source, problem in problems.items()], problems
    if named:
        grid = sizes(*(_numbers(name, named.get(name, GIVEN[name])) for name in GIVEN))
    else:
        grid = QUICK if quick else FULL if full else DEFAULT
    return [Settings(k, d, n, **how) for k, d, n in grid], {}  # type: ignore[arg-type]


def _problem(source: str, limit: int | None) -> ClipLike:
    features = load_features(source, normalize=False, beside={})
    return ClipLike.of(features if limit is None else features.subset(slice(0, limit)))


def _of(source: str, problem: ClipLike, how: dict[str, object]) -> Settings:
    (classes, dimension), samples = problem.prototypes.shape, len(problem.features)
    return Settings(classes, dimension, samples, source=source, **how)  # type: ignore[arg-type]


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(
            f"--engines names no engine; got {text!r}. Fix: one or more of {', '.join(checked_engines(None))}."
        )
    return names


def _numbers(name: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers:
        raise ValueError(
            f"--{name} takes whole numbers separated by commas, for example --{name} {GIVEN[name]}; got {text!r}."
        )
    return numbers


@contextmanager
def progress(cells: Sequence[Settings], *, quiet: bool) -> Iterator[Progress]:
    """A bar of the samples of all cells, moved when a cell is done, that says what is being measured."""
    with progress_bar("measuring", sum(cell.samples for cell in cells), quiet=quiet) as advance:
        yield lambda cell, what, done: advance(
            cell.samples if done else 0, f"K={cell.classes} d={cell.dimension} N={cell.samples}: {what}"
        )
