"""Samples over time: the load of an engine now, an hour of history, stalls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine_ctl.metrics.accumulate import LATENCIES, WINDOW_S, Latencies, Totals
from engine_ctl.metrics.extras import extras
from engine_ctl.metrics.history import HOUR, Ring, thin
from engine_ctl.metrics.sample import Lora, RankSample, Sample
from engine_ctl.model import EngineLoad, RankLoad

RECENT = 120
PEAK_S = 10.0
HISTORY = (
    "running",
    "waiting",
    "kv_cache_usage",
    "tokens_per_second",
    "prompt_tokens_per_second",
    "preemptions_per_second",
    "prefix_hit_rate",
    "ttft_p95",
    "itl_p95",
)


class RankWindow:
    """One rank's past."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.latencies = Latencies()
        self.newest: RankSample | None = None
        self.moved_at: float | None = None
        self._running: deque[tuple[float, float]] = deque()
        self._progress: float | None = None

    def add(self, sample: RankSample, at: float, restarted: bool) -> None:
        counters = _flat_counters(sample)
        if restarted or self.totals.fell(counters) or self.latencies.fell(sample.histograms):
            self.totals.reset()
            self.latencies.reset(at)
            self._progress = None
        self.totals.add(at, counters)
        self.latencies.add(at, sample.histograms)
        self._watch_progress(sample, at)
        self._running.append((at, sample.gauges.get("running", 0.0)))
        while self._running[0][0] < at - PEAK_S:
            self._running.popleft()
        self.newest = sample

    def _watch_progress(self, sample: RankSample, at: float) -> None:
        busy = sample.gauges.get("running", 0) > 0 or sample.gauges.get("waiting", 0) > 0
        steps = sample.histograms.get("iteration_tokens")
        progress = (
            sample.counters.get("generation_tokens", 0.0)
            + sample.counters.get("prompt_tokens", 0.0)
            + ((steps.count or 0.0) if steps is not None else 0.0)
        )
        asleep = sample.sleep_state not in (None, "awake")
        if not busy or asleep or progress != self._progress:
            self.moved_at = at
        self._progress = progress

    def load(self, lora: Lora | None, one_server: bool) -> RankLoad | None:
        """`one_server`: each step of the engine is counted once, not by every API server that has
        requests in it."""
        sample = self.newest
        if sample is None:
            return None
        gauges, totals = sample.gauges, self.totals
        percentiles: dict[str, dict[str, float]] = {}
        over: list[str] = []
        under: dict[str, float] = {}
        for name in LATENCIES:
            found = self.latencies.quantiles(name)
            if found:
                percentiles[name] = {label: value.value for label, value in found.items()}
                over += [f"{name}.{label}" for label, value in found.items() if value.over]
                under |= {
                    f"{name}.{label}": value.under
                    for label, value in found.items()
                    if value.under is not None
                }
        preemptions = sample.counters.get("preemptions")
        return RankLoad(
            engine=sample.engine,
            running=_whole(gauges.get("running")),
            waiting=_whole(gauges.get("waiting")),
            waiting_by_reason={
                reason: int(value)
                for reason, value in sample.labelled.get("waiting_by_reason", {}).items()
            },
            kv_cache_usage=gauges.get("kv_cache_usage"),
            prefix_hit_rate=totals.ratio("prefix_hits", "prefix_queries"),
            prompt_tokens_per_second=self._tokens("prompt_tokens", "prompt_tokens_per_second"),
            tokens_per_second=self._tokens("generation_tokens", "tokens_per_second"),
            preemptions_per_second=totals.rate("preemptions"),
            preemptions=_whole(preemptions),
            sleep_state=sample.sleep_state,
            percentiles=percentiles,
            over=tuple(over),
            under=under,
            means={name: mean for name in percentiles if (mean := totals.mean(name)) is not None},
            extra=extras(sample, totals, lora, one_server)
            | {"running_peak": max(running for _, running in self._running)},
        )

    def _tokens(self, counter: str, old_gauge: str) -> float | None:
        """Tokens per second; after a first answer only the 0 of an engine without requests is
        known. V0 servers said the rate themselves."""
        assert self.newest is not None
        gauges, rate = self.newest.gauges, self.totals.rate(counter)
        if rate is None:
            rate = gauges.get(old_gauge)
        if rate is None and gauges.get("running") == 0 and gauges.get("waiting") == 0:
            return 0.0
        return rate


