"""A reward manager of a user that needs nothing but the answer, as a reward model does that shares the GPUs."""

from __future__ import annotations

import random
from typing import Any

from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase


class JudgeManager(RewardManagerBase):
    """Another reward each time, so that only the right record can match it."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **_: Any) -> None:
        super().__init__(config, tokenizer, compute_score)

    async def run_single(self, data: Any) -> dict[str, Any]:
        score = round(random.random(), 6)
        return {"reward_score": score, "reward_extra_info": {"acc": score > 0.5, "format.ok": 1, "odd": random.seed}}
