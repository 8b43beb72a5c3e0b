"""`verl-trace cat`: the records of a run as they are, for other programs."""

from __future__ import annotations

import sys

from ..reader.filters import Filters
from ..reader.in_time import lines_in_time
from ..reader.pick import matching
from ..reader.trees import Reading
from .filters import check_names, with_filters
from .printing import record_writer
from .runs import RunArgument, report_damage, runs_named

__all__ = ["cat"]


@with_filters
def cat(run: RunArgument, filters: Filters = Filters()) -> None:  # noqa: B008
    """Write the records of a run to stdout as they are, one JSON object a line, in time order.

    Sealed files and open ones, of all processes. What is damaged is passed over and told on stderr. With a filter, the
    records of these trajectories only; without, headers and all else too.

    Example: verl-trace cat runs/exp1 --step 3 | jq -c 'select(.kind == "end") | [.op, .duration]'
    """
    readings, write = [], record_writer()
    runs = runs_named(run)
    for one in runs:
        reading = Reading()
        readings.append(reading)
        wanted = None
        if not filters.everything:
            wanted = frozenset(trajectory.trace_id for trajectory in matching(one, filters))
        for line in lines_in_time(one, reading, wanted):
            write(line)
    sys.stdout.flush()
    check_names(filters, runs)
    report_damage(readings)
