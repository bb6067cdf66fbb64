"""Every lint rule has a profile on which it fires and one on which it does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from profiles.lint import OLDEST, lint
from profiles.model import EnvRef, Preload, Profile
from profiles.rules import ERROR, FAIL, NOTE, Facts, table

HOPPER = Facts(platform="cuda", gpu_count=2, capability=(9, 0), gpu_total=80 << 30)
TURING = Facts(platform="cuda", capability=(7, 5))


@dataclass
class Case:
    """A profile's fields, and how it is linted."""

    args: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)
    to: str | None = "0.33"
    now: str | None = None
    facts: Facts | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    def rules(self) -> dict[str, str]:
        base = {"name": "x", "model": "org/m", "args": self.args, "env": self.env}
        profile = Profile(**(base | self.fields))
        found = lint(profile, self.to, facts=self.facts, current=self.now)
        return {finding.rule: finding.key for finding in found}


def arg(name: str, value: Any = "x", **how: Any) -> Case:
    return Case(args={name: value}, **how)


def env(name: str, value: str = "1", **how: Any) -> Case:
    return Case(env={name: value}, **how)


def own(**fields: Any) -> Case:
    return Case(fields=fields)


def preload(to: str = "0.33", now: str | None = None, **section: Any) -> Case:
    return Case(to=to, now=now, fields={"preload": Preload(**section)})


def upgrade(since: str, case: Case) -> tuple[Case, Case]:
    """A change of a default: told on the way up to `since`, not to one that is there."""
    before = f"0.{int(since.split('.')[1]) - 1}"
    first = Case(case.args, case.env, since, before, case.facts, case.fields)
    return first, Case(case.args, case.env, since, since, case.facts, case.fields)


