"""Calls that yield: one span from the first item asked for to the end, with all items as its output.

The span is the current one only while the generator's body runs: it is put in place for every resumption and taken
away at every yield, so that what the consumer calls between two items is not a child, and a generator that is resumed
or closed in another thread or context changes nothing there. `send`, `throw`, `close` and their async forms reach the
body.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator

from ..schemas.interrupts import pass_on
from ..schemas.values import Payload, encode
from . import session as sessions
from . import token2text
from .context import Inside, Where, current_span
from .spans import WITH_TEXT, WITHOUT_TEXT, Op, Span, begin, failure, internal, without

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Items", "Stream", "begin_stream", "drive", "first_step"]

# What the items of all generators that are being read may take in memory, in bytes.
MAX_HELD = 1 << 30

_held = 0
# re-entrant: a finaliser that ends one generator may interrupt another one's account
_account = threading.RLock()


class Items:
    """The encoded items of one generator: all up to `limit` bytes (0: no limit), beyond it the last one only."""

    __slots__ = ("_kept", "_last", "_limit", "count", "digests", "omitted")

    def __init__(self, limit: int) -> None:
        self.count = 0
        self.omitted = 0
        # contents of the side file that items refer to, in order
        self.digests: dict[str, None] = {}
        self._limit = limit
        # one buffer: small items as objects of their own would take many times their size
        self._kept = bytearray()
        self._last = b""

    def add(self, item: bytes) -> None:
        """Take one more item in."""
        global _held
        self.count += 1
        if isinstance(item, Payload):
            self.digests.update(dict.fromkeys(item.digests))
        if not self._last:
            size = len(item) + 1
            with _account:
                fits = (not self._limit or len(self._kept) + size <= self._limit) and _held + size <= MAX_HELD
                if fits:
                    _held += size
                    self._kept += item
                    self._kept += b","
            if fits:
                return
        else:
            self.omitted += 1
        self._last = item

    def take(self) -> bytes:
        """All items as a JSON array, with a mark where some are missing; they are held no longer."""
        parts: list[bytes | bytearray] = [b"[", self._kept]
        if self.omitted:
            mark = {"_omitted": "items beyond VERL_TRACE_YIELD_BYTES", "_type": "items", "size": self.omitted}
            parts += (encode(mark), b",")
        if self._last:
            parts.append(self._last)
        else:
            parts[-1] = parts[-1][:-1]
        out = b"".join((*parts, b"]"))
        self.release()
        return out

    def release(self) -> None:
        """Nobody will ask for them."""
        global _held
        with _account:
            kept, self._kept = self._kept, bytearray()
            _held -= len(kept)


class Stream(Span):
    """A generator that is being read."""

    __slots__ = ("_inside", "_is_open", "_items", "_last", "_pid")

    def opened(self) -> None:
        """The start record is written; nothing runs yet."""
        self.leave_call()
        self._items = Items(self.session.settings.yield_bytes)
        self._last: Any = None
        self._pid = os.getpid()
        # a place of its own: one that is the stream itself would hold it in a circle
        self._inside = Inside(Where(self.id, self.trace_id))
        self._is_open = True
        self.__class__ = _OpenStream

    def enter(self) -> None:
        """The body goes on; `leave` has to follow also where this raises."""
        self._inside.enter()

    def leave(self) -> None:
        """The body waits at a yield, or has ended; once is enough."""
        self._inside.leave()

    def add(self, item: Any) -> None:
        """The body yielded an item."""
        try:
            if self.session.token2text:
                self._last = item
            if self.session.settings.drop_fields:
                item = without(item, self.session.settings.drop_fields)
            self._items.add(encode(item, self.session.side))
        except Exception as error:  # noqa: BLE001
            pass_on(error)
            internal("taking an item into", self.op, error, self.session)

    def returned(self, value: Any) -> None:
        """The body ran to its end and returned `value`."""
        self._close("exhausted", value, None)

    def raised(self, error: BaseException) -> None:
        """The body ended with an exception; GeneratorExit means that the consumer read no further."""
        if isinstance(error, GeneratorExit):
            self._close("abandoned", None, None)
        else:
            self._close("failed", None, error)

    def _close(self, how: str, value: Any, error: BaseException | None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self.__class__ = Stream
        try:
            duration = time.perf_counter_ns() - self.begun
            if how == "abandoned" and os.getpid() != self._pid:
                # the copy that a forked child drops is not the generator that the parent still reads
                return
            job = None
            if error is None and self.session.token2text:
                job = token2text.prepare(self.instance, self.inputs, self._last if value is None else value)[1]
            outcome = failure(error) if error is not None else WITHOUT_TEXT if job is None else WITH_TEXT
            outcome += ',"generator":{"yielded":%d,"ended":"%s"}' % (self._items.count, how)  # noqa: UP031
            self.end(duration, outcome, self._output(value, job is not None))
            if job is not None:
                self.decode_later(job)
        except Exception as trouble:  # noqa: BLE001
            pass_on(trouble)
            internal("finishing", self.op, trouble, self.session)
        finally:
            self._last = None
            # also where they were not taken
            self._items.release()

    def _output(self, value: Any, has_text: bool) -> bytes:
        digests, items = self._items.digests, self._items.take()
        if value is None:
            # text is merged into an object
            return Payload.of(b'{"yielded":' + items + b"}" if has_text else items, digests)
        if self.session.settings.drop_fields:
            value = without(value, self.session.settings.drop_fields)
        returned = encode(value, self.session.side)
        if isinstance(returned, Payload):
            digests.update(dict.fromkeys(returned.digests))
        return Payload.of(b'{"yielded":' + items + b',"returned":' + returned + b"}", digests)


class _OpenStream(Stream):
    """One that has no end yet. Only such a one has a finaliser: what a signal handler raises in there, a time limit
    for one, reaches nobody."""

    __slots__ = ()

    def __del__(self) -> None:
        # the generator is gone and nothing ran its body to an end: the event loop was no more
        if sessions.current() is self.session:
            self._close("abandoned", None, None)
        else:
            self._items.release()


def begin_stream(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stream | None:
    """Write the start record of a generator whose first item is asked for; None when nothing is recorded here."""
    where = current_span.get()
    try:
        stream = begin(op, args, kwargs, Stream)
        if stream is not None:
            stream.opened()
        return stream
    except BaseException:
        # a signal handler raised before the stream was open
        current_span.set(where)
        raise


def drive(
    stream: Stream, func: Callable[..., Generator[Any, Any, Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Generator[Any, Any, Any]:
    """Run a generator function's body inside of its span."""
    resume: Callable[[Any], Any]
    value: Any = None
    try:
        generator = func(*args, **kwargs)
    except BaseException as error:
        stream.raised(error)
        raise
    resume = generator.send
    try:
        while True:
            try:
                stream.enter()
                # held in a list, so that an item lives no longer than it would have
                item = [resume(value)]
            except StopIteration as stop:
                stream.leave()
                stream.returned(stop.value)
                return stop.value
            except BaseException as error:
                # an exception must not hold the frame that holds the exception
                value = None
                stream.leave()
                stream.raised(error)
                raise
            stream.leave()
            value = None
            stream.add(item[0])
            try:
                value = yield item.pop()
                resume = generator.send
            except BaseException as thrown:  # noqa: BLE001
                resume, value = generator.throw, thrown
    finally:
        # a signal handler may have raised in the first line of any function
        stream.leave()


def first_step(generator: AsyncGenerator[Any, Any]) -> Any:
    """Ask an async generator for its first item without telling the event loop of it: the loop knows the outer one.

    It would otherwise close both at once when it ends.
    """
    hooks = sys.get_asyncgen_hooks()
    if hooks.firstiter is None and hooks.finalizer is None:
        return generator.asend(None)
    sys.set_asyncgen_hooks(None, None)
    try:
        return generator.asend(None)
    finally:
        sys.set_asyncgen_hooks(*hooks)
