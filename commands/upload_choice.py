"""Options of `upload` that say how much is sent."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "BudgetOption",
    "CallsOption",
    "DropFieldsOption",
    "LimitOption",
    "MaxFieldOption",
    "QuotaOption",
    "SampleRateOption",
    "SeedOption",
]

_PANEL = "How much"

CallsOption = Annotated[
    bool,
    typer.Option("--calls", help="Only the calls that --op, --status, … mean.", rich_help_panel=_PANEL),
]
SampleRateOption = Annotated[
    float | None,
    typer.Option(min=0, max=1, metavar="SHARE", help="A share of the GRPO groups, whole ones.", rich_help_panel=_PANEL),
]
LimitOption = Annotated[
    int | None, typer.Option(min=0, metavar="NUMBER", help="At most so many trajectories.", rich_help_panel=_PANEL)
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="At most so many bytes as the server counts them (500MB): every step, failures, best and worst first.",
        rich_help_panel=_PANEL,
    ),
]
SeedOption = Annotated[
    int, typer.Option(metavar="NUMBER", help="Another seed, another choice.", rich_help_panel=_PANEL)
]
DropFieldsOption = Annotated[
    str, typer.Option(metavar="NAMES", help="Fields to leave out: logprobs,prompt_ids.", rich_help_panel=_PANEL)
]
MaxFieldOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Leave out texts and lists above 64KB, say.", rich_help_panel=_PANEL)
]
QuotaOption = Annotated[
    str, typer.Option(metavar="SIZE", help="With --dry-run: the month's quota to compare with.", rich_help_panel=_PANEL)
]
