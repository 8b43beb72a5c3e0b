"""`verl-trace stats`: a run in figures."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..reader.facts import trajectory_facts
from ..reader.filters import Filters
from ..reader.payloads import json_text
from ..reader.pick import matching
from ..reader.stats import Stats
from ..reader.trees import Reading
from ..viewer.listing import as_of_facts, as_of_note
from ..viewer.statistics import stats_text
from ..viewer.terminal import columns_of, is_unicode
from ..viewer.text import visible
from .filters import check_names, with_filters
from .printing import print_json
from .runs import RunArgument, report_damage, runs_named

__all__ = ["stats"]


@with_filters
def stats(
    run: RunArgument,
    filters: Filters = Filters(),  # noqa: B008
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a run.")] = False,
) -> None:
    """Count a run: steps, attempts, ops, latencies, tokens, where the time went, what stands out.

    Model and tools: time of a trajectory in which they ran; where both did, it counts as the model's. Percentiles are
    exact.

    Example: verl-trace stats runs/exp1 --step 100:
    """
    readings, results, texts = [], [], []
    runs = runs_named(run)
    for one in runs:
        reading, result = Reading(), Stats(one.attempts)
        for outline in matching(one, filters, reading):
            result.add(outline, trajectory_facts(outline))
        readings.append(reading)
        names = {"project_name": one.project_name, "experiment_name": one.experiment_name}
        results.append({**names, **as_of_facts(one), **result.as_json()})
        if not as_json:
            texts.append(f"{visible(one.experiment_name)}  {visible(one.project_name)}\n{as_of_note(results[-1])}")
            texts.append(stats_text(results[-1], result.durations, _columns(), boxes=is_unicode()))
    check_names(filters, runs)
    if as_json:
        print_json(json_text(results, indent=True))
    else:
        typer.echo("\n".join(texts))
    report_damage(readings)


def _columns() -> int | None:
    return columns_of() if sys.stdout.isatty() else None
