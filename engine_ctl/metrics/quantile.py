"""Percentiles out of cumulative histogram counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantile:
    """A percentile. `over`: it lies above `value`, the last finite edge of the histogram. `under`:
    that edge of the first bucket which it lies below, so that `value` is little more than a guess.
    """

    value: float
    over: bool = False
    under: float | None = None


def quantile(edges: Sequence[float], counts: Sequence[float], q: float) -> Quantile | None:
    """The `q` quantile (0..1) of a histogram with upper `edges` and cumulative `counts`.

    Linear inside a bucket, like PromQL's histogram_quantile; the first bucket starts at 0. In
    the +Inf bucket the answer is its lower edge, marked `over`. None for an empty histogram.
    """
    if not edges or len(edges) != len(counts):
        return None
    total = max(counts)
    if not total > 0:
        return None
    wanted = q * total
    lower, below = 0.0, 0.0
    for edge, count in zip(edges, counts, strict=True):
        # A scrape can meet the buckets of one observation half written: never go back.
        count = max(count, below)
        if count >= wanted and count > below:
            if math.isinf(edge):
                return Quantile(lower, over=True)
            share = max(0.0, wanted - below) / (count - below)
            start = lower if lower < edge else edge
            value = start + (edge - start) * share
            return Quantile(value, under=edge if edge == edges[0] else None)
        lower, below = edge, count
    return None
