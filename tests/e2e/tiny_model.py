"""A model of a few kilobytes: a tokenizer of bytes, a chat template, and weights where an engine must load some."""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config

END_OF_TURN = "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_model_folder(folder: Path, *, weights: bool = False) -> None:
    """Tokenizer and configuration, all that verl's agent loops read; with `weights`, random ones from a fixed seed."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", END_OF_TURN]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=special)
    tokenizer.train_from_iterator(["the answer is a number"], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TURN, pad_token="<|endoftext|>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2 if weights else 1,
        num_key_value_heads=2 if weights else 1,
        max_position_embeddings=4096,
        eos_token_id=fast.convert_tokens_to_ids(END_OF_TURN),
        bos_token_id=None,
        architectures=["Qwen2ForCausalLM"],
    )
    config.save_pretrained(folder)
    if weights:
        import torch
        from transformers import Qwen2ForCausalLM

        torch.manual_seed(0)
        Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    make_model_folder(Path(sys.argv[1]), weights="--weights" in sys.argv[2:])
