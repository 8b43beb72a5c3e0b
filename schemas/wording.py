"""Numbers in sentences: one call, two calls."""

from __future__ import annotations

__all__ = ["counted", "plural"]


def counted(count: int, one: str, several: str = "") -> str:
    """`1 call`, `2,000 calls`, `3 trajectories`, `16 processes`; `several` where more than the noun changes."""
    return f"{count:,} {plural(count, one, several)}"


def plural(count: int, one: str, several: str = "") -> str:
    """The words alone: `one` or, made of it where that is just a noun, `several`."""
    if count == 1:
        return one
    return several or (one[:-1] + "ies" if one.endswith("y") else one + ("es" if one.endswith("s") else "s"))
