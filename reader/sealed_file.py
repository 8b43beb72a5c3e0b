"""A sealed segment that is written line by line: compressed under a temporary name, published by rename."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import zstandard

from ..schemas.compression import segment_compressor
from ..schemas.files import TMP_SUFFIX

__all__ = ["SealedFile"]


class SealedFile:
    """A context in which lines can be written to `path`; afterwards it is there, whole and synced, or not at all.

    `own`: makes the temporary name one that no other process takes.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, own: str = "") -> None:
        self._path = path
        self._tmp = path.with_name(f"{path.name}.{own}{TMP_SUFFIX}" if own else path.name + TMP_SUFFIX)
        self.size = 0

    def __enter__(self) -> SealedFile:
        self._file = open(self._tmp, "xb")
        compressor = segment_compressor()
        self._stream = compressor.stream_writer(self._file, closefd=False)
        return self

    def write(self, line: bytes) -> None:
        """Append a line, newline included."""
        self._stream.write(line)
        self.size += len(line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._stream.flush(zstandard.FLUSH_FRAME)
                self._file.flush()
                os.fsync(self._file.fileno())
                os.rename(self._tmp, self._path)
        finally:
            self._file.close()
            self._tmp.unlink(missing_ok=True)
