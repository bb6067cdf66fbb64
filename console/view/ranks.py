"""Data-parallel ranks beneath each other: which one waits, which is full, which is slow."""

from __future__ import annotations

from collections.abc import Sequence

from console.view import numbers as n
from console.view.spans import Line, Span, clean, clip
from console.view.table import Column, fit, heading, row
from engine_ctl.model import EngineLoad, RankLoad

COLUMNS = (
    Column("rank", "rank", 8),
    Column("running", "run", 5, True),
    Column("waiting", "wait", 6, True),
    Column("kv", "kv%", 5, True),
    Column("tokens", "tok/s", 8, True),
    Column("prompt", "prompt/s", 9, True, priority=4),
    Column("prefix", "prefix%", 8, True, priority=5),
    Column("preempted", "preempted", 10, True, priority=6),
    Column("ttft", "ttft p95", 10, True, priority=1),
    Column("itl", "itl p95", 9, True, priority=2),
    Column("queue", "queue p95", 10, True, priority=3),
)
FULL = 0.95


def table(load: EngineLoad, cells: int) -> list[Line]:
    """A row for each rank, and one for all of them: sums, and of KV usage the fullest."""
    columns = fit(COLUMNS, cells - 2)
    every = {
        "rank": Span("all", "bold"),
        **_figures(load.running, load.waiting, load.kv_cache_usage, columns),
        "tokens": n.counted_in(load.tokens_per_second, 8),
        "prompt": n.counted_in(load.prompt_tokens_per_second, 9),
    }
    blank: dict[str, str | Span] = {column.key: "" for column in columns}
    lines: list[Line] = [(Span(" "), *heading(columns))]
    lines += [(Span(" "), *row(columns, _rank(rank, columns))) for rank in load.ranks]
    return [*lines, (Span(" "), *row(columns, blank | every)), ()]


def _rank(rank: RankLoad, columns: Sequence[Column]) -> dict[str, str | Span]:
    asleep = rank.sleep_state not in (None, "awake")
    name = clip(clean(rank.engine), 6) + (" z" if asleep else "")
    rate = rank.preemptions_per_second
    preempted = n.count(rank.preemptions)
    return {
        "rank": Span(name, "info" if asleep else ""),
        **_figures(rank.running, rank.waiting, rank.kv_cache_usage, columns),
        "tokens": n.counted_in(rank.tokens_per_second, 8),
        "prompt": n.counted_in(rank.prompt_tokens_per_second, 9),
        "prefix": n.percent(rank.prefix_hit_rate),
        "preempted": Span(preempted, "warn") if rate else preempted,
        **{name: latency(rank, name, "p95") for name in ("ttft", "itl", "queue")},
    }


def _figures(
    running: int | None, waiting: int | None, kv: float | None, columns: Sequence[Column]
) -> dict[str, str | Span]:
    rooms = {column.key: column.cells for column in columns}
    waits, full = n.counted_in(waiting, rooms["waiting"]), n.percent(kv)
    return {
        "running": n.counted_in(running, rooms["running"]),
        "waiting": Span(waits, "warn") if waiting else waits,
        "kv": Span(full, "warn") if kv is not None and kv > FULL else full,
    }


def latency(rank: RankLoad, name: str, label: str) -> str:
    """A percentile as far as its histogram knows it."""
    known = f"{name}.{label}"
    if known in rank.under:
        return f"< {n.milliseconds(rank.under[known])}"
    value = rank.percentiles.get(name, {}).get(label)
    return ("> " if known in rank.over else "") + n.milliseconds(value)
