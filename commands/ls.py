"""`verl-trace ls`: the runs of a folder, the steps of a run, its trajectories."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..reader import Run, closed_folders, summarise
from ..reader.facts import FACTS, trajectory_facts
from ..reader.filters import Filters
from ..reader.outline import Outline
from ..reader.payloads import json_text
from ..reader.pick import matching
from ..reader.pruned import pruned_folders, pruned_notes, pruned_words
from ..reader.steps import StepRow, add_to_steps, in_order
from ..reader.trees import Reading
from ..recorder import read_settings
from ..schemas.errors import BadFilter
from ..viewer.listing import as_of_facts, as_of_note, listing, run_facts
from ..viewer.tables import sorted_rows, steps_table, trajectories_table
from ..viewer.terminal import columns_of
from ..viewer.text import visible
from .filters import check_names, with_filters
from .printing import print_json
from .runs import is_one_run, report_damage, runs_named

__all__ = ["ls"]


@with_filters
def ls(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="A folder of runs or one run; default: VERL_TRACE_DIR, else ./runs.",
            show_default=False,
        ),
    ] = None,
    filters: Filters = Filters(),  # noqa: B008
    trajectories: Annotated[bool, typer.Option("--trajectories", "-t", help="List trajectories.")] = False,
    sort: Annotated[
        str | None,
        typer.Option("--sort", help="Order trajectories by a column or score; -reward: highest first.", metavar="NAME"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List recorded runs; of one run, its steps; with --trajectories, its trajectories.

    Of one run --json prints the run with its `by_step`, with --trajectories one object a trajectory. Trajectories are
    listed in the order in which they began, unless --sort says otherwise.

    Example: verl-trace ls runs/exp1 --trajectories --sort=-reward --where 'errors > 0'
    """
    named = folder if folder is not None else Path(read_settings().folder)
    runs = runs_named(named)
    if trajectories or sort is not None:
        _trajectories(runs, filters, sort, as_json)
    elif is_one_run(named, runs) or not filters.everything:
        _steps(runs, filters, as_json)
    else:
        _print([run_facts(run, summarise(run)) for run in runs], as_json)
    read = {run.folder for run in runs}
    for folder_path in pruned_folders(named):
        if folder_path not in read:
            for note in pruned_notes(folder_path):
                typer.echo(
                    f"verl-trace: {visible(folder_path)}: nothing is left; {visible(pruned_words(note))}", err=True
                )
    for name in closed_folders(named):
        typer.echo(f"verl-trace: not listed, since it cannot be read: {visible(name)}", err=True)


def _print(facts: list[dict[str, Any]], as_json: bool, whole_run: bool = True) -> None:
    if as_json:
        print_json(json_text(facts, indent=True))
    else:
        typer.echo(listing(facts, columns=_columns(), whole_run=whole_run))


def _columns() -> int | None:
    # what is piped on stays one line a run, for grep and awk
    return columns_of() if sys.stdout.isatty() else None


def _steps(runs: list[Run], filters: Filters, as_json: bool) -> None:
    facts = []
    for run in runs:
        rows: dict[tuple[Any, ...], StepRow] = {}

        def seen(outline: Outline, rows: dict[tuple[Any, ...], StepRow] = rows) -> None:
            add_to_steps(rows, outline, trajectory_facts(outline))

        summary = summarise(run, filters, seen)
        ordered = [row.as_json() for row in in_order(rows.values(), run.attempts)]
        facts.append({**run_facts(run, summary), "by_step": ordered})
    check_names(filters, runs)
    if as_json:
        _print(facts, as_json)
        return
    for run, fact in zip(runs, facts, strict=True):
        _print([fact], as_json, filters.everything)
        for number, attempt in enumerate([*run.attempts, *_unknown(run, fact)], 1):
            mine = [row for row in fact["by_step"] if row["attempt"] == attempt]
            if mine:
                several = len(run.attempts) > 1
                typer.echo(f"\nattempt {number} of {len(run.attempts)}: {visible(attempt)}" if several else "")
                typer.echo(steps_table(mine, _columns()))


def _unknown(run: Run, fact: dict[str, Any]) -> list[str]:
    """Attempts of trajectories whose file lost its header."""
    return sorted({row["attempt"] for row in fact["by_step"]} - set(run.attempts))


def _trajectories(runs: list[Run], filters: Filters, sort: str | None, as_json: bool) -> None:
    readings, everything, texts = [], [], []
    for run in runs:
        reading = Reading()
        facts = [trajectory_facts(outline) for outline in matching(run, filters, reading)]
        facts.sort(key=lambda fact: (fact["started_at"], fact["trace_id"]))
        if sort is not None:
            _check(sort, facts)
            facts = sorted_rows(facts, sort)
        readings.append(reading)
        everything += facts
        if not as_json:
            title = f"{visible(run.experiment_name)}  {visible(run.project_name)}\n" if len(runs) > 1 else ""
            whole = filters.everything
            table = trajectories_table(facts, _columns(), run.attempts, whole_run=whole) if facts else ""
            texts.append(f"{title}{table or 'no trajectory is meant by these filters'}")
    check_names(filters, runs)
    if as_json:
        print_json(json_text(everything, indent=True))
    for run, text in zip(runs, texts, strict=False):
        typer.echo(text)
        if note := as_of_note(as_of_facts(run)):
            typer.echo(f"verl-trace: {visible(run.experiment_name)}: {note}", err=True)
    report_damage(readings)


def _check(sort: str, facts: list[dict[str, Any]]) -> None:
    name = sort.removeprefix("-")
    known = {*FACTS, "reward", *(name for fact in facts for name in fact)}
    if name not in known:
        raise BadFilter(f"--sort {sort}: no trajectory has {name!r}", hint=f"there are {', '.join(sorted(known))}")
