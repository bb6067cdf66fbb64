"""Several logs as one, by the time of their records.

Rows are keys: the number of the log in the upper bits, the position in its file in the lower. Of
each log its last 64 MiB take part: a merge needs every line's time, and nobody compares more."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from threading import RLock

from engine_ctl.logs.index import BLOCK, lines_of
from engine_ctl.logs.index_file import LogFile
from engine_ctl.logs.search import Query
from engine_ctl.logs.stamps import stamp_seconds
from engine_ctl.logs.view import Choice, Opened, ViewScan

SHIFT = 48
MERGED_BYTES = 64 << 20
_STAMP = re.compile(rb"(?<!\d)(?:\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?")
_HEAD_BYTES = 240


def key_of(log: int, offset: int) -> int:
    """The key of a line."""
    return log << SHIFT | offset


def place_of(key: int) -> tuple[int, int]:
    """(number of the log, position) of a key."""
    return key >> SHIFT, key & ((1 << SHIFT) - 1)


class MergedRows:
    """Rows of several logs in the order of their times; a line without one follows the line
    before it. Has the look-ups of `index.RowIndex`."""

    first = 0

    def __init__(self, files: Sequence[LogFile], choice: Choice) -> None:
        self.files = tuple(files)
        self._scan = ViewScan(choice, False, Opened())
        self._keys: array[int] = array("Q")
        self._times: array[float] = array("d")
        self._last: list[float] = [0.0] * len(self.files)
        self._begun = [max(file.size - MERGED_BYTES, 0) for file in self.files]
        self._done = list(self._begun)
        self._waiting: list[tuple[float, int]] = []
        self._stamps: dict[bytes, float | None] = {}
        self._lock = RLock()
        self.complete = False

    @property
    def cut(self) -> bool:
        """Whether the beginning of a log was left out."""
        return any(self._begun)

    @property
    def share(self) -> float:
        whole = sum(file.size - begun for file, begun in zip(self.files, self._begun, strict=True))
        done = sum(at - begun for at, begun in zip(self._done, self._begun, strict=True))
        return min(done / whole, 1.0) if whole else 1.0

    at_top = True

    def step(self) -> bool:
        """Take one more block of one log; False when all that is there has been merged."""
        for log, file in enumerate(self.files):
            if self._done[log] < file.last_line(self._done[log]):
                self._take(log, file)
                return True
        self._publish()
        return False

    def grow(self) -> None:
        """Files grew: nothing to forget."""

    def _take(self, log: int, file: LogFile) -> None:
        block = self._done[log] // BLOCK
        start, data, _ = lines_of(file, block)
        wanted = set(self._scan.find(file, block).rows)
        last, offset = self._last[log], start
        for line in data.split(b"\n")[:-1]:
            if offset >= self._done[log]:
                last = max(self._time(line), last)
                if offset in wanted:
                    self._waiting.append((last, key_of(log, offset)))
            offset += len(line) + 1
        self._last[log] = last
        self._done[log] = max(offset, min((block + 1) * BLOCK, file.last_line(self._done[log])))

    def _time(self, line: bytes) -> float:
        found = _STAMP.search(line, 0, _HEAD_BYTES)
        if found is None:
            return 0.0
        text = found[0]
        if text not in self._stamps:
            if len(self._stamps) > 10000:
                self._stamps.clear()
            self._stamps[text] = stamp_seconds(text.decode())
        return self._stamps[text] or 0.0

    def _publish(self) -> None:
        self._waiting.sort()
        with self._lock:
            for time, key in self._waiting:
                self._keys.append(key)
                self._times.append(time)
        self._waiting = []
        self.complete = True

    # Looking up, as RowIndex

    @property
    def stop(self) -> int:
        return len(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def row(self, number: int) -> int | None:
        """The key of a row. Raises IndexError."""
        if number < 0:
            raise IndexError(number)
        return self._keys[number]

    def at(self, key: int) -> int:
        """The row of a key, else the row before its time."""
        with self._lock:
            if not self._keys:
                return 0
            try:
                return self._keys.index(key)
            except ValueError:
                log, offset = place_of(key)
                if log >= len(self.files):
                    return 0
                time = self._time(self.files[log].line(offset))
                return max(bisect_right(self._times, time) - 1, 0)

    def known(self, key: int) -> bool:
        return True

    def folded(self, number: int) -> int:
        return 0


class MergedHits:
    """The rows of a merge that match a query, found from the first row on."""

    def __init__(self, rows: MergedRows, query: Query) -> None:
        self._rows = rows
        self._query = query
        self._found: array[int] = array("I")
        self._next = 0

    @property
    def complete(self) -> bool:
        return self._next >= len(self._rows)

    @property
    def share(self) -> float:
        return self._next / len(self._rows) if len(self._rows) else 1.0

    def __len__(self) -> int:
        return len(self._found)

    def step(self) -> bool:
        """Look at some more rows; False when all were."""
        for number in range(self._next, min(self._next + 2000, len(self._rows))):
            log, offset = place_of(self._rows.row(number) or 0)
            if self._query.matches(self._rows.files[log].line(offset)):
                self._found.append(number)
            self._next = number + 1
        return not self.complete

    def grow(self) -> None:
        """Rows were added: the next steps take them."""

    def beside(self, key: int, forward: bool) -> int | None:
        """The key of the match after (or before) a row."""
        at = bisect_right(self._found, self._rows.at(key))
        if not forward:
            at = at - 1 - (at > 0 and self._found[at - 1] == self._rows.at(key))
        return self._rows.row(self._found[at]) if 0 <= at < len(self._found) else None

    def place(self, key: int) -> int:
        """How many matches there are up to a row."""
        return bisect_right(self._found, self._rows.at(key))
