"""Which series of /metrics are read, and where each one goes in a sample.

Names are those of vLLM 0.33 without the `vllm:` prefix, as they stand in the exposition text
(counters end in `_total`, histograms in `_bucket`, `_sum`, `_count`). Exposition with Ray writes
`ray_vllm_` for the prefix. Everything not named here is skipped before it is parsed.
"""

from __future__ import annotations

from enum import IntEnum


class Slot(IntEnum):
    """What one series is, hence how its value enters the sample."""

    GAUGE = 0
    COUNTER = 1
    LABELLED_GAUGE = 2
    LABELLED_COUNTER = 3
    BUCKET = 4
    SUM = 5
    COUNT = 6
    SLEEP = 7
    CONFIG = 8
    LORA = 9
    REJECTIONS = 10
    PROCESS_START = 11


GAUGES = {
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "kv_cache_usage_perc": "kv_cache_usage",
    "simple_kv_offload_used_blocks": "kv_offload_used_blocks",
    "simple_kv_offload_pending_store_blocks": "kv_offload_pending_blocks",
    "kv_offload_cpu_cache_usage_perc": "kv_offload_usage",
    "hisparse_host_cache_usage_perc": "hisparse_host_usage",
    "num_requests_swapped": "swapped",
    "avg_prompt_throughput_toks_per_s": "prompt_tokens_per_second",
    "avg_generation_throughput_toks_per_s": "tokens_per_second",
}

# Several connectors say the same thing under names of their own: their series are added up.
COUNTERS = {
    "num_preemptions_total": "preemptions",
    "prompt_tokens_total": "prompt_tokens",
    "prompt_tokens_cached_total": "prompt_tokens_cached",
    "generation_tokens_total": "generation_tokens",
    "prefix_cache_queries_total": "prefix_queries",
    "prefix_cache_hits_total": "prefix_hits",
    "external_prefix_cache_queries_total": "external_prefix_queries",
    "external_prefix_cache_hits_total": "external_prefix_hits",
    "mm_cache_queries_total": "mm_queries",
    "mm_cache_hits_total": "mm_hits",
    "spec_decode_num_drafts_total": "spec_drafts",
    "spec_decode_num_draft_tokens_total": "spec_draft_tokens",
    "spec_decode_num_accepted_tokens_total": "spec_accepted_tokens",
    "kv_offload_load_bytes_total": "kv_offload_load_bytes",
    "kv_offload_store_bytes_total": "kv_offload_store_bytes",
    "kv_offload_allocation_failure_total": "kv_offload_failures",
    "kv_offload_stores_skipped_total": "kv_offload_skipped",
    "kv_offload_tiering_backpressure_blocks_dropped_total": "kv_offload_dropped",
    "kv_offload_tiering_cascade_job_failures_total": "kv_tier_failures",
    "kv_offload_tiering_promotion_job_failures_total": "kv_tier_failures",
    "simple_kv_offload_load_blocks_total": "kv_offload_load_blocks",
    # Failed handshakes and notifications are among them, whatever else counts these.
    "nixl_num_failed_transfers_total": "kv_transfer_failures",
    "nixl_num_kv_expired_reqs_total": "kv_expired",
    "mooncake_num_failed_transfers_total": "kv_transfer_failures",
    "mooncake_num_failed_recvs_total": "kv_transfer_failures",
    "mooncake_num_kv_expired_reqs_total": "kv_expired",
    "hisparse_cache_hits_total": "hisparse_hits",
    "hisparse_cache_misses_total": "hisparse_misses",
    "corrupted_requests_total": "corrupted_requests",
    "watermark_requests_total": "watermark_requests",
    "estimated_flops_per_gpu_total": "flops_per_gpu",
}

LABELLED_GAUGES = {
    "num_requests_waiting_by_reason": ("waiting_by_reason", "reason"),
    "num_requests_kv_fetch_by_stage": ("kv_fetch_by_stage", "stage"),
}

LABELLED_COUNTERS = {
    "request_success_total": ("finished", "finished_reason"),
    "prompt_tokens_by_source_total": ("prompt_tokens_by_source", "source"),
    "prompt_tokens_cached_by_source_total": ("cached_by_source", "source"),
    "spec_decode_num_accepted_tokens_per_pos_total": ("spec_accepted_per_position", "position"),
    # Deprecated since 0.24, exported beside the flat names: read as their fallback.
    "kv_offload_total_bytes_total": ("kv_offload_total_bytes", "transfer_type"),
}

# The value says whether the buckets are read (percentiles are shown) or only sum and count.
HISTOGRAMS = {
    "time_to_first_token_seconds": ("ttft", True),
    "inter_token_latency_seconds": ("itl", True),
    "e2e_request_latency_seconds": ("e2e", True),
    "request_queue_time_seconds": ("queue", True),
    "request_prefill_time_seconds": ("prefill", False),
    "request_decode_time_seconds": ("decode", False),
    "nixl_bytes_transferred": ("kv_transfer_bytes", False),
    "mooncake_bytes_transferred": ("kv_transfer_bytes", False),
    # Ends in `_total` like a counter, and is a histogram of tokens per engine step.
    "iteration_tokens_total": ("iteration_tokens", False),
}

# Names of older servers. A renamed series counts only where its newer name is absent, since
# --show-hidden-metrics-for-version exports both.
OLD_NAMES = {
    "gpu_cache_usage_perc": "kv_cache_usage_perc",
    "gpu_prefix_cache_queries_total": "prefix_cache_queries_total",
    "gpu_prefix_cache_hits_total": "prefix_cache_hits_total",
    "time_per_output_token_seconds_bucket": "inter_token_latency_seconds_bucket",
    "time_per_output_token_seconds_sum": "inter_token_latency_seconds_sum",
    "time_per_output_token_seconds_count": "inter_token_latency_seconds_count",
}

PREFIXES = ("vllm:", "ray_vllm_")


def place(name: str) -> tuple[Slot, str, str] | None:
    """(slot, field, label to read) of a series name without prefix; None: not needed."""
    if name in GAUGES:
        return Slot.GAUGE, GAUGES[name], ""
    if name in COUNTERS:
        return Slot.COUNTER, COUNTERS[name], ""
    if name in LABELLED_GAUGES:
        return Slot.LABELLED_GAUGE, *LABELLED_GAUGES[name]
    if name in LABELLED_COUNTERS:
        return Slot.LABELLED_COUNTER, *LABELLED_COUNTERS[name]
    if name == "engine_sleep_state":
        return Slot.SLEEP, "sleep_state", "sleep_state"
    if name == "cache_config_info":
        return Slot.CONFIG, "cache_config", ""
    if name == "lora_requests_info":
        return Slot.LORA, "lora", ""
    if name == "admission_rejections_total":
        return Slot.REJECTIONS, "rejections", "reason"
    base, _, suffix = name.rpartition("_")
    if base in HISTOGRAMS:
        field, buckets = HISTOGRAMS[base]
        if suffix == "bucket" and buckets:
            return Slot.BUCKET, field, "le"
        if suffix == "sum":
            return Slot.SUM, field, ""
        if suffix == "count":
            return Slot.COUNT, field, ""
    return None
