"""A plain function as a tool; verl loads this file by its path."""

from verl.tools.function_tool import function_tool


@function_tool
def shout(text: str) -> str:
    """Upper-case a text.

    Args:
        text: what to shout
    """
    return text.upper()
