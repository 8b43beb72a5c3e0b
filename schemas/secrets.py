"""Credentials in texts that are printed: whoever runs a command may paste what it says."""

from __future__ import annotations

import re

__all__ = ["hidden"]

_USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_QUERY = re.compile(r"([?&;](?:api_?key|access_?key|key|token|password|secret|signature)=)[^&;#\s]+", re.IGNORECASE)
# A text that is shorter may be a part of any word.
_SHORTEST = 8


def hidden(text: str, key: str | None = None) -> str:
    """`text` without user, password and keys in its URLs, and without `key`."""
    if key and len(key) >= _SHORTEST:
        text = text.replace(key, "***")
    return _QUERY.sub(r"\1***", _USER.sub("***", text))
