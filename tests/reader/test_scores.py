"""Scores find their trajectories in whatever file they lie, and trajectories their groups."""

from __future__ import annotations

import random
from typing import Any

import pytest

from verl_trace.reader import Filters, Group, Trajectory, summarise
from verl_trace.reader.where import Where


class Run:
    """Lines of a run; `read` gives its trajectories by their small numbers."""

    def __init__(self, spans: Any) -> None:
        self.spans = spans
        self.written: dict[int, list[bytes]] = {}
        self.next_id = 1000

    def tree(self, number: int, writer: int = 1, **fields: Any) -> Run:
        lines = self.written.setdefault(writer, [])
        lines += [self.spans.start(number, **fields), self.spans.end(number, **fields)]
        return self

    def score(self, trace: int | None, scores: dict[str, Any], writer: int = 1, at: int = 50, **fields: Any) -> Run:
        self.next_id += 1
        status = "partial" if scores.get("reward") is None else "scored"
        head = {
            "step": 1, "validate": False, "source": "agent_loop", "status": status, "id": self.spans.id(self.next_id),
            "trace_id": None if trace is None else self.spans.id(trace), "recorded_at": self.spans.time(at), **fields,
        }  # fmt: skip
        self.written.setdefault(writer, []).append(self.spans.line("score", head, "scores", scores))
        return self

    def read(self, shuffle: int = 0) -> tuple[dict[int, Trajectory], Any]:
        for writer, lines in self.written.items():
            if shuffle:
                random.Random(shuffle + writer).shuffle(lines)
            self.spans.raw(self.spans.header(writer=writer), *lines, self.spans.close(), writer=writer)
        self.spans.age()
        trees, reading = self.spans.read()
        return {int(tree.trace_id[-12:], 16): tree for tree in trees}, reading


@pytest.fixture
def run(spans: Any) -> Run:
    return Run(spans)


@pytest.mark.parametrize("shuffle", range(4))
def test_a_score_joins_its_trajectory_from_any_file(run: Run, shuffle: int) -> None:
    """Before or after the calls, of another writer, in any order."""
    run.tree(1).tree(2, writer=2).tree(3)
    run.score(1, {"reward": 0.5, "num_turns": 2}, writer=3).score(2, {"reward": -1})
    trees, reading = run.read(shuffle)

    assert {n: t.reward for n, t in trees.items()} == {1: 0.5, 2: -1.0, 3: None}
    assert {n: t.score_status for n, t in trees.items()} == {1: "scored", 2: "scored", 3: None}
    assert trees[1].scores == {"reward": 0.5, "num_turns": 2}
    assert reading.unjoined_scores == 0


def test_the_latest_value_counts_and_none_takes_nothing_away(run: Run) -> None:
    """By the time of the record, not by where it lies."""
    run.tree(1).score(1, {"reward": 2.0, "a": 1}, at=60).score(1, {"reward": 1.0, "b": 2}, at=55)
    run.score(1, {"reward": None, "c": 3}, at=70)
    trees, _ = run.read()
    assert trees[1].scores == {"reward": 2.0, "a": 1, "b": 2, "c": 3}
    assert trees[1].scored


def test_whether_more_is_to_come(run: Run) -> None:
    """Partial: announced by the agent loop; a user's own score announces nothing; failed is final."""
    run.tree(1).score(1, {"reward": None, "num_turns": 1})
    run.tree(2).score(2, {"quality": 1}, source="user")
    run.tree(3).score(3, {"reward": None}, status="failed", exception={"type": "E", "message": "m"})
    trees, _ = run.read()
    assert [(t.scored, t.awaits_score) for t in trees.values()] == [(False, True), (False, False), (True, False)]


def test_the_trainers_scores_are_joined_by_session(run: Run) -> None:
    """As the default trainer counts; the same uid in another attempt is another group."""
    for number, session in ((1, 0), (2, 1)):
        run.tree(number).score(number, {"reward": None, "num_turns": number}, uid="g", session=session, group_size=2)
        run.score(None, {"reward": number / 2}, source="trainer", uid="g", session=session, writer=2, step=None)
    run.score(None, {"reward": 9}, source="trainer", uid="other", session=0, writer=2)
    trees, reading = run.read(shuffle=1)

    assert {n: t.scores for n, t in trees.items()} == {n: {"reward": n / 2, "num_turns": n} for n in (1, 2)}
    std = 0.125**0.5
    assert trees[1].group == Group(2, 0.75, std, 1.0, 2)
    assert trees[2].group == Group(2, 0.75, std, 1.0, 1)
    assert reading.unjoined_scores == 1


def test_the_trainers_scores_are_joined_by_row_and_answer(run: Run) -> None:
    """By the row's number where there is one, else by the answer; equal answers in turn; validation is apart."""
    for number, row, answer in ((1, 0, "a"), (2, 1, "a"), (3, None, "b"), (4, None, "c"), (5, None, "c")):
        run.tree(number).score(number, {"reward": None}, uid="g", row=row, response=answer * 16)
    run.tree(6).score(6, {"reward": None}, uid="g", row=0, response="a" * 16, validate=True)
    for reward, row, answer in ((12, 1, "a"), (11, 0, "a"), (13, None, "b"), (14, None, "c"), (15, None, "c")):
        run.score(None, {"reward": reward}, source="trainer", uid="g", row=row, response=answer * 16, writer=2)
    run.score(None, {"reward": 16}, source="trainer", uid="g", row=0, response="a" * 16, validate=True, writer=2)
    trees, reading = run.read()
    assert {n: t.reward for n, t in trees.items()} == {n: 10 + n for n in range(1, 7)}
    assert reading.unjoined_scores == 0


