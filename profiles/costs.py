"""What changing an argument costs a running engine.

`reload` follows the fields of vLLM's WeightCacheKey (weight_cache/protocol.py): a daemon's weights
are refused by an engine whose key differs. What compiles anew is in `compile_key`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiles.rules import Version, as_map, version

LIVE = "live"
RESTART = "restart"
RELOAD = "reload"
NEW_RUNTIME = "new runtime"

# argument (or dotted key of one) -> (field of the key, first version that has the field)
FINGERPRINT: dict[str, tuple[str, Version]] = {
    "args.model": ("checkpoint", (0, 30)),
    "args.hf_overrides.architectures": ("model_arch", (0, 30)),
    "args.hf_overrides.quantization_config": ("quant_config_hash", (0, 30)),
    "args.hf_overrides.dtype": ("dtype", (0, 30)),
    "args.hf_overrides.torch_dtype": ("dtype", (0, 30)),
    "args.hf_overrides.rope_parameters": ("rope_parameters_hash", (0, 33)),
    "args.hf_overrides.rope_scaling": ("rope_parameters_hash", (0, 33)),
    "args.hf_overrides.rope_theta": ("rope_parameters_hash", (0, 33)),
    "args.hf_overrides.max_position_embeddings": ("rope_parameters_hash", (0, 33)),
    "args.hf_overrides.text_config": ("rope_parameters_hash", (0, 33)),
    "args.hf_config_path": ("model_arch, quant_config_hash", (0, 30)),
    "args.tensor_parallel_size": ("tp_size", (0, 30)),
    "args.pipeline_parallel_size": ("pp_size", (0, 32)),
    "args.data_parallel_size": ("dp_size", (0, 30)),
    "args.data_parallel_rank": ("dp_rank", (0, 30)),
    "args.data_parallel_start_rank": ("dp_rank of this node's engines", (0, 30)),
    "args.nnodes": ("tp_rank, pp_rank of this node's workers", (0, 30)),
    "args.node_rank": ("tp_rank, pp_rank of this node's workers", (0, 30)),
    # Each GPU has a daemon's rank of its own.
    "args.device_ids": ("the GPU", (0, 30)),
    # What a file says is not known here, so the dearest is said.
    "args.config": ("any", (0, 30)),
    "args.dtype": ("dtype", (0, 30)),
    "args.quantization": ("quantization", (0, 30)),
    "args.quantization_config": ("quant_config_hash", (0, 30)),
    "args.revision": ("revision", (0, 30)),
    "args.speculative_config.model": ("the draft group's checkpoint", (0, 30)),
    "args.speculative_config.method": ("the draft group", (0, 30)),
    "args.speculative_config.quantization": ("the draft group's quantization", (0, 30)),
    "args.speculative_config.revision": ("the draft group's revision", (0, 30)),
    "args.speculative_config.draft_tensor_parallel_size": ("the draft group's tp_size", (0, 30)),
    "args.speculative_config.moe_backend": ("the draft group's moe_backend", (0, 33)),
    "args.speculative_config.kv_cache_dtype": ("the draft group's kv_cache_dtype", (0, 33)),
    "args.spec_model": ("the draft group's checkpoint", (0, 30)),
    "args.spec_method": ("the draft group", (0, 30)),
    "args.kv_cache_dtype": ("kv_cache_dtype", (0, 33)),
    "args.kv_cache_dtype_skip_layers": ("kv_cache_dtype_skip_layers", (0, 33)),
    "args.enable_expert_parallel": ("enable_expert_parallel", (0, 33)),
    "args.expert_placement_strategy": ("expert_placement_strategy", (0, 33)),
    "args.moe_backend": ("moe_backend", (0, 33)),
    "args.linear_backend": ("linear_backend", (0, 33)),
    "args.kernel_config.moe_backend": ("moe_backend", (0, 33)),
    "args.kernel_config.linear_backend": ("linear_backend", (0, 33)),
    "args.kernel_config.linear_backend_per_quant": ("linear_backend_per_quant", (0, 33)),
}

# Variables that say which GPUs an engine has, and in which order.
GPU_ENVIRONMENT = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}
)


def reloads(key: str, name: str, vllm: str) -> bool:
    """Whether a change of this dotted key (of the argument `name`) changes the weights' key.

    A value that is not known by its keys (text, or a map as a whole) counts like its dearest."""
    entries = [FINGERPRINT[place] for place in _above(key) if place in FINGERPRINT]
    if f"args.{name}" in FINGERPRINT:
        entries = [FINGERPRINT[f"args.{name}"]]
    if not entries and key in (name, f"args.{name}"):
        entries = [entry for place, entry in FINGERPRINT.items() if place.startswith(f"{key}.")]
    try:
        return any(version(vllm) >= since for _, since in entries)
    except ValueError:
        return bool(entries)


def _above(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 1, -1)]


# Ways of speculation that draft from the tokens seen so far: no weights are loaded for them.
WEIGHTLESS = frozenset({"ngram", "[ngram]", "ngram_gpu", "suffix"})


def drafts_from_weights(args: Mapping[str, Any]) -> bool:
    """Whether arguments (by their canonical names) ask for speculation with a draft of weights:
    a model of its own, or heads of the target's checkpoint."""
    config = as_map(args.get("speculative_config"))
    given = {
        str(value)
        for value in (
            config.get("method"),
            config.get("model"),
            args.get("spec_method"),
            args.get("spec_model"),
        )
        if value not in (None, "")
    }
    return bool(given) and not given & WEIGHTLESS
