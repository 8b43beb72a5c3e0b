"""The exceptions that verl-trace raises outside of training (the recorder raises none).

VerlTraceError
 ├─ NotARun            the path holds no span files
 ├─ BadSegment         a span file that cannot be read at all
 ├─ MissingExtra       a command needs a package that is not installed
 ├─ CannotStart        an upload that cannot begin: wrong key, host down, no project
 ├─ BadFilter          a filter on the command line that says nothing sensible
 ├─ BadTarget          a folder that a copy must not, or cannot, be written into
 └─ Rejected           the server refused data for a reason that repeating does not cure
"""

from __future__ import annotations

__all__ = [
    "BadFilter",
    "BadSegment",
    "BadTarget",
    "CannotStart",
    "MissingExtra",
    "NotARun",
    "Rejected",
    "VerlTraceError",
]


class VerlTraceError(Exception):
    """Base of all; `hint` says what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


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


class BadFilter(VerlTraceError):
    """A filter that cannot be understood, or that means nothing in this run."""


class BadTarget(VerlTraceError):
    """A folder that a copy must not be written into, or cannot be."""


class Rejected(VerlTraceError):
    """The server refused data, and sending it again would not help."""
