"""How far the log of an offline run can be used, and copies of it that end there.

`wandb sync` marks a run as sent only when its log ends with a whole record, and appends all rows once more each time it
is asked. So a torn log is sent once, as a copy that ends with the last whole record; and of a run that is still being
written only the beginning is sent, which makes the run on the server without any row of it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..reader.places import open_buffered
from .log import IDENT, read_whole
from .offline import OfflineRun

__all__ = ["Extent", "cut_copy", "extent_of"]


@dataclass(frozen=True)
class Extent:
    """Of a log of `size` bytes: where the record of the run itself ends (0: there is none), where the last whole record
    ends, and whether the run has said that it is over. `foreign`: it is no log of W&B's."""

    size: int = 0
    run: int = 0
    whole: int = 0
    ended: bool = False
    foreign: bool = False

    @property
    def torn(self) -> bool:
        """Whether something stands behind the last whole record."""
        return self.whole < self.size


def extent_of(run: OfflineRun) -> Extent:
    """Read the log of a run; one that is missing has nothing in it.

    Raises:
        OSError: it cannot be read.
        ImportError: there is no wandb that knows the records.
    """
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    decode_error: Any = importlib.import_module("google.protobuf.message").DecodeError
    run_end = whole = 0
    ended = False
    try:
        with open_buffered(run.log) as file:
            foreign = not IDENT.startswith(file.read(len(IDENT)))
        size = run.log.stat().st_size
        for record in read_whole(run.log):
            whole = record.end
            # the records of the run are among the first, its exit is of a few bytes
            if run_end and len(record.data) > 200:
                continue
            message = messages.Record()
            try:
                message.ParseFromString(record.data)
            except decode_error:
                continue
            kind = message.WhichOneof("record_type")
            run_end = run_end or (record.end if kind == "run" else 0)
            ended = ended or kind == "exit"
    except FileNotFoundError:
        return Extent()
    return Extent(size, run_end, whole, ended, foreign)


@contextlib.contextmanager
def cut_copy(run: OfflineRun, length: int, *, files: bool) -> Iterator[OfflineRun]:
    """The run in a folder of the same name that is gone afterwards: the first `length` bytes of its log, and, unless
    only the run itself is to be made known, links to all that lies beside it."""
    with tempfile.TemporaryDirectory(prefix="verl-trace-wandb-") as scratch:
        folder = Path(scratch, run.folder.name)
        folder.mkdir()
        copy = replace(run, folder=folder)
        with open_buffered(run.log) as source, open(copy.log, "wb") as target:
            left = length
            while left and (data := source.read(min(left, 1 << 20))):
                target.write(data)
                left -= len(data)
        for entry in os.scandir(run.folder.resolve()) if files else ():
            if not entry.name.startswith(run.log.name):
                (folder / entry.name).symlink_to(entry.path)
        yield copy
