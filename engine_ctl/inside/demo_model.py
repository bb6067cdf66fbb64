"""Write a small Llama-shaped model with random weights: `demo_model.py OUT`. No network.

Runs under a runtime's interpreter (transformers and tokenizers come with vLLM). About 3 million
parameters in float32 on disk (12 MB), a byte-level BPE tokenizer and a chat template, finished by
rename so that an interrupted write is never taken for a model. The seed is fixed: every machine
gets the same weights and so the same text.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

TRAINING_TEXT = """
An engine loads its weights, compiles its kernels and captures its graphs before it serves.
A daemon keeps the weights warm; the next engine maps them and starts in seconds.
The scheduler admits requests while the cache has room, and preempts when it has none.
Measure first, change one thing, measure again, and keep the configuration that worked.
Tokens per second, time to first token, inter-token latency: three numbers, one trade-off.
"""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(out: Path) -> int:
    """Train and save the tokenizer; returns the vocabulary size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>", "<|system|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TRAINING_TEXT] * 20, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(str(out))
    return 512


def make_weights(out: Path, vocabulary: int) -> int:
    """Write config and random weights; returns the number of parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(20)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(str(out))
    return sum(parameter.numel() for parameter in model.parameters())


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print("usage: demo_model.py OUT", file=sys.stderr)
        return 2
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
    out = Path(argv[1])
    if (out / "config.json").exists():
        print(f"{out} is there already")
        return 0
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        count = make_weights(work, make_tokenizer(work))
        work.chmod(0o755)
        work.rename(out)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    print(f"{out}: {count / 1e6:.1f} million parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
