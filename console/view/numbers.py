"""Numbers as operators read them: unknown is `–`, units are said, digits do not jump."""

from __future__ import annotations

import time
from collections.abc import Sequence

UNKNOWN = "–"
GIB = 1024**3


def gib(value: int | float | None) -> str:
    """Bytes as GiB with one decimal, without the unit."""
    return UNKNOWN if value is None else f"{value / GIB:.1f}"


def size(value: int | float | None) -> str:
    """Bytes with a unit that fits: `3.1 GiB`, `640 MiB`."""
    if value is None:
        return UNKNOWN
    if value >= GIB:
        return f"{value / GIB:.1f} GiB"
    if value >= 1024**2:
        return f"{value / 1024**2:.0f} MiB"
    return f"{value / 1024:.0f} KiB"


def count(value: int | float | None) -> str:
    """A whole number in groups of three: `3 412`."""
    return UNKNOWN if value is None or value != value else f"{value:,.0f}".replace(",", " ")


def counted_in(value: int | float | None, cells: int) -> str:
    """A whole number that fits: in groups, without, or in thousands, millions, …: `123k`. A figure
    that is cut off would read as a smaller one."""
    text = count(value)
    if len(text) <= cells or value is None:
        return text
    if len(text := text.replace(" ", "")) <= cells:
        return text
    scaled = float(value)
    for sign in "kMGT":
        scaled /= 1000
        if scaled >= 999.5 and sign != "T":
            continue
        for digits in (1, 0):
            if len(text := f"{scaled:.{digits}f}{sign}") <= cells:
                return text
    return text


def counted(value: int | float | None, noun: str) -> str:
    """`1 request`, `12 requests`, `3 412 requests`."""
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def ranges(numbers: Sequence[int]) -> str:
    """Numbers in ascending order, neighbours joined: `0-3,6`."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in found
    )


def percent(value: float | None, digits: int = 0) -> str:
    """A share of 1 as percent, without the sign."""
    return UNKNOWN if value is None or value != value else f"{value * 100:.{digits}f}"


def seconds(value: float | None) -> str:
    """A duration: `430 ms`, `12.4 s`, `3 m 10 s`, `2 h 10 m`, `4 d 2 h`."""
    if value is None or value != value:
        return UNKNOWN
    if value < 0.1:
        return f"{value * 1000:.0f} ms" if value > 0 else "0.0 s"
    if value < 99.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def age(value: float | None) -> str:
    """A duration in one unit at most two: for how long something is up. No tenths."""
    if value is None:
        return UNKNOWN
    whole = int(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return seconds(value)


def uptime(value: float | None) -> str:
    """For how long something is up: seconds in its first minute, then nothing that ticks."""
    if value is None or not 60 <= value < 3600:
        return age(value)
    return f"{int(value) // 60} m"


def milliseconds(value: float | None) -> str:
    """A latency given in seconds: `431 ms`, `2.1 s`."""
    if value is None or value != value:
        return UNKNOWN
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def wall(at: float | None, form: str) -> str:
    """Local wall-clock time in strftime's `form`; N/A for one that no calendar has."""
    try:
        return "N/A" if at is None else time.strftime(form, time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "N/A"


def clock(at: float) -> str:
    """Local wall-clock time of day."""
    return wall(at, "%H:%M:%S")


def moment(at: float | None, now: float) -> str:
    """Time of day, with the date when it was not today."""
    if at is None:
        return UNKNOWN
    today = wall(at, "%Y-%m-%d") == wall(now, "%Y-%m-%d")
    return wall(at, "%H:%M:%S" if today else "%d %b %H:%M")
