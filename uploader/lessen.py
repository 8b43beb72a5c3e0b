"""To send less: fields that were named, or are large, leave a mark in the call that says what was there.

    "logprobs": {"_omitted": "not uploaded", "_type": "list", "items": 512, "bytes": 10240}

The files keep them; a call that is stored already is not changed by it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

__all__ = ["LEFT_OUT", "Lessen"]

LEFT_OUT = "not uploaded"
_MAX_DEPTH = 200


@dataclass(frozen=True)
class Lessen:
    """`drop`: names of fields, at any depth of inputs and output. `max_field`: bytes of JSON that a text or list may
    have; a longer list of objects is looked into first.
    """

    drop: frozenset[str] = frozenset()
    max_field: int | None = None

    @classmethod
    def of(cls, drop: str | Sequence[str] | None, max_field: int | None = None) -> Lessen | None:
        """From `"logprobs,prompt_ids"` or names; None when there is nothing to leave out."""
        names = re.split(r"[,\s]+", drop) if isinstance(drop, str) else list(drop or ())
        wanted = cls(frozenset(filter(None, names)), max_field)
        return wanted if wanted.drop or max_field is not None else None

    def __call__(self, data: bytes) -> tuple[bytes, int]:
        """The JSON with marks, and how many fields they stand for. The very bytes where nothing is to be left out."""
        if not self._concerns(data):
            return data, 0
        holder = {"": orjson.loads(data)}
        count = self._look(holder, 0)
        return (orjson.dumps(holder[""]), count) if count else (data, 0)

    def _concerns(self, data: bytes) -> bool:
        # a name with characters that JSON escapes is looked for in its escaped form
        if any(orjson.dumps(name) in data for name in self.drop):
            return True
        return self.max_field is not None and len(data) > self.max_field

    def _look(self, holder: Any, depth: int) -> int:
        """Leave out what is in `holder`, a dict or list, at any depth."""
        count = 0
        for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            if isinstance(holder, dict) and key in self.drop and not _is_mark(value):
                holder[key] = _mark(value)
                count += 1
            elif isinstance(value, (dict, list)) and depth < _MAX_DEPTH:
                count += self._look(value, depth + 1) if _holds_more(value) else 0
                count += self._cut(holder, key, value) if isinstance(value, list) else 0
            elif isinstance(value, str):
                count += self._cut(holder, key, value)
        return count

    def _cut(self, holder: Any, key: Any, value: Any) -> int:
        # two bytes an item are the least that a list takes, six the most that a character does
        if self.max_field is None or (isinstance(value, str) and 6 * len(value) + 2 <= self.max_field):
            return 0
        if len(orjson.dumps(value)) <= self.max_field:
            return 0
        holder[key] = _mark(value)
        return 1


def _holds_more(value: Any) -> bool:
    """Whether there may be fields in it: token ids have none."""
    return isinstance(value, dict) or any(isinstance(item, (dict, list, str)) for item in value)


def _is_mark(value: Any) -> bool:
    return isinstance(value, dict) and value.get("_omitted") == LEFT_OUT


def _mark(value: Any) -> dict[str, Any]:
    mark: dict[str, Any] = {"_omitted": LEFT_OUT, "_type": type(value).__name__}
    if isinstance(value, (str, list, dict)):
        mark["items"] = len(value)
    return {**mark, "bytes": len(orjson.dumps(value))}
