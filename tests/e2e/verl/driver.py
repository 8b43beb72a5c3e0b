"""A training without training: verl's own `run_ppo` around verl's own agent loops, rollouts only.

    python driver.py PLAN.json

The plan lists scenes (one agent-loop manager each); the report, written by the task runner as its last act, says what
really happened. Nothing here knows the recorder: what is recorded is the plugin's doing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import probes
import ray
import rollout_parts as parts
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

PLAN = "VERL_E2E_PLAN"
ROLLOUT = "actor_rollout_ref.rollout"


def compose_config(plan: dict[str, Any], scene: dict[str, Any]) -> Any:
    """verl's configuration for one scene, as its command line would make it."""
    here = Path(__file__).resolve().parent
    settings = {
        "actor_rollout_ref.model.path": plan["model"],
        "trainer.project_name": scene.get("project", plan["project"]),
        "trainer.experiment_name": scene["experiment"],
        "trainer.device": "cpu",
        f"{ROLLOUT}.name": plan.get("engine", "vllm"),
        f"{ROLLOUT}.mode": "async",
        f"{ROLLOUT}.n": plan["n"],
        f"{ROLLOUT}.prompt_length": 512,
        f"{ROLLOUT}.response_length": 1024,
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.agent.num_workers": plan["workers"],
        f"{ROLLOUT}.multi_turn.enable": True,
        f"{ROLLOUT}.multi_turn.format": "hermes",
        f"{ROLLOUT}.multi_turn.max_assistant_turns": 6,
        f"{ROLLOUT}.multi_turn.max_parallel_calls": 2,
        f"{ROLLOUT}.multi_turn.tool_config_path": plan["tools_file"],
        f"{ROLLOUT}.multi_turn.function_tool_path": here / "function_tools.py",
        # of use where the plan names an engine, which verl then starts by itself
        f"{ROLLOUT}.load_format": "auto",
        f"{ROLLOUT}.free_cache_engine": False,
        f"{ROLLOUT}.nnodes": 1,
        f"{ROLLOUT}.n_gpus_per_node": 1,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ROLLOUT}.trace.backend": scene["backend"],
        f"{ROLLOUT}.trace.token2text": True,
        f"{ROLLOUT}.trace.max_samples_per_step_per_worker": scene.get("limit"),
    }
    if "logger" in scene:
        settings["trainer.logger"] = f"[{','.join(scene['logger'])}]"
    overrides = [f"{name}={'null' if value is None else value}" for name, value in settings.items()]
    overrides += [f"+ray_kwargs.ray_init.address='{plan['address']}'"]
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer/config"), version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    if any(other["worker"] == "tq" for other in plan["scenes"]):
        config.transfer_queue.enable = True
        config.transfer_queue.backend.SimpleStorage.num_data_storage_units = 1
    return config


class TaskRunner:
    """As verl's own: an actor that owns the managers, and with them the workers."""

    def run(self, config: Any) -> None:
        """Play all scenes, write the report, and end as the plan says."""
        plan = json.loads(Path(os.environ[PLAN]).read_text())
        if config.transfer_queue.enable:
            import transfer_queue

            transfer_queue.init(config.transfer_queue)
        helpers = Helpers(plan)
        self.scenes = [Scene(plan, scene, helpers) for scene in plan["scenes"]]
        report = [scene.play() for scene in self.scenes]
        if plan["end"] == "flush":
            for scene in self.scenes:
                scene.ask(probes.flush)
        Path(plan["report"]).write_text(json.dumps(report))
        if plan["end"] == "kill":
            for scene in self.scenes:
                for worker in scene.manager.agent_loop_workers:
                    ray.kill(worker)


class Helpers:
    """The actors beside the workers, shared by all managers: the language model, verl's load balancer, the reward."""

    def __init__(self, plan: dict[str, Any]) -> None:
        from verl.workers.rollout.llm_server import LLMServerManager
        from verl.workers.rollout.router import GlobalRequestLoadBalancer

        self.plan = plan
        self.reward = ray.remote(parts.Reward).options(num_cpus=0).remote()
        if "engine" in plan:
            self.servers = LLMServerManager.create(config=compose_config(plan, plan["scenes"][0]))
            self.balancer = self.servers.global_load_balancer
        else:
            self.model = ray.remote(parts.ScriptedModel).options(num_cpus=0, max_concurrency=64).remote(plan["model"])
            self.balancer = ray.remote(GlobalRequestLoadBalancer).options(num_cpus=0).remote(servers={"s0": self.model})

    def model_calls(self) -> int:
        """How many requests the model has had so far; an engine's stand-in notes each as a line."""
        if "engine" not in self.plan:
            return int(ray.get(self.model.count.remote()))
        path = Path(self.plan["requests_file"])
        return len(path.read_text().splitlines()) if path.exists() else 0


