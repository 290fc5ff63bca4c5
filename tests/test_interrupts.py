"""Signals during `adapt`: whole samples are learned, handlers are restored, other threads are not affected."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from zeroshift import interrupts
from zeroshift.interrupts import Watch, postpone, resume
from zeroshift.method import OnlineMethod
from zeroshift.parameters import state
from zeroshift.zero_shot import log_posterior

PROTOTYPES = np.eye(3, 4)
FEATURES = PROTOTYPES[[0, 1, 2, 1] * 50]


class SlowCounter(OnlineMethod):
    """Changes its state in two steps with a pause between them, so that a signal arrives in the middle."""

    name = "slow_counter"
    _begun = state(0, merge="sum")
    _finished = state(0, merge="sum")

    def __init__(self, *arguments, pause=0.002, during=None, **parameters):
        super().__init__(*arguments, **parameters)
        self.pause, self.during = pause, during

    def learn(self, x):
        self._begun += 1
        if self.during is not None:
            self.during(self)
        time.sleep(self.pause)
        self._finished += 1

    def score(self, features):
        return log_posterior(features, self.prototypes, 10.0)


@pytest.fixture(autouse=True)
def _handlers_are_restored():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts._State.depth = 0
    interrupts._State.pending.clear()
    before = [signal.getsignal(number) for number in interrupts.SIGNALS]
    yield
    assert not interrupts._State.pending
    assert interrupts._State.depth == 0
    after = [signal.getsignal(number) for number in interrupts.SIGNALS]
    for number, handler in zip(interrupts.SIGNALS, before, strict=True):
        signal.signal(number, handler)
    assert after == before


@pytest.fixture
def install():
    """Install a handler for one test. Returns the list of the signals it was called with."""
    previous = {}

    def install_handler(number, error=None):
        received = []

        def handler(number, frame):
            received.append(number)
            if error is not None:
                raise error

        previous.setdefault(number, signal.signal(number, handler))
        return received

    yield install_handler
    for number, handler in previous.items():
        signal.signal(number, handler)


def assert_whole_samples(method):
    assert method._begun == method._finished == method.n_seen
    assert method._failure is None


def test_sigint_from_another_thread_stops_adapt_after_a_whole_sample():
    started = threading.Event()

    def send_signal():
        started.wait(10)
        signal.raise_signal(signal.SIGINT)  # in this thread; Python runs the handler in the main thread

    method = SlowCounter(PROTOTYPES, during=lambda method: started.set() if method._begun == 3 else None)
    sender = threading.Thread(target=send_signal)
    sender.start()
    features = np.tile(FEATURES, (20, 1))
    with pytest.raises(KeyboardInterrupt):
        method.adapt(features)
    sender.join()
    assert 3 <= method.n_seen < len(features)
    assert_whole_samples(method)
    method.pause = 0
    method.adapt(FEATURES)  # still usable
    assert_whole_samples(method)


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_a_handler_of_the_user_is_called_and_stays_installed(install, number):
    received = install(number)
    handler = signal.getsignal(number)
    method = SlowCounter(PROTOTYPES, during=lambda method: signal.raise_signal(number) if method._begun == 5 else None)
    method.adapt(FEATURES[:20])
    assert received == [number]
    assert method.n_seen == 20  # the handler returned, so the call continued
    assert signal.getsignal(number) is handler


def test_the_handler_runs_after_the_sample_is_complete(install):
    install(signal.SIGTERM, error=SystemExit(1))
    method = SlowCounter(PROTOTYPES, during=lambda _: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit):
        method.adapt(FEATURES)
    assert method.n_seen == 1
    assert_whole_samples(method)


def test_two_signals_during_one_sample_are_both_handled(install):
    interrupted = install(signal.SIGINT, error=KeyboardInterrupt)
    terminated = install(signal.SIGTERM)

    def raise_both(method):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        SlowCounter(PROTOTYPES, during=raise_both).adapt(FEATURES)
    assert (interrupted, terminated) == ([signal.SIGINT], [signal.SIGTERM])


def test_a_handler_installed_during_the_call_stays(install):
    received = install(signal.SIGINT)

    def replace_handler(method):
        if method._begun == 3:
            install(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    SlowCounter(PROTOTYPES, pause=0, during=replace_handler).adapt(FEATURES[:5])
    assert signal.getsignal(signal.SIGINT) is not before
    assert received == []


def test_nested_calls_restore_the_handlers_once(install):
    received = install(signal.SIGINT)
    handler = signal.getsignal(signal.SIGINT)
    inner = SlowCounter(PROTOTYPES, pause=0, during=lambda _: signal.raise_signal(signal.SIGINT))

    def call_inner(method):
        inner.adapt(FEATURES[:2])
        assert not received  # the outer sample is not complete

    outer = SlowCounter(PROTOTYPES, pause=0, during=call_inner)
    outer.adapt(FEATURES[:1])
    assert received == [signal.SIGINT]
    assert (inner.n_seen, outer.n_seen) == (2, 1)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_call_in_another_thread_leaves_signals_alone(install):
    """Handlers run in the main thread: a thread that adapts must neither install one nor postpone anything."""
    received = install(signal.SIGINT)
    handler = signal.getsignal(signal.SIGINT)
    inside, finish = threading.Event(), threading.Event()

    def wait(method):
        inside.set()
        finish.wait(10)

    method = SlowCounter(PROTOTYPES, pause=0, during=wait)
    thread = threading.Thread(target=method.adapt, args=(FEATURES[:3],))
    thread.start()
    assert inside.wait(10)
    assert signal.getsignal(signal.SIGINT) is handler
    signal.raise_signal(signal.SIGINT)
    assert received == [signal.SIGINT]  # handled at once, in the middle of the other thread's sample
    finish.set()
    thread.join()
    assert_whole_samples(method)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_process_forked_by_another_thread_while_this_one_learns_can_be_interrupted():
    """In the new process that thread is the main thread, and nothing is postponed there."""
    codes = []

    def fork():
        child = os.fork()
        if not child:
            try:
                method = SlowCounter(PROTOTYPES, during=lambda method: signal.raise_signal(signal.SIGINT))
                method.adapt(FEATURES[:3])
            except KeyboardInterrupt:
                os._exit(method.n_seen)
            finally:
                os._exit(99)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def fork_in_a_thread(method):
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()

    SlowCounter(PROTOTYPES, during=fork_in_a_thread).adapt(FEATURES[:1])
    assert codes == [1]


def test_predict_installs_no_handler():
    class Predicting(SlowCounter):
        def score(self, features):
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            return super().score(features)

    Predicting(PROTOTYPES).predict(FEATURES)


def test_an_interrupt_while_the_handlers_are_installed_removes_them(install, monkeypatch):
    install(signal.SIGINT, error=KeyboardInterrupt)
    handler = signal.getsignal(signal.SIGINT)
    set_handler = interrupts._set_handler

    def interrupted(number, handler):
        set_handler(number, handler)
        if number == signal.SIGINT and handler is interrupts._handle:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(interrupts, "_set_handler", interrupted)
    with pytest.raises(KeyboardInterrupt), Watch():
        pytest.fail("the interrupt was lost")
    assert signal.getsignal(signal.SIGINT) is handler


def test_signals_that_are_ignored_stay_ignored():
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        method = SlowCounter(PROTOTYPES, pause=0, during=lambda _: signal.raise_signal(signal.SIGINT))
        method.adapt(FEATURES[:3])
        assert method.n_seen == 3
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)


def test_postpone_outside_of_a_watch_changes_nothing(install):
    received = install(signal.SIGINT)
    postpone()
    signal.raise_signal(signal.SIGINT)
    assert received == [signal.SIGINT]
    resume()
    assert received == [signal.SIGINT]
