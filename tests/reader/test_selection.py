"""What is taken when there is no room for all."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_trace.reader.selection import Candidate, is_sampled, select

ROLLOUTS = 4


def candidates(steps: int = 25, groups: int = 8, **odd: Any) -> list[Candidate]:
    """`steps` times `groups` GRPO groups of 4 rollouts, 1,000 bytes each; group 3 of every fifth step has a failure."""
    out = []
    for step in range(steps):
        for group in range(groups):
            for rollout in range(ROLLOUTS):
                failed = step % 5 == 0 and group == 3 and rollout == 1
                facts = {
                    "trace_id": f"{step}-{group}-{rollout}",
                    "attempt": "a",
                    "step": step,
                    "uid": f"u{step}-{group}",
                    "status": "error" if failed else "success",
                    "reward": group / groups + rollout / 100,
                }
                out.append(Candidate.of({**facts, **odd}, 1000))
    return out


def groups_of(chosen: set[str]) -> Counter[tuple[str, str]]:
    return Counter((step, group) for step, group, _ in (name.split("-") for name in chosen))


def test_without_limits_all_are_taken() -> None:
    """No budget and no limit leave nothing out."""
    selection = select(candidates())
    assert (len(selection.chosen), selection.left_out, selection.steps_taken) == (800, 0, 25)


def test_a_budget_keeps_steps_failures_and_extremes() -> None:
    """First every step, then every failure, then the best and worst group of each step; nothing beyond the budget."""
    all_of_it = candidates()

    one_a_step = select(all_of_it, budget=25 * 4000)
    assert (one_a_step.steps_taken, one_a_step.size_taken) == (25, 100_000)
    assert one_a_step.failed_taken == one_a_step.failed == 5
    # the best where nothing failed
    assert {group for step, group in groups_of(one_a_step.chosen) if int(step) % 5} == {"7"}

    more = groups_of(select(all_of_it, budget=80 * 4000).chosen)
    assert {(str(step), group) for step in range(25) for group in ("0", "7")} <= set(more)


@settings(max_examples=60)
@given(st.integers(0, 900_000), st.integers(0, 5), st.integers(0, 900))
def test_groups_stay_whole_and_limits_hold(budget: int, seed: int, limit: int) -> None:
    """Whatever the limits: no group is torn, no limit passed, and the same again gives the same."""
    all_of_it = candidates(steps=12, groups=5)
    selection = select(all_of_it, budget=budget, limit=limit, seed=seed)
    assert set(groups_of(selection.chosen).values()) <= {ROLLOUTS}
    assert selection.size_taken == 1000 * len(selection.chosen) <= budget
    assert len(selection.chosen) <= limit
    assert select(reversed(all_of_it), budget=budget, limit=limit, seed=seed).chosen == selection.chosen
    assert selection.trajectories == 240 == len(selection.chosen) + selection.left_out


def test_too_little_for_every_step_is_spread_evenly() -> None:
    """Room for five of 25 steps: no long gap without one."""
    chosen = sorted(int(step) for step, _ in groups_of(select(candidates(), budget=5 * 4000).chosen))
    assert len(chosen) == 5
    assert max(b - a for a, b in zip([-1, *chosen], [*chosen, 25], strict=True)) <= 13


def test_a_group_that_does_not_fit_is_passed_over() -> None:
    """One huge group takes nothing from the small ones."""
    huge = Candidate.of({"trace_id": "0-huge-0", "attempt": "a", "step": 0, "uid": "huge", "status": "error"}, 10**9)
    selection = select([huge, *candidates()], budget=100 * 4000)
    assert selection.groups_taken == 100
    assert (selection.failed, selection.failed_taken) == (6, 5)


def test_other_seeds_choose_others() -> None:
    """What is left to chance depends on the seed alone."""
    choices = {frozenset(select(candidates(), budget=150 * 4000, seed=seed).chosen) for seed in range(5)}
    assert len(choices) == 5


def test_without_uid_a_group_is_a_sample_of_a_step() -> None:
    """verl 0.5 has no uid: rollouts are grouped by step and sample index, attempts and validation apart."""
    facts = {"trace_id": "x", "attempt": "a", "step": 1, "sample_index": 7, "validate": False, "status": "success"}
    keys = {
        Candidate.of({**facts, **other}, 1).group
        for other in ({}, {"rollout_n": 3}, {"attempt": "b"}, {"validate": True}, {"sample_index": "7"}, {"step": 2})
    }
    assert len(keys) == 5


@pytest.mark.parametrize("reward", [None, "high", float("nan"), [1.0]])
def test_odd_rewards_are_none(reward: object) -> None:
    """A reward that is no number neither counts nor breaks the order."""
    odd = candidates(steps=2, groups=2, reward=reward)
    assert all(candidate.reward is None for candidate in odd)
    assert len(select(odd, limit=8).chosen) == 8


def test_samples_hold_one_another() -> None:
    """A tenth is about a tenth, and lies within any larger share of the same seed."""
    keys = [("a", str(n), False, "uid", f"u{n}") for n in range(4000)]
    tenth, half = ({key for key in keys if is_sampled(key, rate, 7)} for rate in (0.1, 0.5))
    assert tenth < half
    assert abs(len(tenth) / 400 - 1) < 0.2
    assert abs(len(half) / 2000 - 1) < 0.1
    assert {key for key in keys if is_sampled(key, 0.1, 8)} != tenth
    assert not any(is_sampled(key, 0.0, 7) for key in keys)
    assert all(is_sampled(key, 1.0, 7) for key in keys)
