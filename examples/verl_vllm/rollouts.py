"""verl's agent loops on a real vLLM, rollouts only, recorded:  python examples/verl_vllm/rollouts.py MODEL

MODEL is the folder of a model that vLLM can serve. Everything between the batch and the answers is verl's own: the
server manager and its vLLM server, the load balancer, the agent-loop manager with its Ray workers, the tool agent.
Nothing here knows the recorder: verl finds it by itself. Four questions go to verl's tool agent, one to an agent loop
of our own (agent.py). A model need not have learnt to call tools: a grammar makes it (grammar.py).

Runs on a CPU too; .ci/vllm-e2e shows what is installed for that. Then look at the files:  verl-trace ls
"""

import argparse
import json
import os
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROLLOUT = "actor_rollout_ref.rollout"
# The kind of agent that each question goes to.
AGENTS = ["tool_agent", "tool_agent", "tool_agent", "tool_agent", "checking_agent"]


def make_config(model: str, experiment: str, scratch: Path) -> Any:
    """verl's configuration, as its command line would make it."""
    import verl
    from hydra import compose, initialize_config_dir

    tools, agents = scratch / "tools.yaml", scratch / "agents.yaml"
    tools.write_text(json.dumps({"tools": [{"class_name": "tools.Calculator", "config": {"type": "native"}}]}))
    agents.write_text(json.dumps([{"name": "checking_agent", "_target_": "agent.CheckingAgent"}]))
    settings = {
        "actor_rollout_ref.model.path": model,
        "trainer.project_name": "examples",
        "trainer.experiment_name": experiment,
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.mode": "async",
        f"{ROLLOUT}.prompt_length": 1024,
        f"{ROLLOUT}.response_length": 1024,
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.load_format": "auto",
        f"{ROLLOUT}.nnodes": 1,
        f"{ROLLOUT}.n_gpus_per_node": 1,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ROLLOUT}.enforce_eager": True,
        f"{ROLLOUT}.max_num_seqs": 16,
        f"{ROLLOUT}.gpu_memory_utilization": 0.3,
        # weights stay where they are: nothing is trained here
        f"{ROLLOUT}.free_cache_engine": False,
        f"+{ROLLOUT}.enable_sleep_mode": False,
        f"{ROLLOUT}.disable_log_stats": False,
        f"{ROLLOUT}.agent.num_workers": 2,
        f"{ROLLOUT}.agent.agent_loop_config_path": agents,
        f"{ROLLOUT}.multi_turn.enable": True,
        f"{ROLLOUT}.multi_turn.format": "hermes",
        f"{ROLLOUT}.multi_turn.max_parallel_calls": 2,
        f"{ROLLOUT}.multi_turn.tool_config_path": tools,
        f"{ROLLOUT}.multi_turn.function_tool_path": HERE / "function_tools.py",
        f"{ROLLOUT}.trace.backend": "jsonl",
        f"{ROLLOUT}.trace.token2text": True,
    }
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer/config"), version_base=None):
        return compose("ppo_trainer", overrides=[f"{name}={value}" for name, value in settings.items()])


def questions(step: int, rollouts: int) -> Any:
    """One row for each kind of question, repeated for each rollout, as a data set would give them."""
    import numpy as np
    from verl import DataProto

    rows = []
    for number, agent in enumerate(AGENTS):
        prompt = [{"role": "user", "content": f"question {number}: what is {number + 2} times 7?"}]
        row = {"raw_prompt": prompt, "index": number, "agent_name": agent, "uid": f"group-{step}-{number}"}
        rows.append({**row, "tools_kwargs": {}})
    columns = {}
    for name in rows[0]:
        columns[name] = np.empty(len(rows), dtype=object)
        for position, row in enumerate(rows):
            columns[name][position] = row[name]
    batch = DataProto(batch=None, non_tensor_batch=columns, meta_info={"global_steps": step, "validate": False})
    return batch.repeat(rollouts, interleave=True)


def finished_requests(address: str) -> int:
    """How many requests vLLM itself says it has answered."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total")))


def main() -> None:
    """Start the servers, roll out all steps, and print what was done as one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--experiment", default="verl-vllm")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--rollouts", type=int, default=2, help="rollouts of each question")
    options = parser.parse_args()
    for name, value in {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}.items():
        os.environ.setdefault(name, value)

    import ray
    import torch
    from grammar import GrammarClient
    from verl.experimental.agent_loop import AgentLoopManager
    from verl.workers.rollout.llm_server import LLMServerManager

    # verl books a GPU for each server; on a machine without one, Ray is told of one that is nobody's
    ray.init(num_cpus=8, num_gpus=None if torch.cuda.is_available() else 1, include_dashboard=False)
    with tempfile.TemporaryDirectory() as scratch:
        config = make_config(options.model, options.experiment, Path(scratch))
        servers = LLMServerManager.create(config=config)
        client = servers.get_client(client_cls=GrammarClient, model=options.model)
        manager = AgentLoopManager.create(config=config, llm_client=client)
        trajectories = 0
        for step in range(1, options.steps + 1):
            trajectories += len(manager.generate_sequences(questions(step, options.rollouts)))
        requests = sum(finished_requests(address) for address in servers.get_addresses())
    print(json.dumps({"trajectories": trajectories, "requests": requests}))


if __name__ == "__main__":
    main()
