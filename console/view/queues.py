"""Scheduler queues of one engine: each data-parallel rank, latencies, history, hints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan

from console.view import numbers as n
from console.view import ranks
from console.view.bars import highest, tall_sparkline
from console.view.spans import Item, Line, Span, clean, clip_line, line, pad, side_by_side, wrap
from engine_ctl.model import EngineLoad, RankLoad, UnitView

LATENCIES = {
    "ttft": "first token",
    "itl": "between tokens",
    "queue": "in the queue",
    "e2e": "whole request",
}
TRENDS = (
    ("running", "running", "", 1.0),
    ("waiting", "waiting", "", 1.0),
    ("kv_cache_usage", "KV cache", "%", 100.0),
    ("tokens_per_second", "generation", "tok/s", 1.0),
    ("prompt_tokens_per_second", "prompt", "tok/s", 1.0),
    ("prefix_hit_rate", "prefix hits", "%", 100.0),
    ("preemptions_per_second", "preemptions", "/s", 1.0),
    ("ttft_p95", "first token p95", "ms", 1000.0),
    ("itl_p95", "between tokens p95", "ms", 1000.0),
)
_TALLEST = 4
_RECENT = 120
_INDENT = 9
_ROOMY = 26  # rows from which on a blank one between hints and figures costs nothing
EXTRAS = {
    "prefill_mean_s": ("prefill, mean", "s"),
    "decode_mean_s": ("decode, mean", "s"),
    "tokens_per_step": ("tokens a step", ""),
    "spec_acceptance": ("speculation accepted", "%"),
    "spec_mean_length": ("speculation, mean length", ""),
    "external_prefix_hit_rate": ("hits in an external cache", "%"),
    "mm_hit_rate": ("multimodal cache hits", "%"),
    "kv_offload_load_bytes_per_second": ("KV offload, loaded", "B/s"),
    "kv_offload_store_bytes_per_second": ("KV offload, stored", "B/s"),
    "kv_offload_failures": ("KV offload failures", ""),
    "kv_offload_skipped": ("KV not offloaded", ""),
    "kv_offload_dropped": ("KV blocks dropped by a lower tier", ""),
    "kv_tier_failures": ("failed moves between tiers", ""),
    "kv_offload_usage": ("KV in host memory", "%"),
    "kv_transfer_bytes_per_second": ("KV from and to engines", "B/s"),
    "kv_transfer_failures": ("failed KV transfers", ""),
    "kv_expired": ("requests whose KV expired", ""),
    "hisparse_hit_rate": ("HiSparse hits", "%"),
    "hisparse_host_usage": ("HiSparse KV in host memory", "%"),
    "kv_cache_size_tokens": ("KV cache", "tokens"),
    "kv_cache_max_concurrency": ("full-length requests at once", ""),
    "lora_max": ("LoRA slots", ""),
    "lora_running": ("LoRA running", ""),
    "lora_waiting": ("LoRA waiting", ""),
    "corrupted_requests": ("corrupted requests", ""),
}


def items(unit: UnitView, cells: int, height: int = 0) -> list[Item]:
    """Hints first, then the engine's figures, then history, as high as `height` rows in all leave
    room for. Of several ranks a table comes first, the figures of each last."""
    load = unit.load
    if load is None:
        text = "No figures: the engine does not answer on /metrics (not ready, or no stats asked)."
        lines = [line(Span("  " + told, "muted")) for told in wrap(text, max(cells - 4, 20))]
        return [Item(None, ((), *lines))]
    found = [Item(None, tuple(_hints(unit, cells)))]
    if not load.ranks and not any(load.history.values()):
        text = "  No figures yet: /metrics has not been read since this run became ready."
        found.append(Item(None, (clip_line(line(Span(text, "muted")), cells),)))
    rejected = _rejections(load)
    if rejected:
        found.append(Item(None, (clip_line(rejected, cells),)))
    if height >= _ROOMY and sum(len(item.lines) for item in found) > 1:
        found.append(Item(None, ((),)))
    each = [
        Item(f"rank {rank.engine}", tuple(_rank(rank, len(load.ranks), cells)))
        for rank in load.ranks
    ]
    several = len(each) > 1
    found += [Item("ranks", tuple(ranks.table(load, cells)))] if several else each
    above = sum(len(item.lines) for item in found)
    history = _history(load.history, cells, height - above - 1)
    found.append(Item("history", (*history, ()) if several and history else tuple(history)))
    return [*found, *each] if several else found


def _hints(unit: UnitView, cells: int) -> list[Line]:
    lines: list[Line] = [()]
    for index, hint in enumerate(unit.hints):
        label = "" if index else " hints" if len(unit.hints) > 1 else " hint"
        first, *rest = wrap(clean(hint), max(cells - _INDENT - 1, 20)) or [""]
        lines.append(line(Span(f"{label:<{_INDENT}}", "title"), Span(first)))
        lines += [line(Span(" " * _INDENT + text)) for text in rest]
    if unit.load and unit.load.healthy is False:
        text = " ✗ /health does not answer 200: the figures may be frozen"
        lines.append(line(Span(text, "error")))
    return lines


def _rejections(load: EngineLoad) -> Line:
    if not load.rejections:
        return ()
    texts = [f"{clean(reason)} {n.count(value)}" for reason, value in load.rejections.items()]
    return line(Span(" ⚠ refused in the last minute: ", "warn"), Span(", ".join(texts), "warn"))


def _rank(rank: RankLoad, of: int, cells: int) -> list[Line]:
    name = f" rank {clean(rank.engine)} " if of > 1 else " now "
    facts: list[Line] = [(Span("running ", "muted"), Span(n.count(rank.running), "bold"))]
    waiting = "warn" if rank.waiting else "bold"
    spans = [Span("waiting ", "muted"), Span(n.count(rank.waiting), waiting)]
    reasons = [f"{clean(k)} {n.count(v)}" for k, v in rank.waiting_by_reason.items() if v]
    if reasons:
        spans.append(Span(f" ({', '.join(reasons)})", "warn"))
    facts.append(tuple(spans))
    rate = rank.preemptions_per_second
    told = n.count(rank.preemptions) + (f" ({rate:.1f}/s)" if rate else "")
    facts.append((Span("preempted ", "muted"), Span(told, "warn" if rate else "")))
    kv = "warn" if (rank.kv_cache_usage or 0) > 0.95 else "bold"
    facts.append((Span("KV ", "muted"), Span(n.percent(rank.kv_cache_usage) + " %", kv)))
    if rank.sleep_state not in (None, "awake"):
        facts.append((Span(f"z asleep: {clean(rank.sleep_state or '')}", "info"),))
    lines = side_by_side(Span(f"{name:<{_INDENT}}", "title"), facts, cells)
    lines += side_by_side(
        Span(" " * _INDENT),
        [
            (Span("generation ", "muted"), Span(n.count(rank.tokens_per_second) + " tok/s")),
            (Span("prompt ", "muted"), Span(n.count(rank.prompt_tokens_per_second) + " tok/s")),
            (Span("prefix hits ", "muted"), Span(n.percent(rank.prefix_hit_rate) + " %")),
        ],
        cells,
    )
    lines += _latencies(rank, cells)
    lines += _extras(rank.extra, cells)
    return [*lines, ()]


def _latencies(rank: RankLoad, cells: int) -> list[Line]:
    known = [name for name in LATENCIES if rank.percentiles.get(name)]
    if not known:
        return []
    labels = list(dict.fromkeys(label for name in known for label in rank.percentiles[name]))
    said = (["mean"] if rank.means else []) + labels
    head = " " * _INDENT + pad("last minute", 16) + "".join(pad(label, 11, True) for label in said)
    lines: list[Line] = [line(Span(head, "muted"))]
    for name in known:
        spans = [Span(" " * _INDENT + pad(LATENCIES[name], 16))]
        if rank.means:
            spans.append(Span(pad(n.milliseconds(rank.means.get(name)), 11, True)))
        for label in labels:
            spans.append(Span(pad(ranks.latency(rank, name, label), 11, True)))
        lines.append(clip_line(spans, cells))
    return lines


def _extras(extra: Mapping[str, float | str], cells: int) -> list[Line]:
    texts: list[str] = []
    for key, (name, unit) in EXTRAS.items():
        if key in extra and extra[key] != "":
            each = _positions(extra) if key == "spec_acceptance" else ""
            texts.append(f"{name} {_value(extra[key], unit)}{each}")
    texts += [
        f"finished by {clean(key.removeprefix('finished_'))} {_value(value, '')}"
        for key, value in extra.items()
        if key.startswith("finished_") and value
    ]
    room = max(cells - _INDENT - 1, 20)
    wrapped = wrap(" · ".join(text.replace(" ", "\u00a0") for text in texts), room)
    return [line(Span(" " * _INDENT + text, "muted")) for text in wrapped]


def _positions(extra: Mapping[str, float | str]) -> str:
    """Acceptance of the first drafted token, the second, …: where drafting on gives nothing."""
    keys = [f"spec_acceptance_at_{place}" for place in range(len(extra))]
    shares = [n.percent(value) for key in keys if isinstance(value := extra.get(key), float)]
    return f" ({' '.join(shares)} by position)" if len(shares) > 1 else ""


def _value(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return clean(value)
    if unit == "%":
        return f"{n.percent(value, 1)} %"
    if unit == "s":
        return n.milliseconds(value)
    if unit == "B/s":
        return f"{n.size(value)}/s"
    figure = f"{value:.2f}" if value < 100 and value != int(value) else n.count(value)
    return f"{figure} {unit}".rstrip()


def _history(history: Mapping[str, Sequence[float]], cells: int, rows: int) -> list[Line]:
    """Each figure as it went; with rows to spare higher, and with the largest value beneath."""
    known = [trend for trend in TRENDS if any(v == v for v in history.get(trend[0], ()))]
    if not known:
        return []
    each = max(1, min(rows // len(known), _TALLEST + 1))
    tall = each - (each > 2)
    both = cells >= 110 and any(history.get(f"hour.{key}") for key, *_ in TRENDS)
    room = max(10, (cells - 36) // (2 if both else 1) - 4)
    titles = " " * 22 + pad("now", 12, True) + "  " + pad("last two minutes", room)
    lines: list[Line] = [line(Span(titles + ("  up to an hour" if both else ""), "muted"))]
    for key, name, unit, scale in known:
        values, hour = _two_minutes(history[key]), history.get(f"hour.{key}", ())
        top = 1.0 if unit == "%" else None
        drawn = tall_sparkline(values, room, tall, top)
        past = [""] * tall
        if both and any(value == value for value in hour):
            past = tall_sparkline(hour, room, tall, top)
        most = top or highest(values)
        for row, (now, before) in enumerate(zip(drawn, past, strict=True)):
            left = [Span(" " * 34)]
            if row == 0:
                figure = Span(pad(_figure(values[-1], unit, scale), 12, True), "bold")
                left = [Span(pad(f"   {name}", 22)), figure]
            elif row == 1:
                word = "of" if top else "most"
                left = [Span(pad(f"{word} {_figure(most, unit, scale)}", 34, True), "muted")]
            spans = [*left, Span("  " + pad(now, room, True), "accent")]
            if before:
                spans.append(Span("  " + pad(before, room, True), "muted"))
            lines.append(clip_line(spans, cells))
        if each > tall:
            lines.append(())
    return lines


def _two_minutes(values: Sequence[float]) -> Sequence[float]:
    """The seconds before the first value are unknown: a second is as wide as it will be."""
    return (*(nan,) * (_RECENT - len(values)), *values)


def _figure(value: float, unit: str, scale: float) -> str:
    if unit == "ms":
        return n.milliseconds(value)
    now = value * scale
    text = n.count(now) if now != now or scale != 1 or now >= 10 else f"{now:.3g}"
    return f"{text} {unit}".rstrip()
