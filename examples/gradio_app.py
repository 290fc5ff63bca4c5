"""A page in the browser that classifies images, and adapts with every image that is dropped on it.

    python examples/gradio_app.py --classes cat,dog,horse --encoder composed

Needs `pip install -c constraints.txt '.[offline,gradio]'` in the clone. All visitors share one classifier; "Forget"
starts it again.
"""

from __future__ import annotations

import argparse
from typing import Any

import gradio

import zeroshift


def build(pipe: zeroshift.Pipeline) -> gradio.Blocks:
    def classify(image: Any, learn: bool) -> tuple[dict[str, float], str]:
        if image is None:
            return {}, status()
        answer = pipe(image, top_k=5, learn=learn)
        return {one["label"]: one["score"] for one in answer}, status()

    def classify_files(paths: list[str] | None) -> tuple[list[tuple[str, str]], str]:
        paths = paths or []
        best = [answer[0] for answer in pipe(paths)]  # the first list is learned as a whole
        return [(path, f"{one['label']} {one['score']:.0%}") for path, one in zip(paths, best, strict=True)], status()

    def forget() -> str:
        pipe.reset()
        return status()

    def status() -> str:
        return f"{pipe.method.n_seen:,} images learned, without labels"

    with gradio.Blocks(title="zeroshift") as page:
        learned = gradio.Markdown(status())
        with gradio.Tab("One image"), gradio.Row():
            image = gradio.Image(type="pil", label="Image", image_mode=None)
            with gradio.Column():
                label = gradio.Label(label="Answer", num_top_classes=5)
                learn = gradio.Checkbox(True, label="Learn from it")
        with gradio.Tab("A folder"):
            files = gradio.File(file_count="multiple", file_types=["image"], label="Images")
            gallery = gradio.Gallery(label="Answers", columns=6)
        reset = gradio.Button("Forget what was learned")
        image.change(classify, [image, learn], [label, learned], api_name="classify")
        files.upload(classify_files, files, [gallery, learned], api_name="classify_files")
        reset.click(forget, None, learned, api_name="forget")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", required=True, help="names with commas between them")
    parser.add_argument("--encoder", default="openai/clip-vit-base-patch16")
    parser.add_argument("--port", type=int, default=7860)
    given = parser.parse_args()
    names = [name.strip() for name in given.classes.split(",")]
    pipe = zeroshift.pipeline(given.encoder, names, reject=True)
    build(pipe).launch(server_port=given.port)


if __name__ == "__main__":
    main()
