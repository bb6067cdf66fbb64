"""Log stamps as seconds: no year, no zone, one-second steps, clocks that are set back."""

from __future__ import annotations

import re

_STAMP = re.compile(r"(?:\d{4}-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_DAYS_BEFORE = (0, 0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)
_YEAR = 366 * 86400.0


def stamp_seconds(text: str) -> float | None:
    """Seconds since the start of a (leap) year, None when the text is no stamp."""
    found = _STAMP.match(text)
    if found is None:
        return None
    month, day, hour, minute, second = (int(found[index]) for index in range(1, 6))
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    fraction = float(f"0.{found[6]}") if found[6] else 0.0
    days = _DAYS_BEFORE[month] + day - 1
    return days * 86400.0 + hour * 3600.0 + minute * 60.0 + second + fraction


class Stamps:
    """Seconds since the first stamp (or since an anchor), never going back."""

    def __init__(self) -> None:
        self._zero: float | None = None

    def anchor(self, text: str, seconds: float) -> None:
        """Say what moment `text` stands for, so that later stamps count from the same zero."""
        stamp = stamp_seconds(text)
        if stamp is not None:
            self._zero = stamp - seconds

    def seconds(self, text: str | None, last: float) -> float | None:
        """The stamp on this log's own scale; None without a stamp, `last` when it went back."""
        stamp = None if text is None else stamp_seconds(text)
        if stamp is None:
            return None
        if self._zero is None:
            self._zero = stamp
        passed = stamp - self._zero
        if passed < -_YEAR / 2:  # the turn of a year
            passed += _YEAR
        return max(passed, last)
