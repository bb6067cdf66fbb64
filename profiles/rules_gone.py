"""Lint rules: arguments that no supported vLLM has, and those that came later than the target."""

from __future__ import annotations

from profiles.rules import (
    ERROR,
    Rule,
    argument,
)
from profiles.rules_shared import STOPS, removed

_VERIFIED = "verified in 0.32, 0.33"
_FULL_GRAPHS = "compilation_config: {cudagraph_mode: FULL}"
_LONG_GONE = (
    removed("gone-swap-space", ("swap_space",), None, "leave it out", _VERIFIED),
    removed(
        "gone-num-scheduler-steps",
        ("num_scheduler_steps", "multi_step_stream_outputs"),
        None,
        "leave it out; scheduling is asynchronous by itself",
        _VERIFIED,
    ),
    removed(
        "gone-guided-decoding",
        (
            "guided_decoding_backend",
            "guided_decoding_disable_fallback",
            "guided_decoding_disable_any_whitespace",
            "guided_decoding_disable_additional_properties",
        ),
        None,
        "structured_outputs_config: {backend: …}",
        _VERIFIED,
    ),
    removed(
        "gone-enable-reasoning",
        ("enable_reasoning",),
        None,
        "leave it out; reasoning_parser is enough",
        _VERIFIED,
    ),
    removed(
        "gone-max-seq-len-to-capture",
        ("max_seq_len_to_capture",),
        None,
        "compilation_config: {max_cudagraph_capture_size: …}",
        _VERIFIED,
    ),
    removed(
        "gone-cuda-graph-sizes",
        ("cuda_graph_sizes",),
        None,
        "compilation_config: {cudagraph_capture_sizes: […]}",
        _VERIFIED,
    ),
    removed(
        "gone-v2-block-manager",
        ("use_v2_block_manager",),
        None,
        "leave it out",
        _VERIFIED,
    ),
    removed(
        "gone-rope-scaling",
        ("rope_scaling", "rope_theta"),
        None,
        "hf_overrides: {rope_parameters: {…}}",
        _VERIFIED,
    ),
    removed(
        "gone-device",
        ("device",),
        None,
        "leave it out; the platform follows from the installed vLLM",
        _VERIFIED,
    ),
    removed(
        "gone-task",
        ("task",),
        None,
        "runner: pooling (and convert: embed, classify or reward)",
        "vllm/utils/argparse_utils.py",
    ),
    removed(
        "gone-speculative-arguments",
        (
            "speculative_model",
            "num_speculative_tokens",
            "speculative_draft_tensor_parallel_size",
            "speculative_max_model_len",
            "speculative_disable_by_batch_size",
            "speculative_disable_mqa_scorer",
            "speculative_model_quantization",
            "ngram_prompt_lookup_max",
            "ngram_prompt_lookup_min",
            "spec_decoding_acceptance_method",
            "typical_acceptance_sampler_posterior_threshold",
            "typical_acceptance_sampler_posterior_alpha",
        ),
        None,
        "speculative_config: {model: …, num_speculative_tokens: …}",
        _VERIFIED,
    ),
    removed(
        "gone-mm-preprocessor-cache",
        ("disable_mm_preprocessor_cache",),
        None,
        "mm_processor_cache_gb: 0",
        _VERIFIED,
    ),
    removed(
        "gone-mm-encoder-parallel",
        ("enable_multimodal_encoder_data_parallel",),
        None,
        "mm_encoder_tp_mode: data",
        _VERIFIED,
    ),
    removed("gone-pooler-config", ("override_pooler_config",), None, "pooler_config", _VERIFIED),
    removed(
        "gone-ray-switches",
        ("worker_use_ray", "engine_use_ray"),
        None,
        "distributed_executor_backend: ray",
        _VERIFIED,
    ),
    removed(
        "gone-eplb-arguments",
        (
            "num_redundant_experts",
            "eplb_window_size",
            "eplb_step_interval",
            "eplb_log_balancedness",
        ),
        None,
        "eplb_config: {num_redundant_experts: …, window_size: …, step_interval: …}",
        _VERIFIED,
    ),
    removed("gone-full-cuda-graph", ("full_cuda_graph",), None, _FULL_GRAPHS, _VERIFIED),
    removed(
        "gone-of-v0",
        (
            "disable_async_output_proc",
            "disable_frontend_multiprocessing",
            "enable_lora_bias",
            "enable_prompt_adapter",
            "long_lora_scaling_factors",
            "lora_extra_vocab_size",
            "max_prompt_adapter_token",
            "max_prompt_adapters",
            "num_lookahead_slots",
            "preemption_mode",
            "qlora_adapter_name_or_path",
            "scheduler_delay_factor",
            "tokenizer_pool_extra_config",
            "tokenizer_pool_size",
            "tokenizer_pool_type",
        ),
        None,
        "leave it out",
        _VERIFIED,
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
