"""What only some engines have (speculation, LoRA, KV offload and transfer, multimodal cache), and
where a request's time goes, by name."""

from __future__ import annotations

from engine_ctl.metrics.accumulate import WINDOW_S, Totals
from engine_ctl.metrics.sample import Lora, RankSample, config_number


def extras(
    sample: RankSample, totals: Totals, lora: Lora | None, one_server: bool
) -> dict[str, float | str]:
    """What not every engine has, by name; absent where the engine does not say it. `one_server`:
    the figures are those of a single API server."""
    extra: dict[str, float | str] = {}

    def put(name: str, value: float | str | None) -> None:
        if value is not None:
            extra[name] = value

    put("model_name", sample.model_name)
    put(
        "external_prefix_hit_rate",
        totals.ratio("external_prefix_hits", "external_prefix_queries"),
    )
    put("mm_hit_rate", totals.ratio("mm_hits", "mm_queries"))
    put("kv_offload_load_bytes_per_second", totals.rate("kv_offload_load_bytes"))
    put("kv_offload_store_bytes_per_second", totals.rate("kv_offload_store_bytes"))
    put("kv_offload_failures", sample.counters.get("kv_offload_failures"))
    put("kv_offload_skipped", sample.counters.get("kv_offload_skipped"))
    put("kv_offload_dropped", sample.counters.get("kv_offload_dropped"))
    put("kv_offload_usage", sample.gauges.get("kv_offload_usage"))
    put("kv_tier_failures", sample.counters.get("kv_tier_failures"))
    put("kv_transfer_bytes_per_second", totals.rate("kv_transfer_bytes.sum"))
    put("kv_transfer_failures", sample.counters.get("kv_transfer_failures"))
    put("kv_transfer_failures_lately", totals.increase("kv_transfer_failures", WINDOW_S))
    put("kv_expired", sample.counters.get("kv_expired"))
    put("kv_expired_lately", totals.increase("kv_expired", WINDOW_S))
    put("hisparse_host_usage", sample.gauges.get("hisparse_host_usage"))
    put("hisparse_hit_rate", totals.share("hisparse_hits", "hisparse_misses"))
    put("prefill_mean_s", totals.mean("prefill"))
    put("decode_mean_s", totals.mean("decode"))
    if one_server:
        put("tokens_per_step", totals.mean("iteration_tokens"))
    put("errors_lately", totals.increase("finished.error", WINDOW_S))
    put("kv_offload_used_blocks", sample.gauges.get("kv_offload_used_blocks"))
    put("kv_offload_pending_blocks", sample.gauges.get("kv_offload_pending_blocks"))
    put("swapped", sample.gauges.get("swapped"))
    put("corrupted_requests", sample.counters.get("corrupted_requests"))
    put("kv_cache_size_tokens", config_number(sample.cache_config, "kv_cache_size_tokens"))
    put("kv_cache_max_concurrency", config_number(sample.cache_config, "kv_cache_max_concurrency"))
    for reason, value in sample.labelled.get("finished", {}).items():
        put(f"finished_{reason}", value)
    for stage, value in sample.labelled.get("kv_fetch_by_stage", {}).items():
        put(f"kv_fetch_{stage}", value)
    _put_speculation(extra, sample, totals)
    if lora is not None:
        put("lora_max", lora.max_lora)
        put("lora_running", ", ".join(lora.running))
        put("lora_waiting", ", ".join(lora.waiting))
    return extra


def _put_speculation(extra: dict[str, float | str], sample: RankSample, totals: Totals) -> None:
    """Acceptance = accepted / draft tokens; mean length = 1 + accepted / drafts. Over the window,
    or since the start when nothing was drafted in it."""
    names = ("spec_drafts", "spec_draft_tokens", "spec_accepted_tokens")
    drafts, tokens, accepted = (totals.increase(name, WINDOW_S) for name in names)
    positions: dict[str, float | None] = {
        position: totals.increase(f"spec_accepted_per_position.{position}", WINDOW_S)
        for position in sample.labelled.get("spec_accepted_per_position", {})
    }
    if not drafts or not tokens or accepted is None:
        drafts, tokens, accepted = (sample.counters.get(name) for name in names)
        positions = dict(sample.labelled.get("spec_accepted_per_position", {}))
    if not drafts or not tokens or accepted is None:
        return
    extra["spec_drafts"] = drafts
    extra["spec_acceptance"] = accepted / tokens
    extra["spec_mean_length"] = 1.0 + accepted / drafts
    for position, value in positions.items():
        if value is not None:
            extra[f"spec_acceptance_at_{position}"] = value / drafts
