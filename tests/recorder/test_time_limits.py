"""A program's own time limit strikes inside of the recorder, too: it must end the work as it would have."""

from __future__ import annotations

import functools
import gc
import io
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from verl_trace import rollout_trace_op
from verl_trace.recorder.counters import announce


class Late(Exception):
    """What the program's handler raises."""


class Limit:
    """Handlers of several kinds."""

    def method(self, number: int, frame: Any) -> None:
        """A bound method."""
        raise Late

    def __call__(self, number: int, frame: Any) -> None:
        raise Late


def function(number: int, frame: Any) -> None:
    """A plain function."""
    raise Late


class Kicks(Exception):
    """Lets the signal come while the recorder asks for its text."""

    def __str__(self) -> str:
        signal.raise_signal(signal.SIGUSR1)
        return "kicked"


@rollout_trace_op
def echo(value: Any) -> Any:
    return value


@rollout_trace_op
def yield_one(make: Callable[[], Any]) -> Iterator[Any]:
    yield make()


@pytest.fixture(params=[function, Limit().method, Limit(), functools.partial(function)], ids=lambda h: type(h).__name__)
def limit(request: pytest.FixtureRequest) -> Iterator[None]:
    """A handler is installed."""
    before = signal.signal(signal.SIGUSR1, request.param)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("limit")
def test_a_handlers_exception_passes(recording: Any) -> None:
    """While the inputs or the output are written, at any depth; what is called afterwards is a root again."""
    for value in (Kicks(), [{"x": Kicks()}], {"a": object(), "b": [object(), Kicks()]}):
        with pytest.raises(Late):
            echo(value)
    with pytest.raises(Late):
        next(yield_one(Kicks))
    assert echo(1) == 1

    assert recording.finish("start")[-1]["parent_id"] is None


@pytest.mark.usefixtures("limit")
def test_a_warning_is_no_hiding_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It strikes while a line is printed; a stderr that is broken is a matter of its own."""

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            signal.raise_signal(signal.SIGUSR1)
            return 0

    monkeypatch.setattr(sys, "stderr", Slow())
    with pytest.raises(Late):
        announce("what takes long to print")
    monkeypatch.setattr(sys, "stderr", None)
    announce("to nobody")


def test_no_limit_is_lost(recording: Any) -> None:
    """By the clock, wherever it strikes in the writing of many small objects."""
    before = signal.signal(signal.SIGALRM, function)
    # what is raised inside of a test tool's own (Hypothesis has one) reaches nobody
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    value = [object()] * 300
    struck = 0
    try:
        for number in range(30):
            end = time.monotonic() + 1
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001 + number / 10_000)
                while time.monotonic() < end:
                    echo(value)
            except Late:
                struck += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks.extend(callbacks)
    assert struck == 30


def test_an_error_that_is_being_dealt_with_stays_there(recording: Any) -> None:
    """The program has caught its own time limit; trouble with a value while it does so is no second one."""

    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError

    before = signal.signal(signal.SIGUSR1, function)
    try:
        signal.raise_signal(signal.SIGUSR1)
    except Late:
        assert isinstance(echo(Broken()), Broken)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_only_the_main_thread_handles_signals(recording: Any) -> None:
    """The same function raising in another thread is a value that cannot be read."""

    class Odd(Exception):
        def __str__(self) -> str:
            function(0, None)
            return ""

    before = signal.signal(signal.SIGUSR1, function)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(echo(Odd())))
    thread.start()
    thread.join()
    signal.signal(signal.SIGUSR1, before)
    assert len(results) == 1
