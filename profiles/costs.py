"""What changing an argument costs a running engine.

`reload` follows the fields of vLLM's WeightCacheKey (weight_cache/protocol.py): a daemon's weights
are refused by an engine whose key differs. `compiles` follows the factors that vLLM hashes into
the key of its torch.compile cache (compute_hash of each configuration)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiles.rules import Version, as_map, version
from profiles.schema import Argument

LIVE = "live"
RESTART = "restart"
RELOAD = "reload"
NEW_RUNTIME = "new runtime"

# argument (or dotted key of one) -> (field of the key, first version that has the field)
FINGERPRINT: dict[str, tuple[str, Version]] = {
    "args.model": ("checkpoint", (0, 30)),
    "args.hf_overrides": ("model_arch, quant_config_hash, rope_parameters_hash", (0, 30)),
    "args.hf_config_path": ("model_arch, quant_config_hash", (0, 30)),
    "args.tensor_parallel_size": ("tp_size", (0, 30)),
    "args.pipeline_parallel_size": ("pp_size", (0, 32)),
    "args.data_parallel_size": ("dp_size", (0, 30)),
    "args.data_parallel_rank": ("dp_rank", (0, 30)),
    "args.dtype": ("dtype", (0, 30)),
    "args.quantization": ("quantization", (0, 30)),
    "args.quantization_config": ("quant_config_hash", (0, 30)),
    "args.revision": ("revision", (0, 30)),
    "args.speculative_config.model": ("the draft group's checkpoint", (0, 30)),
    "args.speculative_config.method": ("the draft group", (0, 30)),
    "args.speculative_config.quantization": ("the draft group's quantization", (0, 30)),
    "args.speculative_config.revision": ("the draft group's revision", (0, 30)),
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

# Groups of vLLM's configuration whose fields are all hashed, but for these.
COMPILED_GROUPS: dict[str, frozenset[str]] = {
    "ModelConfig": frozenset(
        {
            "convert",
            "tokenizer",
            "tokenizer_mode",
            "seed",
            "hf_config_path",
            "allowed_local_media_path",
            "allowed_media_domains",
            "tokenizer_revision",
            "enforce_eager",
            "return_sampling_mask",
            "logprobs_mode",
            "use_fp64_gumbel",
            "enable_trace_replay",
            "disable_cascade_attn",
            "skip_tokenizer_init",
            "served_model_name",
            "config_format",
            "hf_token",
            "logits_processors",
            "io_processor_plugin",
            "pooler_config",
        }
    ),
    "CacheConfig": frozenset(
        {
            "gpu_memory_utilization",
            "kv_cache_memory_bytes",
            "num_gpu_blocks_override",
            "enable_prefix_caching",
            "prefix_caching_hash_algo",
            "prefix_cache_retention_interval",
            "prefix_match_unit",
            "enable_mamba_shared_prefix_checkpoint",
            "kv_sharing_fast_prefill",
            "swa_bounded_replay",
        }
    ),
    "ParallelConfig": frozenset(
        {
            "data_parallel_rank",
            "data_parallel_start_rank",
            "data_parallel_size_local",
            "data_parallel_backend",
            "data_parallel_external_lb",
            "data_parallel_hybrid_lb",
            "data_parallel_address",
            "data_parallel_rpc_port",
            "master_addr",
            "master_port",
            "node_rank",
            "nnodes",
            "max_parallel_loading_workers",
            "disable_custom_all_reduce",
            "enable_shm_tensor_arena",
            "ray_workers_use_nsight",
            "distributed_executor_backend",
            "worker_cls",
            "worker_extension_cls",
            "numa_bind",
            "numa_bind_nodes",
            "numa_bind_cpus",
        }
    ),
    "LoRAConfig": frozenset({"max_cpu_loras", "default_mm_loras"}),
    "OffloadConfig": frozenset(),
    "AttentionConfig": frozenset(),
    "KernelConfig": frozenset({"enable_flashinfer_autotune"}),
    "CompilationConfig": frozenset(),
}
COMPILED = frozenset(
    {
        "max_num_batched_tokens",
        "max_num_seqs",
        "limit_mm_per_prompt",
        "language_model_only",
        "enable_mm_embeds",
        "compilation_config",
        "optimization_level",
        "speculative_config",
        "spec_method",
        "spec_model",
        "spec_tokens",
        "attention_config",
        "attention_backend",
        "kernel_config",
        "kv_transfer_config",
        "ec_transfer_config",
        "additional_config",
        "aux_output_config",
    }
)


def reloads(key: str, name: str, vllm: str) -> bool:
    """Whether a change of this dotted key (of the argument `name`) changes the weights' key."""
    entry = FINGERPRINT.get(f"args.{name}") or FINGERPRINT.get(key)
    try:
        return entry is not None and version(vllm) >= entry[1]
    except ValueError:
        return entry is not None


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


def compiles(name: str, argument: Argument | None) -> bool:
    """Whether a change of this argument changes the key of the torch.compile cache."""
    if name in COMPILED:
        return True
    if argument is None or argument.group not in COMPILED_GROUPS:
        return False
    return name not in COMPILED_GROUPS[argument.group]
