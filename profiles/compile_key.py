"""What is hashed into the key of vLLM's torch.compile cache: a change of it compiles anew.

By `compute_hash` of each part of vLLM's configuration and `compile_factors` of its environment
(0.32 and 0.33), and by what vLLM derives of an argument before it hashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiles.rules import as_map
from profiles.schema import Argument

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
            "device_ids",
            "data_parallel_multi_port_external_lb",
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
    "LoRAConfig": frozenset({"max_cpu_loras", "default_mm_loras", "specialize_active_lora"}),
    "OffloadConfig": frozenset(),
    "AttentionConfig": frozenset(),
    "KernelConfig": frozenset({"enable_flashinfer_autotune"}),
    "CompilationConfig": frozenset(),
}
# Arguments of other groups: hashed by themselves, or because vLLM derives a hashed field of them.
COMPILED = frozenset(
    {
        "async_scheduling",  # decides disable_nccl_for_dp_synchronization
        "enable_chunked_prefill",  # without it the token budget is max_model_len, unless given
        "engram_config",
        "gdn_prefill_backend",  # these three become additional_config
        "kda_decode_backend",
        "kda_prefill_backend",
        "performance_mode",  # other defaults of the token budget, sequences and graph sizes
        "video_pruning_rate",
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
# Inside of JSON arguments: keys that are not hashed (True: all but these).
_INSIDE: dict[str, tuple[bool, frozenset[str]]] = {
    "kernel_config": (
        False,
        frozenset(
            {
                "enable_flashinfer_autotune",
                "enable_cutedsl_warmup",
                "enable_jit_warmup",
                "enable_rocm_segmented_attn_autotune",
            }
        ),
    ),
    "compilation_config": (False, frozenset({"debug_dump_path"})),
    "speculative_config": (
        False,
        frozenset(
            {
                "prompt_lookup_max",
                "prompt_lookup_min",
                "suffix_decoding_max_tree_depth",
                "suffix_decoding_max_cached_requests",
                "suffix_decoding_max_spec_factor",
                "suffix_decoding_min_token_prob",
            }
        ),
    ),
    # Whether there is a connector is hashed, not how it is set up; some connectors want
    # piecewise graphs, which is.
    "kv_transfer_config": (True, frozenset({"kv_connector", "kv_connector_extra_config"})),
    "ec_transfer_config": (True, frozenset({"ec_connector", "ec_connector_extra_config"})),
    "aux_output_config": (True, frozenset({"enable_return_routed_experts"})),
}
# Variables that vLLM knows and leaves out of the hash; all others that it knows are in it.
_NEUTRAL = """
CUDA_VISIBLE_DEVICES FORCE_COLOR LD_LIBRARY_PATH LOCAL_RANK MAX_JOBS NO_COLOR S3_ACCESS_KEY_ID
S3_ENDPOINT_URL S3_SECRET_ACCESS_KEY VLLM_API_KEY VLLM_ASSETS_CACHE VLLM_ASSETS_CACHE_MODEL_CLEAN
VLLM_AUDIO_FETCH_TIMEOUT VLLM_CACHE_ROOT VLLM_CHAT_TEMPLATE_FUEL VLLM_CONFIG_ROOT
VLLM_CPU_KVCACHE_SPACE VLLM_CPU_MOE_PREPACK VLLM_CUDA_COMPATIBILITY_PATH
VLLM_DEBUG_DUMP_PATH VLLM_DEBUG_LOG_API_SERVER_RESPONSE VLLM_DO_NOT_TRACK VLLM_DP_MASTER_IP
VLLM_DP_MASTER_PORT VLLM_ELASTIC_EP_SCALE_UP_LAUNCH VLLM_ENABLE_CUDA_COMPATIBILITY
VLLM_ENABLE_STARTUP_PLAN VLLM_ENABLE_V1_MULTIPROCESSING VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR VLLM_FLASHINFER_AUTOTUNE_SKIP_OPS VLLM_FORCE_AOT_LOAD
VLLM_HOST_IP VLLM_HTTP_MAX_REQUEST_BODY_SIZE VLLM_HTTP_TIMEOUT_KEEP_ALIVE
VLLM_IMAGE_FETCH_TIMEOUT VLLM_KEEP_ALIVE_ON_ENGINE_DEATH VLLM_LOGGING_COLOR
VLLM_LOGGING_CONFIG_PATH VLLM_LOGGING_LEVEL VLLM_LOGGING_PREFIX VLLM_LOGGING_STREAM
VLLM_LOG_STATS_INTERVAL VLLM_MAX_AUDIO_CLIP_FILESIZE_MB VLLM_MAX_AUDIO_DECODE_BYTES
VLLM_MAX_AUDIO_DECODE_DURATION_S VLLM_MAX_AUDIO_PREPROCESS_WORKERS VLLM_MAX_EMBED_DECODE_BYTES
VLLM_MAX_IMAGE_PIXELS VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES
VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB VLLM_MEDIA_CACHE VLLM_MEDIA_CACHE_MAX_SIZE_MB
VLLM_MEDIA_CACHE_TTL_HOURS VLLM_MEDIA_CONNECTOR VLLM_MEDIA_FETCH_MAX_RETRIES
VLLM_MEDIA_LOADING_THREAD_COUNT VLLM_MEDIA_URL_ALLOW_REDIRECTS VLLM_MODEL_REDIRECT_PATH
VLLM_NIXL_SIDE_CHANNEL_HOST VLLM_NO_USAGE_STATS VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME VLLM_PORT
VLLM_RANDOMIZE_DP_DUMMY_INPUTS VLLM_RAY_BUNDLE_INDICES VLLM_REQUEST_BODY_LOG_LEVEL
VLLM_RINGBUFFER_WARNING_INTERVAL VLLM_RPC_BASE_PATH VLLM_SERVER_DEV_MODE
VLLM_SKIP_MODEL_NAME_VALIDATION VLLM_SKIP_VERSION_SUFFIX VLLM_TEST_FORCE_LOAD_FORMAT
VLLM_TRITON_JIT_WARMUP_NUM_THREADS VLLM_TUNED_CONFIG_FOLDER VLLM_USAGE_STATS_SERVER
VLLM_USE_MODELSCOPE VLLM_V1_OUTPUT_PROC_CHUNK_SIZE VLLM_VIDEO_FETCH_TIMEOUT
VLLM_VIDEO_LOADER_BACKEND VLLM_WORKER_MULTIPROC_METHOD VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS
VLLM_XLA_CACHE_PATH VLLM_ZENTORCH_WEIGHT_PREPACK
"""
NEUTRAL_ENVIRONMENT = frozenset(_NEUTRAL.split())


def compiles(name: str, argument: Argument | None, inside: str = "") -> bool:
    """Whether a change of this argument changes the key of the torch.compile cache.

    `inside` is the first key of a JSON argument that has a value before and after."""
    if inside and name in _INSIDE:
        others, keys = _INSIDE[name]
        if (inside in keys) != others:
            return False
    if name in COMPILED:
        return True
    if argument is None or argument.group not in COMPILED_GROUPS:
        return False
    return name not in COMPILED_GROUPS[argument.group]


def environment_compiles(name: str, known: frozenset[str]) -> bool:
    """Whether a change of this variable changes the key; `known` are those that vLLM knows."""
    if name in ("VLLM_CACHE_ROOT", "XDG_CACHE_HOME"):
        return True  # Not hashed, but the cache is in it.
    return name in known and name not in NEUTRAL_ENVIRONMENT


def is_compiled(args: Mapping[str, Any]) -> bool:
    """Whether an engine of these arguments (by their canonical names) compiles at all."""
    if args.get("enforce_eager") is True:
        return False
    mode = as_map(args.get("compilation_config")).get("mode", args.get("compilation_config.mode"))
    if mode is not None:
        return str(mode).upper() not in ("0", "NONE")
    return str(args.get("optimization_level")) not in ("0", "O0")
