"""verl's client with a grammar: whatever model answers, it writes a tool call where this example wants one."""

from functools import cached_property
from typing import Any

from verl.workers.rollout.llm_server import LLMServerClient

CALLS = {
    "multiply": r'\{"name": "calculator", "arguments": \{"expression": "[1-9][0-9]?\*[1-9]"\}\}',
    "divide by zero": r'\{"name": "calculator", "arguments": \{"expression": "[1-9][0-9]?/0"\}\}',
    "shout": r'\{"name": "shout", "arguments": \{"text": "[a-z]{3,8}"\}\}',
    "unknown": r'\{"name": "no_such_tool", "arguments": \{"x": [0-9]\}\}',
}
# What the first turn calls, by the number of the question; verl runs two calls at once.
SCRIPT = [["multiply"], ["divide by zero"], ["shout"], ["multiply", "unknown"]]


class GrammarClient(LLMServerClient):
    """Adds the grammar to the sampling parameters of a tool agent's first turn; later turns are free, and short."""

    def __init__(self, *args: Any, model: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model = model

    @cached_property
    def _words(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.model)

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any
    ) -> Any:
        """As verl's own, which it calls and which is what is recorded."""
        text = self._words.decode(prompt_ids)
        question = int(text.partition("question ")[2].partition(":")[0])
        if question < len(SCRIPT) and "<tool_response>" not in text and "<|im_start|>tool" not in text:
            from vllm.sampling_params import StructuredOutputsParams

            calls = "".join(rf"<tool_call>\n{CALLS[name]}\n</tool_call>" for name in SCRIPT[question])
            more = {"structured_outputs": StructuredOutputsParams(regex=calls), "max_tokens": 400}
        else:
            more = {"max_tokens": 12}
        return await super().generate(
            request_id, prompt_ids=prompt_ids, sampling_params={**sampling_params, **more}, **kwargs
        )
