"""Options that `upload` and `status` share, and how they say a duration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "EntityOption",
    "NoWandbOption",
    "PartialOption",
    "ProjectOption",
    "RunArgument",
    "RunIdOption",
    "SettleOption",
    "StateDirOption",
    "WandbDirOption",
    "WandbOnlyOption",
    "checked_seconds",
    "seconds",
]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """`90`, `90s`, `10m`, `2h`, `1d` in seconds.

    Raises:
        BadParameter: none of these.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip().lower())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 90s, 10m or 2h")
    return float(match[1]) * _UNITS[match[2]]


def checked_seconds(text: str) -> str:
    """The text, if it is a duration."""
    seconds(text)
    return text


RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or of several, or one span file.")]
EntityOption = Annotated[
    str | None, typer.Option(help="W&B entity (user or team) instead of the recorded or default one.")
]
ProjectOption = Annotated[str | None, typer.Option(help="PROJECT or ENTITY/PROJECT instead of the recorded name.")]
SettleOption = Annotated[
    str,
    typer.Option(
        callback=checked_seconds,
        help="Silence after which nothing more is awaited of a trajectory, or of a process on another host: 10m, 1h; 0"
        " waits for nothing but processes of this host.",
    ),
]
PartialOption = Annotated[
    bool, typer.Option("--partial", help="Do not wait for segments that are missing: what they held is lost.")
]
StateDirOption = Annotated[
    Path | None,
    typer.Option(help="Folder that remembers what is stored; default: verl-trace/uploads in XDG_STATE_HOME."),
]
NoWandbOption = Annotated[
    bool, typer.Option("--no-wandb", help="Sync no W&B runs and link none.", rich_help_panel="W&B runs")
]
WandbOnlyOption = Annotated[
    bool, typer.Option("--wandb-only", help="Sync the W&B runs and send no calls.", rich_help_panel="W&B runs")
]
WandbDirOption = Annotated[
    list[Path] | None,
    typer.Option(
        exists=True,
        help="Where offline runs lie, if not beside RUN or in WANDB_DIR; repeatable.",
        rich_help_panel="W&B runs",
    ),
]
RunIdOption = Annotated[
    str | None, typer.Option(help="Id of the W&B run that the calls belong to.", rich_help_panel="W&B runs")
]
