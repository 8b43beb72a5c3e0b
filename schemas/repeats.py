"""Long lists of numbers that grow from call to call, as the ids of a prompt do from turn to turn: what was encoded once
is not encoded again.

A list is what it was before, and more behind it, when its first items are the very same objects; numbers do not change.
That is asked of the pointers that both lists hold, by one `memcmp`: comparing the items would take as long as encoding
them, and would call 1, 1.0 and True equal. A list of other objects costs that look, which ends at the first difference.

A list is kept from its second sight on, so that a prompt that is sent once costs nothing. What is kept is bounded over
all trajectories of the process; what does not fit is encoded anew each time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from .interrupts import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["MIN_ITEMS", "Repeats", "after_fork", "prepare"]

# Below, encoding takes less than what is done here.
MIN_ITEMS = 1024
# Of all lists of the process: pointers and JSON. With what the allocator adds it becomes twice as much.
MAX_HELD = 5 << 20

_held = 0
# re-entrant: a finaliser may interrupt its own thread
_account = threading.RLock()
_same: Callable[[list[Any], list[Any], int], bool] | None = None


class _Known:
    __slots__ = ("items", "pieces", "size")

    def __init__(self, items: list[int], pieces: list[bytes], size: int) -> None:
        self.items = items
        self.pieces = pieces
        self.size = size


class Repeats:
    """The lists of one trajectory, by the names of the fields that hold them."""

    __slots__ = ("_known", "_seen")

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._seen: set[str] = set()

    def met(self, names: list[str]) -> bool:
        """Whether any of the lists so named was there before; from now on all of them were."""
        if _same is None:
            return False
        was = not self._seen.isdisjoint(names)
        self._seen.update(names)
        return was

    def pieces(self, name: str, items: list[Any], numbers: Callable[[list[Any]], bytes | None]) -> list[bytes] | None:
        """The JSON of a list of ints in pieces; None where it holds anything else.

        `numbers` gives the JSON of a list of numbers that begins with an int, None for any other list.
        """
        # no thread finds it half changed meanwhile
        known = self._take_out(name)
        if known is None:
            return self._keep(name, items, numbers)
        count = len(known.items)
        if count > len(items) or _same is None or not _same(known.items, items, count):
            return self._keep(name, items, numbers)
        size = known.size
        if count < len(items):
            added = items[count:]
            json = numbers(added)
            if json is None or not _is_flat(json):
                return None
            known.items.extend(added)
            known.pieces.append(b"," + json[1:-1])
            size += 8 * len(added) + len(json)
        pieces = known.pieces.copy()
        self._put(name, _Known(known.items, known.pieces, size))
        pieces.append(b"]")
        return pieces

    def _keep(self, name: str, items: list[Any], numbers: Callable[[list[Any]], bytes | None]) -> list[bytes] | None:
        json = numbers(items)
        if json is None:
            return None
        size = 8 * len(items) + len(json)
        if _is_flat(json) and _held + size <= MAX_HELD:
            self._put(name, _Known(items.copy(), [json[:-1]], size))
        return [json]

    # What is held and what is counted change together: no call in between, after which a signal handler may raise.

    def _put(self, name: str, known: _Known) -> None:
        """Hold it where it fits, in place of what another thread, which was at the same prompt, has put there."""
        global _held
        with _account:
            more = known.size - (self._known[name].size if name in self._known else 0)
            if _held + more <= MAX_HELD:
                self.__class__ = _Holding
                self._known[name] = known
                _held += more

    def _take_out(self, name: str) -> _Known | None:
        global _held
        with _account:
            if name not in self._known:
                return None
            known = self._known[name]
            del self._known[name]
            _held -= known.size
        return known

    def clear(self) -> None:
        """The trajectory is over."""
        for name in list(self._known):
            self._take_out(name)
        with _account:
            if not self._known:
                self.__class__ = Repeats


class _Holding(Repeats):
    """One that keeps something. Only such a one has a finaliser: what a signal handler raises in there, a time limit
    for one, reaches nobody."""

    __slots__ = ()

    def __del__(self) -> None:
        # at the interpreter's end there may be no account left
        if _account is not None:
            self.clear()


def _is_flat(json: bytes) -> bool:
    """Whether no list or dict is inside, which may change and stay the same object."""
    return json.rfind(b"[") == 0 and b"{" not in json


def after_fork() -> None:
    """In a forked child, where no thread is left that could give the lock back."""
    global _account
    _account = threading.RLock()


def prepare() -> None:
    """Find out whether the pointers of lists can be compared here; until then, and where not, nothing is kept.

    For a thread that has time: it loads `ctypes`.
    """
    global _same
    try:
        _same = _comparer()
    except Exception as error:  # noqa: BLE001
        pass_on(error)


def _comparer() -> Callable[[list[Any], list[Any], int], bool] | None:
    """Whether the first `count` items of two lists are the same objects; None where lists may look otherwise."""
    has_lock: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 15) or not has_lock():
        return None
    import ctypes

    # as in CPython's listobject.h: …, PyObject **ob_item, Py_ssize_t allocated
    pointer = ctypes.sizeof(ctypes.c_void_p)
    offset = list.__basicsize__ - 2 * pointer
    # PyDLL holds the interpreter's lock, so that no other thread changes a list meanwhile
    memcmp = ctypes.PyDLL(None).memcmp
    memcmp.argtypes, memcmp.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    at = ctypes.c_void_p.from_address

    def same(first: list[Any], second: list[Any], count: int) -> bool:
        return not memcmp(at(id(first) + offset).value, at(id(second) + offset).value, count * pointer)

    one, other = [0, sys, None], [0, sys, 1]
    addresses = b"".join(id(item).to_bytes(pointer, sys.byteorder) for item in one)
    if ctypes.string_at(at(id(one) + offset).value or 0, 3 * pointer) != addresses:
        return None
    return same if same(one, other, 2) and not same(one, other, 3) else None
