"""The cheapest order of a sweep's points, and what a sweep will take. Pure.

Between two points an engine is restarted; what that costs differs: nothing when only the
benchmark differs, a restart, a new compilation, other weights. So settings that cost most vary
slowest: points that keep the weights of the running engine come first, and among those with equal
weights the ones that compile alike stand together.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine_ctl.tune.points import BENCH, profile_of
from engine_ctl.tune.stats import median
from profiles.costs import LIVE, NEW_RUNTIME, RELOAD
from profiles.diff import Change, diff
from profiles.model import Profile
from profiles.schema import ArgumentSchema


@dataclass(frozen=True, slots=True)
class Step:
    """What it takes to get from one point to the next."""

    restart: bool
    reload: bool = False
    compiles: bool = False


@dataclass(frozen=True, slots=True)
class Keys:
    """A point's place: equal `weights` share weights, equal `compiled` (and weights) share the
    compile cache, equal `engine` the running engine."""

    weights: Hashable
    compiled: Hashable
    engine: Hashable


def keys_of(
    base: Profile, points: Sequence[Mapping[str, Any]], schema: ArgumentSchema | None
) -> list[Keys]:
    """Each point's keys, by what its settings change against the base."""
    found = []
    for point in points:
        changes = diff(base, profile_of(base, point, schema), schema)
        found.append(
            Keys(
                weights=_key(changes, lambda c: c.cost in (RELOAD, NEW_RUNTIME)),
                compiled=_key(changes, lambda c: c.compile_miss),
                engine=_key(changes, lambda c: c.cost != LIVE),
            )
        )
    return found


def _key(changes: Sequence[Change], counts: Any) -> Hashable:
    return tuple(
        sorted((c.key, msgspec.json.encode(c.after).decode()) for c in changes if counts(c))
    )


def cheapest(
    base: Profile, points: Sequence[Mapping[str, Any]], schema: ArgumentSchema | None = None
) -> list[int]:
    """Indices of the points in the order to try them. Points like the running engine (`base`)
    come first in each group, else the order that was asked for holds."""
    keys = keys_of(base, points, schema)
    firsts: list[dict[Hashable, int]] = [{}, {}, {}]
    for index, key in enumerate(keys):
        for level, part in enumerate(_levels(key)):
            firsts[level].setdefault(part, index)

    def rank(index: int) -> tuple[Any, ...]:
        order: list[Any] = []
        key = keys[index]
        for level, (part, own) in enumerate(
            zip(_levels(key), (key.weights, key.compiled, key.engine), strict=True)
        ):
            order += [own != (), firsts[level][part]]
        return (*order, index)

    return sorted(range(len(points)), key=rank)


def _levels(key: Keys) -> tuple[Hashable, ...]:
    return (key.weights, (key.weights, key.compiled), (key.weights, key.compiled, key.engine))


def steps(
    base: Profile, points: Sequence[Mapping[str, Any]], schema: ArgumentSchema | None = None
) -> list[Step]:
    """What each point takes when they are tried in this order, from an engine with `base`.
    A compilation counts where no earlier point has made it."""
    keys = keys_of(base, points, schema)
    seen: set[Hashable] = {((), ())}
    before = Keys((), (), ())
    found = []
    for key in keys:
        cached = (key.weights, key.compiled)
        found.append(
            Step(
                restart=key.engine != before.engine,
                reload=key.weights != before.weights,
                compiles=cached not in seen,
            )
        )
        seen.add(cached)
        before = key
    return found


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is left of a sweep. `seconds` is None while nothing is known to judge by."""

    restarts: int
    reloads: int
    compilations: int
    seconds: float | None


def forecast(
    left: Sequence[Step], swaps: Sequence[float], benches: Sequence[float], ends: bool
) -> Forecast:
    """`left` are the steps to come, `swaps` and `benches` seconds that earlier ones took; `ends`:
    one more restart puts the last good profile back."""
    restarts = sum(step.restart for step in left) + ends
    seconds = None
    if not left and not ends:
        seconds = 0.0
    elif (swaps or not restarts) and (benches or not left):
        each = median(swaps) if swaps else 0.0
        bench = median(benches) if benches else 0.0
        seconds = round(restarts * each + len(left) * bench, 1)
    return Forecast(
        restarts=restarts,
        reloads=sum(step.reload for step in left),
        compilations=sum(step.compiles for step in left),
        seconds=seconds,
    )


def only_bench(point: Mapping[str, Any]) -> bool:
    return all(key.startswith(BENCH) for key in point)
