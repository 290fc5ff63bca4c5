"""TPT against the authors' loop on a tiny CLIP; and prompts that do not fit."""

import numpy as np
import pytest

from goldens import golden
from tiny_clip import exact_logits, exact_text, exact_views, tiny_scale, tiny_text, tiny_views
from zeroshift.methods import TPT

AUTHORS = golden("tiny_clip_prompt_tuning")

# The authors' contexts, encoded on another machine, already differ by 1e-5 from their logits in float32.
ROUNDING = 2e-5

SETTINGS = {
    "tpt": ({}, ROUNDING, 8e-6),
    "tpt_steps3": ({"steps": 3}, 4.5e-5, 4.5e-5),
    "tpt_lr0": ({"rate": 0.0}, ROUNDING, 1e-12),
}


def tuner(text, **parameters):
    return TPT(text.features(text.context), text=text, logit_scale=tiny_scale(), view_ratio=0.2, **parameters)


@pytest.mark.parametrize("run", SETTINGS)
def test_the_authors_logits(run):
    parameters, gap, _ = SETTINGS[run]
    scores = tuner(tiny_text(), **parameters).adapt_views_scores(tiny_views())
    np.testing.assert_allclose(scores, AUTHORS[f"logits_{run}"], rtol=0, atol=gap)
    np.testing.assert_array_equal(scores.argmax(axis=1), AUTHORS[f"logits_{run}"].argmax(axis=1))


@pytest.mark.parametrize("run", SETTINGS)
def test_without_rounding_the_authors_contexts_give_our_logits(run):
    parameters, _, gap = SETTINGS[run]
    scores = tuner(exact_text(), **parameters).adapt_views_scores(exact_views()[:6])
    np.testing.assert_allclose(scores, exact_logits(AUTHORS[f"ctx_{run}"][:6]), rtol=0, atol=gap)


def test_prototypes_of_another_prompt_raise():
    text = tiny_text()
    prototypes = np.roll(text.features(text.context), 1, axis=0)
    with pytest.raises(
        ValueError, match=r"differ from the features of text's own context.*Fix: prototypes=text\.features"
    ):
        TPT(prototypes, text=text)
    with pytest.raises(ValueError, match=r"text has 7 classes in d = \d+, the prototypes have 6 .*Fix: make both"):
        TPT(prototypes[:6], text=text)
    with pytest.raises(TypeError, match=r"text must be a PromptedText, as zeroshift\.encode\.prompted_text"):
        TPT(prototypes, text=text.features)


def test_loading_requires_the_text(tmp_path):
    method = tuner(exact_text())
    expected = method.adapt_views(exact_views()[:2])
    method.save(tmp_path / "tpt.safetensors")
    loaded = TPT.load(tmp_path / "tpt.safetensors", text=exact_text())
    np.testing.assert_array_equal(loaded.adapt_views(exact_views()[:2]), expected)
    with pytest.raises(TypeError, match=r"does not contain the model text"):
        TPT.load(tmp_path / "tpt.safetensors")
