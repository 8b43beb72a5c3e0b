"""Files in Weave that a call refers to: Weave's own `Content` objects, which its UI shows and its client reads."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import orjson

__all__ = ["PART_BYTES", "FileCache", "FileStore", "content", "contents"]

# The hosted service takes requests of 32 MiB.
PART_BYTES = 16 << 20
# Files that are known to be stored; more would only cost memory.
_REMEMBERED = 50_000
_CONTENT = "weave.type_wrappers.Content.content.Content"
_EXTENSIONS = {
    "application/json": ".json",
    "application/octet-stream": ".bin",
    "application/x-npy": ".npy",
    "audio/wav": ".wav",
    "image/gif": ".gif",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "image/webp": ".webp",
    "text/plain": ".txt",
    "video/mp4": ".mp4",
}


class FileStore(Protocol):
    """Where files go: `uploader.client.Client`."""

    def create_file(self, name: str, content: bytes) -> str:
        """Store a file, content-addressed; returns its digest.

        Raises:
            Rejected, Unreachable
        """


class FileCache:
    """A store that is not given the same file twice. May be used by several threads.

    `forms`: what a content of a side file has become, by what it was.
    """

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._known: dict[tuple[str, bytes], str] = {}
        self.forms: dict[bytes, Any] = {}

    def create_file(self, name: str, content: bytes) -> str:
        """Store a file unless that was done before; returns its digest.

        Raises:
            Rejected, Unreachable
        """
        key = name, hashlib.sha256(content).digest()
        known = self._known.get(key)
        if known is None:
            known = self._store.create_file(name, content)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = known
        return known

    def remember(self, was: bytes, form: Any) -> Any:
        """Note a form; returns it."""
        if len(self.forms) >= _REMEMBERED:
            self.forms.clear()
        self.forms[was] = form
        return form


def content(store: FileStore, data: bytes, mimetype: str, about: dict[str, Any] | None = None) -> dict[str, Any]:
    """A `weave.Content` of `data`, stored; `about` is its `metadata`. Not for more than `PART_BYTES` at once.

    Raises:
        Rejected, Unreachable
    """
    digest = hashlib.sha256(data).hexdigest()
    extension = _EXTENSIONS.get(mimetype, ".bin")
    metadata: dict[str, Any] = {
        "size": len(data),
        "mimetype": mimetype,
        "digest": digest,
        "filename": f"{mimetype.partition('/')[0]}-{digest[:8]}{extension}",
        "content_type": "bytes",
        "input_type": "bytes",
        "encoding": "utf-8",
        "extension": extension,
    }
    if about:
        metadata["metadata"] = about
    files = {"content": store.create_file("content", data)}
    files["metadata.json"] = store.create_file("metadata.json", orjson.dumps(metadata))
    # without a load_op, as the server itself writes them
    return {"_type": "CustomWeaveType", "weave_type": {"type": _CONTENT}, "files": files}


def contents(store: FileStore, data: bytes, mimetype: str, about: dict[str, Any] | None = None) -> Any:
    """A `weave.Content`, or a list of them whose bytes follow each other where one request would be too large."""
    parts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
    if len(parts) < 2:
        return content(store, data, mimetype, about)
    # a part of a file is no file of its type
    return [content(store, part, "application/octet-stream", about) for part in parts]