class EngineWindow:
    """One engine's past over all its restarts. Feed it one `tick` a second."""

    def __init__(self, history: int = HOUR) -> None:
        self._ranks: dict[str, RankWindow] = {}
        self._rejections = Totals()
        self._process_start: float | None = None
        self._sample: Sample | None = None
        self._sample_at = 0.0
        self._restarted = False
        self._rings = {name: Ring(history) for name in HISTORY}
        self._hour: dict[str, tuple[float, ...]] = {}
        self._ticks = 0

    def restart(self) -> None:
        """The caller knows that the next sample comes from another process."""
        self._restarted = True
        self._sample = None
        for rank in self._ranks.values():
            rank.newest = None

    def add(self, sample: Sample, at: float) -> None:
        """One answer of /metrics at monotonic time `at`."""
        restarted = self._restarted or (
            sample.process_start is not None
            and self._process_start is not None
            and sample.process_start != self._process_start
        )
        self._restarted = False
        self._process_start = sample.process_start
        for rank in sample.ranks:
            self._ranks.setdefault(rank.engine, RankWindow()).add(rank, at, restarted)
        seen = {rank.engine for rank in sample.ranks}
        for engine, window in self._ranks.items():
            if engine not in seen:
                window.newest = None
        if restarted or self._rejections.fell(sample.rejections):
            self._rejections.reset()
        self._rejections.add(at, sample.rejections)
        self._sample, self._sample_at = sample, at

    def load(self, wall: float, now: float, healthy: bool | None) -> EngineLoad | None:
        """What is known now; None before the first answer. `wall` is the answer's wall-clock
        time, `now` monotonic."""
        sample = self._sample
        if sample is None:
            return None
        one_server = sample.process_start is not None
        ranks = tuple(
            load
            for rank in sample.ranks
            if (load := self._ranks[rank.engine].load(sample.lora, one_server)) is not None
        )
        return EngineLoad(
            at=wall,
            ranks=ranks,
            running=_whole(_total(ranks, lambda rank: rank.running)),
            waiting=_whole(_total(ranks, lambda rank: rank.waiting)),
            kv_cache_usage=max(
                (rank.kv_cache_usage for rank in ranks if rank.kv_cache_usage is not None),
                default=None,
            ),
            tokens_per_second=_total(ranks, lambda rank: rank.tokens_per_second),
            prompt_tokens_per_second=_total(ranks, lambda rank: rank.prompt_tokens_per_second),
            healthy=healthy,
            rejections=self._rejection_rates(sample),
            stalled_s=self.stalled_s(now),
            stats_disabled=sample.stats_disabled,
        )

    def stalled_s(self, now: float) -> float | None:
        """Seconds for which some rank has had requests and moved no token; None: not stalled."""
        longest = max(
            (
                now - window.moved_at
                for window in self._ranks.values()
                if window.newest is not None
                and window.moved_at is not None
                and _busy(window.newest)
            ),
            default=0.0,
        )
        return longest if longest > 0 else None

    def tick(self, load: EngineLoad | None) -> None:
        """Append one second of history (unknown values when there is no load)."""
        values: dict[str, float | None] = dict.fromkeys(HISTORY)
        if load is not None:
            values |= {
                "running": load.running,
                "waiting": load.waiting,
                "kv_cache_usage": load.kv_cache_usage,
                "tokens_per_second": load.tokens_per_second,
                "prompt_tokens_per_second": load.prompt_tokens_per_second,
                "preemptions_per_second": _total(
                    load.ranks, lambda rank: rank.preemptions_per_second
                ),
                "prefix_hit_rate": _worst(load, "prefix_hit_rate"),
                "ttft_p95": _slowest(load, "ttft"),
                "itl_p95": _slowest(load, "itl"),
            }
        for name, ring in self._rings.items():
            ring.push(values[name])
        self._ticks += 1
        if self._ticks % 30 == 0:
            self._hour = {
                f"hour.{name}": thin(ring.last(HOUR), RECENT) for name, ring in self._rings.items()
            }

    def recent(self) -> dict[str, tuple[float, ...]]:
        """The last two minutes of each metric, and as `hour.<metric>` the last hour in 120 means
        (made anew every 30 s)."""
        return {name: ring.last(RECENT) for name, ring in self._rings.items()} | self._hour

    def history(self, metric: str, seconds: int = HOUR) -> tuple[float, ...]:
        """Up to an hour of one metric of HISTORY, one value a second. Raises KeyError."""
        return self._rings[metric].last(seconds)

    def _rejection_rates(self, sample: Sample) -> dict[str, float]:
        """Rejected requests by reason in the last minute."""
        found = {}
        for reason in sample.rejections:
            increase = self._rejections.increase(reason, WINDOW_S)
            if increase:
                found[reason] = increase
        return found


def _flat_counters(sample: RankSample) -> dict[str, float]:
    counters = dict(sample.counters)
    for name in ("finished", "spec_accepted_per_position"):
        for key, value in sample.labelled.get(name, {}).items():
            counters[f"{name}.{key}"] = value
    for name in (*LATENCIES, "prefill", "decode", "iteration_tokens", "kv_transfer_bytes"):
        histogram = sample.histograms.get(name)
        if histogram is not None and histogram.sum is not None and histogram.count is not None:
            counters[f"{name}.sum"], counters[f"{name}.count"] = histogram.sum, histogram.count
    return counters


def _busy(sample: RankSample) -> bool:
    return sample.gauges.get("running", 0) > 0 or sample.gauges.get("waiting", 0) > 0


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _total(ranks: tuple[RankLoad, ...], pick: Callable[[RankLoad], float | None]) -> float | None:
    known = [value for rank in ranks if (value := pick(rank)) is not None]
    return sum(known) if known else None


def _worst(load: EngineLoad, name: str) -> float | None:
    known = [value for rank in load.ranks if (value := getattr(rank, name)) is not None]
    return min(known, default=None)


def _slowest(load: EngineLoad, name: str) -> float | None:
    known = [
        rank.percentiles[name]["p95"]
        for rank in load.ranks
        if "p95" in rank.percentiles.get(name, {})
    ]
    return max(known, default=None)
