"""Counters and histograms accumulated over a window of time, and over restarts.

Times are monotonic seconds. A restart of the engine is a reset: counters start again at 0 and no
rate is ever negative.
"""

from __future__ import annotations

from collections import deque

from engine_ctl.metrics.quantile import Quantile, quantile
from engine_ctl.metrics.sample import Histogram

WINDOW_S = 60.0
RATE_S = 3.0
QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
LATENCIES = ("ttft", "itl", "e2e", "queue")


class Totals:
    """Counters made monotonic over resets, kept for a window of time."""

    def __init__(self) -> None:
        self._offsets: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._points: deque[tuple[float, dict[str, float]]] = deque()

    def fell(self, counters: dict[str, float]) -> bool:
        """True when any counter stands below its last value: the server started again."""
        last = self._last
        return any(value < last.get(name, value) for name, value in counters.items())

    def reset(self) -> None:
        for name, value in self._last.items():
            self._offsets[name] = self._offsets.get(name, 0.0) + value
        self._last = {}

    def add(self, at: float, counters: dict[str, float]) -> None:
        offsets = self._offsets
        if offsets:
            now = {name: value + offsets.get(name, 0.0) for name, value in counters.items()}
        else:
            now = dict(counters)
        self._last = dict(counters)
        self._points.append((at, now))
        while len(self._points) > 2 and self._points[1][0] <= at - WINDOW_S:
            self._points.popleft()

    def since(self, seconds: float) -> tuple[float, dict[str, float], dict[str, float]] | None:
        """(elapsed, then, now) over the newest stretch of at least `seconds`, or of all there is;
        None with fewer than two points."""
        if len(self._points) < 2:
            return None
        at, now = self._points[-1]
        base = self._points[0]
        for point in reversed(self._points):
            if point[0] <= at - seconds:
                base = point
                break
        elapsed = at - base[0]
        return None if elapsed <= 0 else (elapsed, base[1], now)

    def increase(self, name: str, seconds: float) -> float | None:
        span = self.since(seconds)
        if span is None or name not in span[2]:
            return None
        # Absent before: a labelled series that appears with its first event starts at 0.
        return span[2][name] - span[1].get(name, 0.0)

    def rate(self, name: str, seconds: float = RATE_S) -> float | None:
        """Increase per second, never negative; None while unknown."""
        span = self.since(seconds)
        if span is None or name not in span[2]:
            return None
        return max(0.0, span[2][name] - span[1].get(name, 0.0)) / span[0]

    def ratio(self, part: str, whole: str, seconds: float = WINDOW_S) -> float | None:
        """Share of `part` in `whole` over the window; None when nothing was counted (0/0)."""
        over = self.increase(whole, seconds)
        if not over or over <= 0:
            return None
        return min(1.0, max(0.0, (self.increase(part, seconds) or 0.0) / over))

    def share(self, part: str, rest: str) -> float | None:
        """Share of `part` in `part` and `rest` together over the window; None for 0/0."""
        own, others = (self.increase(name, WINDOW_S) for name in (part, rest))
        if own is None or others is None or own + others <= 0:
            return None
        return max(0.0, own / (own + others))

    def mean(self, name: str) -> float | None:
        """Mean of a histogram's observations (its `.sum` and `.count`) over the window; None when
        nothing was observed in it."""
        count = self.increase(f"{name}.count", WINDOW_S)
        total = self.increase(f"{name}.sum", WINDOW_S)
        return None if not count or count < 0 or total is None else max(0.0, total / count)


class Latencies:
    """Histograms of the last minute, from differences of cumulative counts."""

    def __init__(self) -> None:
        self._points: dict[str, deque[tuple[float, Histogram]]] = {}
        self._cached: dict[
            str, tuple[tuple[float, ...], tuple[float, ...], dict[str, Quantile]]
        ] = {}

    def reset(self, at: float) -> None:
        """Start again: what the server counts from now on is all new."""
        for name, points in self._points.items():
            edges = points[-1][1].edges
            self._points[name] = deque([(at, Histogram(edges, (0.0,) * len(edges)))])

    def fell(self, histograms: dict[str, Histogram]) -> bool:
        for name, points in self._points.items():
            new, old = histograms.get(name), points[-1][1]
            if new is not None and new.counts and old.counts:
                if new.edges != old.edges:
                    return True
                if new.counts[-1] < old.counts[-1]:
                    return True
        return False

    def add(self, at: float, histograms: dict[str, Histogram]) -> None:
        for name in LATENCIES:
            histogram = histograms.get(name)
            if histogram is None or not histogram.counts:
                continue
            points = self._points.setdefault(name, deque())
            if points and points[-1][1].edges != histogram.edges:
                # Other buckets (--custom-histogram-buckets): another server, counts from 0.
                points.clear()
                points.append((at, Histogram(histogram.edges, (0.0,) * len(histogram.edges))))
            points.append((at, histogram))
            while len(points) > 2 and points[1][0] <= at - WINDOW_S:
                points.popleft()

    def quantiles(self, name: str) -> dict[str, Quantile]:
        """{"p50": …} of the window; empty when nothing was observed in it."""
        points = self._points.get(name)
        if not points or len(points) < 2:
            return {}
        first, last = points[0][1], points[-1][1]
        cached = self._cached.get(name)
        if cached is not None and cached[0] == first.counts and cached[1] == last.counts:
            return cached[2]
        counts = [new - old for new, old in zip(last.counts, first.counts, strict=True)]
        found = {}
        for label, q in QUANTILES:
            value = quantile(last.edges, counts, q)
            if value is not None:
                found[label] = value
        self._cached[name] = (first.counts, last.counts, found)
        return found
