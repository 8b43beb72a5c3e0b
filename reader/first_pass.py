"""The first look at a segment: how many records of each trace it holds, and its scores.

Where the cache keeps the segment's outline, that tells it, and nothing is decompressed. Both ways say the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..schemas.lines import Line
from .outline_cache import kept_outline
from .records import score_of, text_of, trace_id_of
from .segments import Damage, SegmentLines
from .writers import Segment

__all__ = ["FirstPass", "first_pass", "kept_first_pass"]


@dataclass
class FirstPass:
    """What a segment holds. `size`: decompressed bytes up to which the next pass is to read, None where it does not
    grow. `refused`: why it was not read to its end."""

    records: Counter[str] = field(default_factory=Counter)
    scores: list[Line] = field(default_factory=list)
    size: int | None = None
    refused: Damage | None = None

    def score(self, line: Line) -> None:
        """Count a score, which may name no trajectory."""
        self.scores.append(line)
        trace_id = text_of(line.head.get("trace_id"))
        if trace_id:
            self.records[trace_id] += 1


def first_pass(lines: SegmentLines) -> FirstPass:
    """Of lines, without parsing them."""
    found = FirstPass()
    records = found.records
    try:
        for _, line in lines:
            score = score_of(line)
            if score is not None:
                found.score(score)
            elif trace_id := trace_id_of(line):
                records[trace_id] += 1
    except OSError as error:
        # the next pass may get more: of records that were not counted, nobody knows when a trajectory is complete
        found.size = lines.size - lines.rest
        found.refused = Damage(lines.path, lines.size, 0, "unreadable", error.strerror or str(error))
        return found
    found.size = lines.size
    return found


def kept_first_pass(segment: Segment) -> FirstPass | None:
    """Of the outline that the cache keeps of a segment; None where it keeps none."""
    kept = kept_outline(segment)
    if kept is None:
        return None
    head, lines = kept[1]
    found = FirstPass(Counter(dict(zip(head["traces"], head["records"], strict=True))))
    for line in lines[: head["scores"]]:
        score = score_of(line)
        if score is not None:
            found.score(score)
    return found
