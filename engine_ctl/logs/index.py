"""Which row of a log stands where, for files of gigabytes: sparse, incremental, from any place.

A file is cut into blocks of 256 KiB; of each only the number of rows that begin in it is kept
(16 bytes a block, 64 KiB a gigabyte), and a row's position is found by scanning its block again.
Counting starts at the block that is looked at and goes both ways, so rows are numbered from there:
row 0 is the first row of the first block, rows before it are negative. A number never changes
while the index grows in either direction.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from threading import RLock, local
from typing import NamedTuple, Protocol

from engine_ctl.logs.index_file import LogFile

BLOCK = 1 << 18
LOOKBACK = 1 << 14
"""How far before a block a scan may look for what its first line belongs to."""
_LONGEST = 1 << 20
_MORE = 4096
FEW = 64
_KEPT = 24
_AT_ONCE = 8


class Found(NamedTuple):
    """The rows that begin in one block: the positions of their lines.

    `more[i]` lines are folded behind row i within the block, `lead` lines at the block's start
    behind a line of an earlier block. `through`: no line begins in the block but such ones;
    `open`: the last line that is not folded is a row, so that the next block's go behind it."""

    rows: Sequence[int]
    more: Sequence[int] = ()
    lead: int = 0
    through: bool = False
    open: bool = False


class Scan(Protocol):
    """What is a row. A pure function of the bytes of a block, of `LOOKBACK` bytes before it and
    of the rest of the last line that begins in it."""

    def look(self, file: LogFile, block: int) -> Found | int:
        """The rows that begin in the block; only their number where that is cheaper to say."""

    def find(self, file: LogFile, block: int) -> Found:
        """The rows that begin in the block."""


class Lines(NamedTuple):
    """Whole lines: those that begin in one block, from position `start` on, and some before."""

    start: int
    data: bytes
    before: bytes = b""


class _Buffers(local):
    """One buffer a thread."""

    def __init__(self) -> None:
        self.data = bytearray(LOOKBACK + BLOCK + _MORE)
        # glibc learns from the first big block that is freed to keep such memory at hand: without
        # it every copy of a block faults its pages in anew, which costs more than the search.
        bytes(4 << 20)


_buffers = _Buffers()


def lines_of(file: LogFile, block: int, lookback: int = 0) -> Lines:
    """Read the lines that begin in a block. One longer than 1 MiB behind the block is cut."""
    low, high = block * BLOCK, min((block + 1) * BLOCK, file.size)
    base = max(low - max(lookback, 1), 0)
    buffer = _buffers.data
    view = memoryview(buffer)
    filled = file.read_into(view[: high - base + _MORE], base)
    first = low
    if low:
        first = base + buffer.find(b"\n", low - 1 - base, filled) + 1
        if first == base or first >= high:
            return Lines(high, b"")
    end = buffer.find(b"\n", high - 1 - base, filled)
    if end >= 0:
        data = bytes(view[first - base : end + 1])
    else:
        data = bytes(view[first - base : filled])
        at = base + filled
        while at < file.size and at - high < _LONGEST:
            more = file.read(at, 1 << 16)
            cut = more.find(b"\n") + 1
            data += more[:cut] if cut else more
            at += len(more) or _LONGEST
            if cut:
                break
    before = bytes(view[: first - base]) if lookback else b""
    if base:
        before = before.partition(b"\n")[2]
    return Lines(first, data, before)


class EveryLine:
    """Every line is a row; the last one counts without its newline."""

    def _window(self, file: LogFile, block: int) -> tuple[int, bytes]:
        """Each newline in it (but one at the end of the file) begins a line of the block."""
        low = max(block * BLOCK - 1, 0)
        return low, file.read(low, min((block + 1) * BLOCK, file.size) - 1 - low)

    def look(self, file: LogFile, block: int) -> int:
        _, data = self._window(file, block)
        return data.count(b"\n") + (block == 0 and file.size > 0)

    def find(self, file: LogFile, block: int) -> Found:
        low, data = self._window(file, block)
        lengths = list(map(len, data.split(b"\n")))
        lengths.pop()
        starts = array("Q", [end + low + at for at, end in enumerate(accumulate(lengths), 1)])
        if block == 0 and file.size > 0:
            starts.insert(0, 0)
        return Found(starts)


