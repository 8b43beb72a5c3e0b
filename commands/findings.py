"""What a check of `verl-trace doctor` gives."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Finding", "State"]

# `skip`: not looked at, and the message says how to have it looked at
State = Literal["ok", "warn", "fail", "skip"]


class Finding(NamedTuple):
    """One line of the report; `remedy` is empty when nothing needs to be done."""

    check: str
    state: State
    message: str
    remedy: str = ""
