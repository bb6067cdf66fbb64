"""The units in another order than their own: by a column, what is largest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from engine_ctl.model import Phase, UnitView

_PHASES = {phase: rank for rank, phase in enumerate(Phase)}


class Sort(NamedTuple):
    """By which column, and whether from the largest down."""

    column: str
    down: bool


_VALUES: dict[str, Callable[[UnitView], Any]] = {
    "unit": lambda unit: unit.unit,
    "profile": lambda unit: unit.profile or None,
    "model": lambda unit: (unit.model or "").rsplit("/", 1)[-1] or None,
    "phase": lambda unit: None if unit.phase is None else _PHASES[unit.phase],
    "weights": lambda unit: str(unit.verdict) if unit.verdict else None,
    "gpu": lambda unit: unit.gpus or None,
    "port": lambda unit: unit.port,
    "running": lambda unit: unit.load and unit.load.running,
    "waiting": lambda unit: unit.load and unit.load.waiting,
    "kv": lambda unit: unit.load and unit.load.kv_cache_usage,
    "tokens": lambda unit: unit.load and unit.load.tokens_per_second,
    "up": lambda unit: unit.uptime_s,
    "start": lambda unit: unit.start_s,
}
_DOWN_FIRST = ("running", "waiting", "kv", "tokens", "up", "start")


def sorted_units(units: Sequence[UnitView], sort: Sort | None) -> tuple[UnitView, ...]:
    """In their order where there is no sort; what has no value comes last."""
    if sort is None:
        return tuple(units)
    value = _VALUES[sort.column]
    known = [unit for unit in units if value(unit) is not None]
    unknown = [unit for unit in units if value(unit) is None]
    return (*sorted(known, key=value, reverse=sort.down), *unknown)


def pressed(sort: Sort | None, column: str) -> Sort | None:
    """A click on a column's title: by it, then the other way round, then in their own order."""
    if column not in _VALUES:
        return sort
    first = Sort(column, column in _DOWN_FIRST)
    if sort is None or sort.column != column:
        return first
    return first._replace(down=not first.down) if sort == first else None


def beside(sort: Sort | None, columns: Sequence[str], step: int) -> Sort | None:
    """By the next column to a side; beyond the last one in their own order."""
    names = [name for name in columns if name in _VALUES]
    places: list[str | None] = [None, *names]
    now = sort.column if sort is not None and sort.column in names else None
    column = places[(places.index(now) + step) % len(places)]
    return None if column is None else pressed(None, column)