class RowIndex:
    """The rows of a file by number. One thread calls `step` and `grow`, any thread looks up."""

    def __init__(self, file: LogFile, scan: Scan, near: int | None = None) -> None:
        """`near`: the position to begin at; None: the end. Counts the first block at once."""
        self.file = file
        self.scan = scan
        self._lock = RLock()
        self._settled = file.last_line()
        place = min(self._settled if near is None else near, self._settled, max(file.size - 1, 0))
        self.origin = max(place, 0) // BLOCK
        self._down: array[int] = array("Q")
        self._up: array[int] = array("Q")
        self._few: dict[int, Found] = {}
        self._covered: dict[int, int] = {}
        self._recent: OrderedDict[int, Found] = OrderedDict()
        self._turn = False
        if file.size:
            self._down.append(self._count(self.origin))

    # Growing

    @property
    def blocks(self) -> int:
        """How many blocks the file has."""
        return -(-self.file.size // BLOCK)

    @property
    def complete(self) -> bool:
        """Whether every block has been counted."""
        return len(self._up) >= self.origin and self.origin + len(self._down) >= self.blocks

    @property
    def share(self) -> float:
        """How much of the file has been counted, of 1."""
        return min((len(self._up) + len(self._down)) / self.blocks, 1.0) if self.file.size else 1.0

    @property
    def at_top(self) -> bool:
        """Whether the rows of the file's beginning are known, so that numbers can be absolute."""
        return len(self._up) >= self.origin

    def step(self) -> bool:
        """Count one more block; False when there is none left."""
        below = self.origin + len(self._down) < self.blocks
        above = len(self._up) < self.origin
        if not (below or above):
            return False
        self._turn = not self._turn if below and above else below
        if self._turn:
            count = self._count(self.origin + len(self._down))
            with self._lock:
                self._down.append((self._down[-1] if self._down else 0) + count)
        else:
            count = self._count(self.origin - 1 - len(self._up))
            with self._lock:
                self._up.append((self._up[-1] if self._up else 0) + count)
        return True

    def grow(self) -> None:
        """The file grew: count its last blocks again, and some of the new ones."""
        changed = max(self._settled // BLOCK - self.origin, 0)
        self._settled = self.file.last_line(self._settled)
        if changed > len(self._down):
            return
        with self._lock:
            for block in [b for b in self._recent if b - self.origin >= changed]:
                del self._recent[block]
        total = self._down[changed - 1] if changed else 0
        counts: list[int] = []
        for block in range(
            self.origin + changed, min(self.origin + changed + _AT_ONCE, self.blocks)
        ):
            total += self._count(block)
            counts.append(total)
        with self._lock:
            del self._down[changed:]
            self._down.extend(counts)

    def again(self, start: int, end: int) -> None:
        """Count the blocks of a range of positions again (what is a row in them has changed)."""
        for block in range(start // BLOCK, max(end - 1, start) // BLOCK + 1):
            below = block >= self.origin
            at = block - self.origin if below else self.origin - 1 - block
            sums = self._down if below else self._up
            if at >= len(sums):
                continue
            with self._lock:
                self._recent.pop(block, None)
                delta = self._count(block) - (sums[at] - (sums[at - 1] if at else 0))
                for index in range(at, len(sums)):
                    sums[index] += delta

    def _count(self, block: int) -> int:
        if self.file.sparse and self.file.data_from(block * BLOCK) >= (block + 1) * BLOCK:
            self._keep(block, Found((), through=True))
            return 0
        found = self.scan.look(self.file, block)
        if isinstance(found, int):
            self._few.pop(block, None)
            self._covered.pop(block, None)
            return found
        self._keep(block, found)
        return len(found.rows)

    def _keep(self, block: int, found: Found) -> None:
        if len(found.rows) <= FEW:
            self._few[block] = found
        else:
            self._few.pop(block, None)
        if found.through:
            self._covered[block] = found.lead
        else:
            self._covered.pop(block, None)

    # Looking up

    @property
    def first(self) -> int:
        """The number of the first row known; it falls while the index grows upwards."""
        return -self._up[-1] if self._up else 0

    @property
    def stop(self) -> int:
        """The number behind the last row known."""
        return self._down[-1] if self._down else 0

    def __len__(self) -> int:
        with self._lock:
            return self.stop - self.first

    def _base(self, block: int) -> int:
        at = block - self.origin
        if at > 0:
            return self._down[min(at, len(self._down)) - 1] if self._down else 0
        return -self._up[min(-at, len(self._up)) - 1] if at and self._up else 0

    def _find(self, block: int) -> Found:
        found = self._few.get(block) or self._recent.get(block)
        if found is None:
            found = self.scan.find(self.file, block)
            self._recent[block] = found
            if len(self._recent) > _KEPT:
                self._recent.popitem(last=False)
        elif block in self._recent:
            self._recent.move_to_end(block)
        return found

    def _place(self, number: int) -> tuple[int, int]:
        """(block, index in the block) of a row. Raises IndexError."""
        if not self.first <= number < self.stop:
            raise IndexError(number)
        if number >= 0:
            at = bisect_right(self._down, number)
            return self.origin + at, number - (self._down[at - 1] if at else 0)
        at = bisect_left(self._up, -number)
        return self.origin - 1 - at, number + self._up[at]

    def row(self, number: int) -> int | None:
        """The position of a row's line; None when the file changed meanwhile.

        Raises IndexError for a number that is not known."""
        with self._lock:
            block, at = self._place(number)
            rows = self._find(block).rows
            return rows[at] if at < len(rows) else None

    def at(self, offset: int) -> int:
        """The number of the last row that begins at or before a position, within those known."""
        with self._lock:
            block = min(max(offset, 0), max(self.file.size - 1, 0)) // BLOCK
            block = max(block, self.origin - len(self._up))
            block = min(block, self.origin + len(self._down) - 1)
            if block < 0 or not self._down:
                return self.first
            number = self._base(block) + bisect_right(self._find(block).rows, offset) - 1
            return max(self.first, min(number, self.stop - 1))

    def known(self, offset: int) -> bool:
        """Whether the block of a position has been counted."""
        block = offset // BLOCK
        with self._lock:
            return self.origin - len(self._up) <= block < self.origin + len(self._down)

    def folded(self, number: int) -> int:
        """How many lines are folded behind a row."""
        with self._lock:
            block, at = self._place(number)
            found = self._find(block)
            if at >= len(found.more):
                return 0
            total = found.more[at]
            if at < len(found.rows) - 1 or not found.open:
                return total
            last = self.origin + len(self._down) - 1
            while (block := block + 1) <= last:
                covered = self._covered.get(block)
                if covered is None:
                    return total + self._find(block).lead
                total += covered
            return total
