"""The run's `clock` file: when the log had which size (docs/architecture.md).

Log stamps have steps of one second and no year; the clock's pairs of (milliseconds since the
run's start, log size in bytes) place every byte of the log within a quarter of a second."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from engine_ctl.atomic import regular_bytes

_PAIR = struct.Struct("<QQ")


class Clock:
    """Maps an offset in the log to seconds since the run's start."""

    __slots__ = ("_seconds", "_sizes")

    def __init__(self, pairs: Iterable[tuple[float, int]]) -> None:
        """`pairs` of (seconds since start, log size in bytes), in the order they were written."""
        self._sizes: list[int] = []
        self._seconds: list[float] = []
        for seconds, size in pairs:
            if self._sizes and (size <= self._sizes[-1] or seconds < self._seconds[-1]):
                continue
            self._sizes.append(size)
            self._seconds.append(seconds)

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def seconds_at(self, offset: int) -> float | None:
        """When the byte at `offset` was in the log: the first note of a larger size. None when
        the clock had stopped by then."""
        index = bisect_right(self._sizes, offset)
        return self._seconds[index] if index < len(self._seconds) else None


def parse_clock(data: bytes) -> Clock:
    """A clock out of its file's bytes; a torn last pair is ignored."""
    whole = len(data) - len(data) % _PAIR.size
    return Clock((ms / 1000.0, size) for ms, size in _PAIR.iter_unpack(data[:whole]))


def read_clock(path: Path) -> Clock | None:
    """The clock of a run, None when there is none or it is empty."""
    try:
        data = regular_bytes(path)
    except OSError:
        return None
    return parse_clock(data) or None
