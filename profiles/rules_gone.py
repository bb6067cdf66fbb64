"""Lint rules: arguments that no supported vLLM has, and those that came later than the target."""

from __future__ import annotations

from profiles.rules import (
    ERROR,
    Rule,
    argument,
)
from profiles.rules_shared import STOPS, removed

_LONG_GONE = (
    removed("gone-swap-space", ("swap_space",), None, "leave it out", "verified in 0.32, 0.33"),
    removed(
        "gone-num-scheduler-steps",
        ("num_scheduler_steps", "multi_step_stream_outputs"),
        None,
        "leave it out; scheduling is asynchronous by itself",
        "verified in 0.32, 0.33",
    ),
    removed(
        "gone-guided-decoding",
        ("guided_decoding_backend",),
        None,
        "structured_outputs_config: {backend: …}",
        "verified in 0.32, 0.33",
    ),
    removed(
        "gone-enable-reasoning",
        ("enable_reasoning",),
        None,
        "leave it out; reasoning_parser is enough",
        "verified in 0.32, 0.33",
    ),
    removed(
        "gone-max-seq-len-to-capture",
        ("max_seq_len_to_capture",),
        None,
        "compilation_config: {max_cudagraph_capture_size: …}",
        "verified in 0.32, 0.33",
    ),
    removed(
        "gone-cuda-graph-sizes",
        ("cuda_graph_sizes",),
        None,
        "compilation_config: {cudagraph_capture_sizes: […]}",
        "verified in 0.32, 0.33",
    ),
    removed(
        "gone-v2-block-manager",
        ("use_v2_block_manager",),
        None,
        "leave it out",
        "verified in 0.32, 0.33",
    ),
    removed(
        "gone-rope-scaling",
        ("rope_scaling", "rope_theta"),
        None,
        "hf_overrides: {rope_parameters: {…}}",
        "verified in 0.32, 0.33",
    ),
    removed(
        "gone-device",
        ("device",),
        None,
        "leave it out; the platform follows from the installed vLLM",
        "verified in 0.32, 0.33",
    ),
    removed(
        "gone-task",
        ("task",),
        None,
        "runner: pooling (and convert: embed, classify or reward)",
        "vllm/utils/argparse_utils.py",
    ),
)

NEW = {
    "0.25": (
        "jit_monitor_mode",
        "model_class_overrides",
        "mm_ipc_gpu_memory_gb",
        "enable_per_request_metrics",
    ),
    "0.26": ("prefix_match_unit",),
    "0.27": ("mm_hasher_algorithm",),
    "0.29": ("max_num_queued_reqs", "max_num_queued_tokens", "prefix_cache_retention_interval"),
    "0.30": (
        "enable_scale_out",
        "watermark_config",
        "elastic_ep_max_dp_size",
        "enable_mamba_fine_grained_prefix_cache",
    ),
    "0.31": (
        "trust_request_mm_kwargs",
        "enable_mamba_shared_prefix_checkpoint",
        "engram_config",
        "logging_config",
        "log_level",
        "tool_strict_level",
        "max_num_active_seqs",
        "swa_bounded_replay",
    ),
    "0.32": ("grpc_port",),
    "0.33": ("sleep_mode_backend", "watchdog_config", "monokernel", "reasoning_effort_map"),
}

_COMPARISON = "comparison of the releases' parsers"
_NOT_YET = tuple(
    Rule(
        id=f"new-in-{release}",
        severity=ERROR,
        before=release,
        when=argument(*names),
        what=f"the argument is new in {release}",
        effect=STOPS,
        instead=f"leave it out, or run vLLM {release} or later",
        source=_COMPARISON,
    )
    for release, names in NEW.items()
)

RULES = (*_LONG_GONE, *_NOT_YET)
