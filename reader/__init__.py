"""Files -> segments -> records -> call trees. Read-only, without locks, bounded in memory by what is open at a time.

`runs` finds the runs of a folder, `writers` says what their processes are; `frames` decompresses, `segments` gives the
whole lines of one file, `records` parses them; `trees` pairs starts with ends and yields trajectories of `calls`
in `order`, with their `scores` (named by `score_names`) and the figures of their `groups`; `summary` counts a run,
`steps` and `stats` in detail; `filters` says which trajectories are meant, by their `facts` and an expression
(`where`), `selection` which when there is no room for all, `pick` finds one by a short name; `conversation` makes turns
of it, `in_time` merges the files, `digest` is a run without payloads. `places` opens files, in folders and in the
`archive` that `pack` writes. Damage is a value in the result and never an exception.
"""

from .calls import Call, Trajectory
from .filters import Filters
from .groups import Group
from .runs import Run, closed_folders, find_runs
from .segments import Damage
from .summary import Summary, summarise
from .trees import iter_trajectories
from .writers import Segment, Writer

__all__ = [
    "Call",
    "Damage",
    "Filters",
    "Group",
    "Run",
    "Segment",
    "Summary",
    "Trajectory",
    "Writer",
    "closed_folders",
    "find_runs",
    "iter_trajectories",
    "summarise",
]
