"""Options that `upload` and `status` share, and how they say a duration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..reader.durations import parse_duration

__all__ = [
    "EntityOption",
    "NoWandbOption",
    "PartialOption",
    "ProjectOption",
    "RunIdOption",
    "SettleOption",
    "StateDirOption",
    "WandbDirOption",
    "WandbOnlyOption",
    "checked_seconds",
    "seconds",
]


def seconds(text: str) -> float:
    """A duration in seconds.

    Raises:
        BadFilter: it is none.
    """
    return parse_duration(text, "--settle")


def checked_seconds(text: str) -> str:
    """The text, if it is a duration."""
    seconds(text)
    return text


EntityOption = Annotated[
    str | None, typer.Option(metavar="ENTITY", help="W&B entity (user or team) instead of the recorded or default one.")
]
ProjectOption = Annotated[
    str | None, typer.Option(metavar="PROJECT", help="PROJECT or ENTITY/PROJECT instead of the recorded name.")
]
SettleOption = Annotated[
    str,
    typer.Option(
        callback=checked_seconds,
        metavar="TIME",
        help="Silence after which nothing more is awaited of a trajectory, or of a process on another host: 10m, 1h; 0"
        " waits for nothing but processes of this host.",
    ),
]
PartialOption = Annotated[
    bool, typer.Option("--partial", help="Do not wait for segments that are missing: what they held is lost.")
]
StateDirOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder that remembers what is stored; default: verl-trace/uploads in XDG_STATE_HOME."
    ),
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
        metavar="DIR",
        help="Where offline runs lie, if not beside RUN or in WANDB_DIR; repeatable.",
        rich_help_panel="W&B runs",
    ),
]
RunIdOption = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Id of the W&B run that the calls belong to.", rich_help_panel="W&B runs"),
]