class Scene:
    """One manager with its workers, and what they are given to do."""

    def __init__(self, plan: dict[str, Any], scene: dict[str, Any], helpers: Helpers) -> None:
        from verl.workers.rollout.llm_server import LLMServerClient

        self.plan, self.scene, self.helpers = plan, scene, helpers
        self.config = compose_config(plan, scene)
        before = OmegaConf.to_yaml(self.config)
        self.manager = self._manager_class().create(
            config=self.config,
            llm_client=LLMServerClient(self.config, load_balancer_handle=helpers.balancer),
            reward_loop_worker_handles=[helpers.reward],
        )
        self.config_unchanged = OmegaConf.to_yaml(self.config) == before

    def _manager_class(self) -> Any:
        if self.scene["worker"] == "tq":
            from verl.trainer.ppo.v1 import AgentLoopManagerTQ

            return AgentLoopManagerTQ
        from verl.experimental.agent_loop import AgentLoopManager

        return AgentLoopManager

    def ask(self, question: Any) -> list[Any]:
        """The answers of all workers."""
        return ray.get([worker.__ray_call__.remote(question) for worker in self.manager.agent_loop_workers])

    def play(self) -> dict[str, Any]:
        """Roll out all steps and report what was really done."""
        self.ask(probes.watch_sockets)
        began = time.monotonic()
        tools, model_calls = tool_calls(self.plan), self.helpers.model_calls()
        trajectories = 0
        for step in range(1, self.plan["steps"] + 1):
            for validate in (False, True) if self.scene.get("validate") else (False,):
                roll = self._roll_tq if self.scene["worker"] == "tq" else self._roll_v0
                trajectories += roll(step, validate)
        return {
            "experiment": self.scene["experiment"],
            "trajectories": trajectories,
            "model_calls": self.helpers.model_calls() - model_calls,
            "tool_calls": tool_calls(self.plan) - tools,
            "loaded": self.ask(probes.loaded),
            "sockets": self.ask(probes.sockets),
            "trace_config": self.ask(probes.trace_config),
            "config_unchanged": self.config_unchanged,
            "seconds": round(time.monotonic() - began, 2),
        }

    def _roll_v0(self, step: int, validate: bool) -> int:
        batch = parts.prompts(step, self.plan["samples"])
        batch.meta_info = {"global_steps": step, "validate": validate}
        output = self.manager.generate_sequences(batch if validate else batch.repeat(self.plan["n"], interleave=True))
        assert set(output.batch["rm_scores"].sum(-1).tolist()) == {1.0}
        return len(output)

    def _roll_tq(self, step: int, validate: bool) -> int:
        import transfer_queue
        from verl.utils import tensordict_utils

        partition = "val" if validate else "train"
        rows = {
            name: list(column) for name, column in parts.prompts(step, self.plan["samples"]).non_tensor_batch.items()
        }
        # the scene's name keeps the keys of two managers apart, since the queue is the job's
        rows["uid"] = [f"{self.scene['experiment']}-{partition}-{uid}" for uid in rows["uid"]]
        batch = tensordict_utils.get_tensordict(rows)
        tensordict_utils.assign_non_tensor_data(batch, "global_steps", step)
        if validate:
            tensordict_utils.assign_non_tensor_data(batch, "validate", True)
        tags = [{"is_prompt": True, "status": "pending", "global_steps": step}] * len(rows["uid"])
        transfer_queue.kv_batch_put(keys=rows["uid"], partition_id=partition, tags=tags)
        self.manager.generate_sequences(batch)
        return self._finished_tq(partition, rows["uid"])

    def _finished_tq(self, partition: str, uids: list[str]) -> int:
        """Wait until all prompts are finished; how many trajectories they made."""
        import transfer_queue

        deadline = time.monotonic() + 120
        while True:
            table = transfer_queue.kv_list(partition).get(partition, {})
            states = {(table.get(uid) or {}).get("status") for uid in uids}
            if states == {"finished"}:
                return sum(key.rsplit("_", 2)[0] in uids and key not in uids for key in table)
            assert "failure" not in states, f"a rollout failed: {states}"
            assert time.monotonic() < deadline, f"rollouts did not finish: {states}"
            time.sleep(0.02)


def tool_calls(plan: dict[str, Any]) -> int:
    """How often the calculator was really called so far."""
    path = Path(plan["calls_file"])
    return path.stat().st_size if path.exists() else 0


def main() -> None:
    """Run the plan through `run_ppo`, or with a `ray.init` of our own where the plan says so."""
    os.environ[PLAN] = str(Path(sys.argv[1]).resolve())
    plan = json.loads(Path(os.environ[PLAN]).read_text())
    config = compose_config(plan, plan["scenes"][0])
    if plan["start"] == "run_ppo":
        from verl.trainer.main_ppo import run_ppo

        OmegaConf.set_struct(config, False)
        variables = {**plan.get("variables", {}), PLAN: os.environ[PLAN]}
        OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.env_vars", variables, force_add=True)
        run_ppo(config, ray.remote(num_cpus=1)(TaskRunner))
    else:
        ray.init(address=plan["address"])
        TaskRunner().run(config)


if __name__ == "__main__":
    main()
