"""As `driver.py`, with verl's own reward workers and a reward function of a user; reports what verl's batch holds.

python reward_driver.py PLAN.json
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import driver
import rollout_parts as parts
from omegaconf import OmegaConf

REWARD_FUNCTION = Path(__file__).with_name("reward_function.py")


class TaskRunner:
    """Owns the managers; its report is the rows of verl's batches."""

    def run(self, config: Any) -> None:
        """Play all scenes, write the report, and end."""
        plan = json.loads(Path(os.environ[driver.PLAN]).read_text())
        if config.transfer_queue.enable:
            import transfer_queue

            transfer_queue.init(config.transfer_queue)
        helpers = driver.Helpers(plan)
        shared: dict[str, Any] = {}
        self.scenes = [RewardScene(plan, scene, helpers, shared) for scene in plan["scenes"]]
        # the scenes take turns, so that what slows the machine down meets all of them
        for step in range(1, plan["steps"] + 1):
            for scene in self.scenes:
                scene.play_step(step)
        for scene in self.scenes:
            scene.tracking = None
        Path(plan["report"]).write_text(json.dumps([scene.report for scene in self.scenes], default=repr))


class RewardScene(driver.Scene):
    """One manager whose rollouts are scored by two of verl's reward workers, or by the trainer afterwards."""

    def __init__(
        self, plan: dict[str, Any], scene: dict[str, Any], helpers: driver.Helpers, shared: dict[str, Any]
    ) -> None:
        from verl.experimental.reward_loop import RewardLoopManager
        from verl.workers.rollout.llm_server import LLMServerClient

        self.plan, self.scene, self.model = plan, scene, helpers.model
        self.config = driver.compose_config(plan, scene)
        OmegaConf.set_struct(self.config, False)
        self.config.reward.num_workers = 2
        self.config.reward.custom_reward_function.path = str(REWARD_FUNCTION)
        self.config.reward.custom_reward_function.name = "compute_score"
        colocated = scene.get("colocated", False)
        if colocated:
            self.config.reward.reward_manager.source = "importlib"
            self.config.reward.reward_manager.name = "JudgeManager"
            self.config.reward.reward_manager.module.path = str(REWARD_FUNCTION.with_name("reward_manager.py"))
        # verl gives its reward workers names that are the job's
        self.tracking = self._tracking() if "logger" in scene else None
        self.rewards = shared.get("rewards") or RewardLoopManager(self.config)
        shared["rewards"] = self.rewards
        self.report: dict[str, Any] = {"experiment": scene["experiment"], "rows": [], "raised": [], "seconds": []}
        self.manager = self._manager_class().create(
            config=self.config,
            llm_client=LLMServerClient(self.config, load_balancer_handle=helpers.balancer),
            reward_loop_worker_handles=None if colocated else self.rewards.reward_loop_workers,
        )

    def _tracking(self) -> Any:
        """As verl's trainers make it; they end it by letting go of it."""
        from verl.utils.tracking import Tracking

        return Tracking(
            project_name=self.config.trainer.project_name,
            experiment_name=self.config.trainer.experiment_name,
            default_backend=self.config.trainer.logger,
            config=OmegaConf.to_container(self.config, resolve=True),
        )

    def play_step(self, step: int) -> None:
        """One step: the rows that verl has in the end, or what was raised, and how long it took."""
        self._play_step(step)
        if self.tracking is not None:
            rewards = [row["reward"] for row in self.report["rows"] if row["step"] == step and not row["validate"]]
            metrics = {"training/global_step": step, "critic/rewards/mean": sum(rewards) / len(rewards)}
            self.tracking.log(data=metrics, step=step)

    def _play_step(self, step: int) -> None:
        for validate in (False, True) if self.scene.get("validate") else (False,):
            began = time.monotonic()
            roll = self._rows_tq if self.scene["worker"] == "tq" else self._rows_v0
            try:
                self.report["rows"] += roll(step, validate)
            except Exception as error:
                self.report["raised"].append(f"{type(error).__name__}: {str(error)[-300:]}")
                # the other rollouts go on in their workers
                time.sleep(3)
            self.report["seconds"].append(time.monotonic() - began)

    def _rows_v0(self, step: int, validate: bool) -> list[dict[str, Any]]:
        batch = parts.prompts(step, self.plan["samples"])
        batch.meta_info = {"global_steps": step, "validate": validate}
        batch = batch if validate else batch.repeat(self.plan["n"], interleave=True)
        indexes = list(batch.non_tensor_batch["index"])
        output = self.manager.generate_sequences(batch)
        if self.scene.get("colocated"):
            output.meta_info.update(global_steps=step, validate=validate)
            # the trainer balances its batch before it is scored
            order = list(reversed(range(len(output))))
            output = output.select_idxs(order)
            indexes = [indexes[i] for i in order]
            scored = self.rewards.compute_rm_score(output)
            output = output.union(scored)
        assert not any("verl_trace" in name for name in (*output.non_tensor_batch, *output.meta_info, *output.batch))
        return [self._row(step, validate, indexes, row, output) for row in range(len(output))]

    def _row(self, step: int, validate: bool, indexes: list[int], row: int, output: Any) -> dict[str, Any]:
        columns = output.non_tensor_batch
        mine = [i for i, index in enumerate(indexes) if index == indexes[row]]
        position = mine.index(row)
        return {
            "step": step,
            "validate": validate,
            "sample_index": indexes[row],
            # a reversed batch counts backwards
            "rollout_n": len(mine) - 1 - position if self.scene.get("colocated") else position,
            "reward": output.batch["rm_scores"][row].sum().item(),
            "num_turns": int(columns["__num_turns__"][row]),
            "acc": bool(columns["acc"][row]),
            "tool_rewards": columns["tool_rewards"][row],
            "turn_scores": columns["turn_scores"][row],
        }

    def _rows_tq(self, step: int, validate: bool) -> list[dict[str, Any]]:
        import transfer_queue

        partition = "val" if validate else "train"
        count = self._roll_tq(step, validate)
        names = parts.prompts(step, self.plan["samples"]).non_tensor_batch["uid"]
        uids = [f"{self.scene['experiment']}-{partition}-{name}" for name in names]
        table = transfer_queue.kv_list(partition).get(partition, {})
        keys = [key for key in table if key.rsplit("_", 2)[0] in uids and key not in uids]
        assert len(keys) == count
        if self.scene.get("colocated"):
            self._score_as_the_trainer(keys, partition)
        fields = ["rm_scores", "num_turns", "extra_fields"]
        data = transfer_queue.kv_batch_get(keys=keys, partition_id=partition, select_fields=fields)
        rewards = [row.sum().item() for row in data["rm_scores"].unbind()]
        turns, extras = (list(data[name]) for name in ("num_turns", "extra_fields"))
        return [
            {
                "step": step,
                "validate": validate,
                "sample_index": int(key.rsplit("_", 2)[0].rpartition("-")[2]),
                "rollout_n": int(key.rsplit("_", 2)[1]),
                "reward": reward,
                "num_turns": num_turns,
                "acc": (extra.get("reward_extra_info") or {"acc": None})["acc"],
                "tool_rewards": extra["tool_rewards"],
                "turn_scores": extra["turn_scores"],
            }
            for key, reward, num_turns, extra in zip(keys, rewards, turns, extras, strict=True)
        ]

    def _score_as_the_trainer(self, keys: list[str], partition: str) -> None:
        """verl's own method of the default trainer, on as much of a trainer as it needs."""
        from types import SimpleNamespace

        from transfer_queue import KVBatchMeta
        from verl.trainer.ppo.v1.trainer_base import PPOTrainer
        from verl.utils import hf_tokenizer

        batch = KVBatchMeta(keys=keys, tags=[{} for _ in keys], partition_id=partition, fields=None, extra_info={})
        trainer = SimpleNamespace(
            reward_loop_manager=self.rewards,
            tokenizer=hf_tokenizer(self.plan["model"]),
            _lengths_to_mask=PPOTrainer._lengths_to_mask,
        )
        PPOTrainer._compute_reward_colocate(trainer, batch)


if __name__ == "__main__":
    driver.TaskRunner = TaskRunner
    driver.main()
