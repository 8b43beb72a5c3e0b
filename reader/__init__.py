"""Files -> segments -> records -> call trees. Read-only, without locks, bounded in memory by what is open at a time.

`runs` finds the runs of a folder and their writers; `segments` gives the whole lines of one file and names the damage;
`trees` pairs starts with ends and yields trajectories; `summary` counts a run. Damage is a value in the result and
never an exception.
"""

from .runs import Run, Segment, Writer, find_runs
from .segments import Damage
from .summary import Summary, summarise
from .trees import Call, Trajectory, iter_trajectories

__all__ = [
    "Call",
    "Damage",
    "Run",
    "Segment",
    "Summary",
    "Trajectory",
    "Writer",
    "find_runs",
    "iter_trajectories",
    "summarise",
]
