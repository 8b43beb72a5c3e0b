"""Ids and times without a system call per call: UUIDv7 with a seeded counter, cached prefixes."""

from __future__ import annotations

import itertools
import os
import time

__all__ = ["new_id", "reseed", "stamp", "timestamp"]


class _IdState:
    """Per-process state; replaced after a fork so that parent and child never make the same ids.

    The last 62 bits are a counter that begins somewhere at random: as unique as random bits, also by themselves (all
    that a W3C `traceparent` knows of an id), and quicker to make.
    """

    __slots__ = ("chance", "count", "latest", "millisecond")

    def __init__(self) -> None:
        chance = int.from_bytes(os.urandom(10), "little")
        # what stands between an id's time and its counter: version 7, variant 2, and 26 bits of chance
        self.chance = f"-7{chance >> 64 & 0xFFF:03x}-{0x8000 | chance & 0x3FFF:04x}-"
        # twelve digits, also after more calls than a process can make: from 2^44 to 2^47
        self.count = itertools.count((1 << 44) + (chance >> 14 & (1 << 50) - 1) % (7 << 44)).__next__
        self.latest = 0
        # begin of a millisecond in ns, how its ids begin, its time as text: many calls of a busy process share these;
        # in one tuple, so that threads never see halves of two updates
        self.millisecond = (-1_000_000, "", "")

    def turn(self, now_ns: int) -> tuple[str, str, int]:
        """Another millisecond: how its ids begin, its time as text, and how many ns of it are over."""
        number, rest = divmod(now_ns, 1_000_000)
        # a clock that steps back must not make ids that fall
        if number > self.latest:
            self.latest = number
        else:
            number = self.latest
        begin = "%08x-%04x%s" % (number >> 16, number & 0xFFFF, self.chance)  # noqa: UP031
        text = timestamp(now_ns)[:-4]
        self.millisecond = now_ns - rest, begin, text
        return begin, text, rest


_state = _IdState()
_DIGITS = list(map("".join, itertools.product("0123456789", repeat=3)))


def reseed() -> None:
    """Forget the generator's state (a forked child must not repeat its parent's ids)."""
    global _state
    _state = _IdState()


# The second's begin in ns and its text, in one tuple for the same reason.
_second: tuple[int, str] = (-1_000_000_000, "")


def stamp(now_ns: int) -> tuple[str, str]:
    """A new id of the time `now_ns` (ns since the epoch), and that time as text: what each call needs, made at once.

    The id is a lower-case canonical UUIDv7 (RFC 9562, section 6.2, method 1: the counter is in its last bits). Ids of
    one process rise strictly, even when the clock steps back. The text is UTC with microseconds:
    2026-11-29T16:11:00.123456Z.
    """
    state = _state
    begun, begin, text = state.millisecond
    rest = now_ns - begun
    if not 0 <= rest < 1_000_000:
        begin, text, rest = state.turn(now_ns)
    # digits from a list, and `%x`: formats in f-strings take twice as long
    return "%s%x" % (begin, state.count()), f"{text}{_DIGITS[rest // 1000]}Z"  # noqa: UP031


def new_id(now_ns: int) -> str:
    """The id alone."""
    return stamp(now_ns)[0]


def timestamp(now_ns: int) -> str:
    """The text alone."""
    begin, second = _second
    rest = now_ns - begin
    if not 0 <= rest < 1_000_000_000:
        second, rest = _new_second(now_ns)
    micros = rest // 1000
    return f"{second}{_DIGITS[micros // 1000]}{_DIGITS[micros % 1000]}Z"


def _new_second(now_ns: int) -> tuple[str, int]:
    global _second
    second, rest = divmod(now_ns, 1_000_000_000)
    text = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second))
    _second = second * 1_000_000_000, text
    return text, rest
