"""What an upload remembers: which trajectories a project is known to hold. Only a cache.

A file per server, project and run in the user's state directory, appended to and never changed: one line of 32 hex
digits for each trajectory of which the server has confirmed every call. The digits are a hash of server, project and
all that the files say of the trajectory's calls and scores. So no line can speak for another server, another project,
another run or an older copy, and a cut or damaged line, or any garbage, speaks for nothing: the server is asked
instead. No lock is taken; writers that overwrite each other (a file system without O_APPEND) make lines that say
nothing.

Lines that begin with `{` tell people, and `verl-trace status`, whose ledger this is, and which trajectories the server
holds in another form: those are remembered for `status` alone, since an upload is to say so each time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from ..reader.score_names import flat_scores

if TYPE_CHECKING:
    from ..reader import Run, Trajectory

__all__ = ["Ledger", "Place", "known_places", "state_folder"]

_SUFFIX = ".ledger"
# Longer than any line of ours: what is longer is garbage, and not to be held in memory.
_LINE_LIMIT = 4096
_DIGEST = 16


class Place(NamedTuple):
    """Where the calls of a run were sent: the trace server's URL, `entity/project`, and the run's recorded names."""

    server: str
    project_id: str
    project_name: str
    experiment_name: str


def state_folder(state_dir: str | Path | None = None) -> Path:
    """The folder of all ledgers: in `state_dir`, else in XDG_STATE_HOME, else in ~/.local/state."""
    if state_dir is not None:
        return Path(state_dir)
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "verl-trace" / "uploads"


class Ledger:
    """The ledger of one place; used by one thread at a time.

    `options`: in words, what changes the calls that are sent, one thing each. `known`: marks that are believed, too; it
    gets those that cannot be written. `trouble`: why progress cannot be kept, "" while it can. Nothing here raises.
    """

    def __init__(
        self, folder: Path, place: Place, options: Sequence[str] = (), known: set[bytes] | None = None
    ) -> None:
        self.path = folder / (hashlib.sha256(orjson.dumps(list(place))).hexdigest()[:24] + _SUFFIX)
        self.trouble = ""
        self._salt = f"1\0{place.server}\0{place.project_id}\0".encode("utf-8", "surrogatepass")
        self._known = known if known is not None else set()
        self._written: set[bytes] = set()
        self._head = _head(place)
        self._options = [orjson.dumps({"sent_with": words}) for words in options]
        self._sent_with: set[bytes] = set()
        self._otherwise: dict[bytes, int] = {}
        self._file: int | None = None
        named = False
        for line in _lines(self.path):
            if len(line) == 2 * _DIGEST:
                try:
                    self._written.add(bytes.fromhex(line.decode("ascii")))
                except ValueError:
                    continue
            elif line == self._head:
                named = True
            elif line.startswith(b'{"sent_with":'):
                self._sent_with.add(line)
            elif line.startswith(b'{"otherwise":'):
                self._otherwise |= _otherwise(line)
        self._unnamed = not named

    @property
    def one_form(self) -> bool:
        """Whether all that is remembered was sent with the same options as now: else the server may hold calls in
        another form than they would be sent in, and is asked."""
        return self._sent_with <= set(self._options)

    @property
    def remembers_any(self) -> bool:
        """Whether any trajectory of the run is known to be stored."""
        return bool(self._known or self._written)

    def remembers(self, mark: bytes) -> bool:
        """Whether the server is known to hold the trajectory of this mark."""
        return mark in self._written or mark in self._known

    def otherwise(self, mark: bytes) -> int:
        """How many calls of the trajectory of this mark the server was seen to hold in another form; 0: unknown."""
        return 0 if self.remembers(mark) else self._otherwise.get(mark, 0)

    def mark(self, trajectory: Trajectory, scored: bool = True, only: Sequence[str] = ()) -> bytes:
        """The trajectory's hash here: another one as soon as more, or other, is known of it. `only`: ids of its
        calls that are meant, all without; the mark says nothing of the others."""
        parts = [f"{trajectory.trace_id}\0{scored}"]
        for call in sorted(trajectory.calls, key=attrgetter("id")):
            seen = f"~{call.last_seen_at}" if call.unfinished else call.ended_at
            lacks = f"{call.inputs is None}{call.awaits_text}{call.orphan}"
            parts.append(f"{call.id}\0{call.started_at}\0{seen}\0{lacks}")
        hasher = hashlib.blake2b(self._salt + "\0".join(parts).encode(), digest_size=_DIGEST)
        if trajectory.scores:
            # told later, or told anew: the server has the root without it
            hasher.update(orjson.dumps(flat_scores(trajectory, {})))
        if only:
            hasher.update("\0only\0".join(sorted(only)).encode())
        return hasher.digest()

    def add(self, marks: Iterable[bytes]) -> None:
        """Remember that the server has confirmed these."""
        new = [mark for mark in marks if mark and mark not in self._written]
        if self.trouble:
            self._known.update(new)
        if not new or self.trouble:
            return
        lines = [mark.hex().encode() for mark in new]
        lines[:0] = [words for words in self._options if words not in self._sent_with]
        if not self._append(lines):
            self._known.update(new)
            return
        self._sent_with.update(self._options)
        self._written.update(new)

    def add_otherwise(self, found: Iterable[tuple[bytes, int]]) -> None:
        """Remember, for `status`, of which trajectories the server holds so many calls in another form."""
        new = {mark: count for mark, count in found if mark and self._otherwise.get(mark) != count}
        if new and not self.trouble:
            self._append([orjson.dumps({"otherwise": mark.hex(), "calls": count}) for mark, count in new.items()])
            self._otherwise |= new

    def forget(self) -> None:
        """Believe nothing of what was read any more: the server does not have it."""
        self._known.clear()
        self._written.clear()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, lines: list[bytes]) -> bool:
        """Write lines, and before the first of them whose ledger it is; False where that is not to be had."""
        try:
            # a newline first: what a killed process left unfinished must not run into the line
            self._write(b"\n" + b"\n".join([self._head, *lines] if self._unnamed else lines) + b"\n")
        except OSError as error:
            self.trouble = f"{self.path}: {error.strerror or error}"
            return False
        self._unnamed = False
        return True

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while data:
            data = data[os.write(self._file, data) :]


def known_places(folder: Path, run: Run) -> list[Place]:
    """Where the run was uploaded to, as far as the ledgers here know."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.endswith(_SUFFIX))
    except OSError:
        return []
    found: dict[Place, None] = {}
    for path in paths:
        for line in _lines(path):
            place = _place(line)
            if place is not None and place[2:] == (run.project_name, run.experiment_name):
                found[place] = None
    return list(found)


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file; none, or fewer, when it cannot be read."""
    try:
        with open(path, "rb") as file:
            while line := file.readline(_LINE_LIMIT):
                yield line.rstrip(b"\n")
    except OSError:
        return


def _head(place: Place) -> bytes:
    return orjson.dumps({"ledger": 1, **place._asdict()})


def _otherwise(line: bytes) -> dict[bytes, int]:
    try:
        told = orjson.loads(line)
        return {bytes.fromhex(told["otherwise"]): int(told["calls"])}
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return {}


def _place(line: bytes) -> Place | None:
    if not line.startswith(b'{"ledger":1,'):
        return None
    try:
        head: dict[str, Any] = orjson.loads(line)
        place = Place(*(head[name] for name in Place._fields))
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return place if all(isinstance(part, str) for part in place) else None
