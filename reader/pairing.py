"""Which calls are whole: every start has one end, every end one start, no record comes twice."""

from __future__ import annotations

from typing import Any

__all__ = ["Pairing"]

_START, _END, _TEXT = 1, 2, 4
_BITS = {"start": _START, "end": _END, "text": _TEXT}


class Pairing:
    """Takes the records of a run in any order. Memory: what is open, and some 80 bytes for each finished call."""

    def __init__(self) -> None:
        # id -> what was seen of it, whether a text is to come, whose it is
        self._open: dict[str, tuple[int, bool, str]] = {}
        # hashes, not ids: a quarter of the memory, and 64 bits of 10 million ids collide once in 50,000 runs
        self._done: set[int] = set()
        self.calls = 0

    def take(self, kind: str, head: dict[str, Any], writer: str) -> bool:
        """Take a start, end or text record in; False when this call has one already."""
        call_id: str = head["id"]
        bit = _BITS[kind]
        if hash(call_id) in self._done:
            return False
        seen, wants_text, owner = self._open.get(call_id, (0, False, writer))
        if seen & bit:
            return False
        self.calls += not seen
        seen |= bit
        wants_text = wants_text or (kind == "end" and head["text"])
        if seen & _START and seen & _END and (seen & _TEXT or not wants_text):
            self._open.pop(call_id, None)
            self._done.add(hash(call_id))
        else:
            self._open[call_id] = seen, wants_text, owner
        return True

    def unfinished(self) -> int:
        """Calls that began and have no end."""
        return sum(seen & _START and not seen & _END for seen, _, _ in self._open.values())

    def without_text(self) -> int:
        """Ended calls whose announced text is not there."""
        return sum(bool(seen & _END) and wanted and not seen & _TEXT for seen, wanted, _ in self._open.values())

    def without_start(self) -> dict[str, list[str]]:
        """Writer -> ids of calls whose start is not there."""
        found: dict[str, list[str]] = {}
        for call_id, (seen, _, owner) in self._open.items():
            if not seen & _START:
                found.setdefault(owner, []).append(call_id)
        return found
