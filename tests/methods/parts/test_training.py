"""Training of few-shot methods: schedules, batches, the loss, what is refused, and what is saved."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift.files import FileFormatError
from zeroshift.methods import CLIPAdapter, TaskRes, TipAdapterF, clip_adapter, taskres, tip_adapter_f
from zeroshift.methods._shared.training import (
    checked_order,
    epoch_batches,
    label_loss,
)
from zeroshift.tensor_files import read_tensors, write_tensors
from zeroshift.testing import make_problem

METHODS = (TaskRes, CLIPAdapter, TipAdapterF)

MADE = make_problem(classes=4, dimension=8, samples=120)
FEATURES, PROTOTYPES, LABELS = MADE
SUPPORT = FEATURES[:20], LABELS[:20]


def create(cls, **parameters):
    return cls(PROTOTYPES, support=SUPPORT, logit_scale=20.0, **{"epochs": 4, **parameters})


@pytest.mark.parametrize(
    ("samples", "size", "drop_last", "sizes"),
    [(7, 3, True, [3, 3]), (7, 3, False, [3, 3, 1]), (3, 3, True, [3]), (2, 3, True, [2]), (2, 3, False, [2])],
)
def test_batches(samples, size, drop_last, sizes):
    order = np.random.default_rng(0).permutation(samples)
    (found,) = epoch_batches(samples, 1, size, drop_last=drop_last, seed=0, order=order[None])
    assert [len(batch) for batch in found] == sizes
    np.testing.assert_array_equal(np.concatenate(found), order[: sum(sizes)])


def test_orders_depend_on_the_seed_and_the_epoch():
    def drawn(seed):
        return [epoch[0].tolist() for epoch in epoch_batches(50, 3, 50, drop_last=True, seed=seed)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert len({tuple(order) for order in drawn(1)}) == 3
    assert all(sorted(order) == list(range(50)) for order in drawn(1))


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_loss_and_gradient_against_autograd(convert):
    logits = 30 * np.random.default_rng(0).normal(size=(9, 5))
    labels = np.arange(9) % 5
    expected = torch.tensor(logits, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(expected, torch.tensor(labels))
    loss.backward()
    found, gradient = label_loss(convert(logits), convert(labels))
    assert float(found) == pytest.approx(loss.item(), abs=1e-12)
    np.testing.assert_allclose(gradient, expected.grad, rtol=0, atol=1e-14)


def test_loss_of_very_large_logits_is_finite():
    loss, gradient = label_loss(np.array([[1e15, 0.0]]), np.array([1]))
    assert float(loss) == 1e15
    np.testing.assert_array_equal(gradient, [[1.0, -1.0]])


@pytest.mark.parametrize(
    ("order", "error", "message"),
    [
        (np.zeros((3, 20), dtype=int), ValueError, r"order must have .* shape \(4, 20\); got \(3, 20\)"),
        (np.zeros((4, 20), dtype=int), ValueError, "order row 0 must contain each index from 0 to 19 once"),
        (np.zeros((4, 20)), TypeError, r"order must hold integers .* got float64\. Fix: order\.astype\(int\)"),
        ([[1, 2]], TypeError, "order must be a NumPy array or a torch tensor; got list"),
    ],
)
@pytest.mark.parametrize("cls", METHODS)
def test_orders_that_are_refused(cls, order, error, message):
    with pytest.raises(error, match=message):
        create(cls, order=order)


def test_orders_of_any_integer_type_and_library():
    order = np.tile(np.arange(5, dtype=np.int16), (2, 1))
    for given in (order, torch.tensor(order), order.astype(np.uint8)):
        found = checked_order(given, 2, 5)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, order)


@pytest.mark.parametrize("cls", METHODS)
def test_an_order_replaces_the_seed(cls):
    order = np.stack([np.random.default_rng(k).permutation(20) for k in range(4)])
    given = {"initial": CLIPAdapter(PROTOTYPES, support=SUPPORT, epochs=0).layers} if cls is CLIPAdapter else {}
    one, two = (create(cls, batch_size=6, seed=seed, order=order, **given) for seed in (1, 2))
    np.testing.assert_array_equal(one.losses, two.losses)
    others = create(cls, batch_size=6, seed=1, **given), create(cls, batch_size=6, seed=2, **given)
    assert (others[0].losses != others[1].losses).any()
    np.testing.assert_array_equal(create(cls, batch_size=6, seed=1, **given).losses, others[0].losses)


@pytest.mark.parametrize("cls", METHODS)
def test_one_batch_does_not_depend_on_the_order_of_the_samples(cls):
    shuffled = np.random.default_rng(3).permutation(20)
    one = create(cls)
    two = cls(PROTOTYPES, support=(SUPPORT[0][shuffled], SUPPORT[1][shuffled]), logit_scale=20.0, epochs=4)
    assert len(one.losses) == 4
    np.testing.assert_allclose(two.predict(FEATURES), one.predict(FEATURES), rtol=0, atol=1e-9)


@pytest.mark.parametrize("cls", METHODS)
def test_nothing_is_trained_again_by_load_and_reset(cls, tmp_path, monkeypatch):
    method = create(cls, batch_size=6)
    expected = method.predict(FEATURES)
    assert len(method.losses) == 4 * (4 if cls is TipAdapterF else 3)
    method.save(tmp_path / "method")

    def fails(*arguments):
        pytest.fail("trained again")

    for module in (taskres, clip_adapter, tip_adapter_f):
        monkeypatch.setattr(module, "label_loss", fails)
    again = cls.load(tmp_path / "method")
    for one in (method, again):
        one.reset()
        np.testing.assert_array_equal(one.predict(FEATURES), expected)
        np.testing.assert_array_equal(one.losses, method.losses)
    np.testing.assert_allclose(
        cls.load(tmp_path / "method", library="torch").predict(FEATURES), expected, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("edit", ["shape", "epochs", "epoch"])
def test_edited_files_are_refused(edit, tmp_path):
    create(TaskRes).save(tmp_path / "method")
    arrays, header = read_tensors(tmp_path / "method", kind="state", schema=2)
    if edit == "shape":
        arrays["state/parameters"] = arrays["state/parameters"][:2]
    elif edit == "epochs":
        header["parameters"]["epochs"] = 10**9
    else:
        header["values"]["epoch"] = "4"
    write_tensors(tmp_path / "edited", arrays, header)
    with pytest.raises(FileFormatError, match="does not contain the state that its header describes"):
        TaskRes.load(tmp_path / "edited")


@pytest.mark.parametrize("cls", METHODS)
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_the_first_of_the_best_epochs_is_chosen(cls, convert):
    """The same as training for fewer epochs would need another schedule, so each epoch is compared by its accuracy."""
    held_out = convert(FEATURES[20:70]), LABELS[20:70]
    given = {"support": (convert(SUPPORT[0]), SUPPORT[1]), "rate": 0.05, "epochs": 12}
    last = cls(convert(PROTOTYPES), **given)
    name = "selection" if cls is TipAdapterF else "validation"
    method = cls(convert(PROTOTYPES), **given, **{name: held_out})

    def right(one):
        return int((np.asarray(one.predict(held_out[0])).argmax(axis=1) == held_out[1]).sum())

    assert 1 <= method.chosen["epochs"] <= 12 == last.chosen["epochs"]
    assert right(method) >= right(last)
    np.testing.assert_array_equal(method.losses, last.losses)
    if cls is TipAdapterF:
        assert method.chosen["epochs"] == 1 + int(method.accuracies.argmax())
        assert right(method) == round(50 * method.accuracies.max())


@pytest.mark.parametrize("cls", METHODS)
def test_objects_with_the_same_parameters_can_be_merged(cls):
    one, two = create(cls), create(cls)
    expected = one.adapt(FEATURES[:7])
    two.adapt(FEATURES[:5])
    assert one.merge(two).n_seen == 12
    np.testing.assert_array_equal(one.predict(FEATURES[:7]), expected)


@pytest.mark.parametrize("cls", METHODS)
def test_no_epochs_and_no_losses(cls):
    method = create(cls, epochs=0)
    assert method.losses.shape == (0,)
    assert method.chosen["epochs"] == 0
    assert np.isfinite(method.predict(FEATURES)).all()
