"""`verl-trace compare`: trajectories side by side."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from ..reader import Trajectory
from ..reader.conversation import Decode, Turn, conversation
from ..reader.facts import trajectory_facts
from ..reader.filters import Filters
from ..reader.kinds import TOOL, kind_of
from ..reader.payloads import json_text
from ..reader.pick import pick
from ..schemas.errors import BadQuery
from ..viewer.comparing import comparison_json, fact_table, side_by_side
from ..viewer.terminal import columns_of, line, print_lines, wants_colour
from ..viewer.text import visible
from ..viewer.tokenizer import load_tokenizer
from .filters import with_filters
from .printing import print_json
from .runs import RunArgument, report_damage, runs_named

__all__ = ["compare"]


@with_filters
def compare(
    run: RunArgument,
    selectors: Annotated[
        list[str],
        typer.Argument(
            metavar="SELECTOR…",
            help="Two or more trajectories, as for `show`; RUN=SELECTOR names one of another run.",
            show_default=False,
        ),
    ],
    filters: Filters = Filters(),  # noqa: B008
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="DIR", help="Decode token ids that have no text.", show_default=False),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Shorten nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare trajectories: figures in a table, conversations side by side, what differs marked.

    Turns are aligned by role and tool. Every further trajectory is compared with the first, A. Where the same
    STEP:SAMPLE:ROLLOUT is in several attempts, name trajectories by the beginning of their trace ids.

    Example: verl-trace compare runs/exp1 10:7:0 100:7:0
    """
    if len(selectors) < 2:
        raise BadQuery("compare needs two trajectories", hint="verl-trace compare RUN SELECTOR SELECTOR")
    decode = load_tokenizer(tokenizer, "compare") if tokenizer is not None else None
    parts = [selector.rpartition("=") for selector in selectors]
    asked = [(Path(other) if separator else run, name) for other, separator, name in parts]
    runs = {path: runs_named(path) for path, _ in asked}
    trajectories, readings = [], []
    warnings: dict[str, None] = {}
    for path, name in asked:
        picked = pick(runs[path], name, filters, beside=[one for other in runs.values() for one in other])
        trajectories.append(picked.trajectory)
        readings.append(picked.reading)
        warnings[picked.warning] = None
    if as_json:
        print_json(json_text(_as_json(trajectories, decode), indent=True))
    else:
        _print(trajectories, decode, full)
    for words in filter(None, warnings):
        typer.echo(f"verl-trace: {visible(words)}", err=True)
    report_damage(readings)


def _print(trajectories: list[Trajectory], decode: Decode, full: bool) -> None:
    columns = columns_of()
    facts = [trajectory_facts(trajectory) for trajectory in trajectories]
    for number, fact in enumerate(facts):
        typer.echo(f"{chr(ord('A') + number)}  {fact['trace_id']}")
    typer.echo("\n" + fact_table(facts, [_tools(trajectory) for trajectory in trajectories], columns))
    turns: list[list[Turn]] = [conversation(trajectory, decode) for trajectory in trajectories]
    for number, other in enumerate(turns[1:], 1):
        names = ("A", chr(ord("A") + number))
        if len(turns) > 2:
            print_lines([line(), line((f"{names[0]} and {names[1]}", "bold"))])
        print_lines(side_by_side(turns[0], other, columns, names=names, full=full, colour=wants_colour()))


def _tools(trajectory: Trajectory) -> Counter[str]:
    return Counter(call.op for call in trajectory.calls if kind_of(call) == TOOL)


def _as_json(trajectories: list[Trajectory], decode: Decode) -> dict[str, Any]:
    turns = [conversation(trajectory, decode) for trajectory in trajectories]
    facts = [trajectory_facts(trajectory) for trajectory in trajectories]
    return {
        "trajectories": [
            {**fact, "tools": dict(_tools(trajectory))} for fact, trajectory in zip(facts, trajectories, strict=True)
        ],
        "comparisons": [
            {"left": facts[0]["trace_id"], "right": fact["trace_id"], "turns": comparison_json(turns[0], other)}
            for fact, other in zip(facts[1:], turns[1:], strict=True)
        ],
    }
