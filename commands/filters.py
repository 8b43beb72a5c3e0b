"""The filters as options of a command: `@with_filters` gives a command all of them and hands over what they say."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from ..reader import Run
from ..reader.filters import Filters
from ..reader.unknown_names import unknown_names
from ..schemas.errors import BadFilter
from ..viewer.text import visible

__all__ = ["check_names", "with_filters"]

_PANEL = "Which trajectories"


def _option(flag: str, help: str, metavar: str) -> Any:
    return typer.Option(flag, help=help, metavar=metavar, show_default=False, rich_help_panel=_PANEL)


_OPTIONS: dict[str, tuple[Any, Any]] = {
    "step": (
        Annotated[str | None, _option("--step", "Steps: 3, 1:100, 1:100:10 (both ends included), 1,5.", "STEPS")],
        None,
    ),
    "sample_index": (
        Annotated[str | None, _option("--sample-index", "Samples, as --step or by name.", "SAMPLES")],
        None,
    ),
    "rollout_n": (Annotated[str | None, _option("--rollout-n", "Rollouts of a sample, as --step.", "ROLLOUTS")], None),
    "validate": (Annotated[bool, typer.Option("--validate", help="Validation only.", rich_help_panel=_PANEL)], False),
    "train": (Annotated[bool, typer.Option("--train", help="Training only.", rich_help_panel=_PANEL)], False),
    "attempt": (
        Annotated[list[str] | None, _option("--attempt", "1, 2, …, last, or the beginning of its id.", "ATTEMPT")],
        None,
    ),
    "op": (
        Annotated[list[str] | None, _option("--op", "With a call of this op; shell patterns are allowed.", "OP")],
        None,
    ),
    "status": (
        Annotated[str | None, _option("--status", "With a call that ended so: success, error, unfinished.", "STATUS")],
        None,
    ),
    "min_duration": (
        Annotated[str | None, _option("--min-duration", "With a call that took at least 500ms, 10s, 5m.", "TIME")],
        None,
    ),
    "node": (
        Annotated[
            list[str] | None,
            _option("--node", "With a call recorded on this node; shell patterns are allowed.", "NODE"),
        ],
        None,
    ),
    "rank": (
        Annotated[str | None, _option("--rank", "With a call of a process of these ranks, as --step.", "RANKS")],
        None,
    ),
    "where": (Annotated[str | None, _option("--where", "E.g. 'reward < 0.5 and step >= 10'.", "EXPR")], None),
}


def with_filters(command: Callable[..., None]) -> Callable[..., None]:
    """`command`, which takes `filters: Filters`, as one that has the options instead.

    Raises (when called):
        BadFilter: an option says nothing sensible.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "filters"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _OPTIONS.items()
    ]

    @functools.wraps(command)
    def with_options(*args: Any, **kwargs: Any) -> None:
        chosen = {name: kwargs.pop(name, None) for name in _OPTIONS}
        validate, train = chosen["validate"], chosen.pop("train")
        if validate and train:
            raise BadFilter("--validate and --train leave nothing", hint="give one of them, or none for both kinds")
        chosen["validate"] = True if validate else False if train else None
        command(*args, **kwargs, filters=Filters.of(**chosen))

    with_options.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
    return with_options


def check_names(filters: Filters, runs: Sequence[Run]) -> None:
    """Say on stderr which names in --where no trajectory has, once all of `runs` were read with these filters.

    Raises:
        BadFilter: there is one, and it cannot come any more.
    """
    if words := unknown_names(filters, ended=all(run.state != "live" for run in runs)):
        typer.echo(f"verl-trace: {visible(words)}", err=True)
