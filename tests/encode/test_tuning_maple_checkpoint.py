"""MaPLe's checkpoints: read without executing code; damaged ones are refused."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from encode.maple_checkpoint import DEPTH, WIDTH, WORDS, state, write_checkpoint  # noqa: E402
from zeroshift.encode.tuning.maple import read_maple  # noqa: E402
from zeroshift.files import FileFormatError  # noqa: E402


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("maple") / "model.pth.tar-2")


def test_a_safetensors_file_gives_the_same_prompts(tmp_path, checkpoint):
    from safetensors.torch import save_file

    save_file(state(), tmp_path / "maple.safetensors")
    for one, other in zip(read_maple(tmp_path / "maple.safetensors"), read_maple(checkpoint), strict=True):
        np.testing.assert_array_equal(one, other)


class Bomb:
    """What pickle would run on being read."""

    def __reduce__(self):
        return (exec, ("raise RuntimeError('run')",))


def test_nothing_in_a_checkpoint_is_run(tmp_path):
    torch.save({"state_dict": state(), "scheduler": Bomb()}, tmp_path / "maple.pth")
    assert read_maple(tmp_path / "maple.pth").prompts.shape == (DEPTH, WORDS, WIDTH)


def without(name):
    return {key: value for key, value in state().items() if key != f"prompt_learner.{name}"}


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (without("ctx"), r"lacks prompt_learner\.ctx\. Fix: pass a checkpoint of MaPLe"),
        (without("proj.bias"), r"lacks prompt_learner\.proj\.bias"),
        (without("compound_prompts_text.0"), r"lacks prompt_learner\.compound_prompts_text\.0"),
        (without("compound_prompt_projections.1.bias"), r"lacks prompt_learner\.compound_prompt_projections\.1\.bias"),
        ({**state(), "prompt_learner.proj.bias": torch.zeros(5)}, r"projections\.0\.bias of shape \(48,\).*\(5,\)"),
        ({**state(), "prompt_learner.ctx": torch.full((2, 32), torch.nan)}, r"NaN or infinity in prompt_learner\.ctx"),
        ({**state(1), "prompt_learner.proj.weight": torch.zeros(32, 48)}, "their shapes must be"),
        ({**state(1), "prompt_learner.ctx": "a photo"}, r"prompt_learner\.ctx of shape \(\)"),
    ],
    ids=["ctx", "bias", "middle", "last", "shape", "nan", "turned", "words"],
)
def test_a_damaged_checkpoint_is_refused(tmp_path, damaged, message):
    torch.save({"state_dict": damaged}, tmp_path / "maple.pth")
    with pytest.raises(FileFormatError, match=message):
        read_maple(tmp_path / "maple.pth")


def test_what_is_no_checkpoint_is_refused(tmp_path, checkpoint):
    with pytest.raises(FileNotFoundError, match="multimodal-prompt-learning"):
        read_maple(tmp_path / "none.pth")
    with pytest.raises(TypeError, match="checkpoint must be a path; got NoneType"):
        read_maple(None)
    for name in ("cut.pth", "cut.safetensors"):
        (tmp_path / name).write_bytes(checkpoint.read_bytes()[:1000])
        with pytest.raises(FileFormatError, match=r"cut\."):
            read_maple(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(FileFormatError, match="no dictionary"):
        read_maple(tmp_path / "list.pth")
