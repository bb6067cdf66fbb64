"""The periodic statistics line of an engine: the fallback when /metrics is off.

A part appears only when it is not zero, one part has commas inside, `Waiting` includes
`Deferred`, and `Preemptions` counts one interval. No line means an idle engine, not a dead one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from engine_ctl.logs.lines import Record, records_of
from engine_ctl.model import EngineLoad, RankLoad


@dataclass(frozen=True, slots=True)
class StatsLine:
    """One line. Rates in tokens/s, usage and hit rates 0..1; `engine` is the rank as printed
    (`000`), None for a line over several; `preemptions` of this interval only."""

    engine: str | None
    engines: int | None
    prompt_tokens_per_second: float | None
    tokens_per_second: float | None
    running: int | None
    waiting: int | None
    deferred: int | None
    preemptions: int | None
    kv_cache_usage: float | None
    kv_device: str | None
    prefix_hit_rate: float | None
    external_prefix_hit_rate: float | None
    mm_cache_hit_rate: float | None
    kv_fetch: tuple[int, int, int] | None
    time: str | None = None


_HEAD = re.compile(r"(?:Engine (?P<engine>\d{1,9})|(?P<engines>\d{1,9}) Engines Aggregated): ")
_F = r"(-?\d{1,15}(?:\.\d{1,9})?)"
_PROMPT = re.compile(rf"Avg prompt throughput: {_F} tokens/s")
_GENERATION = re.compile(rf"Avg generation throughput: {_F} tokens/s")
_COUNTS = {
    name: re.compile(rf"\b{label}: (\d{{1,12}})")
    for name, label in (
        ("running", "Running"),
        ("waiting", "Waiting"),
        ("deferred", "Deferred"),
        ("preemptions", "Preemptions"),
    )
}
_KV = re.compile(rf"(?:(\w+) )?KV cache usage: {_F}%")
_PREFIX = re.compile(rf"(?<!External )\b[Pp]refix cache hit rate: {_F}%")
_EXTERNAL = re.compile(rf"External prefix cache hit rate: {_F}%")
_MM = re.compile(rf"MM cache hit rate: {_F}%")
_FETCH = re.compile(
    r"KV fetch: (\d{1,9}) waiting to start, (\d{1,9}) in progress, (\d{1,9}) completed waiting"
)


def _float(pattern: re.Pattern[str], text: str, scale: float = 1.0, group: int = 1) -> float | None:
    found = pattern.search(text)
    return None if found is None else round(float(found[group]) * scale, 9)


def parse_stats(message: str, time: str | None = None) -> StatsLine | None:
    """The statistics in one message (without prefix), None when it is another kind of line."""
    head = _HEAD.match(message)
    if head is None or "throughput" not in message:
        return None
    counts = {
        name: None if (found := pattern.search(message)) is None else int(found[1])
        for name, pattern in _COUNTS.items()
    }
    fetch = _FETCH.search(message)
    kv = _KV.search(message)
    return StatsLine(
        engine=head["engine"],
        engines=int(head["engines"]) if head["engines"] else None,
        prompt_tokens_per_second=_float(_PROMPT, message),
        tokens_per_second=_float(_GENERATION, message),
        kv_cache_usage=None if kv is None else round(float(kv[2]) / 100.0, 9),
        kv_device=None if kv is None else kv[1],
        prefix_hit_rate=_float(_PREFIX, message, 0.01),
        external_prefix_hit_rate=_float(_EXTERNAL, message, 0.01),
        mm_cache_hit_rate=_float(_MM, message, 0.01),
        kv_fetch=None if fetch is None else (int(fetch[1]), int(fetch[2]), int(fetch[3])),
        time=time,
        **counts,
    )


def stats_of_records(records: Iterable[Record]) -> tuple[StatsLine, ...]:
    """The latest line of each engine (or of all together), in order of appearance."""
    latest: dict[str | None, StatsLine] = {}
    for record in records:
        if record.message.startswith("Engine ") or " Engines Aggregated" in record.message[:40]:
            line = parse_stats(record.message, record.time)
            if line is not None:
                latest[line.engine] = line
    return tuple(latest.values())


def stats_of(data: bytes) -> tuple[StatsLine, ...]:
    return stats_of_records(records_of(data))


def load_of(lines: Iterable[StatsLine], at: float) -> EngineLoad | None:
    """The lines as a load view taken at `at`; None without a line."""
    ranks = []
    for line in lines:
        extra: dict[str, float | str] = {}
        if line.deferred is not None:
            extra["deferred"] = float(line.deferred)
        if line.external_prefix_hit_rate is not None:
            extra["external_prefix_hit_rate"] = line.external_prefix_hit_rate
        if line.mm_cache_hit_rate is not None:
            extra["mm_cache_hit_rate"] = line.mm_cache_hit_rate
        ranks.append(
            RankLoad(
                engine=str(int(line.engine)) if line.engine is not None else "all",
                running=line.running,
                waiting=line.waiting,
                kv_cache_usage=line.kv_cache_usage,
                prefix_hit_rate=line.prefix_hit_rate,
                prompt_tokens_per_second=line.prompt_tokens_per_second,
                tokens_per_second=line.tokens_per_second,
                extra=extra,
            )
        )
    if not ranks:
        return None

    def total(name: str) -> float | None:
        values = [value for rank in ranks if (value := getattr(rank, name)) is not None]
        return sum(values) if values else None

    running, waiting = total("running"), total("waiting")
    usages = [rank.kv_cache_usage for rank in ranks if rank.kv_cache_usage is not None]
    return EngineLoad(
        at=at,
        ranks=tuple(ranks),
        running=None if running is None else int(running),
        waiting=None if waiting is None else int(waiting),
        kv_cache_usage=max(usages) if usages else None,
        tokens_per_second=total("tokens_per_second"),
        prompt_tokens_per_second=total("prompt_tokens_per_second"),
    )
