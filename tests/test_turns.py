"""Threads that share one object: order of calls, parallel reads, nested calls, signals, forks, copies."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time

import numpy as np
import pytest

from zeroshift import OnlineAnchoredMixture, ZeroShot
from zeroshift.method import OnlineMethod
from zeroshift.parameters import state
from zeroshift.testing import make_problem
from zeroshift.turns import RECHECK_SECONDS, Turns
from zeroshift.zero_shot import log_posterior

PATIENCE = 30
"""Seconds after which a test that waits has failed."""

FEATURES, PROTOTYPES, _ = make_problem(classes=4, dimension=8, samples=64)


@pytest.fixture(autouse=True)
def _switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def start(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def join(*threads):
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread waits for ever"


def wait_until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.001)


def hold(turns, exclusive):
    """Take a turn in another thread. Returns a function that ends it."""
    holds, release = threading.Event(), threading.Event()

    def wait():
        holds.set()
        release.wait(PATIENCE)

    thread = start(turns.run, exclusive, wait)
    assert holds.wait(PATIENCE)

    def end():
        release.set()
        join(thread)

    return end


def test_calls_run_in_the_order_of_their_arrival():
    turns, order = Turns(), []
    end = hold(turns, True)
    threads = []
    for number in range(20):
        threads.append(start(turns.run, number % 3 != 1, order.append, number))
        wait_until(lambda: len(turns._queue) == len(threads) + 1)
    end()
    join(*threads)
    assert order == list(range(20))
    assert not turns._queue


def test_readers_run_at_the_same_time():
    turns, meeting = Turns(), threading.Barrier(5)
    threads = [start(turns.run, False, meeting.wait, PATIENCE) for _ in range(5)]
    join(*threads)
    assert not meeting.broken


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_a_change_runs_alone(first, second):
    turns, done = Turns(), []
    end = hold(turns, first)
    thread = start(turns.run, second, done.append, 1)
    wait_until(lambda: len(turns._queue) == 2)
    time.sleep(2 * RECHECK_SECONDS)
    assert done == []
    end()
    join(thread)
    assert done == [1]


def test_a_reader_does_not_overtake_a_waiting_change():
    turns, order = Turns(), []
    end = hold(turns, False)
    change = start(turns.run, True, order.append, "change")
    wait_until(lambda: len(turns._queue) == 2)
    reader = start(turns.run, False, order.append, "read")
    wait_until(lambda: len(turns._queue) == 3)
    assert order == []
    end()
    join(change, reader)
    assert order == ["change", "read"]


@pytest.mark.parametrize("outer", [True, False])
def test_a_nested_read_does_not_wait_for_a_change_that_waits(outer):
    turns, order = Turns(), []

    def nested():
        started.set()
        wait_until(lambda: len(turns._queue) == 2)
        turns.run(False, order.append, "nested")

    started = threading.Event()
    first = start(turns.run, outer, nested)
    started.wait(PATIENCE)
    second = start(turns.run, True, order.append, "change")
    join(first, second)
    assert order == ["nested", "change"]


def test_a_change_inside_a_read_is_refused():
    turns = Turns()
    with pytest.raises(RuntimeError, match=r"predict, made a call that changes .* Fix:"):
        turns.run(False, turns.run, True, print)
    assert not turns._queue


def test_many_threads_lose_no_update():
    turns, total = Turns(), [0]

    def add():
        value = total[0]
        time.sleep(0)
        total[0] = value + 1

    threads = [start(lambda: [turns.run(True, add) for _ in range(300)]) for _ in range(8)]
    join(*threads)
    assert total == [2400]


def test_an_exception_ends_the_turn():
    turns = Turns()
    with pytest.raises(ZeroDivisionError):
        turns.run(True, lambda: 1 / 0)
    assert turns.run(True, int) == 0


def test_sigint_while_a_call_waits_leaves_the_queue_clean():
    turns, end = Turns(), None
    end = hold(turns, True)
    main = threading.main_thread()
    # A process that was started in the background ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.05, lambda: signal.pthread_kill(main.ident, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            turns.run(True, pytest.fail)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(turns._queue) == 1
    end()
    assert turns.run(True, int) == 0
    assert not turns._queue


def test_sigint_at_any_time_loses_no_turn():
    """Signals arrive at random instructions of calls that read and calls that change."""
    turns, stop = Turns(), threading.Event()
    main = threading.main_thread()

    armed = []

    def raise_once(number, frame):
        if armed:  # only in the loop below; pytest itself must not be interrupted
            armed.clear()
            raise KeyboardInterrupt

    def send():
        rng = np.random.default_rng(0)
        while not stop.is_set():
            time.sleep(float(rng.uniform(0, 5e-4)))
            signal.pthread_kill(main.ident, signal.SIGINT)

    def others():
        while not stop.is_set():
            turns.run(True, int)

    received, calls = 0, 0
    before = signal.signal(signal.SIGINT, raise_once)
    threads = [start(send), start(others)]
    end = time.monotonic() + 2
    while time.monotonic() < end:
        try:
            armed.append(True)
            while time.monotonic() < end:
                turns.run(calls % 2 == 0, int)
                calls += 1
            armed.clear()
        except KeyboardInterrupt:
            received += 1
    stop.set()
    join(*threads)
    signal.signal(signal.SIGINT, before)
    assert received > 100
    assert calls > 1000
    assert not turns._queue


def test_a_lost_wake_up_only_delays_the_next_call():
    turns = Turns()
    end = hold(turns, True)
    thread = start(turns.run, True, int)
    wait_until(lambda: len(turns._queue) == 2)
    first = turns._queue.popleft()  # as if an exception had prevented the rest of the end of its turn
    join(thread)
    turns._queue.appendleft(first)
    end()


class Slow(OnlineMethod):
    """Learns in two steps with a pause between them."""

    name = "slow"
    _begun = state(0, merge="sum")
    _finished = state(0, merge="sum")
    pause = 0.001

    def learn(self, x):
        self._begun += 1
        time.sleep(self.pause)
        self._finished += 1

    def score(self, features):
        assert self._begun == self._finished, "a sample is half learned"
        return log_posterior(features, self.prototypes, 10.0)

    @property
    def counts(self):
        return self._begun, self._finished


def test_no_call_sees_part_of_another(tmp_path):
    method, stop, errors = Slow(PROTOTYPES), threading.Event(), []

    def use(call):
        try:
            while not stop.is_set():
                call()
        except BaseException as error:
            errors.append(error)

    def check(other):
        assert other._begun == other._finished == other.n_seen

    def read_counts():
        begun, finished = method.counts
        assert begun == finished

    def read_samples():
        assert method.n_seen % 20 == 0  # after whole calls
        assert int(repr(method).partition("n_seen=")[2].strip(")")) % 20 == 0

    def save():
        path = tmp_path / "state.safetensors"
        method.save(path)
        check(Slow.load(path))

    calls = [
        lambda: method.predict(FEATURES[0]),
        lambda: check(copy.deepcopy(method)),
        lambda: check(copy.copy(method)),
        lambda: check(pickle.loads(pickle.dumps(method))),
        read_counts,
        read_samples,
        save,
    ]
    threads = [start(use, call) for call in calls]
    for _ in range(10):
        method.adapt(FEATURES[:20])
    stop.set()
    join(*threads)
    assert errors == []
    assert method.n_seen == 200
    assert method._begun == method._finished == 200


def test_copies_have_turns_of_their_own():
    method = Slow(PROTOTYPES)
    for other in (copy.copy(method), copy.deepcopy(method), pickle.loads(pickle.dumps(method)), method.clone()):
        assert other._turns is not method._turns
        assert "_turns" not in vars(other)
    end = hold(method._turns, True)
    twin = threading.Thread(target=method.clone().adapt, args=(FEATURES[:3],))  # parameters only: no turn is needed
    twin.start()
    join(twin)
    end()


def test_a_method_that_is_adapting_may_read_itself():
    class Careful(Slow):
        name = "careful"
        pause = 0.0

        def learn(self, x):
            self.predict(x)
            assert copy.deepcopy(self).n_seen == self.n_seen
            super().learn(x)

    method = Careful(PROTOTYPES)
    threads = [start(method.adapt, FEATURES) for _ in range(4)]
    join(*threads)
    assert method.n_seen == 4 * len(FEATURES)


def test_methods_merged_into_each_other_do_not_wait_for_ever():
    one, two = (OnlineAnchoredMixture(PROTOTYPES, logit_scale=10.0) for _ in range(2))
    one.adapt(FEATURES[:32])
    two.adapt(FEATURES[32:])
    threads = [start(lambda a=a, b=b: [a.merge(b) for _ in range(4)]) for a, b in [(one, two), (two, one)] * 2]
    join(*threads)
    one.merge(one)
    assert one.n_seen == float(one.counts.sum().round()) > 64


def test_an_abandoned_call_finishes_in_its_own_turn():
    """What a generator does at its end happens before the call returns, also while the exception is kept."""
    ends = []

    class Fails(Slow):
        name = "fails"

        def _adapt_scores(self, rows):
            try:
                yield from super()._adapt_scores(rows)
            finally:
                ends.append(len(self._turns._queue))

        def _probabilities(self, scores):
            raise MemoryError

    method = Fails(PROTOTYPES)
    with pytest.raises(MemoryError) as kept:
        method.adapt(FEATURES[:2])
    assert ends == [1]
    assert kept.value is not None
    assert method.n_seen == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("learning", [True, False])
def test_a_forked_process_does_not_wait_for_threads_of_its_parent(learning):
    """A read of another thread is forgotten; after a change of another thread, the object must be reset."""
    method = ZeroShot(PROTOTYPES, logit_scale=10.0)
    end = hold(method._turns, learning)

    def child(answers):
        try:
            answers.put(method.adapt(FEATURES).shape)
        except RuntimeError as error:
            answers.put(str(error))
        method.reset()
        answers.put(method.adapt(FEATURES).shape)

    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=child, args=(answers,))
    process.start()
    process.join(PATIENCE)
    alive = process.is_alive()
    process.kill()
    end()
    assert not alive, "the process waits for ever"
    first = answers.get()
    assert "forked" in first if learning else first == (64, 4)
    assert answers.get() == (64, 4)
    assert method.adapt(FEATURES).shape == (64, 4)  # the parent is not affected
