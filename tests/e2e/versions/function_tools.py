"""A plain function as a tool; verl 0.8 and later load this file by its path."""

from __future__ import annotations

from verl.tools.function_tool import function_tool


@function_tool
def shout(text: str) -> str:
    """Upper-case a text.

    Args:
        text: what to shout
    """
    return text.upper()
