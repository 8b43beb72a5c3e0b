"""Scores as flat attributes: documented names, no dots, no collisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from verl_trace.reader import Group, Trajectory, find_runs, iter_trajectories
from verl_trace.reader.score_names import flat_scores
from verl_trace.uploader.payload import encode_trajectory


def attributes(scores: dict[str, Any], taken: set[str] | None = None, group: Group | None = None) -> dict[str, Any]:
    """Of a trajectory with these scores."""
    return flat_scores(Trajectory("t", scores=scores, group=group), taken or set())


def test_names() -> None:
    """As the table in the documentation has them."""
    scores = {
        "reward": 1.0,
        "num_turns": 4,
        "tool_rewards": [0.5],
        "turn_scores": [],
        "reward_extra_info": {"acc": True, "nested": {"a": {"b": 1}}},
        "quality": 0.25,
    }
    assert attributes(scores, group=Group(4, 0.5, 0.25, 1.0, 1)) == {
        "reward": 1.0,
        "num_turns": 4,
        "tool_rewards": [0.5],
        "turn_scores": [],
        "group_reward_mean": 0.5,
        "group_reward_std": 0.25,
        "group_reward_best": 1.0,
        "group_rank": 1,
        "group_size": 4,
        "reward_extra_acc": True,
        "reward_extra_nested_a_b": 1,
        "score_quality": 0.25,
    }


@pytest.mark.parametrize(
    ("scores", "taken", "expected"),
    [
        ({"reward": 1}, {"reward"}, {"reward_2": 1}),
        ({"reward_extra_info": {"a.b": 1, "a b": 2, "a_b": 3}}, set(), ["", "_2", "_3"]),
        ({"reward_extra_info": {"": 1, "a": {"b": 1}, "a_b": 2}}, set(), None),
    ],
)
def test_no_name_is_lost_or_split(scores: dict[str, Any], taken: set[str], expected: Any) -> None:
    """Dots and spaces become underscores; where two names meet, the later one is numbered."""
    found = attributes(scores, taken)
    assert not any("." in name or " " in name for name in found)
    if isinstance(expected, dict):
        assert found == expected
    elif expected is not None:
        assert list(found) == [f"reward_extra_a_b{suffix}" for suffix in expected]
        assert list(found.values()) == [1, 2, 3]
    else:
        assert len(found) == 3


@pytest.mark.parametrize("value", [None, "text", [1, {"a.b": 2}], {}, {"_type": "float", "value": "nan"}, 1 << 60])
def test_any_value_can_be_sent(value: Any) -> None:
    """Tagged numbers become text; everything is JSON."""
    found = attributes({"reward": value, "reward_extra_info": value})
    assert orjson.loads(orjson.dumps(found)) == found
    assert set(found) >= {"reward"}


def test_without_scores_there_are_none() -> None:
    """Nothing is added to a trajectory of which nothing was told."""
    assert attributes({}) == {}


def test_only_the_root_has_them_and_skew_is_marked(tmp_path: Path, writer: type[Any]) -> None:
    """Next to the recorded attributes; a call of a host whose clock is late keeps its time and says so."""
    here, there = writer(tmp_path, "me/proj"), writer(tmp_path, "me/proj", host="node4")
    for _ in range(3):
        here.tick()
    root = here.start("run", step=3)
    there.end(there.start("score", parent=root))
    here.end(root)
    score = {"step": 3, "source": "agent_loop", "status": "scored", "id": root["id"], "trace_id": root["trace_id"]}
    here.append(b'{"kind":"score","bytes":12,' + orjson.dumps(score)[1:-1] + b',"scores":{"reward":1}}')
    for one in (here, there):
        one.close()
    (run,) = find_runs(tmp_path)
    (trajectory,) = iter_trajectories(run)
    first, second = (orjson.loads(call.attributes) for call in encode_trajectory(trajectory, "p", str))

    assert (first["step"], first["reward"], "reward" in second) == (3, 1, False)
    assert "clock_skew" not in first["verl_trace"]
    assert second["verl_trace"]["clock_skew"] > 0
