"""Batches that are halved when memory runs out."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroshift.encode.encoder import is_out_of_memory, run_in_batches


class Limited:
    """Encodes row i as i, and has memory for `room` rows at a time."""

    def __init__(self, count: int, room: int, error: Exception | None = None) -> None:
        self.rows, self.room = np.arange(count), room
        self.error = error or RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.tried: list[int] = []

    def __call__(self, rows: slice) -> np.ndarray:
        chosen = self.rows[rows]
        self.tried.append(len(chosen))
        if len(chosen) > self.room:
            raise self.error
        return chosen


@settings(deadline=None, max_examples=50)
@given(count=st.integers(1, 60), size=st.integers(1, 70), room=st.integers(1, 70))
def test_every_row_once_and_in_order_for_any_limit(count, size, room):
    encode = Limited(count, room)
    rows, kept = run_in_batches(count, size, encode)
    np.testing.assert_array_equal(rows, np.arange(count))
    # Each failure halves: no size that failed is tried again.
    failed = [tried for tried in encode.tried if tried > room]
    assert 1 <= kept <= room if failed else kept == size
    assert len(failed) <= 7
    assert failed == sorted(set(failed), reverse=True)


def test_the_batch_size_is_remembered():
    encode = Limited(10, room=3)
    assert run_in_batches(10, 8, encode)[1] == 2
    assert encode.tried == [8, 4, 2, 2, 2, 2, 2]
    assert run_in_batches(10, 4, Limited(10, room=4))[1] == 4
    few = Limited(5, room=2)  # what was tried is halved, not what was allowed
    assert run_in_batches(5, 64, few)[1] == 2
    assert few.tried == [5, 2, 2, 1]


def test_one_row_too_many():
    with pytest.raises(MemoryError, match=r"not enough memory for a single item.*Fix: free memory, use device"):
        run_in_batches(5, 4, Limited(5, room=0))


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), ValueError("out of memory"), KeyError("x")])
def test_other_errors_pass_through_at_once(error):
    encode = Limited(5, room=0, error=error)
    with pytest.raises(type(error)) as caught:
        run_in_batches(5, 4, encode)
    assert caught.value is error
    assert encode.tried == [4]


def test_what_did_not_fit_is_let_go_before_the_next_attempt():
    class Tensor:
        pass

    held: list[weakref.ref] = []

    def encode(rows: slice) -> np.ndarray:
        gc.collect()
        assert [ref() for ref in held] == [None] * len(held)
        tensor = Tensor()
        held.append(weakref.ref(tensor))
        if rows.stop - rows.start > 1:
            raise RuntimeError("out of memory")
        return np.zeros(1)

    assert len(run_in_batches(4, 4, encode)[0]) == 4


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB",
        "MPS backend out of memory (MPS allocated: 9.00 GB)",
        "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried",
        "[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_messages_of_torch(message):
    assert is_out_of_memory(RuntimeError(message))


def test_out_of_memory_errors_are_recognised():
    torch = pytest.importorskip("torch")
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))
    assert not is_out_of_memory(OSError("out of memory"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**62, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