IPC = {"load_format": "ipc_cache"}
NIXL = {"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}}
MOVING = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
MM = {"limit_mm_per_prompt": {"image": 1}}
PP = {"pipeline_parallel_size": 2}
HISPARSE = {"kv_transfer_config": {"kv_connector": "HiSparseConnector"}}

# rule -> (fires, does not fire)
CASES: dict[str, tuple[Case, Case]] = {
    "argument-misspelt": (arg("max_modle_len", 8), arg("max_model_len", 8)),
    "argument-unknown": (arg("zzqq_plugin"), arg("seed", 1)),
    "daemon-argument": (
        preload(args={"enable_auto_tool_choice": True}),
        preload(args={"dtype": "auto"}),
    ),
    "argument-choice": (arg("dtype", "bf16"), arg("moe_backend", "Flashinfer-Trtllm")),
    "argument-type": (arg("max_num_seqs", "1e3"), arg("max_model_len", "1.5k")),
    "dotted-and-map": (
        Case(args={"compilation_config": {"mode": 3}, "compilation_config.x": 1}),
        Case(args={"compilation_config.mode": 3, "compilation_config.x": 1}),
    ),
    "gone-swap-space": (arg("swap_space", 4, to=None), arg("cpu_offload_gb", 4, to=None)),
    "gone-num-scheduler-steps": (arg("num_scheduler_steps", 8), arg("stream_interval", 8)),
    "gone-guided-decoding": (
        arg("guided_decoding_backend"),
        arg("structured_outputs_config", {"backend": "auto"}),
    ),
    "gone-enable-reasoning": (arg("enable_reasoning", True), arg("reasoning_parser", "qwen3")),
    "gone-max-seq-len-to-capture": (
        arg("max_seq_len_to_capture", 1),
        arg("max_cudagraph_capture_size", 8),
    ),
    "gone-cuda-graph-sizes": (arg("cuda_graph_sizes", [1]), arg("cudagraph_capture_sizes", [1])),
    "gone-v2-block-manager": (arg("use_v2_block_manager", True), arg("block_size", 16)),
    "gone-rope-scaling": (arg("rope_scaling", {}), arg("hf_overrides", {"rope_parameters": {}})),
    "gone-device": (arg("device", "cuda"), arg("device_ids", [0])),
    "gone-task": (arg("task", "embed"), arg("runner", "pooling")),
    "new-in-0.25": (arg("jit_monitor_mode", "warn", to="0.24"), arg("jit_monitor_mode", "warn")),
    "new-in-0.26": (arg("prefix_match_unit", 1, to="0.25"), arg("prefix_match_unit", 1)),
    "new-in-0.27": (arg("mm_hasher_algorithm", "sha256", to="0.26"), arg("seed", 1, to="0.26")),
    "new-in-0.29": (arg("max_num_queued_reqs", 1, to="0.28"), arg("max_num_queued_reqs", 1)),
    "new-in-0.30": (arg("enable_scale_out", True, to="0.29"), arg("enable_scale_out", True)),
    "new-in-0.31": (arg("log_level", "INFO", to="0.30"), arg("log_level", "INFO", to="0.31")),
    "new-in-0.32": (arg("grpc_port", 1, to="0.31"), arg("grpc_port", 1, to="0.32")),
    "new-in-0.33": (arg("monokernel", True, to="0.32"), arg("monokernel", True)),
    "gguf-left-core": (arg("quantization", "gguf"), arg("quantization", "awq")),
    "pass-config-0.24": (
        arg("compilation_config", {"pass_config": {"fuse_minimax_qk_norm": True}}),
        arg("compilation_config", {"pass_config": {"fuse_allreduce_rms": True}}),
    ),
    "strict-tool-calling-default": (
        arg("tool_call_parser", "hermes", to="0.24"),
        Case(
            args={"tool_call_parser": "hermes"},
            env={"VLLM_ENFORCE_STRICT_TOOL_CALLING": "0"},
            to="0.24",
        ),
    ),
    "port-not-shared": upgrade("0.25", Case()),
    "max-logprobs-range": (arg("max_logprobs", -2), arg("max_logprobs", -1)),
    "hash-block-size": (arg("hash_block_size", 16), arg("hash_block_size", 16, to="0.25")),
    "completion-prompts-limit": upgrade("0.26", Case()),
    "partial-prefills": (
        arg("max_num_partial_prefills", 2),
        arg("max_num_partial_prefills", 2, to="0.26"),
    ),
    "moe-skip-padding-default": upgrade("0.27", arg("enable_expert_parallel", True)),
    "jit-warmup-default": (
        Case(to="0.27", now="0.26"),
        arg("enforce_eager", True, to="0.27", now="0.26"),
    ),
    "kv-scales": (
        arg("calculate_kv_scales", True),
        arg("calculate_kv_scales", True, to="0.27"),
    ),
    "bitsandbytes-left-core": (
        arg("load_format", "bitsandbytes"),
        arg("load_format", "bitsandbytes", to="0.27"),
    ),
    "indexer-kv-dtype-default": (
        Case(fields={"model": "deepseek-ai/DeepSeek-V3.2"}, to="0.28", now="0.27"),
        Case(fields={"model": "deepseek-ai/DeepSeek-V3.1"}, to="0.28", now="0.27"),
    ),
    "request-word-limits": upgrade("0.28", Case()),
    "flashinfer-allreduce-default": (
        arg("tensor_parallel_size", 2, to="0.29", now="0.28"),
        arg("tensor_parallel_size", 1, to="0.29", now="0.28"),
    ),
    "attention-config-0.29": (
        arg("attention_config", {"use_prefill_decode_attention": True}),
        arg("attention_config.backend", "FLASH_ATTN"),
    ),
    "dcp-comm-default": (
        arg("decode_context_parallel_size", 2, to="0.29"),
        Case(args={"decode_context_parallel_size": 2, "dcp_comm_backend": "a2a"}, to="0.29"),
    ),
    "media-download-limit": (Case(MM, to="0.29"), Case(to="0.29")),
    "bf16x3-router-gemm": (
        arg("enable_bf16x3_router_gemm", True),
        arg("enable_bf16x3_router_gemm", True, to="0.29"),
    ),
    "attention-config-0.30": (
        arg("attention_config.use_fp4_indexer_cache", True),
        arg("attention_config.use_fp4_indexer_cache", True, to="0.29"),
    ),
    "gptq-act-order": (arg("quantization", "gptq"), arg("quantization", "awq")),
    "ipc-cache-not-yet": (Case(IPC, to="0.29"), Case(IPC, to="0.30")),
    "preload-command-not-yet": (preload(to="0.30"), preload(to="0.31")),
    "scale-out-default": (
        Case(to="0.30", now="0.29"),
        arg("enable_scale_out", False, to="0.30", now="0.29"),
    ),
    "request-mm-kwargs": (Case(MM), Case({**MM, "trust_request_mm_kwargs": False})),
    "tokenizer-mode-slow": (arg("tokenizer_mode", "slow"), arg("tokenizer_mode", "auto")),
    "mamba-fine-grained": (
        arg("enable_mamba_fine_grained_prefix_cache", True),
        arg("enable_mamba_fine_grained_prefix_cache", True, to="0.30"),
    ),
    "online-fp8-renamed": (arg("quantization", "fp8"), arg("quantization", "fp8_per_tensor")),
    "allspark-gone": (arg("quantization", "allspark"), arg("quantization", "allspark", to="0.30")),
    "eager-without-warmup": (
        arg("enforce_eager", True, to="0.31", now="0.30"),
        Case({"enforce_eager": True, "kernel_config": {"enable_jit_warmup": True}}, to="0.31"),
    ),
    "detailed-traces-comma": (
        arg("collect_detailed_traces", "model,worker"),
        arg("collect_detailed_traces", ["model", "worker"]),
    ),
    "async-with-pipeline": (
        Case({**PP, "async_scheduling": True}),
        Case({**PP, "async_scheduling": True}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}),
    ),
    "async-off-with-pipeline": (Case(PP, to="0.31"), Case({**PP, "async_scheduling": False})),
    "log-config-file": (arg("log_config_file"), arg("log_config_file", to="0.30")),
    "routed-experts-output": upgrade("0.31", arg("enable_return_routed_experts", True)),
    "swa-bounded-replay-default": (
        Case(to="0.31", now="0.30"),
        arg("swa_bounded_replay", True, to="0.31", now="0.30"),
    ),
    "cors-default": (Case(to="0.32", now="0.31"), arg("allowed_origins", ["*"], to="0.32")),
    "kv-transfer-keys": (
        arg("kv_transfer_config", '{"kv_connector": "C", "kv_rank": 0}'),
        arg("kv_transfer_config", {"kv_connector": "C", "kv_role": "kv_both"}),
    ),
    "ec-transfer-keys": (
        arg("ec_transfer_config", {"ec_rank": 0}),
        arg("ec_transfer_config", {"ec_rank": 0}, to="0.31"),
    ),
    "mamba-cache-mode-all": (arg("mamba_cache_mode", "all"), arg("mamba_cache_mode", "align")),
    "pass-config-0.32": (
        arg("compilation_config.pass_config.enable_sp", True),
        arg("compilation_config.pass_config.enable_sp", True, to="0.31"),
    ),
    "sd-worker": (arg("sd_worker_cls"), arg("worker_cls")),
    "deepep-hybrid-default": upgrade("0.32", arg("all2all_backend", "deepep_v2")),
    "flashinfer-cubin": upgrade("0.32", Case()),
    "cascade-attention": (
        arg("disable_cascade_attn", True),
        arg("disable_cascade_attn", True, to="0.31"),
    ),
    "max-scheduled-tokens-range": (
        arg("max_num_scheduled_tokens", 0),
        arg("max_num_scheduled_tokens", 1),
    ),
    "weight-cache-accounting": (preload("0.32", "0.31"), Case(to="0.32", now="0.31")),
    "weight-cache-protocol": (preload("0.33", "0.32"), preload("0.33", "0.33")),
    "speculator-gone": (
        arg("speculative_config", {"method": "medusa"}),
        arg("speculative_config", {"method": "ngram"}),
    ),
    "mamba-cache-mode": (
        arg("mamba_cache_mode", "align"),
        arg("mamba_cache_mode", "align", to="0.32"),
    ),
    "ir-op-priority": (arg("ir_op_priority", {}), arg("ir_op_priority", {}, to="0.32")),
    "lm-format-enforcer": (
        arg("structured_outputs_config", {"backend": "lm-format-enforcer"}),
        arg("structured_outputs_config", {"backend": "xgrammar"}),
    ),
    "request-body-limit": (
        Case(MM, now="0.32"),
        Case(MM, {"VLLM_HTTP_MAX_REQUEST_BODY_SIZE": "1"}, now="0.32"),
    ),
    "request-media-limits": upgrade("0.33", Case(MM)),
    "chat-template-fuel": upgrade("0.33", arg("chat_template", "/t.jinja")),
    "tool-strict-level-default": (
        arg("tool_call_parser", "hermes", now="0.32"),
        Case({"tool_call_parser": "hermes", "tool_strict_level": "auto"}, now="0.32"),
    ),
    "seed-token-not-yet": (
        preload("0.32", seed_token=EnvRef(from_env="T")),
        preload("0.33", seed_token=EnvRef(from_env="T")),
    ),
    "seed-token-visible": (preload("0.33", seed_token=EnvRef(from_env="T")), preload("0.33")),
    "env-flashinfer-moe": (
        env("VLLM_USE_FLASHINFER_MOE_MXFP4_BF16"),
        arg("moe_backend", "flashinfer_cutlass"),
    ),
    "env-mxfp4-marlin": (env("VLLM_MXFP4_USE_MARLIN"), arg("moe_backend", "marlin")),
    "env-linear-backend": (env("VLLM_NVFP4_GEMM_BACKEND"), arg("linear_backend", "cutlass")),
    "env-allreduce-thresholds": (
        env("VLLM_FLASHINFER_ALLREDUCE_FUSION_THRESHOLDS_MB"),
        env("VLLM_FLASHINFER_ALLREDUCE_FUSION_THRESHOLDS_MB", to="0.25"),
    ),
    "env-rocm-paged-attn": (
        env("VLLM_ROCM_USE_AITER_PAGED_ATTN"),
        env("VLLM_ROCM_USE_AITER_PAGED_ATTN", to="0.25"),
    ),
    "env-tpu": (env("VLLM_TPU_BUCKET_PADDING_GAP"), env("VLLM_TPU_MOST_MODEL_LEN", to="0.25")),
    "env-triton-td": (env("VLLM_TRITON_ATTN_USE_TD"), env("VLLM_TRITON_ATTN_USE_TD", to="0.28")),
    "env-scale-constants": (env("K_SCALE_CONSTANT"), env("K_SCALE_CONSTANT", to="0.27")),
    "env-force-fp8-marlin": (
        env("VLLM_TEST_FORCE_FP8_MARLIN"),
        env("VLLM_TEST_FORCE_FP8_MARLIN", to="0.28"),
    ),
    "env-mm-hasher": (
        env("VLLM_MM_HASHER_ALGORITHM", "blake3"),
        env("VLLM_MM_HASHER_ALGORITHM", "blake3", to="0.29"),
    ),
    "env-prefix-retention": (
        env("VLLM_PREFIX_CACHE_RETENTION_INTERVAL"),
        env("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", to="0.29"),
    ),
    "env-nixl-ranks": (
        env("VLLM_NIXL_EP_MAX_NUM_RANKS"),
        env("VLLM_NIXL_EP_MAX_NUM_RANKS", to="0.29"),
    ),
    "env-xpu-graph": (
        env("VLLM_XPU_ENABLE_XPU_GRAPH"),
        env("VLLM_XPU_ENABLE_XPU_GRAPH", to="0.30"),
    ),
    "env-ple-offload": (env("VLLM_PLE_CPU_OFFLOAD"), env("VLLM_PLE_CPU_OFFLOAD", to="0.30")),
    "env-iteration-timeout": (
        env("VLLM_ENGINE_ITERATION_TIMEOUT_S"),
        env("VLLM_ENGINE_ITERATION_TIMEOUT_S", to="0.31"),
    ),
    "env-ray": (
        env("VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE"),
        env("VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE", to="0.32"),
    ),
    "env-rocm-0.33": (env("VLLM_ROCM_MONO_DECODE"), env("VLLM_ROCM_MONO_DECODE", to="0.32")),
    "env-use-v1": (env("VLLM_USE_V1", to=None), env("VLLM_USE_V2_MODEL_RUNNER", to=None)),
    "env-attention-backend": (
        env("VLLM_ATTENTION_BACKEND", ""),
        arg("attention_backend", "FLASH_ATTN"),
    ),
    "env-ple-not-yet": (
        env("VLLM_PLE_CPU_OFFLOAD", to="0.29"),
        env("VLLM_PLE_CPU_OFFLOAD", to="0.30"),
    ),
    "env-logging-config": (
        env("VLLM_LOGGING_CONFIG_PATH", "/l.json"),
        env("VLLM_LOGGING_CONFIG_PATH", "/l.json", to="0.30"),
    ),
    "env-cache-layout": (
        env("VLLM_KV_CACHE_LAYOUT", "LBNHC", to="0.28"),
        env("VLLM_KV_CACHE_LAYOUT", "HND", to="0.28"),
    ),
    "env-rocm-fp4-default": (
        env("VLLM_ROCM_USE_AITER", now="0.32"),
        Case(env={"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_FP4BMM": "1"}, now="0.32"),
    ),
    "env-unknown": (env("VLLM_CAHCE_ROOT", "/c"), env("VLLM_CACHE_ROOT", "/c")),
    "env-empty": (env("VLLM_CACHE_ROOT", ""), env("VLLM_CACHE_ROOT", "/c")),
    "sleep-zero-copy": (
        Case({"enable_sleep_mode": True, **IPC}),
        Case({"enable_sleep_mode": True}, fields={"preload": Preload(mode="copy")}),
    ),
    "daemon-loads-ipc": (preload(args=IPC), preload(args={"load_format": "safetensors"})),
    "pipeline-preload": (
        Case(PP, to="0.31", fields={"preload": Preload()}),
        Case(PP, to="0.32", fields={"preload": Preload()}),
    ),
    "daemon-master-port": (
        preload(args={"weight_cache_master_port": 29501}),
        preload(args={"weight_cache_master_port": 29600}),
    ),
    "eplb-preload": (
        Case({"enable_eplb": True}, fields={"preload": Preload()}),
        Case({"enable_eplb": True}),
    ),
    "utilisation-over-free": (
        Case(
            {"gpu_memory_utilization": 0.9, **IPC},
            to="0.31",
            facts=Facts(gpu_total=100, daemon_weights=20),
        ),
        Case(
            {"gpu_memory_utilization": 0.75, **IPC},
            to="0.31",
            facts=Facts(gpu_total=100, daemon_weights=20),
        ),
    ),
    "utilisation-under-weights": (
        Case({"gpu_memory_utilization": 0.2, **IPC}, facts=Facts(gpu_total=100, daemon_weights=20)),
        Case({"gpu_memory_utilization": 0.9, **IPC}, facts=Facts(gpu_total=100, daemon_weights=20)),
    ),
    "utilisation-high": (
        Case({"gpu_memory_utilization": 0.9, **IPC}, to="0.31"),
        Case({"gpu_memory_utilization": 0.3, **IPC}, to="0.31"),
    ),
    "utilisation-low": (
        Case({"gpu_memory_utilization": 0.25, **IPC}),
        Case({"gpu_memory_utilization": 0.25}),
    ),
    "lora-cache-salt": (
        arg("enable_lora", True, to="0.30"),
        Case({"enable_lora": True, "enable_prefix_caching": False}, to="0.30"),
    ),
    "seqs-multiple-of-8": (arg("max_num_seqs", 60, to="0.30"), arg("max_num_seqs", 64, to="0.30")),
    "open-without-key": (
        own(host="0.0.0.0"),
        Case(env={"VLLM_API_KEY": EnvRef(from_env="K")}, fields={"host": "0.0.0.0"}),
    ),
    "secret-on-command-line": (arg("api_key", ["${K}"]), arg("hf_token", True)),
    "secret-by-value": (arg("api_key", "k"), arg("api_key", "${K}")),
    "idle-gpus": (
        own(gpus=(0, 1)),
        Case({"tensor_parallel_size": 2}, fields={"gpus": (0, 1)}),
    ),
    "too-few-gpus": (
        Case({"tensor_parallel_size": 4}, fields={"gpus": (0, 1)}),
        Case({"tensor_parallel_size": 4, "nnodes": 2}, fields={"gpus": (0, 1)}),
    ),
    "connector-gone": (
        arg("kv_transfer_config", {"kv_connector": "P2pNcclConnector"}),
        arg("kv_transfer_config", {"kv_connector": "LMCacheConnectorV1"}),
    ),
    "headless-servers": (
        Case({"headless": True, "api_server_count": 2}),
        Case({"headless": True, "api_server_count": 0}),
    ),
    "silent-headless-node": (
        Case({"headless": True}, {"VLLM_LOGGING_LEVEL": "warning"}),
        Case({"headless": True}, {"VLLM_LOGGING_LEVEL": "DEBUG"}),
    ),
    "hybrid-without-local": (
        Case({"data_parallel_hybrid_lb": True, "data_parallel_size": 4}),
        Case({"data_parallel_hybrid_lb": True, "data_parallel_size_local": 2}),
    ),
    "several-balancers": (
        Case({"data_parallel_rank": 1, "data_parallel_hybrid_lb": True}),
        arg("data_parallel_rank", 1),
    ),
    "ports-of-replicas": (
        Case({"data_parallel_multi_port_external_lb": True, "data_parallel_size_local": 2}),
        Case({"data_parallel_size_local": 2, "data_parallel_address": "10.0.0.1"}),
    ),
    "external-rank-local": (
        Case({"data_parallel_rank": 1, "data_parallel_size_local": 2}),
        Case({"data_parallel_rank": 1, "data_parallel_size_local": 1}),
    ),
    "replicas-elsewhere": (
        Case({"data_parallel_size": 4, "data_parallel_size_local": 2}),
        Case(
            {
                "data_parallel_size": 4,
                "data_parallel_size_local": 2,
                "data_parallel_address": "10.0.0.1",
            }
        ),
    ),
    "tools-without-parser": (
        arg("enable_auto_tool_choice", True),
        Case({"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}),
    ),
    "parser-without-tools": (
        arg("tool_call_parser", "hermes"),
        Case({"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}),
    ),
    "connector-moving-segments": (
        Case(NIXL, MOVING),
        Case({**NIXL, "enable_sleep_mode": True}, MOVING),
    ),
    "gone-speculative-arguments": (arg("speculative_model"), arg("speculative_config", {})),
    "gone-mm-preprocessor-cache": (
        arg("disable_mm_preprocessor_cache", True),
        arg("mm_processor_cache_gb", 0),
    ),
    "gone-mm-encoder-parallel": (
        arg("enable_multimodal_encoder_data_parallel", True),
        arg("mm_encoder_tp_mode", "data"),
    ),
    "gone-pooler-config": (arg("override_pooler_config", {}), arg("pooler_config", {})),
    "gone-ray-switches": (
        arg("worker_use_ray", True),
        arg("distributed_executor_backend", "ray"),
    ),
    "gone-eplb-arguments": (arg("num_redundant_experts", 32), arg("eplb_config", {})),
    "gone-full-cuda-graph": (arg("full_cuda_graph", True), arg("compilation_config", {})),
    "gone-of-v0": (arg("preemption_mode", "swap"), arg("max_num_seqs", 8)),
    "env-all2all-backend": (
        env("VLLM_ALL2ALL_BACKEND", "pplx"),
        arg("all2all_backend", "deepep_low_latency"),
    ),
    "env-torch-profiler": (env("VLLM_TORCH_PROFILER_DIR", "/t"), arg("profiler_config", {})),
    "env-attention-choices": (env("VLLM_FLASH_ATTN_VERSION", "2"), arg("attention_config", {})),
    "gpus-twice": (
        Case(env={"CUDA_VISIBLE_DEVICES": "1"}, fields={"gpus": (0,)}),
        Case(env={"CUDA_VISIBLE_DEVICES": "1"}),
    ),
    "command-substitution": (
        arg("tensor_parallel_size", "$(nvidia-smi -L | wc -l)"),
        arg("tensor_parallel_size", "${GPUS:-2}"),
    ),
    "dbo-model-runner": (
        arg("enable_dbo", True),
        Case({"enable_dbo": True}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}),
    ),
    "hisparse-parallelism": (Case({**HISPARSE, **PP}), Case(HISPARSE)),
    "empty-list": (arg("ignore_patterns", []), arg("ignore_patterns", ["x/*"])),
    "whitespace-backend": (
        arg("structured_outputs_config.disable_any_whitespace", True),
        arg("structured_outputs_config", {"backend": "xgrammar", "disable_any_whitespace": True}),
    ),
    "optimization-level": (arg("optimization_level", ".mode=3"), arg("optimization_level", 3)),
    "deprecated-quantization": (
        arg("quantization", "fbgemm_fp8"),
        Case({"quantization": "fbgemm_fp8", "allow_deprecated_quantization": True}),
    ),
    "no-kernel-for-chip": (
        arg("moe_backend", "flashinfer-trtllm", facts=HOPPER),
        arg("attention_backend", "FLASHMLA", facts=HOPPER),
    ),
    "kernel-of-other-platform": (
        arg("moe_backend", "aiter", facts=HOPPER),
        arg("moe_backend", "aiter", facts=Facts(platform="rocm")),
    ),
    "quantization-chip": (
        arg("quantization", "modelopt", facts=TURING),
        arg("quantization", "fp8_per_tensor", facts=TURING),
    ),
    "bfloat16-chip": (
        arg("dtype", "bfloat16", facts=TURING),
        arg("dtype", "float16", facts=TURING),
    ),
}


@pytest.mark.parametrize("rule", table(), ids=lambda rule: rule.id)
def test_each_rule_fires_and_keeps_silent(rule: Any) -> None:
    assert rule.id in CASES, f"give {rule.id} a case that fires and one that does not"
    fires, quiet = CASES[rule.id]
    assert rule.id in fires.rules()
    assert rule.id not in quiet.rules()


def test_a_low_share_says_nothing_where_the_cache_has_a_size_of_its_own() -> None:
    low = {"gpu_memory_utilization": 0.25, **IPC}
    assert "utilisation-low" in Case(low).rules()
    assert "utilisation-low" not in Case({**low, "kv_cache_memory_bytes": "1G"}).rules()


@pytest.mark.parametrize(
    ("args", "gpus", "few"),
    [
        ({"data_parallel_size": 8, "data_parallel_rank": 3}, 1, False),
        ({"data_parallel_size": 8, "data_parallel_rank": 3, "tensor_parallel_size": 2}, 1, True),
        ({"data_parallel_size": 16, "data_parallel_size_local": 4}, 4, False),
        ({"data_parallel_size": 16, "data_parallel_size_local": 8}, 4, True),
        ({"data_parallel_size": 16, "nnodes": 2, "tensor_parallel_size": 1}, 8, False),
        ({"data_parallel_size": 4, "tensor_parallel_size": 2}, 4, True),
        ({"tensor_parallel_size": 16, "nnodes": 2}, 8, False),
        ({"tensor_parallel_size": 16, "nnodes": 2}, 4, True),
        ({"data_parallel_size": 16, "data_parallel_backend": "ray"}, 8, False),
    ],
)
def test_ranks_are_counted_as_this_machine_has_them(
    args: dict[str, Any], gpus: int, few: bool
) -> None:
    found = Case(args, fields={"gpus": tuple(range(gpus))}).rules()
    assert ("too-few-gpus" in found) is few


def test_a_node_that_serves_the_api_alone_needs_no_gpu() -> None:
    alone = {"data_parallel_size": 2, "data_parallel_size_local": 0, "tensor_parallel_size": 8}
    assert "too-few-gpus" not in Case(alone, facts=HOPPER).rules()
    found = lint(Profile(name="x", model="org/m", args=alone), "0.33")
    assert any("2 of 2 replicas run elsewhere" in finding.message for finding in found)


def test_the_first_rank_of_a_node_balances_between_its_own() -> None:
    start = {"data_parallel_size": 4, "data_parallel_size_local": 2, "data_parallel_start_rank": 2}
    assert "several-balancers" not in Case({**start, "data_parallel_hybrid_lb": True}).rules()
    assert "several-balancers" not in Case({**start, "headless": True}).rules()
    assert "several-balancers" in Case({**start, "data_parallel_external_lb": True}).rules()


def test_a_node_without_an_api_server_is_open_to_nobody() -> None:
    assert "open-without-key" in own(host="0.0.0.0").rules()
    assert "open-without-key" not in Case({"headless": True}, fields={"host": "0.0.0.0"}).rules()


@pytest.mark.parametrize(
    ("model", "gguf"),
    [
        ("/models/chat.Q4_K_M.gguf", True),
        ("org/chat-GGUF:Q4_K_M", True),
        ("org/chat-GGUF:IQ3_XS", True),
        ("org/chat-GGUF:UD-Q4_K_XL", True),
        ("org/chat:latest", False),
        ("org/Q8_0", False),
    ],
)
def test_a_model_that_is_gguf_by_its_name_has_left_the_core(model: str, gguf: bool) -> None:
    assert ("gguf-left-core" in own(model=model).rules()) is gguf


def test_no_case_is_of_a_rule_that_is_gone() -> None:
    assert set(CASES) == {rule.id for rule in table()}


def test_rows_are_complete_and_their_versions_are_in_range() -> None:
    assert len({rule.id for rule in table()}) == len(table())
    for rule in table():
        assert rule.severity in (ERROR, FAIL, NOTE)
        assert rule.what and rule.effect and rule.instead and rule.source, rule.id
        for bound in (rule.since, rule.before):
            if bound is not None:
                assert OLDEST <= tuple(map(int, bound.split("."))) <= (0, 34), rule.id


def test_findings_point_at_the_key() -> None:
    assert arg("swap_space", 4).rules()["gone-swap-space"] == "args.swap_space"
    assert env("VLLM_USE_V1").rules()["env-use-v1"] == "env.VLLM_USE_V1"
    found = arg("compilation_config.pass_config.enable_sp", True).rules()
    assert found["pass-config-0.32"] == "args.compilation_config.pass_config.enable_sp"
