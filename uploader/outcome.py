"""What became of the calls of one batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .payload import Encoded

__all__ = ["Outcome", "Refused"]


class Refused(NamedTuple):
    """A call that the server does not take, in its words, and the field that it objects to ("": it does not say)."""

    call: Encoded
    words: str
    field: str


@dataclass
class Outcome:
    """What became of a batch. `stored` holds the calls as they were sent, `lightened` counts those with heavy fields
    moved out."""

    stored: list[Encoded] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    lightened: int = 0
