"""Which trajectories of a run are sent: filters, a share, a limit, a budget; the same for the same run and seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..reader import iter_trajectories
from ..reader.facts import trajectory_facts
from ..reader.filters import Filters
from ..reader.selection import Candidate, Selection, group_key, is_sampled, select
from ..schemas.wording import counted
from .size import size_words

if TYPE_CHECKING:
    from ..reader import Call, Run, Trajectory

__all__ = ["Choice", "Choosing"]

Measure = Callable[["Trajectory"], int]


@dataclass(frozen=True)
class Choosing:
    """What a user asks for. `budget`: bytes as the server counts them; `limit`: trajectories; `sample_rate`: share of
    the groups, 0 to 1. `calls`: of the chosen trajectories only the calls that the filters mean.
    """

    filters: Filters = field(default_factory=Filters)
    sample_rate: float | None = None
    limit: int | None = None
    budget: int | None = None
    seed: int = 0
    calls: bool = False

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self.filters.everything and self.sample_rate is None and self.limit is None and self.budget is None

    def of(self, run: Run, measure: Measure) -> Choice:
        """The choice in a run. With a limit or a budget the run is read once for it.

        Raises:
            BadFilter: an attempt that the run does not have.
        """
        filters = self.filters.of_run(run.attempts)
        choice = Choice(self, filters)
        if self.limit is not None or self.budget is not None:
            candidates = (
                Candidate.of(trajectory_facts(trajectory), measure(trajectory) if self.budget is not None else 0)
                for trajectory in iter_trajectories(run, payloads=self.budget is not None)
                if choice.takes(trajectory)
            )
            choice.selection = select(candidates, budget=self.budget, limit=self.limit, seed=self.seed)
        return choice


@dataclass
class Choice:
    """The trajectories of one run that are to be sent. `selection`: what a limit or a budget came to."""

    asked: Choosing
    filters: Filters
    selection: Selection | None = None

    def takes(self, trajectory: Trajectory) -> bool:
        """Whether the trajectory is to be sent."""
        if self.selection is not None:
            return trajectory.trace_id in self.selection.chosen
        if not self.filters.trajectory(trajectory):
            return False
        rate = self.asked.sample_rate
        return rate is None or is_sampled(group_key(trajectory_facts(trajectory)), rate, self.asked.seed)

    def takes_call(self, call: Call) -> bool:
        """Whether a call of a trajectory that is to be sent is itself."""
        return not self.asked.calls or self.filters.call(call)

    def words(self) -> list[str]:
        """What a limit or a budget left out, one sentence each."""
        chosen = self.selection
        if chosen is None or not chosen.left_out:
            return []
        left = f"{chosen.left_out:,} of {counted(chosen.trajectories, 'trajectory')}"
        if self.asked.budget is None:
            left = f"left out by the limit: {left}"
        else:
            size = f"{size_words(chosen.size - chosen.size_taken)} of {size_words(chosen.size)}"
            left = f"left out for want of room: {left}, {size}"
        return [
            f"{left}; what is chosen has {chosen.groups_taken:,} of {counted(chosen.groups, 'group')},"
            f" {chosen.steps_taken:,} of {counted(chosen.steps, 'step')},"
            f" {chosen.failed_taken:,} of {counted(chosen.failed, 'trajectory')} that failed"
        ]
