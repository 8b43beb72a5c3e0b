"""Which keys hold credentials: Weave's own, and what VERL_TRACE_REDACT or `upload --redact` add.

A pattern is a shell glob (`*`, `?`, `[…]`) and is held against a whole key, without regard to case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["REDACTED", "WEAVE_KEYS", "KeyPatterns", "is_redacted", "key_patterns", "redact_keys", "split_patterns"]

# What Weave's client writes in place of the value.
REDACTED = "REDACTED"
WEAVE_KEYS = ("api_key", "auth_headers", "authorization")
# Keys are mostly names in programs, and few; a recording of other ones must not fill the memory.
_CACHED = 4096
_WILD = frozenset("*?[")


class KeyPatterns:
    """A set of patterns; asking it is cheap for keys that were asked before.

    `words`: all of them, in one line. `plain_names` is for an encoder: keys that match none -> their JSON.
    """

    def __init__(self, patterns: Iterable[str] = WEAVE_KEYS) -> None:
        lower = [pattern.lower() for pattern in patterns]
        self.words = ",".join(sorted(lower))
        self._names = frozenset(pattern for pattern in lower if not _WILD.intersection(pattern))
        self._regex = _joined([pattern for pattern in lower if pattern not in self._names])
        self._known: dict[str, bool] = {}
        self.plain_names: dict[str, bytes] = {}

    def match(self, key: str) -> bool:
        """Whether the value of this key is to be left out."""
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _CACHED:
                self._known.clear()
            lower = key.lower()
            known = lower in self._names or (self._regex is not None and self._regex.match(lower) is not None)
            self._known[key] = known
        return known


def _joined(globs: list[str]) -> re.Pattern[str] | None:
    if not globs:
        return None
    from fnmatch import translate

    return re.compile("|".join(map(translate, globs)))


def split_patterns(text: str) -> tuple[str, ...]:
    """Patterns as VERL_TRACE_REDACT lists them, with commas between."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


_active = KeyPatterns()


def redact_keys(patterns: Iterable[str] = ()) -> None:
    """From now on leave out the values of Weave's keys and of these in what this process records."""
    global _active
    _active = KeyPatterns((*WEAVE_KEYS, *patterns))


def key_patterns() -> KeyPatterns:
    """What counts now."""
    return _active


def is_redacted(key: str) -> bool:
    """Whether a dict key names a credential."""
    return _active.match(key)