def test_without_a_uid_the_answer_is_enough(run: Run) -> None:
    """verl 0.5 tells its agent loops no uid; the trainer's record then names the group."""
    run.tree(1).score(1, {"reward": None}, response="a" * 16, group_size=1)
    run.score(None, {"reward": 3}, source="trainer", uid="g", response="a" * 16, writer=2)
    trees, _ = run.read()
    assert trees[1].reward == 3
    assert trees[1].group is not None


@pytest.mark.parametrize(
    ("rewards", "size", "whole"),
    [
        ([1, 2, 3, 3], 4, True),
        ([1, 2, 3], 4, False),
        ([1, None, 3, 3], 4, False),
        ([1, 2, 3, 3, 3], 4, True),
        ([1, 2, 3, 3], None, False),
        ([1, {"_type": "float", "value": "nan"}], 2, False),
        ([2.5], 1, True),
    ],
)
def test_a_group_has_figures_when_it_is_whole(run: Run, rewards: list[Any], size: int | None, whole: bool) -> None:
    """All of its rollouts have a finite reward; more than were announced (padding) are counted too."""
    for number, reward in enumerate(rewards, 1):
        run.tree(number).score(number, {"reward": reward}, uid="g", session=number, group_size=size)
    trees, _ = run.read()
    assert {t.group is not None for t in trees.values()} == {whole}
    if whole:
        groups = [t.group for t in trees.values() if t.group is not None]
        assert {(g.size, g.best) for g in groups} == {(len(rewards), max(rewards))}
        assert [g.rank for g in groups] == [1 + sum(other > mine for other in rewards) for mine in rewards]
        assert groups[0].mean == pytest.approx(sum(rewards) / len(rewards))


def test_groups_of_steps_and_of_validation_are_apart(run: Run) -> None:
    """A data set may give its prompts lasting names."""
    for number, (step, validate) in enumerate([(1, False), (2, False), (1, True)], 1):
        run.tree(number).score(number, {"reward": number}, uid="g", group_size=1, step=step, validate=validate)
    trees, _ = run.read()
    assert [t.group.best for t in trees.values() if t.group] == [1, 2, 3]


def test_a_score_without_calls_is_counted(run: Run) -> None:
    """Its trajectory's records are lost; it makes no trajectory of its own."""
    run.tree(1).score(7, {"reward": 1})
    trees, reading = run.read()
    assert list(trees) == [1]
    assert reading.unjoined_scores == 1


def test_the_same_record_twice_counts_once(run: Run) -> None:
    """As after a copy."""
    run.tree(1).score(1, {"reward": 1})
    run.written[1] += run.written[1][-1:]
    trees, reading = run.read()
    assert (trees[1].reward, reading.duplicates) == (1, 1)


def test_a_summary_has_the_rewards(run: Run, spans: Any) -> None:
    """Mean and range of those that are numbers; the others are counted as not known."""
    for number, reward in enumerate([1, 2, 6, None, {"_type": "float", "value": "nan"}], 1):
        run.tree(number).score(number, {"reward": reward})
    run.tree(6).read()
    found = summarise(spans.run())
    assert (found.rewarded, found.reward_mean, found.reward_min, found.reward_max) == (3, 3.0, 1.0, 6.0)
    assert found.unscored == 2


def test_clocks_that_disagree(spans: Any) -> None:
    """A child on a host whose clock is late comes behind its parent, is marked, and keeps its time and duration."""
    spans.raw(spans.header(), spans.start(100), spans.end(100), spans.close())
    spans.raw(
        spans.header(writer=2, host="node4"),
        spans.start(40, 100, trace=100),
        spans.start(41, 40, trace=100),
        spans.end(41, 40, trace=100),
        spans.end(40, 100, trace=100),
        spans.close(),
        writer=2,
    )
    (tree,), _ = spans.read()

    assert [call.op for call in tree.calls] == ["op100", "op40", "op41"]
    assert [call.clock_skew for call in tree.calls] == [0, 60.0, 0]
    assert [call.started_at for call in tree.calls] == [spans.time(n) for n in (100, 40, 41)]
    assert [call.duration for call in tree.calls] == [1.0, 1.0, 1.0]
    assert not any(call.orphan for call in tree.calls)


def test_filters_know_the_same_names(run: Run, spans: Any) -> None:
    """An expression asks for scores by the names that they have after an upload."""
    for number in range(1, 5):
        scores = {"reward": number / 4, "num_turns": number, "reward_extra_info": {"a.b": number % 2}}
        run.tree(number).score(number, scores, uid="g", group_size=4)
    trees, _ = run.read()
    chosen = Filters(where=Where("reward > 0.3 and reward_extra_a_b == 1 or group_rank == 1"))
    assert [n for n, tree in trees.items() if chosen.trajectory(tree)] == [3, 4]
