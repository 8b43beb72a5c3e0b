"""Contents of side files, as an upload's threads ask for them."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from verl_trace.reader import contents
from verl_trace.reader.contents import Content, SideFiles

WRITER = "20260301T120000-node3-4711-0123456789ab"


def side_file(folder: Path, *data: bytes) -> list[str]:
    """A side file with these contents; their digests."""
    digests = [hashlib.sha256(content).hexdigest() for content in data]
    entries = [b'{"kind":"header"}\n']
    for digest, content in zip(digests, data, strict=True):
        entries.append(b'{"kind":"blob","digest":"%s","size":%d}\n%s\n' % (digest.encode(), len(content), content))
    (folder / f"{WRITER}.00000.blobs").write_bytes(b"".join(entries))
    return digests


def test_who_asks_while_another_looks_gets_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A content that is there is never taken for a missing one: Weave would keep the mark for ever."""
    digests = side_file(tmp_path, b"one", b"two")
    looking = threading.Event()
    look = contents._in

    def slowly(path: Path) -> Iterator[Content]:
        looking.set()
        time.sleep(0.2)
        yield from look(path)

    monkeypatch.setattr(contents, "_in", slowly)
    shared = SideFiles(tmp_path, WRITER)
    first = threading.Thread(target=shared.get, args=(digests[0],))
    first.start()
    assert looking.wait(10)

    assert shared.get(digests[1]) == b"two"
    first.join()


def test_a_content_that_comes_later_is_found(tmp_path: Path) -> None:
    """The file grows while it is read."""
    shared = SideFiles(tmp_path, WRITER)
    side_file(tmp_path, b"one")
    later = hashlib.sha256(b"two").hexdigest()

    assert (shared.has(later), shared.get(later)) == (False, None)
    side_file(tmp_path, b"one", b"two")
    assert (shared.has(later), shared.get(later)) == (True, b"two")
