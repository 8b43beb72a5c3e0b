"""The exceptions that verl-trace raises outside of training (the recorder raises none).

VerlTraceError
 ├─ NotARun            the path holds no span files
 ├─ BadSegment         a span file that cannot be read at all
 ├─ MissingExtra       a command needs a package that is not installed
 ├─ CannotStart        an upload that cannot begin: wrong key, host down, no project
 │   └─ NoAnswer       … because the server does not answer: another time it may
 ├─ BadFilter          a filter on the command line that says nothing sensible
 ├─ NotFound           no trajectory or call of a run is meant, or several are
 ├─ BadQuery           a pattern, an expression or SQL that cannot be run
 ├─ BadTarget          a folder that a copy must not, or cannot, be written into
 └─ Rejected           the server refused data for a reason that repeating does not cure
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BadFilter",
    "BadQuery",
    "BadSegment",
    "BadTarget",
    "CannotStart",
    "MissingExtra",
    "NoAnswer",
    "NotARun",
    "NotFound",
    "Rejected",
    "VerlTraceError",
]


class VerlTraceError(Exception):
    """Base of all; `hint` says what to do next, `details` are lines to print below."""

    def __init__(self, message: str, *, hint: str = "", details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.hint = hint
        self.details = details


class NotARun(VerlTraceError):
    """The path does not exist or holds no span files."""


class BadSegment(VerlTraceError):
    """A span file cannot be opened or holds not one readable line."""


class MissingExtra(VerlTraceError):
    """A command needs an optional package."""

    def __init__(self, command: str, extra: str, module: str) -> None:
        super().__init__(
            f"`verl-trace {command}` needs the package {module}, which is not installed here",
            hint=f"pip install 'verl-trace[{extra}]'",
        )


class CannotStart(VerlTraceError):
    """An upload cannot begin; nothing was sent."""


class NoAnswer(CannotStart):
    """The server does not answer."""


class BadFilter(VerlTraceError):
    """A filter that cannot be understood, or that means nothing in this run."""


class NotFound(VerlTraceError):
    """A name that means no trajectory or call of the run, or more than one."""


class BadQuery(VerlTraceError):
    """A pattern, a path or SQL of the user that cannot be run."""


class BadTarget(VerlTraceError):
    """A folder that a copy must not be written into, or cannot be."""


class Rejected(VerlTraceError):
    """The server refused data, and sending it again would not help."""
