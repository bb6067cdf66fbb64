"""How the deck shares its rows: alarms and the machine first, the log takes what is left."""

from __future__ import annotations

from typing import NamedTuple


class Rows(NamedTuple):
    """Rows of each part of the deck; they add up to the terminal's height."""

    machine: int
    alerts: int
    gap: int
    units: int
    events: int
    hint: int
    log: int


_FIXED = 3  # header, column titles, log title
AROUND_NOTHING = 5  # header, machine, column titles, an event, footer


def machine_limit(height: int) -> int:
    """The most rows that GPUs may take."""
    return max(2, height // 4)


def footer_rows(height: int) -> int:
    """Two where there is room: the selected unit's keys have one of their own."""
    return 2 if height >= 30 else 1


def gap_rows(height: int) -> int:
    """Blank rows before the units and before the events."""
    return 1 if height >= 30 else 0


def share(
    height: int,
    machine: int,
    alerts: int,
    units: int,
    events: int,
    hint: bool,
    log: bool = True,
) -> Rows:
    """Rows for each part of a deck `height` rows high, given the rows that each could use."""
    gap = gap_rows(height)
    left = height - _FIXED - footer_rows(height) - machine - alerts - 2 * gap - int(hint)
    log_floor = (1 if height < 20 else 3 if height < 30 else 6) if log else 0
    event_floor = min(events, 1 if height < 30 else 3)
    unit_rows = max(1, min(units, left - log_floor - event_floor))
    left -= unit_rows
    event_rows = max(0, min(events, left - log_floor, max(event_floor, height // 8)))
    left -= event_rows
    return Rows(machine, alerts, gap, unit_rows, event_rows, int(hint), max(left, 1))
