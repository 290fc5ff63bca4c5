import sys
from pathlib import Path

import open_clip
import torch
from PIL import Image

folder, name, classes = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
weights = sys.argv[4] if len(sys.argv) > 4 else None
model, _, preprocess = open_clip.create_model_and_transforms(name, pretrained=weights)
tokenizer = open_clip.get_tokenizer(name)
model.eval()
paths = sorted(Path(folder).iterdir())
with torch.no_grad():
    text = model.encode_text(tokenizer([f"This is a photo of {one}." for one in classes]))
    text /= text.norm(dim=-1, keepdim=True)
    for start in range(0, len(paths), 32):
        batch = paths[start : start + 32]
        images = model.encode_image(torch.stack([preprocess(Image.open(path).convert("RGB")) for path in batch]))
        images /= images.norm(dim=-1, keepdim=True)
        probabilities = (model.logit_scale.exp() * images @ text.T).softmax(dim=-1)
        for path, row in zip(batch, probabilities, strict=True):
            print(path, classes[int(row.argmax())], float(row.max()))
