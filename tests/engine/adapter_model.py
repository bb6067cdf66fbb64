"""Makes tiny random LoRA adapters for a model, in PEFT's format. Runs under the runtime."""

from __future__ import annotations

import json
import sys
from pathlib import Path

RANK = 8


def main(model: Path, out: Path, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    widths = {"q_proj": heads * head, "v_proj": config["num_key_value_heads"] * head}
    torch.manual_seed(seed)
    tensors = {}
    for layer in range(layers):
        for name, width in widths.items():
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{key}.lora_A.weight"] = torch.randn(RANK, hidden)
            tensors[f"{key}.lora_B.weight"] = torch.randn(width, RANK)
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "adapter_model.safetensors")
    adapter = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(model),
        "r": RANK,
        "lora_alpha": 16,
        "target_modules": sorted(widths),
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (out / "adapter_config.json").write_text(json.dumps(adapter))


if __name__ == "__main__":
    for number, directory in enumerate(sys.argv[2:]):
        main(Path(sys.argv[1]), Path(directory), number)
