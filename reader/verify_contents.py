"""Are the contents of a writer's side files whole, and are all there that its lines refer to?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .contents import Content, SideFile
from .scan import DAMAGED, TORN, WHOLE
from .segments import Damage
from .writers import Writer

__all__ = ["MISSING_CONTENTS", "SideReport", "WriterContents", "check_contents"]

# The reason under which the `lost` record of a repaired copy counts contents that are not in it.
MISSING_CONTENTS = "content missing"
_SEVERITY = (WHOLE, TORN, DAMAGED)


@dataclass
class SideReport:
    """One side file: its good contents, and what is wrong with it."""

    path: Path
    contents: list[Content] = field(default_factory=list)
    problems: list[Damage] = field(default_factory=list)

    @property
    def state(self) -> str:
        """`whole`, `torn` or `damaged`."""
        kinds = {problem.kind for problem in self.problems}
        return WHOLE if not kinds else TORN if kinds == {"torn"} else DAMAGED

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        problems = [
            {"file": p.path.name, "offset": p.offset, "length": p.length, "kind": p.kind, "reason": p.reason}
            for p in self.problems
        ]
        return {"file": self.path.name, "state": self.state, "contents": len(self.contents), "problems": problems}


@dataclass
class WriterContents:
    """All side files of one writer.

    `missing`: digests that lines refer to and no file holds. `killed`: the process was killed, which may have cost what
    waited in memory; `told`: how many of the missing the writer itself has counted.
    """

    writer: str
    files: list[SideReport] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    killed: bool = False
    told: int = 0

    @property
    def state(self) -> str:
        """The worst of its parts."""
        states = [file.state for file in self.files]
        if len(self.missing) > self.told:
            states.append(TORN if self.killed else DAMAGED)
        return max(states, key=_SEVERITY.index, default=WHOLE)


def check_contents(writer: Writer, referred: Iterable[str], *, alive: bool, told: int) -> WriterContents:
    """Read every content of a writer. `alive`: as looked at before its files were read."""
    result = WriterContents(writer.id, killed=not alive and not writer.closed, told=told)
    paths = writer.side_files
    for path in paths:
        result.files.append(_check(path, open_end=path == paths[-1], alive=alive))
    there = {content.digest for file in result.files for content in file.contents}
    # a live process may still have some in memory
    result.missing = [] if alive else [digest for digest in dict.fromkeys(referred) if digest not in there]
    return result


def _check(path: Path, *, open_end: bool, alive: bool) -> SideReport:
    report = SideReport(path)
    file = SideFile(path)
    try:
        for content in file:
            if content.read() is not None:
                report.contents.append(content)
            else:
                reason = "the bytes are not those that the digest names"
                report.problems.append(Damage(path, content.offset, content.size, "blob", reason))
    except OSError as error:
        report.problems.append(Damage(path, 0, 0, "unreadable", error.strerror or str(error)))
        return report
    for damage in file.damages:
        if damage.kind == "torn" and open_end and not file.closed:
            report.problems += [] if alive else [damage]
        else:
            report.problems.append(Damage(path, damage.offset, damage.length, "blob", damage.reason))
    report.problems.sort(key=lambda problem: problem.offset)
    return report
