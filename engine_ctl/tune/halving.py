"""Successive halving: all points with short benches first, the better half with longer ones. Pure.

(Jamieson and Talwalkar, "Non-stochastic best arm identification", 2016.)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from engine_ctl.tune.goal import Goal
from engine_ctl.tune.settings import BenchSettings
from engine_ctl.tune.stats import Stat

RUNGS = 3
LEAST_REQUESTS = 8


def rungs(points: int, mode: str) -> int:
    """How many rounds a sweep of so many points has."""
    if mode != "halving":
        return 1
    return max(1, min(RUNGS, points.bit_length()))


def settings_of(asked: BenchSettings, rung: int, of: int) -> BenchSettings:
    """The last rung measures as asked; each earlier one half as many requests, once, and no
    fewer than the asked concurrency takes."""
    if rung >= of - 1:
        return asked
    share = 2 ** (of - 1 - rung)
    least = max(LEAST_REQUESTS, asked.concurrency or 0)
    requests = min(asked.requests, max(least, asked.requests // share))
    return msgspec.structs.replace(asked, requests=requests, repeats=1)


def ranked(
    goal: Goal, measured: Mapping[int, Mapping[str, Stat]], order: Sequence[int]
) -> list[int]:
    """Measured points, best first: those that meet the goal's conditions, then the others by how
    few they miss; by the goal's metric within each. Equal ones stay in `order`."""

    def rank(point: int) -> tuple[int, float]:
        stats = measured[point]
        score = goal.score(stats)
        return len(goal.missed(stats)), float("inf") if score is None else -score

    return sorted((p for p in order if p in measured), key=rank)


def survivors(
    goal: Goal, measured: Mapping[int, Mapping[str, Stat]], order: Sequence[int]
) -> list[int]:
    """The better half of the measured points (the larger half of an odd number), in `order`."""
    best = ranked(goal, measured, order)
    kept = set(best[: (len(best) + 1) // 2])
    return [point for point in order if point in kept]
