"""What a merge of logs asks of them: their lines with times, in order; which of them match.

A row is a key: the number of the log in the upper bits, the position in its file in the lower."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple

from engine_ctl.logs.blocks import BLOCK, lines_of
from engine_ctl.logs.index_file import LogFile
from engine_ctl.logs.search import Query
from engine_ctl.logs.stamps import stamp_seconds
from engine_ctl.logs.view import Choice, Opened, ViewScan

SHIFT = 48
AT_ONCE = 50_000
"""Rows handed out at once: more would hold up the threads of the one who takes them."""
_STAMP = re.compile(rb"(?<!\d)(?:\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?")
_HEAD_BYTES = 240


def key_of(log: int, offset: int) -> int:
    """The key of a line."""
    return log << SHIFT | offset


def place_of(key: int) -> tuple[int, int]:
    """(number of the log, position) of a key."""
    return key >> SHIFT, key & ((1 << SHIFT) - 1)


class Take(NamedTuple):
    """Read the lines of one log that begin in a stretch of it; the size of the file meanwhile."""

    log: int
    begin: int
    end: int
    size: int


class Publish(NamedTuple):
    """Hand out rows of what has been read before, in the order of their times."""


class Published(NamedTuple):
    """Rows in the order of their times: their keys and times, of each log the numbers of its rows
    among them, and the newest times of the logs."""

    keys: array[int]
    times: array[float]
    numbers: tuple[array[int], ...]
    last: tuple[float, ...]
    more: bool
    """Whether there are more: to be asked for again."""


class Merging:
    """Reads the lines of several logs and puts them in order; `last` are the logs' newest times
    so far. A line without a time has that of the line before."""

    def __init__(self, choice: Choice, last: Sequence[float]) -> None:
        self._scan = ViewScan(choice, False, Opened())
        self._last = list(last)
        self._keys: list[array[int]] = [array("Q") for _ in last]
        self._times: list[array[float]] = [array("d") for _ in last]
        self._stamps = Stamps()
        self._merged: Iterator[tuple[float, int]] | None = None

    def do(self, files: Sequence[LogFile], wanted: Take | Publish) -> Published | None:
        """Of a `Take` nothing, of a `Publish` what is `Published`."""
        if isinstance(wanted, Publish):
            return self._publish()
        file = files[wanted.log]
        file.size = wanted.size
        for block in range(wanted.begin // BLOCK, -(-wanted.end // BLOCK)):
            self._take(file, block, wanted)
        return None

    def _take(self, file: LogFile, block: int, wanted: Take) -> None:
        start, data, _ = lines_of(file, block)
        chosen = set(self._scan.find(file, block).rows)
        keys, times = self._keys[wanted.log], self._times[wanted.log]
        last, offset = self._last[wanted.log], start
        for line in data.split(b"\n"):
            if offset >= wanted.end:
                break
            if offset >= wanted.begin:
                last = max(self._stamps.of(line), last)
                if offset in chosen:
                    keys.append(key_of(wanted.log, offset))
                    times.append(last)
            offset += len(line) + 1
        self._last[wanted.log] = last

    def _publish(self) -> Published:
        if self._merged is None:
            parts = [zip(t, k, strict=True) for t, k in zip(self._times, self._keys, strict=True)]
            self._merged = merge(*parts)
            self._keys = [array("Q") for _ in parts]
            self._times = [array("d") for _ in parts]
        keys, times = array("Q"), array("d")
        numbers = tuple(array("I") for _ in self._keys)
        for number, (time, key) in enumerate(islice(self._merged, AT_ONCE)):
            keys.append(key)
            times.append(time)
            numbers[key >> SHIFT].append(number)
        more = len(keys) == AT_ONCE
        if not more:
            self._merged = None
        return Published(keys, times, numbers, tuple(self._last), more)


class Stamps:
    """The times of lines: those of one second are read once."""

    def __init__(self) -> None:
        self._known: dict[bytes, float] = {}

    def of(self, line: bytes) -> float:
        """Seconds as `stamps.stamp_seconds` counts them, 0.0 when the line says no time."""
        found = _STAMP.search(line, 0, _HEAD_BYTES)
        if found is None:
            return 0.0
        text = found[0]
        known = self._known.get(text)
        if known is None:
            if len(self._known) > 10000:
                self._known.clear()
            known = self._known[text] = stamp_seconds(text.decode()) or 0.0
        return known


class Some(NamedTuple):
    """Rows of a merge to look at, from number `first` on, and the sizes of the files."""

    first: int
    keys: array[int]
    sizes: tuple[int, ...]


class Matching:
    """Which rows of a merge match a query."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def do(self, files: Sequence[LogFile], wanted: Some) -> array[int]:
        """The numbers of those that match."""
        found = array("I")
        for file, size in zip(files, wanted.sizes, strict=True):
            file.size = size
        for number, key in enumerate(wanted.keys, wanted.first):
            log, offset = place_of(key)
            if self._query.matches(files[log].line(offset)):
                found.append(number)
        return found
