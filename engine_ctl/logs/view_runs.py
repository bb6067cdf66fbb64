"""The logs of a unit's runs, found beside one of them (`runs/<n>/log`)."""

from __future__ import annotations

from pathlib import Path


def run_number(log: Path) -> int | None:
    """The number of the run whose log this is; None for a file that is no run's."""
    name = log.parent.name
    return int(name) if log.name == "log" and name.isdecimal() else None


def log_of(log: Path, number: int) -> Path:
    """The log of another run of the same unit."""
    return log.parent.parent / str(number) / "log"


def runs_beside(log: Path) -> tuple[int, ...]:
    """The numbers of the unit's runs that have a log, oldest first."""
    if run_number(log) is None:
        return ()
    try:
        numbers = [int(d.name) for d in log.parent.parent.iterdir() if d.name.isdecimal()]
    except OSError:
        return ()
    return tuple(sorted(n for n in numbers if log_of(log, n).exists()))
