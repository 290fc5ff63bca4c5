"""Saved mixtures continue bit for bit from the middle of anything, and files with wrong numbers are refused."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from mixture.sets import class_sorted, few_classes, make_support
from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture, methods, normalize
from zeroshift.files import FileFormatError
from zeroshift.tensor_files import read_tensors, write_tensors

CASES = {
    "random order": {},
    "no order": {"order": "none"},
    "half-life": {"half_life": 20.0},
    "late answers due": {"lag": 5},
    "no order, late answers due": {"lag": 5, "order": "none"},
    "many samples pending": {"staleness": 0.9},
    "support": {"support": True},
    "no mixture yet": {"first_samples": 1000},
}


def second_of(stream, dimension=6):
    draw = np.random.default_rng(90)
    return normalize(stream.features @ draw.normal(size=(stream.features.shape[1], dimension)))


def learned(stream, rows, case, second=None):
    parameters = dict(CASES[case])
    if "support" in parameters:
        parameters["support"] = make_support(stream)
    method = OnlineAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale, **parameters)
    continued(method, stream, slice(rows), second)
    return method


def continued(method, stream, rows, second=None):
    call = method.adapt_late if method.lag else method.adapt
    return call(stream.features[rows], second=None if second is None else second[rows])


def twins(method, path):
    method.save(path)
    return methods.load(path), pickle.loads(pickle.dumps(method)), copy.deepcopy(method)


@pytest.mark.parametrize("stream", [class_sorted(), few_classes()], ids=["sorted by class", "a third"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("both", [False, True], ids=["one encoder", "two encoders"])
@pytest.mark.sampled(5)
def test_a_saved_stream_continues_bit_for_bit(stream, case, both, tmp_path):
    second = second_of(stream) if both else None
    method = learned(stream, 47, case, second)
    found = twins(method, tmp_path / "state.safetensors")
    expected = [method.predict(stream.features), continued(method, stream, slice(47, None), second)]
    expected += [method.finish(), method.smooth(stream.features, second=second)]
    for twin in found:
        answers = [twin.predict(stream.features), continued(twin, stream, slice(47, None), second)]
        answers += [twin.finish(), twin.smooth(stream.features, second=second)]
        for answer, own in zip(answers, expected, strict=True):
            np.testing.assert_array_equal(answer, own)
        assert (twin.n_seen, twin.stay, twin.caution) == (method.n_seen, method.stay, method.caution)


def test_an_ordered_stream_of_an_earlier_version_continues(tmp_path):
    """Its weight in ordered streams was a parameter, and it kept how much of an order there was."""
    stream = class_sorted()
    method = learned(stream, 47, "random order")
    assert method.stay > 0.5

    def as_before(arrays, header):
        header["parameters"]["ordered_weight"] = 0.2
        del header["values"]["stay_of_sums"]
        header["values"]["order_of_sums"] = 1.0

    method.save(tmp_path / "state.safetensors")
    restored = methods.load(edited(tmp_path / "state.safetensors", as_before))
    found, expected = (continued(one, stream, slice(47, None)) for one in (restored, method))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("both", [False, True], ids=["one encoder", "two encoders"])
def test_a_saved_set_predicts_the_same(both, tmp_path):
    stream = few_classes()
    second = second_of(stream) if both else None
    method = TransductiveAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale)
    method.adapt(stream.features, second=second)
    for twin in twins(method, tmp_path / "state.safetensors"):
        expected = method.predict(stream.features, second=second)
        np.testing.assert_array_equal(twin.predict(stream.features, second=second), expected)
        assert twin.second_weight == method.second_weight


@pytest.mark.parametrize("case", ["random order", "late answers due"])
def test_a_saved_stream_moves_to_torch_and_back(case, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    stream = class_sorted()
    method = learned(stream, 47, case)
    method.save(tmp_path / "state.safetensors")
    in_torch = OnlineAnchoredMixture.load(tmp_path / "state.safetensors", library="torch")
    in_torch.save(tmp_path / "torch.safetensors")
    again = OnlineAnchoredMixture.load(tmp_path / "torch.safetensors", library="numpy")
    expected = continued(method, stream, slice(47, None))
    np.testing.assert_array_equal(continued(again, stream, slice(47, None)), expected)
    found = continued(in_torch, stream, slice(47, None))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=1e-9)


def test_late_answers_that_are_due_are_not_merged():
    stream = class_sorted()
    one, other = learned(stream, 20, "late answers due"), learned(stream, 30, "late answers due")
    with pytest.raises(ValueError, match=r"10 late answers are still due\. Fix: call finish\(\) of both first"):
        one.merge(other)
    assert one.n_seen == 20
    one.finish()
    other.finish()
    assert one.merge(other).n_seen == 50


def edited(path, edit):
    arrays, header = read_tensors(path, kind="state", schema=2)
    arrays = {name: array.copy() for name, array in arrays.items()}
    edit(arrays, header)
    write_tensors(path, arrays, header)
    return path


def put(name, index, value):
    def edit(arrays, header):
        arrays[f"state/{name}"][index] = value

    return edit


def narrow(name):
    def edit(arrays, header):
        arrays[f"state/{name}"] = arrays[f"state/{name}"][..., :-1].copy()

    return edit


def values(**changes):
    return lambda arrays, header: header["values"].update(changes)


@pytest.mark.parametrize(
    "edit",
    [
        values(n_counted=46),
        values(n_counted=-1),
        values(n_counted=47.0),
        values(n_counted="47"),
        values(n_counted=None),
        values(n_seen=46),
        values(stay_of_sums=2.0),
        values(stay_of_sums=None),
        values(sticky_order={"follows": 1}),
        values(sticky_order=None),
        put("counts", 0, -1.0),
        put("counts", 0, 1e9),
        put("posteriors", 0, 1e9),
        put("squares", 0, 100.0),
        put("confidences", 0, 100.0),
        put("agreement", 0, 100.0),
        put("first_posteriors", 0, 100.0),
        put("second_posteriors", 0, -1.0),
        put("sticky_order_posteriors", 0, 1e6),
        put("sticky_order_evidence", 0, 0.0),
        put("sticky_order_frequencies", 0, 1e6),
        put("sticky_order_answer", 0, 2.0),
        put("sticky_order_zero_shot", 0, -1.0),
        put("sticky_order_log_likelihoods", 0, 3.0),
        put("pending_soft_labels", (0, 0), 1e6),
        put("pending_posteriors", (0, 0), -1.0),
        put("pending_confidences", (0, 0), 7.0),
        narrow("second_weighted"),
        narrow("second_anchors"),
        narrow("second_scatter"),
        narrow("second_total"),
        narrow("pending_features"),
        narrow("pending_first_posteriors"),
        narrow("sticky_order_answer"),
        narrow("weighted"),
    ],
    ids=lambda edit: ", ".join(str(cell.cell_contents) for cell in edit.__closure__),
)
def test_numbers_that_no_samples_lead_to_are_refused(edit, tmp_path):
    stream = class_sorted()
    method = OnlineAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale, staleness=0.2)
    method.adapt(stream.features[:48], second=second_of(stream)[:48])
    assert method._stream.n_pending > 0
    path = tmp_path / "state.safetensors"
    method.save(path)
    assert methods.load(path).n_seen == 48
    with pytest.raises(
        FileFormatError, match=r"state\.safetensors does not contain the state that its header describes"
    ):
        methods.load(edited(path, edit))


def test_forgotten_samples_may_weigh_less_than_were_seen(tmp_path):
    stream = class_sorted()
    path = tmp_path / "state.safetensors"
    learned(stream, 48, "half-life").save(path)
    assert methods.load(path).n_seen == 48
    with pytest.raises(FileFormatError, match="sum of posteriors must be"):
        methods.load(edited(path, lambda arrays, header: header["parameters"].update(half_life=None)))
