"""An hour of values, one a second, in fixed memory (4 bytes a value)."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

HOUR = 3600


class Ring:
    """The newest `size` values of one metric. NaN stands for a second without a value."""

    __slots__ = ("_count", "_next", "_values", "size")

    def __init__(self, size: int = HOUR) -> None:
        self.size = size
        self._values = array("f", [math.nan]) * size
        self._next = 0
        self._count = 0

    def push(self, value: float | None) -> None:
        self._values[self._next] = math.nan if value is None else value
        self._next = (self._next + 1) % self.size
        self._count = min(self._count + 1, self.size)

    def __len__(self) -> int:
        return self._count

    def last(self, count: int) -> tuple[float, ...]:
        """The newest `count` values, oldest first; fewer when there are not so many yet."""
        count = max(0, min(count, self._count))
        start = (self._next - count) % self.size
        if start + count <= self.size:
            return tuple(self._values[start : start + count])
        tail = self._values[start:]
        return tuple(tail + self._values[: count - len(tail)])


def thin(values: Sequence[float], points: int) -> tuple[float, ...]:
    """At most `points` means of equal stretches of `values`; NaN only where all are NaN."""
    if points <= 0:
        return ()
    if len(values) <= points:
        return tuple(values)
    thinned = []
    for index in range(points):
        stretch = values[index * len(values) // points : (index + 1) * len(values) // points]
        known = [value for value in stretch if value == value]
        thinned.append(sum(known) / len(known) if known else math.nan)
    return tuple(thinned)
