"""`verl-trace grep`: search every text of a run."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ..reader import Run
from ..reader.cores import on_all_cores
from ..reader.filters import Filters
from ..reader.payloads import json_text
from ..reader.pick import matching
from ..reader.trees import Reading
from ..viewer.matches import match_json, match_lines, match_row, trajectory_name
from ..viewer.patterns import Pattern
from ..viewer.search import Search, SearchedSegment, search_segment
from ..viewer.terminal import columns_of, print_lines
from ..viewer.tokenizer import load_tokenizer
from .filters import check_names, with_filters
from .printing import print_json
from .runs import RunArgument, report_damage, runs_named

__all__ = ["grep"]

FOUND, NOTHING, TROUBLE = 0, 1, 2


@with_filters
def grep(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A regular expression.")],
    run: RunArgument,
    filters: Filters = Filters(),  # noqa: B008
    fixed: Annotated[bool, typer.Option("--fixed-strings", "-F", help="PATTERN is plain text.")] = False,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", "-i", help="Upper and lower case are equal.")] = False,
    invert: Annotated[bool, typer.Option("--invert-match", "-v", help="Print the texts without a match.")] = False,
    names: Annotated[bool, typer.Option("--files-with-matches", "-l", help="Print trajectories only.")] = False,
    count: Annotated[
        bool, typer.Option("--count", "-c", help="Print how many texts of each trajectory match.")
    ] = False,
    field: Annotated[
        list[str] | None,
        typer.Option("--field", help="Only these fields: output, response_text, 'inputs.*.content'.", metavar="PATH"),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="DIR", help="Decode token ids and search them too.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """Search every text of a run: inputs, outputs, decoded text, errors, names of ops, attributes.

    A line for every text with a match: trajectory, step:sample:rollout, op, field, and the match in its line. --op
    searches in these ops alone.

    Exit codes, as grep's: 0 found; 1 not found; 2 something could not be read, or the pattern is none.

    Example: verl-trace grep -F 'division by zero' runs/exp1 --op 'Calculator*'
    """
    search = Search(
        Pattern(pattern, fixed=fixed, ignore_case=ignore_case),
        invert=invert,
        filters=filters,
        fields=tuple(field or ()),
        decode=load_tokenizer(tokenizer, "grep") if tokenizer is not None else None,
    )
    printer = _Printer(names=names, count=count, as_json=as_json)
    readings = []
    runs = runs_named(run)
    for one in runs:
        readings.append(Reading(damages=list(one.passed_over)))
        for result in _searched(search, one, filters):
            readings[-1].damages += result.damages
            printer.add(result)
    printer.end()
    check_names(filters, runs)
    damaged = report_damage(readings)
    raise typer.Exit(TROUBLE if damaged else FOUND if printer.any else NOTHING)


def _searched(search: Search, run: Run, filters: Filters) -> Iterator[SearchedSegment]:
    """Every segment of a run searched, in order, by as many processes as there are cores for."""
    segments = [segment for writer in run.writers for segment in writer.segments]
    # ops are looked at record by record
    if not Filters(**{**vars(filters), "ops": ()}).everything:
        meant = list(matching(run, filters))
        search = Search(**{**vars(search), "trace_ids": frozenset(outline.trace_id for outline in meant)})
        theirs = {segment for outline in meant for segment in outline.segments}
        segments = [segment for segment in segments if segment in theirs]
    size = sum(segment.stored_bytes for segment in segments)
    yield from on_all_cores(lambda segment: search_segment(search, segment), segments, size)


class _Printer:
    """Prints what is found as it comes; `any` says whether there was something."""

    def __init__(self, *, names: bool, count: bool, as_json: bool) -> None:
        self.any = False
        self._names, self._count, self._as_json = names, count, as_json
        self._counts: Counter[str] = Counter()
        self._last = ""
        self._on_terminal = sys.stdout.isatty()

    def add(self, result: SearchedSegment) -> None:
        for found in result.found:
            self.any = True
            name = trajectory_name(found)
            self._counts[name] += 1
            if self._count:
                continue
            if self._names:
                if self._counts[name] == 1:
                    self._print(match_json(found, whole=False), name)
            elif self._as_json:
                print_json(json_text(match_json(found)))
            elif self._on_terminal:
                print_lines(match_lines(found, columns_of(), titled=name != self._last))
                self._last = name
            else:
                typer.echo(match_row(found))

    def end(self) -> None:
        if self._count:
            for name, count in self._counts.items():
                trace_id, _, place = name.partition("  ")
                row = {"trace_id": trace_id, "place": place, "count": count}
                self._print(row, f"{count}\t{name}")

    def _print(self, row: dict[str, Any], text: str) -> None:
        if self._as_json:
            print_json(json_text(row))
        else:
            typer.echo(text)
