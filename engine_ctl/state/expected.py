"""forecast.json: what was expected of a start when its run was made."""

from __future__ import annotations

import msgspec

from engine_ctl import atomic
from engine_ctl.errors import Failed
from engine_ctl.state.store import Run

FILE = "forecast.json"


class ForecastRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict expected of the weights, and the memory that was expected to be needed and
    free, a line for each device. `values`: each field that differs, the daemon's value, the
    engine's. `check_s`: how long vLLM's own check of the arguments took."""

    schema: int = 1
    verdict: str | None = None
    reasons: list[str] = msgspec.field(default_factory=list)
    fields: list[str] = msgspec.field(default_factory=list)
    values: list[tuple[str, str, str]] = msgspec.field(default_factory=list)
    checked: bool = False
    check_s: float | None = None
    memory: list[str] = msgspec.field(default_factory=list)


def expected_memory(run: Run) -> tuple[str, ...]:
    """The lines about memory; () when nothing was kept."""
    record = _read(run)
    return tuple(record.memory) if record is not None else ()


def expected_check_s(run: Run) -> float | None:
    """Seconds of vLLM's own check; None when nobody was asked, or nothing was kept."""
    record = _read(run)
    return record.check_s if record is not None else None


def expected_reasons(run: Run) -> tuple[str, ...]:
    """Categories of the fall back that was expected; () when none was, or nothing was kept."""
    record = _read(run)
    return tuple(record.reasons) if record is not None else ()


def expected_values(run: Run) -> dict[str, tuple[str, str]]:
    """(the daemon's value, the engine's) of each field that was expected to differ."""
    record = _read(run)
    return {name: (daemon, engine) for name, daemon, engine in record.values} if record else {}


def _read(run: Run) -> ForecastRecord | None:
    try:
        return atomic.read_record(run.dir / FILE, ForecastRecord)
    except Failed:
        return None
