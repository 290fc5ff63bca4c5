"""`zeroshift extract` for images in tars, at URLs or for a cluster: a folder in the layout of clip-retrieval."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from pathlib import Path

from zeroshift.cli._encoder_options import EncodingOptions
from zeroshift.cli._output_paths import check_outputs, check_packages, claim
from zeroshift.cli._prompt_options import make_prompts
from zeroshift.cli._shards import ShardProgress
from zeroshift.cli.console import console, print_json, print_warning
from zeroshift.data.image_set import ImageSet
from zeroshift.data.images import ImageFiles
from zeroshift.distributed.folders import Folder, file_system, is_url
from zeroshift.encode import registry
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.extraction import encode_classes
from zeroshift.encode.extraction.readable import warn_about_names
from zeroshift.encode.prompts import parse_class_names
from zeroshift.encode.registry import DEFAULT_ENCODER
from zeroshift.encode.sharded import extract_shards, open_image_shards
from zeroshift.report.formatting import counted, file_size
from zeroshift.report.tables import summary_table

__all__ = ["has_image_shards", "run_image_shards"]


def has_image_shards(source: str) -> bool:
    """Whether images are in tars, or at an address of fsspec."""
    if is_url(source) or source.endswith(".tar"):
        return True
    return os.path.isdir(source) and any(name.endswith(".tar") for name in os.listdir(source))


def run_image_shards(
    source: str,
    out: str,
    encoding: EncodingOptions,
    *,
    on: str | None,
    on_bad_shard: str,
    images_per_shard: int,
    dry_run: bool,
    classes: str | None,
    prompts: str | None,
    template: str | None,
    templates: Path | None,
    storage: str,
    json: bool,
    quiet: bool,
    others: dict[str, object],
) -> None:
    """Encode the images, and the class names if they are given."""
    if is_url(out):
        file_system(out)
    else:
        check_outputs(folders=[Path(out)])
        claim(Path(out, "img_emb"))
    check_packages(("pyarrow", "parquet"))
    shards = open_image_shards(source, images_per_shard=images_per_shard)
    refused = [option for option, given in others.items() if given]
    if refused:
        raise ValueError(f"{refused[0]} cannot be used with images in shards. Fix: leave it out.")
    if classes is None and (prompts or template or templates):
        raise ValueError("prompts are made of class names, and there are none. Fix: --classes cat,dog.")
    folder = Folder.of(out)
    written = set((folder / "img_emb").names())
    left = [shard for shard in shards if f"img_emb_{shard.number}.npy" not in written]
    images, size = sum(len(shard.names) for shard in shards), sum(shard.size for shard in shards)
    planned = {"shards": len(shards), "left": len(left), "images": images or None, "bytes": size or None}
    entries = {
        "images": counted(len(shards), "shard") + (f", {images:,} files" if images else f", {file_size(size)}"),
        "left": f"{len(left):,} of {counted(len(shards), 'shard')}",
        "out": str(folder),
    }
    if dry_run:
        if json:
            print_json({"plan": planned})
        else:
            console().print(summary_table(entries))
        return
    encoder = encoding.load_encoder() if classes is not None else encoding.load_images_only()
    about: dict[str, object] = {"encoder": encoder.describe()}
    prototypes = None
    if classes is not None:
        assert isinstance(encoder, Encoder)
        names = parse_class_names(classes, "--classes")
        named = ImageSet(source, ImageFiles(Path("."), ()), class_names=tuple(names))
        modes = make_prompts(prompts, named, template=template, templates=templates)
        if len(modes) > 1:
            raise ValueError("--prompts names several modes; images in shards take one. Fix: keep one.")
        prototypes = encode_classes(
            encoder, modes[0].for_classes(names), templates=modes[0].templates, cache=encoding.cache_folder
        ).prototypes
        warn_about_names(names, prototypes, encoder.tokenizer)
        about |= {"class_names": list(names), "logit_scale": encoder.logit_scale, "prompts": modes[0].describe()}
    load = partial(
        registry.load_image_encoder, os.path.abspath(encoder.source) if os.path.exists(encoder.source) else (
            encoding.encoder or DEFAULT_ENCODER
        ),
        device=encoding.device, dtype=encoding.dtype, revision=encoding.revision, batch_size=encoding.batch_size,
    )  # fmt: skip
    with ShardProgress(quiet=quiet, unit="shards") as progress:
        result = extract_shards(
            shards, encoder, folder.path, load=load, on=on or "local:1", threads=encoding.workers or 2,
            storage=storage, on_error=encoding.on_error, on_bad_shard=on_bad_shard,
            prototypes=prototypes, about=about, progress=progress,
        )  # fmt: skip
    for path in result.skipped_shards:
        print_warning(f"skipped: the shard {path} cannot be used")
    for one in result.skipped_images[:5]:
        print_warning(f"skipped: {one['image']}: {one['why']}")
    if json:
        print_json({"plan": planned, "result": asdict(result)})
    elif not quiet:
        entries["images"] = f"{result.images:,} encoded in this run"
        entries["left"] = f"{result.reused:,} of {counted(result.shards, 'shard')} were written before"
        console().print(summary_table(entries))
