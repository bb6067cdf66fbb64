"""Medians and spreads of repeated measurements, and what counts as noise. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Stat(msgspec.Struct, frozen=True):
    """A figure measured `n` times: its median, least and greatest value."""

    median: float
    low: float
    high: float
    n: int

    @property
    def spread(self) -> float | None:
        """Half the range as a share of the median; None when it was measured once only."""
        if self.n < 2 or not self.median:
            return None
        return (self.high - self.low) / 2 / abs(self.median)


def stat(values: Sequence[float | None]) -> Stat | None:
    """The statistic of the known values; None when none is known."""
    known = sorted(value for value in values if value is not None and value == value)
    if not known:
        return None
    return Stat(median(known), known[0], known[-1], len(known))


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle. Raises ValueError without values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("the median of nothing")
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def within_noise(one: Stat | None, other: Stat | None) -> bool | None:
    """Whether the measured ranges overlap, so that the difference may be chance.

    None when it cannot be told: a figure is unknown, or both were measured once only."""
    if one is None or other is None or (one.n < 2 and other.n < 2):
        return None
    return one.low <= other.high and other.low <= one.high
