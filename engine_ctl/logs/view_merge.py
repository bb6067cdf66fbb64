"""Several logs as one, by the time of their records.

Of each log its last 64 MiB take part: a merge needs every line's time, and nobody compares more."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from threading import RLock

from engine_ctl.logs.blocks import BLOCK
from engine_ctl.logs.index_file import LogFile
from engine_ctl.logs.search import Query
from engine_ctl.logs.view import Choice
from engine_ctl.logs.view_merging import (
    Matching,
    Merging,
    Publish,
    Published,
    Some,
    Stamps,
    Take,
    place_of,
)

MERGED_BYTES = 64 << 20
_ROWS = 1000


class MergedRows:
    """Rows of several logs in the order of their times; a line without one follows the line
    before it. Has the look-ups of `index.RowIndex`."""

    first = 0
    version = 0
    too_slow = False

    def __init__(self, files: Sequence[LogFile], choice: Choice) -> None:
        self.files = tuple(files)
        self._choice = choice
        self._keys: array[int] = array("Q")
        self._times: array[float] = array("d")
        self._numbers = tuple(array("I") for _ in self.files)
        self._last: tuple[float, ...] = (0.0,) * len(self.files)
        self._begun = [max(file.size - MERGED_BYTES, 0) for file in self.files]
        self._asked = list(self._begun)
        self._done = list(self._begun)
        self._published = list(self._begun)
        self._publishing: tuple[int, list[int]] | None = None
        self._here: Merging | None = None
        self._stamps = Stamps()
        self._lock = RLock()
        self.may_not_end = choice.query is not None and choice.query.may_not_end
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

    @property
    def left(self) -> int:
        """How many blocks have not been read yet."""
        return sum(f.size - at for f, at in zip(self.files, self._done, strict=True)) // BLOCK

    @property
    def task(self) -> Merging:
        return Merging(self._choice, self._last)

    def ask(self, most: int) -> Take | Publish | None:
        """What to read next, at most so many blocks of one log; when all has been asked for, to
        see it; None when there is nothing to ask for."""
        if self._publishing is not None:
            return Publish()
        for log, file in enumerate(self.files):
            begin = self._asked[log]
            end = file.last_line(begin)
            if begin < end:
                self._asked[log] = min((begin // BLOCK + most) * BLOCK, end)
                return Take(log, begin, self._asked[log], file.size)
        if self.complete and self._asked == self._published:
            return None
        self._publishing = len(self._keys), list(self._asked)
        return Publish()

    def answer(self, wanted: Take | Publish, result: Published | None) -> None:
        """What became of a question; of a `Publish` there is a result."""
        if isinstance(wanted, Take):
            self._done[wanted.log] = wanted.end
            return
        assert result is not None
        with self._lock:
            base = len(self._keys)
            for known, new in zip(self._numbers, result.numbers, strict=True):
                known.extend(new if not base else array("I", [base + n for n in new]))
            self._keys.extend(result.keys)
            self._times.extend(result.times)
        if self._publishing is not None and not result.more:
            self._last = result.last
            self._published = self._publishing[1]
            self._publishing = None
            self.complete = True

    def ask_again(self) -> None:
        """Forget what was asked for and not seen whole."""
        if self._publishing is not None:
            with self._lock:
                whole = self._publishing[0]
                del self._keys[whole:], self._times[whole:]
                for numbers in self._numbers:
                    del numbers[bisect_left(numbers, whole) :]
            self._publishing = None
        self._asked, self._done = list(self._published), list(self._published)
        self._here = None

    def step(self) -> bool:
        """Read one more block of one log here; False when there is nothing left to do."""
        wanted = self.ask(1)
        if wanted is None:
            return False
        self._here = self._here or self.task
        self.answer(wanted, self._here.do(self.files, wanted))
        return True

    def grow(self) -> None:
        """Files grew: nothing to forget."""

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
        """The row of a key, else the row before it: in its log, else by its time."""
        with self._lock:
            log, offset = place_of(key)
            if not self._keys or log >= len(self.files):
                return 0
            numbers = self._numbers[log]
            place = bisect_right(numbers, key, key=self._keys.__getitem__) - 1
            if place >= 0:
                return numbers[place]
            time = self._stamps.of(self.files[log].line(offset))
            return max(bisect_right(self._times, time) - 1, 0)

    def keys(self, start: int, stop: int) -> array[int]:
        """The keys of some rows."""
        return self._keys[start:stop]

    def known(self, key: int) -> bool:
        return True

    def folded(self, number: int) -> int:
        return 0


class MergedHits:
    """The rows of a merge that match a query, found from the first row on."""

    version = 0
    too_slow = False

    def __init__(self, rows: MergedRows, query: Query) -> None:
        self._rows = rows
        self.files = rows.files
        self.task = Matching(query)
        self.may_not_end = query.may_not_end
        self._found: array[int] = array("I")
        self._asked = 0
        self._next = 0

    @property
    def complete(self) -> bool:
        return self._next >= len(self._rows)

    @property
    def share(self) -> float:
        return self._next / len(self._rows) if len(self._rows) else 1.0

    @property
    def left(self) -> int:
        """How many blocks there are still to look at, at 1000 rows a block."""
        return (len(self._rows) - self._next) // _ROWS

    def __len__(self) -> int:
        return len(self._found)

    def ask(self, most: int) -> Some | None:
        """The next rows to look at."""
        keys = self._rows.keys(self._asked, self._asked + most * _ROWS)
        if not keys:
            return None
        first, self._asked = self._asked, self._asked + len(keys)
        return Some(first, keys, tuple(file.size for file in self.files))

    def answer(self, wanted: Some, result: array[int]) -> None:
        self._found.extend(result)
        self._next = wanted.first + len(wanted.keys)

    def ask_again(self) -> None:
        """Forget what was asked for and not answered."""
        self._asked = self._next

    def step(self) -> bool:
        """Look at some more rows; False when all were."""
        wanted = self.ask(1)
        if wanted is None:
            return False
        self.answer(wanted, self.task.do(self.files, wanted))
        return True

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
