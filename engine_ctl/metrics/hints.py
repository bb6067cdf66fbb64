"""What the figures mean and which knob to turn: rules as data, in order of urgency.

A rule holds when all its conditions hold; a condition on a fact that is unknown never holds. The
first rule of a `topic` that holds speaks for it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass

from engine_ctl.model import EngineLoad, RankLoad

Fact = float | str
Condition = tuple[str, str, Fact]

_COMPARE = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True, slots=True)
class Hint:
    """One hint. `knob` names profile keys; `engine` the rank it is about (None: all)."""

    rule: str
    text: str
    knob: str = ""
    severity: str = "info"
    engine: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """`when`: (fact, comparison, value or "$fact"). Comparisons: > >= < <= is."""

    name: str
    topic: str
    when: tuple[Condition, ...]
    text: str
    knob: str = ""
    severity: str = "info"


HUNG_AFTER_S = 30.0
KV_LOW = 0.8

RANK_RULES: tuple[Rule, ...] = (
    Rule(
        "asleep_level_1",
        "sleep",
        (("sleep_state", "is", "weights_offloaded"),),
        "asleep, level 1: weights wait in host memory; it is not idle, wake it to serve",
    ),
    Rule(
        "asleep_level_2",
        "sleep",
        (("sleep_state", "is", "discard_all"),),
        "asleep, level 2: weights were discarded; waking needs them loaded again",
    ),
    Rule(
        "preempting",
        "memory",
        (("preemptions_per_second", ">", 0), ("kv", ">=", KV_LOW)),
        "{preemptions_per_second:.1f} preemptions/s with KV at {kv:.1%}: the KV cache is too small "
        "for this load; lower max_num_seqs or max_model_len, or give it more memory",
        "gpu_memory_utilization",
        "warning",
    ),
    Rule(
        "kv_full_preempted",
        "memory",
        (("kv", ">=", 0.95), ("waiting", ">", 0), ("preemptions", ">", 0)),
        "KV is full ({kv:.1%}), {waiting:.0f} wait, {preemptions:.0f} preemptions since the start: "
        "the KV cache is too small for this load",
        "gpu_memory_utilization",
        "warning",
    ),
    Rule(
        "kv_is_the_limit",
        "memory",
        (("capacity", ">", 0), ("kv", ">=", KV_LOW)),
        "{capacity:.0f} wait for capacity with KV at {kv:.1%}: memory is the limit",
        "gpu_memory_utilization",
    ),
    Rule(
        "active_limit",
        "queue",
        (("capacity", ">", 0), ("kv", "<", KV_LOW), ("running_peak", ">=", "$max_num_active_seqs")),
        "{capacity:.0f} wait for capacity while KV is {kv:.1%}: max_num_active_seqs "
        "({max_num_active_seqs:.0f}) is the limit, not memory",
        "max_num_active_seqs",
    ),
    Rule(
        "seqs_limit",
        "queue",
        (("capacity", ">", 0), ("kv", "<", KV_LOW), ("running_peak", ">=", "$max_num_seqs")),
        "{capacity:.0f} wait for capacity while KV is {kv:.1%}: max_num_seqs "
        "({max_num_seqs:.0f}) is the limit, not memory",
        "max_num_seqs",
    ),
    Rule(
        "step_budget",
        "queue",
        (("capacity", ">", 0), ("kv", "<", KV_LOW), ("running_peak", "<", "$max_num_seqs")),
        "{capacity:.0f} wait for capacity while {running_peak:.0f} of {max_num_seqs:.0f} run and "
        "KV is {kv:.1%}: prefill fills each step, max_num_batched_tokens is the limit",
        "max_num_batched_tokens",
    ),
    Rule(
        "seqs_limit_unnamed",
        "queue",
        (("capacity", ">", 0), ("kv", "<", KV_LOW)),
        "{capacity:.0f} wait for capacity while KV is {kv:.1%} and {running:.0f} run: max_num_seqs "
        "(or max_num_active_seqs) is the limit, not memory",
        "max_num_seqs",
    ),
    Rule(
        "deferred_by_lora",
        "deferred",
        (("deferred", ">", 0), ("lora_waiting_count", ">", 0)),
        "{deferred:.0f} deferred: adapters {lora_waiting} wait for a slot, max_loras is "
        "{lora_max:.0f}; raise it, more memory does not help",
        "max_loras",
    ),
    Rule(
        "deferred_by_transfer",
        "deferred",
        (("deferred", ">", 0), ("kv_fetching", ">", 0)),
        "{deferred:.0f} deferred: {kv_fetching:.0f} wait for KV from another engine or from the "
        "offload pool",
        "kv_transfer_config",
    ),
    Rule(
        "deferred",
        "deferred",
        (("deferred", ">", 0),),
        "{deferred:.0f} deferred by a LoRA, KV-transfer or grammar budget, not by memory",
    ),
    Rule(
        "weak_speculation",
        "speculation",
        (("spec_drafts", ">=", 100), ("spec_mean_length", "<", 1.4)),
        "speculation accepts {spec_acceptance:.1%} (mean length {spec_mean_length:.2f}): it likely "
        "costs more than it gives",
        "speculative_config",
    ),
    Rule(
        "nan_logits",
        "corrupt",
        (("corrupted_requests", ">", 0),),
        "{corrupted_requests:.0f} requests had NaN in their logits: suspect the quantization, the "
        "dtype or a damaged checkpoint",
        "dtype",
        "error",
    ),
    Rule(
        "offload_pool_full",
        "offload",
        (("kv_offload_failures", ">", 0),),
        "{kv_offload_failures:.0f} KV blocks could not be offloaded: the offload pool is too small",
        "kv_offloading_size",
    ),
    Rule(
        "transfers_failed",
        "transfer",
        (("kv_transfer_failures_lately", ">", 0),),
        "{kv_transfer_failures_lately:.0f} KV transfers failed in the last minute: look at the "
        "network between prefill and decode, and at whether the other side still runs",
        "kv_transfer_config",
        "warning",
    ),
    Rule(
        "kv_expired",
        "transfer",
        (("kv_expired_lately", ">", 0),),
        "{kv_expired_lately:.0f} requests' KV expired in the last minute before the decode side "
        "fetched it: that side is full or gone, or the lease too short",
        "kv_transfer_config",
        "warning",
    ),
    Rule(
        "requests_failed",
        "errors",
        (("errors_lately", ">", 0),),
        "{errors_lately:.0f} requests ended with an error in the last minute: see the log",
        severity="warning",
    ),
)

ENGINE_RULES: tuple[Rule, ...] = (
    Rule(
        "hung",
        "hung",
        (("stalled_s", ">=", HUNG_AFTER_S),),
        "requests are there but no token moved for {stalled_s:.0f} s: hung or paused",
        severity="error",
    ),
    Rule(
        "unhealthy",
        "health",
        (("healthy", "<", 1),),
        "/health fails although /metrics answers: the engine core is likely dead",
        severity="error",
    ),
    Rule(
        "rejected_requests",
        "rejections",
        (("rejected_max_num_queued_reqs", ">", 0),),
        "{rejected_max_num_queued_reqs:.0f} requests got 503 in the last minute: "
        "max_num_queued_reqs is reached",
        "max_num_queued_reqs",
        "warning",
    ),
    Rule(
        "rejected_tokens",
        "rejections",
        (("rejected_max_num_queued_tokens", ">", 0),),
        "{rejected_max_num_queued_tokens:.0f} requests got 503 in the last minute: "
        "max_num_queued_tokens is reached",
        "max_num_queued_tokens",
        "warning",
    ),
    Rule(
        "uneven_ranks",
        "balance",
        (("kv_most", ">=", 0.9), ("kv_least", "<", 0.5), ("waiting", ">", 0)),
        "rank {rank_most} is at {kv_most:.1%} KV while rank {rank_least} is at {kv_least:.1%}: "
        "the load is uneven, look at how requests are spread",
        "data_parallel_size",
        "warning",
    ),
    Rule(
        "no_statistics",
        "statistics",
        (("stats_disabled", ">", 0),),
        "/metrics has no figures, as with --disable-log-stats: no queues, KV use or token rates "
        "can be shown",
        "disable_log_stats",
    ),
)


def hints(load: EngineLoad, limits: Mapping[str, float] | None = None) -> tuple[Hint, ...]:
    """Hints for one engine, errors first. `limits` are the engine's effective arguments as far
    as they are known (max_num_seqs, max_num_active_seqs, …)."""
    found = _apply(ENGINE_RULES, _engine_facts(load), None)
    several = len(load.ranks) > 1
    for rank in load.ranks:
        facts = {**(limits or {}), **_rank_facts(rank)}
        found += _apply(RANK_RULES, facts, rank.engine if several else None)
    order = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(found, key=lambda hint: order[hint.severity]))


def words(hint: Hint) -> str:
    """The hint as one line of text."""
    return hint.text if hint.engine is None else f"rank {hint.engine}: {hint.text}"


def _apply(rules: tuple[Rule, ...], facts: Mapping[str, Fact], engine: str | None) -> list[Hint]:
    found: list[Hint] = []
    topics: set[str] = set()
    for rule in rules:
        if rule.topic not in topics and all(_holds(facts, each) for each in rule.when):
            topics.add(rule.topic)
            text = rule.text.format_map(_Facts(facts)).replace("%", " %")
            found.append(Hint(rule.name, text, rule.knob, rule.severity, engine))
    return found


class _Unknown(str):
    def __format__(self, spec: str) -> str:
        return "–"


class _Facts(dict[str, Fact]):
    def __missing__(self, key: str) -> Fact:
        return _Unknown()


def _holds(facts: Mapping[str, Fact], condition: Condition) -> bool:
    name, comparison, wanted = condition
    value = facts.get(name)
    if isinstance(wanted, str) and wanted.startswith("$"):
        other = facts.get(wanted[1:])
        if other is None:
            return False
        wanted = other
    if value is None:
        return False
    if comparison == "is":
        return value == wanted
    if isinstance(value, str) or isinstance(wanted, str):
        return False
    return bool(_COMPARE[comparison](value, wanted))


def _rank_facts(rank: RankLoad) -> dict[str, Fact]:
    facts: dict[str, Fact] = dict(rank.extra)
    known: dict[str, Fact | None] = {
        "running": rank.running,
        "waiting": rank.waiting,
        "capacity": rank.waiting_by_reason.get("capacity"),
        "deferred": rank.waiting_by_reason.get("deferred"),
        "kv": rank.kv_cache_usage,
        "preemptions": rank.preemptions,
        "preemptions_per_second": rank.preemptions_per_second,
        "sleep_state": rank.sleep_state,
    }
    facts |= {name: value for name, value in known.items() if value is not None}
    # Between the end of one request and the start of the next fewer run: the most of the last
    # seconds tells which limit holds.
    if rank.running is not None:
        facts.setdefault("running_peak", rank.running)
    waiting = str(rank.extra.get("lora_waiting", ""))
    facts["lora_waiting_count"] = len([name for name in waiting.split(",") if name.strip()])
    fetching = [
        value
        for name, value in rank.extra.items()
        if name.startswith("kv_fetch_") and not isinstance(value, str)
    ]
    if fetching:
        facts["kv_fetching"] = sum(fetching)
    return facts


def _engine_facts(load: EngineLoad) -> dict[str, Fact]:
    facts: dict[str, Fact] = {
        f"rejected_{reason}": value for reason, value in load.rejections.items()
    }
    if load.stalled_s is not None:
        facts["stalled_s"] = load.stalled_s
    if load.healthy is not None:
        facts["healthy"] = int(load.healthy)
    if load.waiting is not None:
        facts["waiting"] = load.waiting
    facts["stats_disabled"] = int(load.stats_disabled)
    usage = [(rank.kv_cache_usage, rank.engine) for rank in load.ranks if rank.kv_cache_usage]
    if len(usage) > 1:
        facts["kv_most"], facts["rank_most"] = max(usage)
        facts["kv_least"], facts["rank_least"] = min(usage)
    return facts
