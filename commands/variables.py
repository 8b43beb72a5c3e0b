"""Variables of the environment that look like settings and are none: what they were meant to say is not heard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Unknown", "unknown_variables", "warnings"]

_PREFIX = "VERL_TRACE_"
# How alike a name must be to be taken for a known one with a mistake in it.
_ALIKE = 0.6


class Unknown(NamedTuple):
    """A variable that is no setting; `near`: the setting that was meant, "" where it is like none."""

    name: str
    near: str


def unknown_variables() -> Iterator[Unknown]:
    """All that begin as settings do, in order."""
    for name in sorted(os.environ):
        plain = name.upper().replace("-", "_")
        if not plain.startswith(("VERL_TRACE", "VERLTRACE")):
            continue
        # nothing of all this is imported where no variable is set
        from ..recorder.settings import VARIABLES

        if name in VARIABLES:
            continue
        import difflib

        rest = plain.removeprefix("VERL_TRACE").removeprefix("VERLTRACE").strip("_")
        near = difflib.get_close_matches(rest, [known.removeprefix(_PREFIX) for known in VARIABLES], 1, _ALIKE)
        yield Unknown(name, f"{_PREFIX}{near[0]}" if near else "")


def warnings() -> list[str]:
    """What to tell whoever runs any command: a sentence for each name with a mistake in it. `doctor` has the rest."""
    found = [unknown for unknown in unknown_variables() if unknown.near]
    return [f"{unknown.name} is no setting: did you mean {unknown.near}?" for unknown in found]
