"""Scores that the trainer computes: what each record can be joined by, and that the trainer sees nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from verl_trace.recorder import session as sessions
from verl_trace.schemas.lines import parse_line
from verl_trace.verl_plugin import trainer_scores


class Tensor:
    """As much of a tensor as is asked for."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.values[key.values if isinstance(key, Tensor) else key])

    def sum(self, axis: int) -> np.ndarray[Any, Any]:
        return np.asarray(self.values.sum(axis))

    def bool(self) -> Tensor:
        return Tensor(self.values.astype(bool))

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        return self.values


CONFIG = SimpleNamespace(
    actor_rollout_ref=SimpleNamespace(rollout={"trace": {"backend": "jsonl"}}),
    trainer={"project_name": "p", "experiment_name": "e"},
)


def data(**columns: Any) -> Any:
    """Two rows."""
    batch = {"input_ids": Tensor([[0, 1, 2], [5, 6, 7]]), "attention_mask": Tensor([[0, 1, 1], [1, 1, 1]])}
    return SimpleNamespace(batch=batch, non_tensor_batch=columns, meta_info={"global_steps": 3, "validate": True})


def result() -> Any:
    """What verl's reward loop gives for it."""
    odd = [print, 1]
    return SimpleNamespace(
        batch={"rm_scores": Tensor([[0.0, 0.5], [1.0, 0.0]])},
        non_tensor_batch={"acc": np.array([True, False]), "odd": odd},
        meta_info={"reward_extra_keys": ["acc", "odd"]},
    )


@pytest.fixture
def scores(verl: Any, tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Score records so far."""

    def read() -> list[dict[str, Any]]:
        lines = [parse_line(line) for p in (tmp_path / "e").glob("*.jsonl") for line in p.read_bytes().splitlines(True)]
        return [{**one.head, "payload": orjson.loads(one.payload)} for one in lines if one.kind == "score"]

    return read


@pytest.fixture(autouse=True)
def _stop() -> Any:
    yield
    sessions.stop()


def manager() -> Any:
    """A `RewardLoopManager`, watched."""

    class RewardLoopManager:
        config = CONFIG

        def compute_rm_score(self, data: Any) -> Any:
            return data.result if hasattr(data, "result") else result()

    module: Any = ModuleType("reward_loop")
    module.RewardLoopManager = RewardLoopManager
    trainer_scores.watch_reward_loop(module)
    return RewardLoopManager()


def test_v0_is_joined_by_row_and_answer(scores: Callable[[], list[dict[str, Any]]]) -> None:
    """uid, verl's number of the row where it has one, and a hash of the ids without padding."""
    manager().compute_rm_score(data(uid=["a", "b"], priority=np.array([7, 8])))
    manager().compute_rm_score(data(uid=["a", "b"]))
    first, second, third, _ = scores()

    assert [(s["uid"], s["row"], s["session"], s["trace_id"]) for s in (first, second)] == [
        ("a", 7, None, None),
        ("b", 8, None, None),
    ]
    assert third["row"] is None
    assert first["response"] == third["response"] != second["response"]
    assert (first["step"], first["validate"], first["source"], first["status"]) == (3, True, "trainer", "scored")
    assert first["payload"]["reward"] == 0.5
    assert first["payload"]["reward_extra_info"]["acc"] is True
    assert second["payload"] == {"reward": 1.0, "reward_extra_info": {"acc": False, "odd": 1}}
    assert first["recorded_at"] == second["recorded_at"]


def test_the_default_trainer_is_joined_by_session(scores: Callable[[], list[dict[str, Any]]]) -> None:
    """Of a rollout with several outputs the last one counts."""
    loop = manager()

    class PPOTrainer:
        def _compute_reward_colocate(self, batch: Any, metrics: Any = None) -> Any:
            loop.compute_rm_score(data())
            return batch

    module: Any = ModuleType("trainer_base")
    module.PPOTrainer = PPOTrainer
    trainer_scores.watch_default_trainer(module)
    batch = SimpleNamespace(keys=["u_1_2_0", "u_1_2_1"])
    assert PPOTrainer()._compute_reward_colocate(batch, metrics={}) is batch
    (score,) = scores()
    assert (score["uid"], score["session"], score["payload"]["reward"]) == ("u_1", 2, 1.0)


def test_reward_functions_of_older_versions(scores: Callable[[], list[dict[str, Any]]]) -> None:
    """The manager that `load_reward_manager` gives, once; not where the rollout has scored already."""

    class Naive:
        def __call__(self, data: Any, return_dict: bool = False) -> Any:
            tensor = Tensor([[0.0, 0.25], [2.0, 0.0]])
            return {"reward_tensor": tensor, "reward_extra_info": {"acc": [1, 2]}} if return_dict else tensor

    module: Any = ModuleType("reward")
    module.load_reward_manager = lambda config, tokenizer: Naive()
    trainer_scores.watch_reward_functions(module)
    reward = [module.load_reward_manager(CONFIG, None) for _ in range(2)][1]
    assert reward(data(), return_dict=True)["reward_extra_info"] == {"acc": [1, 2]}
    assert reward(data()).values.sum() == 2.25
    scored = data()
    scored.batch["rm_scores"] = Tensor([[1.0], [1.0]])
    reward(scored)

    assert [score["payload"]["reward"] for score in scores()] == [0.25, 2.0, 0.25, 2.0]
    assert scores()[0]["payload"]["reward_extra_info"] == {"acc": 1}


def test_trouble_of_ours_is_a_warning(
    scores: Callable[[], list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The trainer gets its result, whatever shape it has."""
    odd = SimpleNamespace(result="no DataProto", meta_info=None)
    assert manager().compute_rm_score(odd) == "no DataProto"
    assert scores() == []


def test_another_backend_records_nothing(
    scores: Callable[[], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The trainer of a run that is traced live, or not at all."""
    monkeypatch.setattr(CONFIG.actor_rollout_ref, "rollout", {"trace": {"backend": "mlflow"}})
    manager().compute_rm_score(data(uid=["a", "b"]))
    assert not (tmp_path / "e").exists()
